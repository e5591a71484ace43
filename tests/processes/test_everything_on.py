"""deploy/compose/secure.yaml with real servers: Kafka with SASL, TLS and ACLs, PostgreSQL and S3 with TLS and users of their own."""

from __future__ import annotations

import asyncio
import json
import shutil
import ssl
from collections.abc import Coroutine, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import httpx
import pytest
from botocore.exceptions import ClientError
from confluent_kafka import Consumer, KafkaError, TopicPartition

from containers.spark.systems.kafka_transactions import TransactionalWriter
from examples.pizza.job import job
from sluice.core.errors import SluiceError
from sluice.core.ids import Generation, Lineage
from sluice.deploy import deploy_request
from sluice.streams.kafka import KafkaSystem, transactional_id
from tests.support.processes import SLUICE, WAIT_SECONDS
from tests.support.secured import COMPOSE, Place, run, secured_coordinator, secured_kafka, secured_postgres, secured_s3
from tests.support.servers import NotInstalled, Postgres

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Secured:
    place: Place
    url: str
    bootstrap: str
    database: Postgres
    s3: str

    def http(self, token: str) -> httpx.Client:
        """A client with the token in that file of the secrets."""
        text = (self.place.secrets / token).read_text().strip()
        trusted = ssl.create_default_context(cafile=self.place.secrets / "identity/ca.crt")
        return httpx.Client(
            base_url=self.url, headers={"Authorization": f"Bearer {text}"}, verify=trusted, trust_env=False, timeout=WAIT_SECONDS
        )

    def kafka(self, volume: str) -> KafkaSystem:
        return KafkaSystem(self.bootstrap, self.place.kafka_properties(volume), replication=1)

    def on_kafka(self, volume: str, *steps: Any) -> list[Any]:
        """The results of requests of that user, or the errors of those that are refused."""

        async def all_of_them() -> list[Any]:
            system = self.kafka(volume)
            try:
                return [await self._result(step(system)) for step in steps]
            finally:
                await system.close()

        return asyncio.run(all_of_them())

    @staticmethod
    async def _result(step: Coroutine[Any, Any, Any]) -> Any:
        try:
            return await step
        except SluiceError as error:
            return error


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    directory = tmp_path_factory.mktemp("secure")
    place = Place(directory, directory / "secrets")
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    run([COMPOSE / "secrets", place.secrets])
    for volume in ("identity", "deployer", "pizza", "sales"):
        place.kafka_properties(volume)
    sluice = directory / "sluice-command"
    sluice.mkdir()
    (sluice / "sluice").write_text(f'#!/bin/sh\nexec {" ".join(SLUICE)} "$@"\n')
    (sluice / "sluice").chmod(0o700)
    try:
        with ExitStack() as stack:
            database = stack.enter_context(secured_postgres(place))
            s3 = stack.enter_context(secured_s3(place))
            bootstrap = stack.enter_context(secured_kafka(place))
            url, _ = stack.enter_context(secured_coordinator(place, SLUICE))
            tokens = [place.here("tokens", each) for each in ("/var/lib/sluice/identity", "/var/lib/sluice/scrape", "/secrets/deployer")]
            jobs = [f"{name}={place.secrets / volume}" for name, volume in (("flight-delays", "flights"), ("pizza-rushes", "pizza"))]
            environment = {**place.environment("tokens"), "PATH": f"{sluice}:/usr/bin:/bin"}
            run([COMPOSE / "tokens", *tokens, *jobs], **environment)
            yield Secured(place, url, bootstrap, database, s3.endpoint)
    except NotInstalled as missing:
        pytest.skip(f"{missing} is not installed")


def test_a_job_is_deployed_and_a_container_registers_with_its_identity_and_the_audit_file_has_the_change(everything: Secured) -> None:
    [created] = everything.on_kafka("deployer", lambda system: system.create("sales", 2))
    assert created is None, created
    request = deploy_request(job, 1, "kafka", "checkpoint", {}).model_dump(mode="json", by_alias=True)
    with everything.http("deployer/token") as deployer, everything.http("pizza/containers-token") as containers:
        assert containers.post("/runs", json=request).status_code == 403
        answer = deployer.post("/runs", json=request)
        assert answer.is_success, answer.text
        run_id = answer.json()["runId"]
        body = {"processorId": "0", "executionContainerId": "c1", "host": "h"}
        with everything.http("flights/containers-token") as others:
            assert others.post(f"/runs/{run_id}/containers", json=body).status_code == 403
        registered = containers.post(f"/runs/{run_id}/containers", json=body)
        assert registered.is_success, registered.text
        assert registered.json()["token"]
    with everything.http("scrape/token") as prometheus:
        scraped = prometheus.get("/metrics")
        assert scraped.status_code == 200
        assert "sluice_job_state" in scraped.text
        assert prometheus.get("/jobs").status_code == 403
    lines = [json.loads(line) for line in (everything.place.directory / "home/audit.jsonl").read_text().splitlines()]
    [begun, done] = [each for each in lines if each["action"] == "POST /runs" and each["actor"] == "deployer"]
    assert (begun["seq"], begun["status"], done["status"]) == (done["seq"], None, answer.status_code)
    refused = [(each["actor"], each["action"]) for each in lines if each["status"] == 403]
    assert sorted(refused) == [
        ("containers-flight-delays", "POST /runs/{runId}/containers"),
        ("containers-pizza-rushes", "POST /runs"),
        ("prometheus", "GET /jobs"),
    ]


