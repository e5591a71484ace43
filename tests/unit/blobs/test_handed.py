"""Credentials that expire: when they are renewed, who waits, and what an outage does."""

from __future__ import annotations

import asyncio
import json
import logging
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from sluice.blobs.handed import PAUSE, HandedCredentials, RenewedCredentials
from sluice.blobs.s3config import S3Location, credentials_for
from sluice.blobs.sts import StoreRole, session_name, session_policy
from sluice.core.errors import BlobUnavailable
from sluice.core.ids import JobName
from sluice.wire.agents import BlobCredentialsReply
from tests.support.fakes import FakeClock
from tests.support.processes import ROOT

HOUR = timedelta(hours=1)
ARN = "arn:aws:iam::123456789012:role/sluice"


class Issuer:
    """Issues credentials that are numbered from 1. Fails while `down`; waits while `held` is not set."""

    def __init__(self, life: timedelta = HOUR) -> None:
        self.life = life
        self.issued = self.asked = 0
        self.down = False
        self.called = asyncio.Event()
        self.held = asyncio.Event()
        self.held.set()

    async def __call__(self) -> HandedCredentials:
        self.asked += 1
        self.called.set()
        await self.held.wait()
        if self.down:
            raise BlobUnavailable("the coordinator does not answer")
        self.issued += 1
        return HandedCredentials(f"key-{self.issued}", "top-secret", "top-token", self.life, datetime(2026, 3, 1, tzinfo=UTC))


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def issuer() -> Issuer:
    return Issuer()


@pytest.fixture
def source(issuer: Issuer, clock: FakeClock) -> RenewedCredentials:
    return RenewedCredentials(issuer, clock, "blob store main")


async def idle(source: RenewedCredentials) -> None:
    for _ in range(10):
        await asyncio.sleep(0)
    assert not source.busy


async def test_credentials_are_renewed_after_half_of_their_life(source: RenewedCredentials, issuer: Issuer, clock: FakeClock) -> None:
    assert (await source.current()).key == "key-1"
    clock.advance(1799)
    assert (await source.current()).key == "key-1"
    await idle(source)
    assert issuer.issued == 1
    clock.advance(1)
    assert (await source.current()).key == "key-1", "nothing waits for the renewal"
    await idle(source)
    assert (await source.current()).key == "key-2"
    assert source.left == HOUR


async def test_a_caller_that_hands_them_on_waits_for_the_renewal(source: RenewedCredentials, clock: FakeClock) -> None:
    await source.renewed()
    clock.advance(1800)
    assert (await source.renewed()).key == "key-2"


