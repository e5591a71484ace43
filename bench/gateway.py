"""An S3 server on loopback for benchmarks (versitygw, which stores objects as files), and a proxy that delays its answers (toxiproxy)."""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from tests.support.s3servers import S3_CREDENTIALS, toxiproxy, versitygw

BUCKET = "bench"
REGION = "us-east-1"


@dataclass(frozen=True, slots=True)
class Gateway:
    """The running S3 server: its address, the directory of its bucket, and its access log."""

    address: str
    bucket: Path
    access_log: Path

    @property
    def endpoint(self) -> str:
        return f"http://{self.address}"

    def blobs(self, prefix: str, address: str | None = None) -> str:
        """The URL of a blob store in the bucket; with `address`, through the proxy at that address."""
        return f"s3://{BUCKET}/{prefix}?endpoint=http://{address or self.address}&region={REGION}"

    def requests(self) -> Counter[str]:
        """The number of requests for the bucket so far, by operation, for example PutObject."""
        with self.access_log.open(errors="replace") as lines:
            found = (operation(line) for line in lines)
            return Counter(each for each in found if each is not None)


def operation(line: str) -> str | None:
    """The operation in a line of the access log, in the format of Amazon's "server access log": owner, bucket, [time], address,
    requester, id, operation, …. None if the line is not about a request for the bucket.
    """
    before, _, behind = line.partition("] ")
    fields = behind.split(maxsplit=4)
    if f" {BUCKET} [" not in before or len(fields) < 4 or not fields[3].startswith("s3_"):
        return None
    return fields[3].removeprefix("s3_")


@contextmanager
def gateway() -> Iterator[Gateway]:
    """A new server with the empty bucket `BUCKET`. Its files are deleted with the block. It may use all cores, like its clients."""
    with tempfile.TemporaryDirectory(prefix="sluice-bench-s3-") as made:
        directory = Path(made)
        bucket, log = directory / "s3" / BUCKET, directory / "access.log"
        bucket.mkdir(parents=True)
        log.touch()
        with versitygw(directory, options=["--keep-alive", "--access-log", str(log)], new_session=True) as server:
            yield Gateway(server.endpoint.removeprefix("http://"), bucket, log)


@contextmanager
def distant(upstream: str, delay: timedelta) -> Iterator[str]:
    """The address of a proxy to `upstream` that delays answers by that time."""
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as made, toxiproxy(Path(made), new_session=True) as proxies:
        address = proxies.proxy(upstream)
        proxies.poison(upstream, "latency", "downstream", latency=round(delay.total_seconds() * 1000))
        yield address


@contextmanager
def credentials() -> Iterator[None]:
    """Puts the credentials of the gateway into the environment of this process."""
    before = dict(os.environ)
    os.environ.update(S3_CREDENTIALS)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
