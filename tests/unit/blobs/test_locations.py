"""URLs of blob stores."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.blobs.filesystem import FilesystemBlobs
from sluice.blobs.locations import open_blob_store
from sluice.core.errors import BadSettings
from tests.contracts.blobs import put


async def test_a_directory_is_named_by_a_file_url(tmp_path: Path) -> None:
    store = open_blob_store(f"{tmp_path.as_uri()}/a%20b")
    assert isinstance(store, FilesystemBlobs)
    await store.open(create=True)
    await put(store, "x")
    assert (tmp_path / "a b" / "blobs" / "x").read_bytes() == b"body"
    await store.close()


@pytest.mark.parametrize(
    "url",
    [
        "",
        "/var/blobs",
        "blobs",
        "file://host/dir",
        "file:relative",
        "file:///",
        "file:///dir?x=1",
        "file:///dir#x",
        "http://bucket/x",
        "s3://",
        "s3:///prefix",
        "s3://bucket:80/x",
        "s3://bucket/x?zone=1",
        "s3://bucket/x?region=",
        "s3://bucket/x?region=a&region=b",
        "s3://bucket/../x",
        "s3://bucket/a//b",
        "s3://bucket/x?endpoint=127.0.0.1:7070",
        "s3://bucket/x?endpoint=http://127.0.0.1/path",
        "s3://[bucket/x",
    ],
)
def test_a_url_without_a_location_is_refused_and_nothing_is_created(url: str) -> None:
    with pytest.raises(BadSettings):
        open_blob_store(url)


@pytest.mark.parametrize(
    "url",
    [
        "s3://AKIA123:hunter2@bucket/x",
        "s3://bucket/x?secret_access_key=hunter2",
        "s3://bucket/x?endpoint=http://me:hunter2@127.0.0.1:7070",
    ],
)
def test_credentials_in_a_url_are_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(BadSettings) as caught:
        open_blob_store(url)
    assert "hunter2" not in str(caught.value)
