"""The policies of deploy/s3, on a real S3 server: containers reach the blobs of their job, and only the coordinator deletes."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

import boto3
import pytest

from sluice.blobs.locations import open_blob_store
from sluice.blobs.port import BlobStore
from sluice.core.errors import BlobStoreUnusable
from sluice.core.snapshots.snapshot import BlobId
from tests.contracts.blobs import ABOUT, bytes_of
from tests.support.processes import ROOT
from tests.support.s3servers import S3_CREDENTIALS, S3Server, versitygw
from tests.support.servers import program

PREFIX = "state/of.jobs"
OURS, THEIRS = BlobId("jobs/orders/p-0/count/data/1-a"), BlobId("jobs/payments/p-0/count/data/1-a")
USERS = ("coordinator", "orders", "payments")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    directory = tmp_path_factory.mktemp("s3")
    (directory / "iam").mkdir()
    with versitygw(directory, options=["--iam-dir", str(directory / "iam")]) as made:
        key, secret = S3_CREDENTIALS["AWS_ACCESS_KEY_ID"], S3_CREDENTIALS["AWS_SECRET_ACCESS_KEY"]
        admin = {"ADMIN_ACCESS_KEY_ID": key, "ADMIN_SECRET_ACCESS_KEY": secret, "ADMIN_ENDPOINT_URL": made.endpoint}
        for user in USERS:
            command = [program("versitygw"), "admin", "create-user", "--access", user, "--secret", f"{user}-secret", "--role", "user"]
            subprocess.run(command, env={**os.environ, **admin}, check=True, capture_output=True, timeout=60)
        yield made


def statements(name: str, bucket: str, **names: str) -> list[dict[str, Any]]:
    """The statements of a policy file in deploy/s3, with these names filled in."""
    text = (ROOT / "deploy" / "s3" / f"{name}.json").read_text().replace("BUCKET", bucket).replace("PREFIX", PREFIX)
    for placeholder, value in names.items():
        text = text.replace(placeholder, value)
    found: list[dict[str, Any]] = json.loads(text)["Statement"]
    return found


@pytest.fixture
def url(server: S3Server) -> str:
    """A bucket with the policies of the coordinator and of two jobs."""
    bucket = server.new_bucket()
    allowed = [
        *statements("coordinator", bucket, COORDINATOR="coordinator"),
        *statements("containers", bucket, CONTAINERS="orders", JOB="orders"),
        *statements("containers", bucket, CONTAINERS="payments", JOB="payments"),
    ]
    policy = {"Version": "2012-10-17", "Statement": [each | {"Sid": f"{each['Sid']}{number}"} for number, each in enumerate(allowed)]}
    key, secret = S3_CREDENTIALS["AWS_ACCESS_KEY_ID"], S3_CREDENTIALS["AWS_SECRET_ACCESS_KEY"]
    root = boto3.client("s3", endpoint_url=server.endpoint, region_name="us-east-1", aws_access_key_id=key, aws_secret_access_key=secret)
    root.put_bucket_policy(Bucket=bucket, Policy=json.dumps(policy))
    root.close()
    return f"s3://{bucket}/{PREFIX}?endpoint={server.endpoint}&region=us-east-1"


Opened = Callable[[str], Awaitable[BlobStore]]


@pytest.fixture
async def opened(url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Opened]:
    """Opens the blob store as one of the users."""
    async with AsyncExitStack() as stack:

        async def open_as(user: str) -> BlobStore:
            monkeypatch.setenv("AWS_ACCESS_KEY_ID", user)
            monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", f"{user}-secret")
            made = open_blob_store(url)
            stack.push_async_callback(made.close)
            await made.open(create=user == "coordinator")
            return made

        yield open_as


async def listed(blobs: BlobStore, prefix: str) -> list[str]:
    return [each.blob async for page in blobs.list(prefix, ABOUT) for each in page]


async def test_containers_read_and_write_the_blobs_of_their_job_only(opened: Opened) -> None:
    coordinator, orders, payments = [await opened(user) for user in USERS]
    for blobs, blob in ((orders, OURS), (payments, THEIRS)):
        await blobs.put(blob, b"state", ABOUT, ttl=timedelta(days=7))
        await blobs.remove_ttl(blob, ABOUT)
        assert await bytes_of(blobs, blob) == b"state"
        assert await blobs.put_if_absent(BlobId(f"{blob}-offsets"), b"1", ABOUT)
    assert await listed(orders, "jobs/orders/") == [OURS, f"{OURS}-offsets"]
    assert len(await listed(coordinator, "jobs/")) == 4
    refused: list[Awaitable[object]] = [
        orders.put(THEIRS, b"forged", ABOUT),
        orders.put_if_absent(BlobId(f"{THEIRS}-2"), b"forged", ABOUT),
        bytes_of(orders, THEIRS),
        orders.remove_ttl(THEIRS, ABOUT),
        orders.delete([THEIRS], ABOUT),
        listed(orders, "jobs/payments/"),
        listed(orders, "jobs/"),
        orders.put(BlobId("issued/o/000000000001"), b"forged", ABOUT),
    ]
    for request in refused:
        with pytest.raises(BlobStoreUnusable, match="AccessDenied"):
            await request
    assert await bytes_of(payments, THEIRS) == b"state"


async def test_only_the_coordinator_deletes(opened: Opened) -> None:
    coordinator, orders = await opened("coordinator"), await opened("orders")
    await orders.put(OURS, b"state", ABOUT)
    with pytest.raises(BlobStoreUnusable, match="AccessDenied"):
        await orders.delete([OURS], ABOUT)
    await coordinator.delete([OURS], ABOUT)
    assert await listed(coordinator, "jobs/") == []