async def test_concurrent_callers_share_one_request_and_a_cancelled_one_does_not_end_it(source: RenewedCredentials, issuer: Issuer) -> None:
    issuer.held.clear()
    waiting = [asyncio.create_task(source.current()) for _ in range(20)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    await asyncio.sleep(0)
    issuer.held.set()
    assert {found.key for found in await asyncio.gather(*waiting[1:])} == {"key-1"}
    assert issuer.asked == 1


async def test_former_credentials_are_used_until_they_expire_while_none_can_be_issued(
    source: RenewedCredentials, issuer: Issuer, clock: FakeClock
) -> None:
    await source.current()
    issuer.down = True
    clock.advance(1800)
    for _ in range(3):
        assert (await source.current()).key == "key-1"
        await idle(source)
    assert issuer.asked == 2, "the next attempt is after a pause"
    clock.advance(PAUSE.total_seconds())
    assert (await source.renewed()).key == "key-1"
    assert issuer.asked == 3
    clock.advance(1800)
    for call in (source.current, source.renewed):
        with pytest.raises(BlobUnavailable, match="does not answer"):
            await call()
    assert source.left == timedelta(0)
    issuer.down = False
    assert (await source.current()).key == "key-2"


async def test_the_time_that_the_answer_takes_counts_as_a_part_of_their_life(
    source: RenewedCredentials, issuer: Issuer, clock: FakeClock
) -> None:
    issuer.held.clear()
    waiting = asyncio.create_task(source.current())
    await issuer.called.wait()
    clock.advance(600)
    issuer.held.set()
    await waiting
    assert source.left == timedelta(minutes=50)


async def test_a_jump_of_the_time_of_day_changes_nothing(source: RenewedCredentials, issuer: Issuer, clock: FakeClock) -> None:
    await source.current()
    clock.jump(timedelta(days=2))
    assert (await source.current()).key == "key-1"
    await idle(source)
    assert issuer.asked == 1


async def test_credentials_that_the_store_refuses_as_expired_are_renewed_at_once(source: RenewedCredentials) -> None:
    await source.current()
    source.reject()
    assert source.left == timedelta(0)
    assert (await source.current()).key == "key-2"


async def test_a_renewal_in_progress_ends_with_the_store(source: RenewedCredentials, issuer: Issuer) -> None:
    issuer.held.clear()
    waiting = asyncio.create_task(source.current())
    await issuer.called.wait()
    await source.close()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_secrets_are_in_no_representation_and_no_log_record(
    source: RenewedCredentials, issuer: Issuer, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    found = await source.current()
    issuer.down = True
    clock.advance(1800)
    await source.renewed()
    reply = BlobCredentialsReply(
        access_key_id="key", secret_access_key="top-secret", session_token="top-token", expires_at=found.expires_at, seconds_left=1
    )
    environment = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "top-secret", "AWS_SESSION_TOKEN": "top-token"}
    own = credentials_for(S3Location("b", "", None, None), environment)
    with pytest.raises(ValueError, match="secondsLeft") as invalid:
        BlobCredentialsReply.model_validate({"secretAccessKey": "top-secret", "sessionToken": "top-token"})
    assert "top-" not in f"{found!r} {source!r} {reply!r} {reply} {own!r} {invalid.value} {caplog.text}"
    assert "cannot renew the credentials of blob store main, of which 1800 s are left" in caplog.text


def statements(**names: str) -> list[dict[str, Any]]:
    text = (ROOT / "deploy" / "s3" / "containers.json").read_text()
    for placeholder, value in names.items():
        text = text.replace(placeholder, value)
    found = json.loads(text)["Statement"]
    return [{name: value for name, value in each.items() if name != "Principal"} for each in found]


def test_the_session_policy_has_the_statements_of_the_policy_of_containers_for_the_job_only() -> None:
    role = StoreRole(ARN, S3Location("states", "prod/of.jobs", None, None), None, HOUR)
    policy = session_policy(role, JobName("orders"))
    assert policy["Statement"] == statements(BUCKET="states", PREFIX="prod/of.jobs", JOB="orders")
    assert "s3:DeleteObject" not in json.dumps(policy).replace("s3:DeleteObjectTagging", "")


def test_the_session_policy_of_a_store_without_a_prefix_is_for_the_top_of_the_bucket() -> None:
    policy = session_policy(StoreRole(ARN, S3Location("states", "", None, None), None, HOUR), JobName("orders"))
    resources = [each["Resource"] for each in policy["Statement"]]
    assert resources == ["arn:aws:s3:::states/blobs/jobs/orders/*", "arn:aws:s3:::states/sluice.json", "arn:aws:s3:::states"]


@pytest.mark.parametrize(
    ("role", "partition"), [("arn:aws-cn:iam::1:role/x", "aws-cn"), ("arn:minio:iam:::role/x", "aws"), ("arn:aws:iam:::role/x", "aws")]
)
def test_the_session_policy_is_for_the_partition_of_the_role(role: str, partition: str) -> None:
    policy = session_policy(StoreRole(role, S3Location("states", "", None, None), None, HOUR), JobName("orders"))
    assert policy["Statement"][1]["Resource"] == f"arn:{partition}:s3:::states/sluice.json"


def test_the_longest_names_fit_into_the_limits_of_sts() -> None:
    job = JobName("j" * 249)
    policy = session_policy(StoreRole(ARN, S3Location("b" * 63, "p" * 100, None, None), None, HOUR), job)
    assert len(json.dumps(policy, separators=(",", ":"))) <= 2048
    assert len(session_name(job)) == 64
