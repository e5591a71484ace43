"""A real Prometheus over a real job: the expressions in deploy/prometheus and deploy/grafana find their metrics."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.processes.stage import Stage, stage
from tests.support.processes import wait_for
from tests.support.servers import prometheus

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

DEPLOY = Path(__file__).parents[2] / "deploy"
DASHBOARD = json.loads((DEPLOY / "grafana" / "sluice.json").read_text())
PIZZA = json.loads((DEPLOY / "grafana" / "pizza-rushes.json").read_text())

JOB = """
from pyspark.sql import functions as F

from sluice import Job

job = Job("toy")
numbers = job.input("numbers")
middle = job.intermediate("middle", partitions=2)
out = job.output("out")


@job.stage(reads=numbers, writes=middle)
def first(task):
    at = "timestamp_seconds(cast(cast(value as string) as bigint) + 1700000000) at"
    return task.write(task.read(numbers).selectExpr("cast(value as string) v", at), middle, key="v", value="v", event_time="at")


@job.stage(reads=middle, writes=out)
def counted(task):
    at = (F.col("value").cast("string").cast("bigint") + 1_700_000_000).cast("timestamp").alias("at")
    rows = task.read(middle).select(at).withWatermark("at", "10 seconds")
    return task.write(rows.groupBy(F.window("at", "1 minute")).count(), out)
"""

VARIABLES = {"$__rate_interval": "20s", "$job": ".+", "$stage": ".+", "$task": ".+"}


@dataclass(frozen=True, slots=True)
class Watched:
    stage: Stage
    container: subprocess.Popen[bytes]
    api: httpx.Client

    def request(self, path: str, **query: Any) -> Any:
        answer = self.api.get(f"/api/v1/{path}", params=query).json()
        assert answer["status"] == "success", answer
        return answer["data"]

    def values(self, expression: str) -> dict[tuple[str, ...], float]:
        """The present values of an expression, by their labels' values."""
        found = self.request("query", query=expression)["result"]
        return {tuple(value for _, value in sorted(each["metric"].items())): float(each["value"][1]) for each in found}

    def without_data(self, expressions: list[str]) -> list[str]:
        """The expressions that find nothing, or no number."""
        return [each for each in expressions if not [value for value in self.values(each).values() if value == value]]


def configuration(directory: Path, coordinator: str) -> Path:
    """The configuration in deploy/prometheus, with the coordinator's address, without TLS and token, and with short intervals."""
    shutil.copytree(DEPLOY / "prometheus", directory, dirs_exist_ok=True)
    file = directory / "prometheus.yml"
    text = file.read_text().replace("https://", "http://").replace("coordinator:8180", coordinator).replace(" 15s", " 1s")
    assert text.count(coordinator) == 2
    config = yaml.safe_load(text)
    scraped, listed = config["scrape_configs"]
    for each in (scraped, *listed["http_sd_configs"]):
        del each["tls_config"], each["authorization"]
    del scraped["scheme"]
    file.write_text(yaml.safe_dump(config))
    return file


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """A coordinator, one container, and a Prometheus that scrapes both."""
    root = tmp_path_factory.mktemp("watched")
    with stage(tmp_path_factory.mktemp("toy"), JOB) as scene:
        scene.log.create("numbers", 2)
        scene.start_coordinator()
        scene.deploy()
        config = configuration(root, f"127.0.0.1:{scene.port}")
        with prometheus(root, config) as url, httpx.Client(base_url=url, timeout=20) as api:
            _, container = scene.start_container()
            yield Watched(scene, container, api)


def feed_until(watched: Watched, what: str, look: Any) -> None:
    """Poll until there is a result, while the job always has work."""

    def fed_look() -> Any:
        watched.stage.feed(20)
        return look()

    wait_for(what, fed_look, 240)


def substituted(expression: str) -> str:
    for name, value in VARIABLES.items():
        expression = expression.replace(name, value)
    assert "$" not in expression, expression
    return expression


def of_the_toy(expression: str) -> str:
    """An expression of the dashboard of the pizza example, for the job and the stages that run here."""
    for theirs, ours in (("pizza-rushes", "toy"), ('stage="route"', 'stage="first"'), ('stage="rushes"', 'stage="counted"')):
        expression = expression.replace(theirs, ours)
    return substituted(expression)


