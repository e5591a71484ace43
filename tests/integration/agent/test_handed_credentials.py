"""Containers with credentials that the coordinator hands out: moto is the S3 store, STS and IAM, which checks signatures and rights.

moto ignores session policies, and the condition on the prefix of lists. The rights of the role are therefore the session policy of the job
without that condition, and the tests check that the coordinator sends that policy. moto also takes the removal of a tag for that of the
object. tests/integration/blobs/test_s3_policies.py tests both with the same statements on another server.
"""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import boto3
import httpx
import pytest

from containers.state.store_credentials import handed_credentials
from containers.supervision.exit_report import EXIT_FAILED
from coordinator.fleet.blob_credentials import BlobCredentials
from sluice.blobs.handed import HandedCredentials
from sluice.blobs.locations import open_blob_store, s3_location
from sluice.blobs.port import BlobStore
from sluice.blobs.s3config import credentials_for
from sluice.blobs.s3control import S3Control
from sluice.blobs.sts import StoreRole, session_policy
from sluice.client.agents import AgentClient
from sluice.core.errors import BlobStoreUnusable, BlobUnavailable
from sluice.core.ids import JobName, RunId
from sluice.core.snapshots.snapshot import BlobId, BlobStoreName
from tests.contracts.blobs import ABOUT, bytes_of
from tests.support.agents import Place, place
from tests.support.backups import BACKED_UP, NEVER, began, one_stage, start, stopped
from tests.support.fakes import FakeClock
from tests.support.processes import free_port
from tests.support.s3servers import S3Server, moto

pytestmark = pytest.mark.real_time

JOB, MAIN = JobName("delays"), BlobStoreName("main")
ARN = "arn:aws:iam::123456789012:role/sluice"
OURS, THEIRS = BlobId("jobs/delays/p-0/only/data/1-a"), BlobId("jobs/payments/p-0/only/data/1-a")
HOUR = timedelta(hours=1)
TRUST = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Principal": {"AWS": "*"}, "Action": "sts:AssumeRole"}]}
ALL = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": ["s3:*", "sts:*", "iam:*"], "Resource": "*"}]}


@dataclass(frozen=True, slots=True)
class Aws:
    """A server with the user of the coordinator, whose keys are in the environment, and a role."""

    server: S3Server
    url: str
    iam: Any

    @property
    def role(self) -> StoreRole:
        return StoreRole(ARN, s3_location(self.url), self.server.endpoint, HOUR)

    @property
    def settings(self) -> Mapping[str, Any]:
        return {**BACKED_UP, "blob_stores": {MAIN: self.url}, "blob_store_roles": {MAIN: ARN}}

    def limit_role_to(self, job: JobName) -> None:
        """Give the role the rights of the session policy of the job."""
        statements = session_policy(self.role, job)["Statement"]
        policy = {"Version": "2012-10-17", "Statement": [{**each, "Condition": {}} for each in statements]}
        self.iam.put_role_policy(RoleName="sluice", PolicyName="job", PolicyDocument=json.dumps(policy))

    def sessions(self) -> list[Any]:
        """The sessions of the role that were made since the server's start."""
        from moto.sts.models import sts_backends

        found: list[Any] = sts_backends["123456789012"]["aws"].assumed_roles
        return found


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[Aws]:
    with moto() as server:
        httpx.post(f"{server.endpoint}/moto-api/reset").raise_for_status()
        url = f"s3://{server.new_bucket()}/state?endpoint={server.endpoint}&region=us-east-1"
        options = {"endpoint_url": server.endpoint, "region_name": "us-east-1", "aws_access_key_id": "x", "aws_secret_access_key": "x"}
        iam = boto3.client("iam", **options)
        iam.create_user(UserName="administrator")
        iam.put_user_policy(UserName="administrator", PolicyName="all", PolicyDocument=json.dumps(ALL))
        administrator = iam.create_access_key(UserName="administrator")["AccessKey"]
        iam.create_user(UserName="coordinator")
        iam.put_user_policy(UserName="coordinator", PolicyName="all", PolicyDocument=json.dumps(ALL))
        key = iam.create_access_key(UserName="coordinator")["AccessKey"]
        iam.create_role(RoleName="sluice", AssumeRolePolicyDocument=json.dumps(TRUST))
        iam.close()
        keys = {"aws_access_key_id": administrator["AccessKeyId"], "aws_secret_access_key": administrator["SecretAccessKey"]}
        made = Aws(server, url, boto3.client("iam", **{**options, **keys}))
        made.limit_role_to(JOB)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", key["AccessKeyId"])
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", key["SecretAccessKey"])
        monkeypatch.delenv("AWS_SESSION_TOKEN", raising=False)
        httpx.post(f"{server.endpoint}/moto-api/reset-auth", content="0").raise_for_status()
        try:
            yield made
        finally:
            made.iam.close()
            httpx.post(f"{server.endpoint}/moto-api/reset-auth", content="inf").raise_for_status()


