"""A mistake in the job of `sluice init`, or in its environment: `sluice run` prints a line that names the cause. Only the first two start
Spark.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer

from containers.local.kafka import Process
from sluice.cli.init import write
from sluice.core.remedies import OF_USER_CODE, REMEDIES, plain
from sluice.streams.kafka import KafkaSystem
from sluice.streams.kafka_properties import KafkaProperties
from tests.support.coordinators import running
from tests.support.processes import SLUICE, completed, end, free_port, start, wait_for
from tests.support.servers import kafka_jars
from tests.support.terminal import SHOW_CURSOR, at_terminal

pytestmark = [pytest.mark.spark, pytest.mark.slow]

GENEROUS = 600.0
TOPIC = "mistakes-lines"


@pytest.fixture(scope="module")
def broker(kafka_broker: Process) -> Process:
    """The shared broker, with the topics of the job and a record that is no JSON."""
    kafka_jars()

    async def prepare() -> None:
        system = KafkaSystem(kafka_broker.bootstrap, KafkaProperties({}))
        for topic in (TOPIC, "mistakes-counts"):
            await system.create(topic, 1)
        await system.close()
        async with AIOKafkaProducer(bootstrap_servers=kafka_broker.bootstrap) as producer:
            await producer.send_and_wait(TOPIC, b"to be or not to be")

    asyncio.run(prepare())
    return kafka_broker


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    """The job of `sluice init`, with topics of its own."""
    write(tmp_path / "job", "mistakes")
    file = tmp_path / "job" / "job.py"
    text = file.read_text().replace('job.input("lines")', f'job.input("{TOPIC}")')
    file.write_text(text.replace('job.output("counts")', 'job.output("mistakes-counts")'))
    return file


def change(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def command(job_file: Path) -> list[str]:
    home = job_file.parent / "home"
    return [*SLUICE, "run", str(job_file), "--home", str(home), "--port", "0", "--system", "kafka", "--start", "earliest"]


def line_that_names(cause: str, job_file: Path, environment: Mapping[str, str]) -> str:
    """Run the job until a line has the cause, and return that line."""
    log = job_file.parent / "run.log"
    process = start(command(job_file), log, environment={"SLUICE_SPARK_MASTER": "local[1]", **environment})

    def found() -> str:
        ended = process.poll() is not None
        said = log.read_text(errors="replace")
        line = next((each for each in said.splitlines() if cause in each), "")
        assert line or not ended, said
        return line

    try:
        return wait_for(f"a line with {cause!r}", found, GENEROUS, details=lambda: log.read_text(errors="replace"))
    finally:
        end(process, waits=(GENEROUS, GENEROUS))


def test_a_column_that_does_not_exist_is_named_with_the_line_of_the_job_file_and_the_run_fails_at_the_third_attempt(
    broker: Process, job_file: Path
) -> None:
    change(job_file, 'F.split(F.col("value")', 'F.split(F.col("line")')
    environment = {"SLUICE_KAFKA_BOOTSTRAP": broker.bootstrap, "SLUICE_SPARK_MASTER": "local[1]", "SLUICE_RESTART_DELAY_SECONDS": "0.1"}
    ended = completed(command(job_file), environment={**os.environ, **environment}, seconds=GENEROUS)
    assert ended.returncode == 1, ended.stdout + ended.stderr
    error, repeated, log, end_of_container, remedy = ended.stderr.splitlines()
    [line] = [n for n, text in enumerate(job_file.read_text().splitlines(), 1) if "task.read(lines)" in text]
    assert error.startswith(f"sluice: {job_file}:{line} in split: pyspark.errors.exceptions.captured.AnalysisException: ")
    assert "`line` cannot be resolved" in error
    assert "`value`" in error
    assert repeated == "Partition 0/split failed 3 times in a row with this error"
    assert end_of_container == "container-0 ended once (exit 4)"
    assert remedy == f"remedy: {OF_USER_CODE}"

    coordinator, run, pages, *progress = ended.stdout.splitlines()
    assert re.fullmatch(r"coordinator http://127\.0\.0\.1:\d+", coordinator)
    assert re.fullmatch(r"run mistakes-\S+", run)
    assert re.fullmatch(r"pages http://127\.0\.0\.1:\d+/ui/jobs/mistakes", pages)
    assert re.fullmatch(r"mistakes-\S+ (CREATED|RUNNING)  containers \d/1  tasks \d/\d  batches \d+", progress[0])
    assert "\x1b" not in ended.stdout
    assert log == f"log: {job_file.parent / 'home' / 'logs' / run.split()[1] / 'container-0.log'}"
    assert Path(log.removeprefix("log: ")).read_text().count(" failed (") == 2
    with running(job_file.parent / "home") as again:
        found = again.http.get(f"/runs/{run.split()[1]}").json()
        assert found["state"] == "FAILED"
        assert error.removeprefix("sluice: ") in found["reason"]


@pytest.mark.long  # as tests/unit/agent/test_failures.py, which reads such an error of the JVM
def test_a_record_that_is_no_json_is_named_with_what_was_found(broker: Process, job_file: Path) -> None:
    parse = 'F.from_json(F.col("value").cast("string"), "word string", {"mode": "FAILFAST"}).getField("word").alias("word")'
    change(job_file, 'F.explode(F.split(F.col("value").cast("string"), " ")).alias("word")', parse)
    line = line_that_names("Unrecognized token 'to'", job_file, {"SLUICE_KAFKA_BOOTSTRAP": broker.bootstrap})
    assert "Malformed records" in line


def test_a_topic_that_does_not_exist_is_named_with_the_broker_and_the_command_that_creates_it(broker: Process, job_file: Path) -> None:
    change(job_file, TOPIC, "mistakes-absent")
    line = line_that_names("has no topic 'mistakes-absent'", job_file, {"SLUICE_KAFKA_BOOTSTRAP": broker.bootstrap})
    assert broker.bootstrap in line
    assert "sluice streams create mistakes-absent" in line


def test_without_java_the_line_below_the_table_on_a_terminal_names_java_and_the_remedy(broker: Process, job_file: Path) -> None:
    with at_terminal(command(job_file), columns=200, SLUICE_KAFKA_BOOTSTRAP=broker.bootstrap, JAVA_HOME="/nowhere") as terminal:
        terminal.until(f"remedy: {plain(REMEDIES['JavaMissing'])[:40]}")
        assert terminal.process.wait(GENEROUS) == 1
    below = terminal.seen[terminal.seen.rindex(SHOW_CURSOR) :]
    error = "sluice: Java was not found. There is no program 'java' in JAVA_HOME (/nowhere): "
    assert error + "install Java 17 or 21, or set JAVA_HOME to its directory" in below
    assert "container-0 ended once (exit 4)" in below
    assert "Traceback" not in terminal.text


@pytest.mark.long
def test_a_wrong_address_of_the_broker_is_named(job_file: Path) -> None:
    nobody = f"127.0.0.1:{free_port()}"
    assert "check the address" in line_that_names(f"Kafka at {nobody}", job_file, {"SLUICE_KAFKA_BOOTSTRAP": nobody})


@pytest.mark.long
def test_a_wrong_password_is_named_with_the_user_and_the_broker_and_is_not_shown(broker: Process, job_file: Path) -> None:
    assert broker.secured is not None
    file = job_file.parent / "client.properties"
    login = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="alice" password="wrong-4712";'
    file.write_text(f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.jaas.config={login}\n")
    environment = {"SLUICE_KAFKA_BOOTSTRAP": broker.secured, "SLUICE_KAFKA_PROPERTIES": str(file)}
    line = line_that_names("refuses the user 'alice' or the password", job_file, environment)
    assert broker.secured in line
    assert "4712" not in (job_file.parent / "run.log").read_text()


@pytest.mark.long
def test_a_broker_that_needs_a_password_is_named_with_the_setting(broker: Process, job_file: Path) -> None:
    assert broker.secured is not None
    line = line_that_names("SLUICE_KAFKA_PROPERTIES", job_file, {"SLUICE_KAFKA_BOOTSTRAP": broker.secured})
    assert broker.secured in line
