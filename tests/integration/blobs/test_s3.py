"""Blobs in S3, bare and wrapped, on a real server; lifecycle rules on moto's."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import aioboto3
import pytest

from sluice.blobs.locations import open_blob_store
from sluice.blobs.port import BlobStore
from sluice.blobs.s3 import S3Blobs, TagReads
from sluice.blobs.s3control import TTL_TAG
from sluice.clock import SystemClock
from sluice.core.errors import BadSettings, BlobMissing, BlobStoreUnusable, BlobUnavailable
from sluice.core.snapshots.snapshot import BlobId
from tests.contracts.blobs import ABOUT, DAY, BareBlobStoreContract, WrappedBlobStoreContract, bytes_of, ids, later, put
from tests.support.processes import free_port
from tests.support.s3servers import S3_CREDENTIALS, S3Server, certified, moto, versitygw


@pytest.fixture
def url(s3: S3Server) -> str:
    return f"s3://{s3.new_bucket()}/state/of.jobs?endpoint={s3.endpoint}&region=us-east-1"


@pytest.fixture
async def bare(url: str) -> AsyncIterator[BlobStore]:
    made = open_blob_store(url)
    await made.open(create=True)
    yield made
    await made.close()


@pytest.fixture
async def bare_second(url: str, bare: BlobStore) -> AsyncIterator[BlobStore]:
    made = open_blob_store(url)
    await made.open(create=False)
    yield made
    await made.close()


class TestS3Blobs(BareBlobStoreContract):
    pass


class TestS3BlobsWrapped(WrappedBlobStoreContract):
    pass


@pytest.fixture(scope="module")
def moto_server() -> Iterator[S3Server]:
    with moto() as server:
        yield server


@pytest.fixture
def moto_bucket(moto_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in S3_CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    return moto_server.new_bucket()


def client(server: S3Server) -> Any:
    return aioboto3.Session().client("s3", endpoint_url=server.endpoint, region_name="us-east-1")


async def test_a_lifecycle_rule_covers_the_tag_of_a_put_and_other_rules_are_kept(moto_server: S3Server, moto_bucket: str) -> None:
    logs = {"ID": "logs", "Status": "Enabled", "Filter": {"Prefix": "logs/"}, "Expiration": {"Days": 3}}
    async with client(moto_server) as boto:
        await boto.put_bucket_lifecycle_configuration(Bucket=moto_bucket, LifecycleConfiguration={"Rules": [logs]})
        for _ in range(2):
            store = open_blob_store(f"s3://{moto_bucket}/a?endpoint={moto_server.endpoint}")
            await store.open(create=True)
            await store.close()
        other = open_blob_store(f"s3://{moto_bucket}/b?endpoint={moto_server.endpoint}")
        await other.open(create=True)
        await put(other, "x", ttl=timedelta(days=30))
        tags = (await boto.get_object_tagging(Bucket=moto_bucket, Key="b/blobs/x"))["TagSet"]
        rules = (await boto.get_bucket_lifecycle_configuration(Bucket=moto_bucket))["Rules"]
        await other.remove_ttl(BlobId("x"), ABOUT)
        assert (await boto.get_object_tagging(Bucket=moto_bucket, Key="b/blobs/x"))["TagSet"] == []
        await put(other, "y", ttl=timedelta(days=30))
        assert await other.sweep_expired(later(100), 10) == 0
        assert await ids(other) == ["x", "y"]
        await other.close()
    assert tags == [{"Key": TTL_TAG, "Value": "30"}]
    assert [rule["Expiration"] for rule in rules if rule["Filter"].get("And") == {"Prefix": "b/", "Tags": tags}] == [{"Days": 30}]
    assert [rule["ID"] for rule in rules if rule["Filter"].get("Prefix") == "logs/"] == ["logs"]
    assert len(rules) == 1 + 2 * 6


async def test_a_ttl_is_rounded_up_to_the_next_one_that_has_a_rule(bare: BlobStore) -> None:
    await put(bare, "ten-days", ttl=10 * DAY)
    await put(bare, "for-ever", ttl=1000 * DAY)
    assert await bare.sweep_expired(later(29), 10) == 0
    assert await bare.sweep_expired(later(3000), 10) == 1
    assert await ids(bare) == ["for-ever"]


async def test_every_request_to_a_missing_bucket_fails_as_unusable(s3: S3Server) -> None:
    store = open_blob_store(f"s3://no-such-bucket/x?endpoint={s3.endpoint}")
    calls = [
        store.open(create=False),
        store.open(create=True),
        put(store, "a"),
        store.put_if_absent(BlobId("a"), b"x", ABOUT),
        bytes_of(store, "a"),
        ids(store),
        store.delete([BlobId("a")], ABOUT),
        store.remove_ttl(BlobId("a"), ABOUT),
        store.sweep_expired(later(1), 1),
    ]
    for call in calls:
        with pytest.raises(BlobStoreUnusable, match="NoSuchBucket"):
            await call
    await store.close()


async def test_a_location_with_other_objects_is_refused_and_not_changed(s3: S3Server) -> None:
    bucket = s3.new_bucket()
    async with client(s3) as boto:
        await boto.put_object(Bucket=bucket, Key="a/thesis.txt", Body=b"chapter 1")
        await boto.put_object(Bucket=bucket, Key="b/sluice.json", Body=b"{}")
        for prefix, found in (("", r"thesis\.txt"), ("/a", r"thesis\.txt"), ("/b", "not written by Sluice")):
            store = open_blob_store(f"s3://{bucket}{prefix}?endpoint={s3.endpoint}")
            for create in (True, False):
                with pytest.raises(BlobStoreUnusable, match=found):
                    await store.open(create=create)
            await store.close()
        assert [found["Key"] for found in (await boto.list_objects_v2(Bucket=bucket))["Contents"]] == ["a/thesis.txt", "b/sluice.json"]


async def test_a_location_without_a_marker_is_not_created_by_clients_that_only_use_it(s3: S3Server) -> None:
    store = open_blob_store(f"s3://{s3.new_bucket()}/x?endpoint={s3.endpoint}")
    with pytest.raises(BlobStoreUnusable, match=r"no sluice\.json"):
        await store.open(create=False)
    await store.open(create=True)
    await store.close()


async def test_a_read_only_bucket_is_unusable_for_creation_and_for_writing(bare: BlobStore, url: str, s3: S3Server) -> None:
    await put(bare, "a")
    assert s3.directory is not None
    with versitygw(s3.directory, readonly=True) as frozen:
        store = open_blob_store(url.replace(s3.endpoint, frozen.endpoint))
        calls: list[Callable[[], Awaitable[object]]] = [
            lambda: put(store, "b"),
            lambda: store.put_if_absent(BlobId("b"), b"x", ABOUT),
            lambda: store.open(create=True),
            lambda: store.delete([BlobId("a")], ABOUT),
            lambda: store.remove_ttl(BlobId("a"), ABOUT),
        ]
        for call in calls:
            with pytest.raises(BlobStoreUnusable):
                await call()
        await store.open(create=False)
        assert await bytes_of(store, "a") == b"body"
        await store.close()


async def test_wrong_credentials_make_the_store_unusable_and_are_not_shown(
    url: str, bare: BlobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong-secret")
    store = open_blob_store(url)
    for call in (store.open(create=False), put(store, "a"), bytes_of(store, "a"), store.remove_ttl(BlobId("a"), ABOUT)):
        with pytest.raises(BlobStoreUnusable, match="SignatureDoesNotMatch") as caught:
            await call
        assert "wrong-secret" not in str(caught.value)
    await store.close()


async def test_a_server_with_a_certificate_of_a_private_authority_is_trusted_if_the_authority_is_configured(
    s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate = certified(tmp_path)
    with versitygw(tmp_path, tls=certificate) as server:
        monkeypatch.setenv("AWS_CA_BUNDLE", str(certificate.authority))
        url = f"s3://{server.new_bucket()}/x?endpoint={server.endpoint}"
        store = open_blob_store(url)
        await store.open(create=True)
        await put(store, "a", b"x" * 100_000, ttl=DAY)
        await store.remove_ttl(BlobId("a"), ABOUT)
        assert len(await bytes_of(store, "a")) == 100_000
        await store.close()
        monkeypatch.setenv("AWS_CA_BUNDLE", str(tmp_path / "nothing"))
        with pytest.raises(BadSettings, match="AWS_CA_BUNDLE"):
            open_blob_store(url)
        monkeypatch.delenv("AWS_CA_BUNDLE")
        store = open_blob_store(url)
        with pytest.raises(BlobUnavailable):
            await store.open(create=False)
        await store.close()


def test_without_credentials_no_network_service_is_asked_for_them(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(BadSettings, match="AWS_SECRET_ACCESS_KEY"):
        open_blob_store(url)


async def test_a_server_that_cannot_be_reached_is_unavailable(s3: S3Server) -> None:
    store = open_blob_store(f"s3://bucket/x?endpoint=http://127.0.0.1:{free_port()}")
    for call in (store.open(create=True), put(store, "a"), bytes_of(store, "a"), ids(store), store.remove_ttl(BlobId("a"), ABOUT)):
        with pytest.raises(BlobUnavailable):
            await call
    await store.close()


async def test_a_bucket_that_vanished_is_not_taken_for_a_store_whose_blobs_are_missing(bare: BlobStore, url: str, s3: S3Server) -> None:
    bucket = url.removeprefix("s3://").partition("/")[0]
    async with client(s3) as boto:
        await boto.delete_object(Bucket=bucket, Key="state/of.jobs/sluice.json")
        await boto.delete_bucket(Bucket=bucket)
    with pytest.raises(BlobStoreUnusable):
        await bytes_of(bare, "a")


async def test_a_deletion_is_found_among_many_records(bare: BlobStore) -> None:
    for n in range(40):
        await bare.delete([BlobId(f"a/{n}")], ABOUT)
    for n in (0, 39):
        with pytest.raises(BlobMissing, match="was deleted"):
            await bytes_of(bare, f"a/{n}")


async def test_the_tags_of_many_blobs_are_read_a_part_in_each_sweep(bare: BlobStore) -> None:
    """A server without lifecycle rules and with more blobs than one sweep reads: all are read after a few sweeps."""
    assert isinstance(bare, S3Blobs)
    store = S3Blobs(bare.location, SystemClock(), TagReads(remembered=0, in_a_sweep=4))
    for n in range(10):
        await put(store, f"a/{n}", ttl=DAY if n == 9 else None)
    assert [await store.sweep_expired(later(2), 100) for _ in range(3)] == [0, 0, 1]
    assert [await store.sweep_expired(later(2), 100) for _ in range(3)] == [0, 0, 0]
    await store.close()