@pytest.fixture
async def there(tmp_path: Path, aws: Aws) -> AsyncIterator[Place]:
    async with place(tmp_path / "home", **aws.settings) as made:
        await made.parts.blob_stores.opened(MAIN)
        yield made


async def test_a_container_backs_up_and_restores_with_handed_credentials(there: Place, aws: Aws, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    run_id = await there.deploy(job=one_stage())
    first = start(there, run_id, "c1", "disk1", **NEVER)
    disk, query = await began(first)
    for batch in range(3):
        await disk.runs(query, batch, {0: batch + 1, 1: 0})
    await stopped(first)
    assert [each["batchId"] for each in await there.snapshots()] == [2]
    second = start(there, run_id, "c2", "disk2", **NEVER)
    disk2, query2 = await began(second)
    assert disk2.state(query2.start) == disk.state(query.start)
    [session] = aws.sessions()
    assert json.loads(session.policy) == session_policy(aws.role, JOB)
    assert session.session_name == "sluice-delays"
    ours = [each.getMessage() for each in caplog.records if each.name.startswith(("sluice", "coordinator", "containers", "httpx"))]
    assert any("get credentials of blob store main until" in each for each in ours)
    for secret in (session.secret_access_key, session.session_token):
        assert not any(secret in each for each in ours)


async def test_a_container_does_not_use_the_credentials_of_its_environment_instead(there: Place, aws: Aws) -> None:
    aws.limit_role_to(JobName("payments"))
    store = await store_of(there, aws, await there.deploy(job=one_stage()), FakeClock())
    with pytest.raises(BlobStoreUnusable, match="AccessDenied"):
        await store.put(OURS, b"x", ABOUT)
    await store.put(THEIRS, b"x", ABOUT)
    await store.close()


async def store_of(there: Place, aws: Aws, run_id: RunId, clock: FakeClock) -> BlobStore:
    handed = await handed_credentials(AgentClient("http://c", there.app), run_id, MAIN, clock)
    assert handed is not None
    store = open_blob_store(aws.url, clock, handed)
    await store.open(create=False)
    return store


async def test_handed_credentials_reach_the_blobs_of_their_job_only_and_delete_nothing(there: Place, aws: Aws) -> None:
    store = await store_of(there, aws, await there.deploy(job=one_stage()), FakeClock())
    coordinator = await there.parts.blob_stores.opened(MAIN)
    await coordinator.put(THEIRS, b"theirs", ABOUT)
    await store.put(OURS, b"ours", ABOUT, ttl=timedelta(days=1))
    assert await bytes_of(store, OURS) == b"ours"
    assert [each.blob async for page in store.list("jobs/delays/", ABOUT) for each in page] == [OURS]
    refused = [
        bytes_of(store, THEIRS),
        store.put(THEIRS, b"forged", ABOUT),
        store.remove_ttl(THEIRS, ABOUT),
        store.delete([OURS], ABOUT),
        store.delete([THEIRS], ABOUT),
    ]
    for call in refused:
        with pytest.raises(BlobStoreUnusable, match="AccessDenied"):
            await call
    assert await bytes_of(coordinator, THEIRS) == b"theirs"
    assert await bytes_of(coordinator, OURS) == b"ours"
    await store.close()


async def test_tags_are_read_with_handed_credentials_also_with_renewed_ones(there: Place, aws: Aws) -> None:
    clock = FakeClock()
    handed = await handed_credentials(AgentClient("http://c", there.app), await there.deploy(job=one_stage()), MAIN, clock)
    assert handed is not None
    location = s3_location(aws.url)
    control = S3Control(location, credentials_for(location, {}, handed=True), handed)
    coordinator = await there.parts.blob_stores.opened(MAIN)
    for blob in (OURS, THEIRS):
        await coordinator.put(blob, b"x", ABOUT, ttl=timedelta(days=1))
    assert await control.ttl_days(location.key(f"blobs/{OURS}")) == 1
    with pytest.raises(BlobStoreUnusable, match="AccessDenied"):
        await control.remove_ttl(location.key(f"blobs/{THEIRS}"))
    aws.sessions().clear()
    for each in (clock, there.clock):
        each.advance(3600)
    assert await control.ttl_days(location.key(f"blobs/{OURS}")) == 1
    assert len(aws.sessions()) == 1
    await control.close()


async def test_credentials_are_renewed_and_a_request_without_valid_ones_fails_as_that_of_an_unavailable_store(
    there: Place, aws: Aws
) -> None:
    clock = FakeClock()
    run_id = await there.deploy(job=one_stage())
    store = await store_of(there, aws, run_id, clock)
    first = aws.sessions()[-1]
    aws.sessions().remove(first)  # the store no longer accepts it
    with pytest.raises(BlobStoreUnusable, match="InvalidAccessKeyId"):
        await store.put(OURS, b"x", ABOUT)
    for each in (clock, there.clock):
        each.advance(3600)
    await store.put(OURS, b"renewed", ABOUT)
    [second] = aws.sessions()
    assert second.access_key_id != first.access_key_id
    await store.close()


async def test_an_outage_of_the_coordinator_ends_the_requests_when_the_credentials_expire(there: Place, aws: Aws) -> None:
    clock, wire = FakeClock(), there.new_wire()
    run_id = await there.deploy(job=one_stage())
    handed = await handed_credentials(AgentClient("http://c", wire), run_id, MAIN, clock)
    store = open_blob_store(aws.url, clock, handed)
    await store.open(create=False)
    wire.cut = True
    clock.advance(3599)
    await store.put(OURS, b"x", ABOUT)
    clock.advance(1)
    for call in (store.put(OURS, b"x", ABOUT), bytes_of(store, OURS), store.remove_ttl(OURS, ABOUT)):
        with pytest.raises(BlobUnavailable, match="credentials"):
            await call
    wire.cut = False
    there.clock.advance(3600)
    assert await bytes_of(store, OURS) == b"x"
    await store.close()


async def test_an_sts_that_is_away_fails_the_request_of_credentials_only(tmp_path: Path, aws: Aws) -> None:
    settings = {**aws.settings, "sts_endpoint": f"http://127.0.0.1:{free_port()}"}
    async with place(tmp_path / "home", **settings) as there, httpx.AsyncClient(transport=there.app, base_url="http://c") as http:
        await there.parts.blob_stores.opened(MAIN)
        run_id = await there.deploy(job=one_stage())
        answer = await http.get(f"/runs/{run_id}/blob-stores/main/credentials")
        assert (answer.status_code, answer.json()["type"]) == (503, "urn:sluice:store-credentials-unavailable")
        assert f"credentials of the role {ARN}" in answer.json()["detail"]
        with pytest.raises(BlobUnavailable, match="credentials of blob store main"):
            await handed_credentials(AgentClient("http://c", there.app), run_id, MAIN, FakeClock())
        assert (await http.get(f"/runs/{run_id}")).status_code == 200


async def test_a_role_that_cannot_be_assumed_ends_the_container_with_the_reason(tmp_path: Path, aws: Aws) -> None:
    only_s3 = {**ALL, "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]}
    aws.iam.put_user_policy(UserName="coordinator", PolicyName="all", PolicyDocument=json.dumps(only_s3))
    async with place(tmp_path / "home", **aws.settings) as there:
        await there.parts.blob_stores.opened(MAIN)
        ending = await start(there, await there.deploy(job=one_stage()), "c1", "disk1", **NEVER).ending()
        assert ending.exit_code == EXIT_FAILED
        assert f"credentials of the role {ARN}" in ending.reason
        assert "AccessDenied" in ending.reason


async def test_a_store_without_a_role_is_opened_with_the_credentials_of_the_environment(tmp_path: Path, aws: Aws) -> None:
    async with place(tmp_path / "home", **{**aws.settings, "blob_store_roles": {}}) as there:
        run_id = await there.deploy(job=one_stage())
        async with httpx.AsyncClient(transport=there.app, base_url="http://c") as http:
            answer = await http.get(f"/runs/{run_id}/blob-stores/main/credentials")
            assert (answer.status_code, answer.json()["type"]) == (409, "urn:sluice:no-store-role")
            assert "blob_store_roles" in answer.json()["detail"]
            answer = await http.get(f"/runs/{run_id}/blob-stores/other/credentials")
            assert (answer.status_code, answer.json()["type"]) == (404, "urn:sluice:unknown-blob-store")
        await there.parts.blob_stores.opened(MAIN)
        container = start(there, run_id, "c1", "disk1", **NEVER)
        await began(container)
        await stopped(container)
        assert aws.sessions() == []


async def test_a_coordinator_that_does_not_know_the_request_hands_out_nothing() -> None:
    client = AgentClient("http://c", httpx.MockTransport(lambda request: httpx.Response(404, json={"detail": "Not Found"})))
    assert await handed_credentials(client, RunId("r"), MAIN, FakeClock()) is None


async def test_the_answer_is_not_kept_by_caches_and_the_containers_of_a_job_share_the_credentials(there: Place, aws: Aws) -> None:
    run_id = await there.deploy(job=one_stage())
    async with httpx.AsyncClient(transport=there.app, base_url="http://c") as http:
        answers = [await http.get(f"/runs/{run_id}/blob-stores/main/credentials") for _ in range(3)]
    assert {each.headers["cache-control"] for each in answers} == {"no-store"}
    assert len({each.text for each in answers}) == 1
    assert len(aws.sessions()) == 1


async def test_the_coordinator_keeps_credentials_by_job_and_drops_those_that_have_expired(there: Place, aws: Aws) -> None:
    clock, asked = FakeClock(), list[JobName]()

    async def assume(role: StoreRole, job: JobName) -> HandedCredentials:
        asked.append(job)
        return HandedCredentials(f"key-{len(asked)}", "s", "t", role.life, datetime(2026, 3, 1, tzinfo=UTC))

    issuing = BlobCredentials(there.parts.blob_stores, {MAIN: aws.role}, clock, assume)
    found = [(await issuing.of(job, MAIN)).key for job in (JobName("a"), JobName("b"), JobName("a"))]
    assert found == ["key-1", "key-2", "key-1"]
    clock.advance(1799)
    assert (await issuing.of(JobName("a"), MAIN)).left == timedelta(seconds=1801)
    clock.advance(1)
    assert (await issuing.of(JobName("a"), MAIN)).key == "key-3"
    clock.advance(1800)
    await issuing.of(JobName("c"), MAIN)
    assert set(issuing._issued) == {("a", MAIN), ("c", MAIN)}
    await issuing.close()
