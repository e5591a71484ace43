"""The pizza example as docker-compose.yml runs it: the commands of its services are started as processes, on Kafka, S3 and PostgreSQL."""

from __future__ import annotations

import os
import re
import shlex
import ssl
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import boto3
import httpx
import pytest

from examples.pizza.data import SALES, load_sales, rushes_of
from tests.support.deployed import compose, entrypoint
from tests.support.processes import ROOT, WAIT_SECONDS, ending, free_port, kill_whole, serving, start, tail, wait_for
from tests.support.s3servers import versitygw
from tests.support.servers import kafka, postgres

pytestmark = [pytest.mark.spark, pytest.mark.slow]

DAYS = 7
PACE = "--days 365 --seconds-per-day 1"
"""Of the replay in docker-compose.yml."""
FAST = {"SLUICE_TRIGGER_SECONDS": "0.5", "SLUICE_COMMIT_INTERVAL_SECONDS": "1", "SLUICE_SPARK_MASTER": "local[1]"}


@dataclass
class Composed:
    """The services of docker-compose.yml on this machine. `places`: what stands for the hosts and paths of the containers, in order."""

    root: Path
    places: Mapping[str, str]
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def here(self, text: str) -> str:
        for there, here in self.places.items():
            text = text.replace(there, here)
        return text.replace("$$", "$")

    def environment(self, name: str) -> dict[str, str]:
        given = compose()["services"][name].get("environment", {})
        path = f"{self.root / 'bin'}:{os.environ['PATH']}"
        return {"PATH": path, "SLUICE_HOME": str(self.root / "volume"), **{key: self.here(str(value)) for key, value in given.items()}}

    def words(self, name: str) -> list[str]:
        service = compose()["services"][name]
        words = [*service.get("entrypoint", entrypoint()), *service["command"]]
        return [self.here(word) for word in words[2 if words[0] == "tini" else 0 :]]

    def run(self, name: str, *words: str) -> str:
        """Run the command of a service, or another one in its place, as `docker compose run` does. Returns its output."""
        command = [*self.words(name)[: -len(compose()["services"][name]["command"])], *words] if words else self.words(name)
        environment = {**os.environ, **self.environment(name)}
        done = subprocess.run(command, env=environment, cwd=self.root, capture_output=True, text=True, timeout=WAIT_SECONDS, check=False)
        assert done.returncode == 0, f"{name}: {done.stdout}{done.stderr}"
        return done.stdout

    def start(self, name: str, **environment: str) -> subprocess.Popen[bytes]:
        process = start(self.words(name), self.root / f"{name}.log", cwd=self.root, environment={**self.environment(name), **environment})
        self.started.append(process)
        return process


@pytest.fixture
def composed(tmp_path: Path) -> Iterator[Composed]:
    """All services but those of the example, Prometheus and Grafana."""
    for name in ("bin", "volume/identity", "volume/scrape", "s3"):
        (tmp_path / name).mkdir(parents=True)
    for name, words in (("sluice", [sys.executable, "-m", "sluice"]), ("python", [sys.executable])):
        (tmp_path / "bin" / name).write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
        (tmp_path / "bin" / name).chmod(0o700)
    with ExitStack() as stack:
        database, bootstrap = stack.enter_context(postgres()), stack.enter_context(kafka(tmp_path / "kafka"))
        s3, port = stack.enter_context(versitygw(tmp_path)), free_port()
        subprocess.run(
            [database.programs / "createdb", "-h", "127.0.0.1", "-p", str(database.port), "-U", "sluice", "sluice"],
            check=True,
            timeout=WAIT_SECONDS,
        )
        made = Composed(
            tmp_path,
            {
                "/var/lib/sluice": str(tmp_path / "volume"),
                "/deploy/": f"{ROOT / 'deploy' / 'compose'}/",
                "/demo": str(ROOT),
                "/jobs/pizza.py": str(ROOT / "examples" / "pizza" / "job.py"),
                "coordinator:8180": f"localhost:{port}",
                "@postgres/": f"@127.0.0.1:{database.port}/",
                "kafka:9092": bootstrap,
                "http://s3:7070": s3.endpoint,
                "0.0.0.0": "127.0.0.1",
                PACE: f"--days {DAYS} --seconds-per-day 0",
            },
        )
        made.run("certificate")
        made.run("bucket")
        certificate = tmp_path / "volume" / "identity" / "tls.crt"
        command = [*made.words("coordinator"), "--port", str(port)]
        environment = {**made.environment("coordinator"), "SLUICE_AUTHENTICATION": "true"}  # as beyond loopback
        log = tmp_path / "coordinator.log"
        stack.enter_context(serving(command, f"https://localhost:{port}/readyz", log, environment=environment, authority=certificate))
        made.run("tokens")
        try:
            yield made
        except BaseException:
            for log in sorted(tmp_path.glob("*.log")):
                print(tail(log))
            raise
        finally:
            for process in made.started:
                kill_whole(process)