def test_the_container_s_user_writes_the_topics_of_its_job_in_transactions_and_no_other_user_does(everything: Secured) -> None:
    ready = everything.on_kafka("pizza", lambda system: system.check_transactions("rushes"), lambda system: system.latest("sales"))
    assert ready[0] is None, ready
    assert ready[1] == {0: 0, 1: 0}
    clients = {"bootstrap.servers": everything.bootstrap, **everything.place.kafka_properties("pizza").librdkafka_properties()}
    name = transactional_id("pizza-rushes", "rushes", "rushes", "Partition 0")
    writer = TransactionalWriter(clients, name, "rushes", Lineage("lineage"), Generation(1), lambda: None)
    assert writer.open() == -1
    writer.close()
    other = transactional_id("other-job", "rushes", "rushes", "Partition 0")
    writer = TransactionalWriter(clients, other, "rushes", Lineage("lineage"), Generation(1), lambda: None)
    with pytest.raises(SluiceError, match="TransactionalId"):
        writer.open()
    [created, grown] = everything.on_kafka("pizza", lambda system: system.create("more", 1), lambda system: system.grow("rushes", 4))
    assert isinstance(created, SluiceError)
    assert isinstance(grown, SluiceError)
    [denied] = everything.on_kafka("sales", lambda system: system.check_transactions("rushes"))
    assert isinstance(denied, SluiceError)


def test_the_coordinator_s_user_ends_transactions_and_reads_no_records(everything: Secured) -> None:
    trimmed, ended = everything.on_kafka(
        "identity",
        lambda system: system.trim("sales-by-station", {0: 0}),
        lambda system: system.abort("rushes", "pizza-rushes", "rushes", "Partition 0"),
    )
    assert trimmed == 0, trimmed
    assert ended is None, ended
    clients = {"bootstrap.servers": everything.bootstrap, **everything.place.kafka_properties("identity").librdkafka_properties()}
    consumer = Consumer({**clients, "group.id": "sluice/coordinator"})
    try:
        consumer.assign([TopicPartition("sales", 0, 0)])
        message = consumer.poll(30)
        assert message is not None
        error = message.error()
        assert error is not None
        assert error.code() in {KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.GROUP_AUTHORIZATION_FAILED}
    finally:
        consumer.close()


def test_the_database_is_encrypted_and_refuses_other_users_and_open_connections(everything: Secured) -> None:
    server = everything.database
    psql: list[str | Path] = [server.programs / "psql", "-p", str(server.port), "-d", "sluice", "-Atc"]
    select = "SELECT bool_and(s.ssl) FROM pg_stat_ssl s JOIN pg_stat_activity a USING (pid) WHERE usename = 'coordinator'"
    assert run([*psql, select, "-h", str(server.directory), "-U", "sluice"]).strip() == "t"
    passwords = {"PGPASSFILE": str(everything.place.secrets / "identity/pgpass")}
    certified = {**passwords, "PGSSLROOTCERT": str(everything.place.secrets / "identity/ca.crt"), "PGSSLMODE": "verify-full"}
    network: list[str | Path] = [*psql, "SELECT 1", "-h", "127.0.0.1"]
    assert run([*network, "-U", "coordinator"], **certified).strip() == "1"
    with pytest.raises(AssertionError, match=r"no pg_hba\.conf entry"):
        run([*network, "-U", "coordinator"], **{**certified, "PGSSLMODE": "disable"})
    with pytest.raises(AssertionError, match=r"no pg_hba\.conf entry"):
        run([*network, "-U", "sluice"], **certified)
    with pytest.raises(AssertionError, match="permission denied"):
        run([*psql, "CREATE ROLE another", "-h", "127.0.0.1", "-U", "coordinator"], **certified)


def test_the_containers_of_a_job_reach_its_blobs_only(everything: Secured) -> None:
    def client(volume: str) -> Any:
        exported = (everything.place.secrets / volume / "s3.env").read_text().removeprefix("export ").split()
        keys = dict(each.split("=", 1) for each in exported)
        return boto3.client(
            "s3",
            endpoint_url=everything.s3,
            region_name="us-east-1",
            aws_access_key_id=keys["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=keys["AWS_SECRET_ACCESS_KEY"],
            verify=str(everything.place.secrets / "s3/ca.crt"),
        )

    key = "state/blobs/jobs/pizza-rushes/p-0/rushes/data/1-a"
    client("pizza").put_object(Bucket="sluice", Key=key, Body=b"state")
    assert client("identity").get_object(Bucket="sluice", Key=key)["Body"].read() == b"state"
    with pytest.raises(ClientError, match="AccessDenied"):
        client("flights").get_object(Bucket="sluice", Key=key)
    with pytest.raises(ClientError, match="AccessDenied"):
        client("pizza").delete_object(Bucket="sluice", Key=key)
