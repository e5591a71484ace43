"""`sluice kafka up` and `down`, with a real broker. Java is replaced by a script only where a broker must hang."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from pathlib import Path

import psutil
import pytest

from containers.errors import BrokerUnavailable
from containers.jars import BROKER, connectors_of
from containers.local.kafka import Broker, Process
from sluice.core.errors import BadSettings, StreamUnavailable
from sluice.streams.kafka import KafkaSystem
from sluice.streams.kafka_properties import KafkaProperties
from tests.support.processes import wait_for
from tests.support.servers import kafka_jars

GENEROUS = 120.0


@dataclass
class Home:
    """A home directory for `sluice kafka`."""

    directory: Path
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def broker(self) -> Broker:
        return Broker(self.directory / "kafka")

    def start(self, *words: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "sluice", "kafka", *words, "--home", str(self.directory)]
        pipe = subprocess.PIPE
        return subprocess.Popen(
            command, env={**os.environ, **self.environment}, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True
        )

    def call(self, *words: str, code: int = 0) -> tuple[str, str]:
        """The command's standard output and error."""
        with self.start(*words) as process:
            out, err = process.communicate(timeout=GENEROUS)
        assert process.returncode == code, out + err
        return out.strip(), err.strip()

    def process(self) -> Process:
        found = self.broker.running()
        assert found is not None
        return found


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    kafka_jars()
    made = Home(tmp_path / "home")
    yield made
    made.call("down")


@pytest.fixture
def silent(tmp_path: Path) -> Iterator[Home]:
    """A home directory whose Java formats at once and then hangs."""
    java = tmp_path / "jdk" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text('#!/bin/sh\ncase "$*" in *StorageTool*) exit 0 ;; esac\nexec sleep 600\n')
    java.chmod(0o755)
    jars = tmp_path / "jars" / BROKER.directory_name
    jars.mkdir(parents=True)
    for each in BROKER.artefacts:
        (jars / f"{each.module}-{each.revision}.jar").touch()
    made = Home(tmp_path / "home", {"JAVA_HOME": str(tmp_path / "jdk"), "SLUICE_JARS_DIR": str(tmp_path / "jars")})
    yield made
    made.call("down")


async def partitions(bootstrap: str, topic: str, properties: Mapping[str, str] | None = None, *, make: int = 0) -> int:
    system = KafkaSystem(bootstrap, KafkaProperties(properties or {}))
    try:
        if make:
            await system.create(topic, make)
        return await system.partitions(topic)
    finally:
        await system.close()


@pytest.fixture(scope="class")
def lived_in(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    kafka_jars()
    made = Home(tmp_path_factory.mktemp("broker"))
    yield made
    made.call("down")


class TestLifeOfABroker:
    """The tests share one broker, which starts as seldom as they allow, so they run in order."""

    def test_data_that_was_not_formatted_completely_is_formatted_again(self, lived_in: Home) -> None:
        data = lived_in.broker.directory / "data"
        data.mkdir(parents=True)
        (data / "meta.properties").write_text("version=1\ncluster.id=half\n")
        bootstrap, reported = lived_in.call("up", "--port", "0")
        assert bootstrap == lived_in.process().bootstrap
        assert str(lived_in.process().pid) in reported
        assert asyncio.run(partitions(bootstrap, "flights", make=3)) == 3

    def test_it_runs_until_it_is_stopped_although_the_command_that_started_it_has_ended(self, lived_in: Home) -> None:
        process = lived_in.process()
        again, reported = lived_in.call("up")
        assert again == process.bootstrap
        assert "already running" in reported
        assert lived_in.process() == process

        _, reported = lived_in.call("up", "--port", str(process.port + 1), code=1)
        assert process.bootstrap in reported
        _, reported = lived_in.call("up", "--tls", code=1)
        assert "stop it first" in reported

        assert lived_in.call("down")[0] == "Kafka is stopped"
        assert not process.is_alive()
        assert lived_in.call("down")[0] == "Kafka was not running"

    async def test_a_secured_broker_accepts_clients_with_the_password_and_its_certificate(self, lived_in: Home) -> None:
        broker = Broker(lived_in.directory / "kafka", sasl={"alice": 'se"cr\\et'}, tls=True)
        process = await broker.up()
        assert process.secured is not None
        login = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="alice" password="{}";'
        right = {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "PLAIN",
            "sasl.jaas.config": login.format('se\\"cr\\\\et'),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(broker.certificate),
        }
        assert await partitions(process.secured, "flights", right) == 3
        with pytest.raises(StreamUnavailable):
            await partitions(process.secured, "flights", {**right, "sasl.jaas.config": login.format("guess")})
        trusting_nobody = {name: value for name, value in right.items() if "truststore" not in name}
        with pytest.raises(StreamUnavailable):
            await partitions(process.secured, "flights", trusting_nobody)

    def test_a_killed_broker_has_its_topics_and_its_certificate_when_it_is_started_again(self, lived_in: Home) -> None:
        before = lived_in.broker.certificate.read_bytes()
        killed = lived_in.process()
        os.kill(killed.pid, signal.SIGKILL)
        wait_for("the end of the broker", lambda: not killed.is_alive())
        assert lived_in.broker.running() is None
        bootstrap, _ = lived_in.call("up", "--port", str(killed.port), "--tls")
        assert bootstrap == killed.bootstrap
        assert asyncio.run(partitions(bootstrap, "flights")) == 3
        assert lived_in.broker.certificate.read_bytes() == before, "clients that trust it must not have to be changed after a restart"

    def test_the_error_about_a_broker_that_ends_has_the_reason(self, lived_in: Home) -> None:
        lived_in.call("down")
        (lived_in.broker.directory / "data" / "meta.properties").write_text("version=1\ncluster.id=another\nnode.id=7\n")
        _, reported = lived_in.call("up", "--port", "0", code=1)
        assert "the broker ended" in reported
        assert "node" in reported.split("server.log")[1].lower()
        assert lived_in.broker.running() is None

    def test_its_topics_are_deleted_when_it_is_told_so(self, lived_in: Home) -> None:
        assert "deleted" in lived_in.call("down", "--wipe")[0]
        assert not lived_in.broker.directory.exists()


def test_a_broker_is_found_in_the_home_of_the_settings_file(tmp_path: Path) -> None:
    files = tmp_path / "settings" / "kafka"
    files.mkdir(parents=True)
    (files / "server.properties").touch()
    config = tmp_path / "sluice.toml"
    config.write_text(f'home = "{files.parent}"\n')
    command = [sys.executable, "-m", "sluice", "kafka", "down", "--wipe"]
    environment = {name: value for name, value in os.environ.items() if name != "SLUICE_HOME"} | {"SLUICE_CONFIG": str(config)}
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=GENEROUS, check=False)
    assert (done.returncode, done.stdout) == (0, "Kafka was not running\ntopics deleted\n")
    assert not files.exists()