def panels() -> list[dict[str, Any]]:
    return [each for each in DASHBOARD["panels"] if each["type"] != "row"]


def test_prometheus_finds_the_coordinator_and_the_container_with_labels_for_its_job_run_and_slot(watched: Watched) -> None:
    def up() -> bool:
        found = watched.request("targets", state="active")["activeTargets"]
        return sorted((each["labels"]["job"], each["health"]) for each in found) == [
            ("sluice-containers", "up"),
            ("sluice-coordinator", "up"),
        ]

    wait_for("two targets that are up", up, 120)
    (labels,) = (each["metric"] for each in watched.request("query", query="sluice_container_tasks_owned")["result"])
    (incarnation,) = watched.stage.detail().incarnations
    assert labels == {
        "__name__": "sluice_container_tasks_owned",
        "job": "sluice-containers",
        "instance": incarnation.metrics_address,
        "sluice_job": "toy",
        "run": watched.stage.run_id,
        "processor": "0",
        "container": incarnation.execution_container_id,
    }


def test_every_panel_of_the_dashboards_has_data(watched: Watched) -> None:
    watched.stage.http.get("/runs/none")
    expressions = [substituted(target["expr"]) for panel in panels() for target in panel["targets"]]
    assert len(expressions) > 40
    expressions += [of_the_toy(target["expr"]) for panel in PIZZA["panels"] for target in panel.get("targets", [])]

    missing: list[str] = []

    def all_found() -> bool:
        watched.stage.http.get("/runs/none")
        missing[:] = watched.without_data(expressions)
        return not missing

    try:
        feed_until(watched, "data for every panel", all_found)
    finally:
        assert missing == []


def test_every_variable_of_the_dashboard_has_values(watched: Watched) -> None:
    found = {}
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            match = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]["query"])
            assert match is not None
            series = watched.request("series", **{"match[]": substituted(match[1])})
            found[variable["name"]] = {each[match[2]] for each in series}
    assert found == {"job": {"toy"}, "stage": {"first", "counted"}, "task": {"Partition 0", "Partition 1"}}


def test_every_alert_is_evaluated_without_an_error(watched: Watched) -> None:
    def rules() -> list[dict[str, Any]]:
        return [rule for group in watched.request("rules")["groups"] for rule in group["rules"]]

    assert len(rules()) == len(re.findall(r"- alert:", (DEPLOY / "prometheus" / "rules.yml").read_text()))
    wait_for("an evaluation of each", lambda: all(rule["health"] != "unknown" for rule in rules()), 60)
    assert {rule["name"]: rule.get("lastError") for rule in rules() if rule["health"] != "ok"} == {}


def test_the_metrics_agree_with_what_the_job_has_read(watched: Watched) -> None:
    scene = watched.stage
    query = "sum by (stage) (sluice_stage_input_rows_total)"
    fed = float(sum(scene.log.latest("numbers").values()))
    wait_for("the rows of both stages", lambda: watched.values(query) == {("first",): fed, ("counted",): fed}, 120)
    assert watched.values("sum(sluice_stage_batch_duration_seconds_count)") == watched.values("sum(sluice_stage_batches_total)")
    wait_for("nothing left to read", lambda: set(watched.values("sluice_job_lag_records").values()) == {0.0}, 60)
    wait_for("measures of idle stages", lambda: all(s.metrics and s.metrics.rows == 0 for t in scene.detail().tasks for s in t.stages), 60)
    assert {s.metrics.lag for t in scene.detail().tasks for s in t.stages if s.metrics} == {0}


def test_the_series_of_a_stopped_container_end_and_the_lag_of_its_tasks_is_still_reported(watched: Watched) -> None:
    scene = watched.stage
    watched.container.terminate()
    assert watched.container.wait(120) == 0
    scene.feed(50)
    wait_for("the end of its series", lambda: not watched.values('{__name__=~"sluice_stage_.+|sluice_container_.+"}'), 120)
    assert scene.http.get("/prometheus/targets").json() == []
    wait_for("what the stage is behind", lambda: watched.values('sluice_job_lag_records{stage="first"}') != {}, 30)
    wait_for("50 records", lambda: set(watched.values('sluice_job_lag_records{stage="first"}').values()) == {50.0}, 60)
    assert [s.lag for t in scene.detail().tasks for s in t.stages if s.stage == "first"] == [25, 25]