def sales_read(composed: Composed, run: str) -> int:
    """The number of sales that the stage `route` has read and reported."""
    environment = composed.environment("pizza-deploy")
    trusted = ssl.create_default_context(cafile=environment["SLUICE_CA_FILE"])
    token = Path(environment["SLUICE_TOKEN_FILE"]).read_text().strip()
    headers = {"Authorization": f"Bearer {token}"}
    answer = httpx.get(
        f"{environment['SLUICE_COORDINATOR_URL']}/runs/{run}", verify=trusted, headers=headers, trust_env=False, timeout=WAIT_SECONDS
    )
    tasks: Sequence[dict[str, Any]] = answer.raise_for_status().json()["tasks"]
    offsets = [each for task in tasks for stage in task["stages"] for each in stage["offsets"]]
    return sum(each["offset"] for each in offsets if each["stream"] == SALES)


@pytest.mark.long  # as test_weather.py and test_drain.py
def test_a_week_of_sales_becomes_rushes_and_a_drain_writes_the_open_ones(composed: Composed) -> None:
    sales = load_sales(DAYS)
    run = composed.run("pizza-deploy").splitlines()[-1]
    containers = [composed.start(name, **FAST) for name in ("pizza-0", "pizza-1")]
    assert f"{len(sales):,} of {len(sales):,} sales sent" in composed.run("pizza-replay")
    assert f"0 of {len(sales):,} sales sent" in composed.run("pizza-replay"), "a replay that is started again sends nothing twice"
    wait_for("all sales read", lambda: sales_read(composed, run) == len(sales))
    composed.run("pizza-deploy", "sluice drain pizza-rushes --wait")
    for container in containers:
        with ending(container):
            assert container.wait(WAIT_SECONDS) == 0
    report = composed.run("pizza-replay", f"python -P -m examples.pizza.check --days {DAYS}")
    due = len(rushes_of(sales))
    assert f"{due:,} rushes, {due:,} due: 0 missing, 0 unexpected" in report
    assert len(re.findall(r"^\w+ +2015-01-0\d \d\d:\d\d to \d\d:\d\d: +\d+ pizzas", report, re.M)) == 5
    assert state_in_s3(composed)


def state_in_s3(composed: Composed) -> list[str]:
    """The blobs of the job's state."""
    environment = composed.environment("coordinator")
    keys = [environment["AWS_ACCESS_KEY_ID"], environment["AWS_SECRET_ACCESS_KEY"]]
    endpoint = composed.here("http://s3:7070")
    client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1", aws_access_key_id=keys[0], aws_secret_access_key=keys[1])
    try:
        found = client.list_objects_v2(Bucket="sluice", Prefix="state/blobs/jobs/pizza-rushes/").get("Contents", [])
    finally:
        client.close()
    return [each["Key"] for each in found]
