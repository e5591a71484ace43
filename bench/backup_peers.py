"""The tools that `bench/backup.py` compares: Sluice, plain obstore, rclone and restic. Each sends up to eight requests at a time."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar
from uuid import uuid4

import obstore
from obstore.store import S3Store

from bench.gateway import BUCKET, REGION, Gateway, credentials
from bench.harness import BenchFailed
from containers.state.commits.freeze import freeze
from containers.state.commits.upload import CommitSettings, Marker, Uploader
from containers.state.context import DISK_THREADS, commit_id
from containers.state.meters import Transfers
from containers.state.recovery.restore import Restorer, RestoreSettings
from containers.state.transfer import TransferContext, in_parallel
from sluice.blobs.counted import Requests
from sluice.blobs.locations import open_blob_store, wrapped
from sluice.clock import SystemClock
from sluice.core.ids import Generation, JobName, StageKey, StageName, TaskName
from tests.support.s3servers import S3_CREDENTIALS
from tests.support.servers import program

T = TypeVar("T")

AT_ONCE = 8
KEY = StageKey(JobName("bench"), TaskName("Partition 0"), StageName("stage"))


class Peer(Protocol):
    async def backup(self) -> None:
        """Make the backup equal to the directory."""
        ...

    async def restore(self, into: Path) -> Path:
        """Restore the newest backup. Creates `into`, and returns the directory that then contains the files."""
        ...


class Sluice:
    """Freezes and uploads like an agent, without the report to the coordinator. `marker` is the one of the last backup, `puts` the
    number of PUT requests so far.
    """

    def __init__(self, uploader: Uploader, restorer: Restorer, requests: Requests, directory: Path, scratch: Path) -> None:
        self.marker: Marker | None = None
        self._uploader = uploader
        self._restorer = restorer
        self._requests = requests
        self._directory = directory
        self._scratch = scratch
        self._clearing: asyncio.Task[None] | None = None

    @property
    def puts(self) -> int:
        return sum(count for kind, count in self._requests.requests.items() if kind.operation == "put")

    async def backup(self) -> None:
        checkpoint = commit_id(SystemClock().now(), 0)
        into = self._scratch / checkpoint
        await self.cleared()
        cut = await asyncio.to_thread(freeze, self._directory, into)
        marker, index = await self._uploader.upload(cut, checkpoint, Generation(1))
        self._clearing = asyncio.create_task(asyncio.to_thread(shutil.rmtree, into, ignore_errors=True))
        self._uploader.reported(marker, index)
        self.marker = marker

    async def cleared(self) -> None:
        """Remove the frozen copy. An agent does it in the background, and before the next commit."""
        if self._clearing is not None:
            await self._clearing

    async def restore(self, into: Path) -> Path:
        assert self.marker is not None
        await asyncio.to_thread(into.mkdir)
        await self._restorer.restore(self.marker.index, into / "stage", None)
        return into / "stage"


@asynccontextmanager
async def sluice(gateway: Gateway, directory: Path, scratch: Path) -> AsyncIterator[Sluice]:
    clock, requests = SystemClock(), Requests()
    threads = ThreadPoolExecutor(DISK_THREADS)

    async def in_thread(work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(threads, work)

    with credentials():
        blobs = wrapped(open_blob_store(gateway.blobs("sluice")), requests)
        try:
            await blobs.open(create=True)
            settings = CommitSettings(concurrency=AT_ONCE)
            uploader = Uploader(TransferContext(blobs, KEY, Transfers(), in_thread=in_thread), settings, clock, lambda: uuid4().hex)
            await uploader.begin(None)
            restorer = Restorer(TransferContext(blobs, KEY, Transfers(), in_thread=in_thread), RestoreSettings(concurrency=AT_ONCE))
            made = Sluice(uploader, restorer, requests, directory, scratch)
            yield made
            await made.cleared()
        finally:
            await blobs.close()
            threads.shutdown(wait=False)


class Bare:
    """One object per file: no index, no hashes, no fsync. A second backup uploads everything again."""

    def __init__(self, gateway: Gateway, directory: Path) -> None:
        self._store = S3Store(
            BUCKET,
            prefix="obstore",
            region=REGION,
            endpoint=gateway.endpoint,
            access_key_id=S3_CREDENTIALS["AWS_ACCESS_KEY_ID"],
            secret_access_key=S3_CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
            client_options={"allow_http": True},
        )
        self._directory = directory
        self._names: set[str] = set()

    async def backup(self) -> None:
        names = set(files(self._directory))
        await in_parallel((partial(self._put, name) for name in sorted(names)), AT_ONCE)
        await in_parallel((partial(self._delete, name) for name in sorted(self._names - names)), AT_ONCE)
        self._names = names

    async def _delete(self, name: str) -> None:
        await obstore.delete_async(self._store, name)

    async def _put(self, name: str) -> None:
        body = await asyncio.to_thread((self._directory / name).read_bytes)
        await obstore.put_async(self._store, name, body, use_multipart=False)

    async def restore(self, into: Path) -> Path:
        names = [found["path"] async for page in obstore.list(self._store) for found in page]
        await asyncio.to_thread(_make_directories, {(into / name).parent for name in names})
        await in_parallel((partial(self._get, name, into / name) for name in names), AT_ONCE)
        return into

    async def _get(self, name: str, path: Path) -> None:
        body = await (await obstore.get_async(self._store, name)).bytes_async()
        await asyncio.to_thread(path.write_bytes, body)


def _make_directories(directories: Iterable[Path]) -> None:
    for each in directories:
        each.mkdir(parents=True, exist_ok=True)


class Rclone:
    """`rclone sync`: compares sizes and modification times, which it stores with the objects."""

    def __init__(self, gateway: Gateway, directory: Path) -> None:
        self._directory = directory
        self._program = program("rclone")
        self._environment = {
            "RCLONE_CONFIG": "/dev/null",
            "RCLONE_S3_PROVIDER": "Other",
            "RCLONE_S3_ENDPOINT": gateway.endpoint,
            "RCLONE_S3_REGION": REGION,
            "RCLONE_S3_ACCESS_KEY_ID": S3_CREDENTIALS["AWS_ACCESS_KEY_ID"],
            "RCLONE_S3_SECRET_ACCESS_KEY": S3_CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
            "RCLONE_S3_NO_CHECK_BUCKET": "true",
            "RCLONE_TRANSFERS": str(AT_ONCE),
            "RCLONE_CHECKERS": str(AT_ONCE),
            "RCLONE_FAST_LIST": "true",
        }

    async def backup(self) -> None:
        await run_program([self._program, "sync", str(self._directory), f":s3:{BUCKET}/rclone"], self._environment)

    async def restore(self, into: Path) -> Path:
        await run_program([self._program, "copy", f":s3:{BUCKET}/rclone", str(into)], self._environment)
        return into


class Restic:
    """`restic backup`: also encrypts, and splits files into chunks by content. Compression is off, because the files of this benchmark
    cannot be compressed.
    """

    def __init__(self, gateway: Gateway, directory: Path, cache: Path) -> None:
        self._directory = directory
        self._options = [program("restic"), "--cache-dir", str(cache), "--compression", "off", "-o", f"s3.connections={AT_ONCE}", "--quiet"]
        self._environment = {
            **S3_CREDENTIALS,
            "RESTIC_PASSWORD": "bench",
            "RESTIC_REPOSITORY": f"s3:{gateway.endpoint}/{BUCKET}/restic",
            "AWS_DEFAULT_REGION": REGION,
        }

    async def create(self) -> None:
        """Create the repository."""
        await run_program([*self._options, "init"], self._environment)

    async def backup(self) -> None:
        await run_program([*self._options, "backup", "."], self._environment, self._directory)

    async def restore(self, into: Path) -> Path:
        await run_program([*self._options, "restore", "latest", "--target", str(into)], self._environment)
        return into


async def run_program(command: list[str], environment: Mapping[str, str], directory: Path | None = None) -> None:
    """Run a program to its end. Raises BenchFailed with the end of its output."""
    inherited = {
        name: value for name, value in os.environ.items() if name != "AWS_CA_BUNDLE"
    }  # rclone does not start with this variable set
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=directory,
        env={**inherited, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        said, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        raise BenchFailed(f"{Path(command[0]).name} ended with exit code {process.returncode}: {said.decode(errors='replace')[-1000:]}")


def files(directory: Path) -> Iterable[str]:
    """The paths of all files below, relative to it."""
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file())