def test_a_port_that_another_program_uses_is_refused_with_a_remedy(home: Home) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        _, reported = home.call("up", "--port", port, code=1)
    assert [line.partition(": ")[0] for line in reported.splitlines()] == ["sluice", "remedy"]
    assert f"127.0.0.1:{port}" in reported
    assert home.broker.running() is None


def test_another_process_with_the_pid_of_a_former_broker_is_not_stopped(home: Home) -> None:
    with subprocess.Popen(["sleep", "600"]) as sleeper:
        try:
            began = psutil.Process(sleeper.pid).create_time() - psutil.boot_time()
            home.broker.directory.mkdir(parents=True)
            record = home.broker.directory / "broker.json"
            ours = Process(sleeper.pid, began, 9092, None)
            record.write_text(json.dumps(asdict(ours)))
            assert home.broker.running() == ours, "as this test thinks that it is written"
            record.write_text(json.dumps(asdict(replace(ours, began=began - 60))))
            assert home.call("down")[0] == "Kafka was not running"
            assert sleeper.poll() is None
        finally:
            sleeper.kill()


def test_a_process_file_that_cannot_be_read_means_that_no_broker_runs(home: Home) -> None:
    home.broker.directory.mkdir(parents=True)
    for text in ("", "null", "[]", '{"pid": 1}', "\x00"):
        (home.broker.directory / "broker.json").write_text(text)
        assert home.broker.running() is None


def test_a_directory_that_does_not_belong_to_a_broker_is_not_deleted(home: Home) -> None:
    kept = home.directory / "kafka" / "mine.txt"
    kept.parent.mkdir(parents=True)
    kept.touch()
    assert "nothing to delete" in home.call("down", "--wipe")[0]
    assert kept.exists()


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_start_that_is_interrupted_leaves_nothing_running(silent: Home, number: signal.Signals) -> None:
    with silent.start("up", "--port", "0") as command:
        process = wait_for("the broker's process", silent.broker.running)
        command.send_signal(number)
        assert command.wait(GENEROUS) != 0
    assert not process.is_alive()
    assert silent.broker.running() is None


async def test_a_broker_that_does_not_answer_is_not_left_running(silent: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", silent.environment["JAVA_HOME"])
    broker = Broker(silent.directory / "kafka", jars=lambda: [], timeout=timedelta(seconds=0.5))
    with pytest.raises(BrokerUnavailable, match="did not answer"):
        await broker.up()
    assert broker.running() is None


async def test_a_user_whose_name_kafka_cannot_read_is_refused(home: Home) -> None:
    with pytest.raises(BadSettings, match="al ice"):
        await Broker(home.directory / "kafka", sasl={"al ice": "secret"}).up()
    assert home.call("up", "--user", "alice", code=1)[1].splitlines()[0].endswith("--user NAME:PASSWORD")


def test_the_directories_of_all_jars_are_printed(tmp_path: Path) -> None:
    for wanted in (connectors_of(os.environ)[0], BROKER):
        directory = tmp_path / wanted.directory_name
        directory.mkdir()
        for each in wanted.artefacts:
            (directory / f"{each.module}-{each.revision}.jar").touch()
    command = [sys.executable, "-m", "sluice", "kafka", "jars"]
    reported = subprocess.run(
        command, env={**os.environ, "SLUICE_JARS_DIR": str(tmp_path)}, capture_output=True, text=True, check=True, timeout=GENEROUS
    )
    assert reported.stdout.split() == [str(tmp_path / wanted.directory_name) for wanted in (connectors_of(os.environ)[0], BROKER)]


@pytest.mark.parametrize("place", ["/proc/nope", "file"])
def test_a_home_that_cannot_be_written_is_named_before_anything_is_fetched(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").touch()
    home = Home(tmp_path / place, {"SLUICE_JARS_DIR": str(tmp_path / "jars"), "JAVA_HOME": "/nowhere"})
    _, err = home.call("up", code=1)
    error, remedy = err.splitlines()
    assert error.startswith(f"sluice: A directory of this machine cannot be written. {tmp_path / place}/kafka: ")
    assert remedy.startswith("remedy: Free space, correct the owner, or change")
    assert not (tmp_path / "jars").exists()
