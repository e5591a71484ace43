"""An S3 server on loopback for benchmarks (versitygw, which keeps objects as files), and a proxy that makes the way to it longer
(toxiproxy).

Both are found on the path, or where `go install` puts programs.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from bench.harness import START_SECONDS, BenchFailed, end, free_port, get, tail

BUCKET = "bench"
REGION = "us-east-1"
CREDENTIALS: Mapping[str, str] = {"AWS_ACCESS_KEY_ID": "sluice", "AWS_SECRET_ACCESS_KEY": "sluice-secret"}
_FROM = {
    "versitygw": "go install github.com/versity/versitygw/cmd/versitygw@latest",
    "toxiproxy-server": "go install github.com/Shopify/toxiproxy/v2/cmd/server@latest, and call the program `server` toxiproxy-server",
    "rclone": "apt install rclone",
    "restic": "apt install restic",
}


def program(name: str) -> str:
    """Where it is. Raises BenchFailed, which says where to get it from."""
    found = shutil.which(name) or shutil.which(name, path=_go_programs())
    if found is None:
        raise BenchFailed(f"{name} is not installed: {_FROM[name]}")
    return found


def _go_programs() -> str:
    return str(Path(os.environ.get("GOBIN") or Path(os.environ.get("GOPATH") or Path.home() / "go") / "bin"))


@dataclass(frozen=True, slots=True)
class Gateway:
    """The running S3 server: its address, the directory of its bucket, and the file in which it writes a line for every request that it has
    answered."""

    address: str
    bucket: Path
    access_log: Path

    @property
    def endpoint(self) -> str:
        return f"http://{self.address}"

    def blobs(self, prefix: str, address: str | None = None) -> str:
        """The URL of a blob store in the bucket; with `address`, by that way."""
        return f"s3://{BUCKET}/{prefix}?endpoint=http://{address or self.address}&region={REGION}"

    def requests(self) -> Counter[str]:
        """The requests for the bucket so far, by operation: PutObject."""
        with self.access_log.open(errors="replace") as lines:
            found = (operation(line) for line in lines)
            return Counter(each for each in found if each is not None)


def operation(line: str) -> str | None:
    """That of a line of the access log, in the format of Amazon's "server access log": owner, bucket, [time], address, requester, id,
    operation, …. None for a line that is of no request for the bucket."""
    before, _, behind = line.partition("] ")
    words = behind.split(maxsplit=4)
    if f" {BUCKET} [" not in before or len(words) < 4 or not words[3].startswith("s3_"):
        return None
    return words[3].removeprefix("s3_")


@contextmanager
def gateway() -> Iterator[Gateway]:
    """A fresh one with the empty bucket `BUCKET`, up. Its files go with it."""
    with tempfile.TemporaryDirectory(prefix="sluice-bench-s3-") as made:
        directory = Path(made)
        bucket = directory / "objects" / BUCKET
        bucket.mkdir(parents=True)
        address, log = f"127.0.0.1:{free_port()}", directory / "access.log"
        log.touch()
        keys = {"ROOT_ACCESS_KEY": CREDENTIALS["AWS_ACCESS_KEY_ID"], "ROOT_SECRET_KEY": CREDENTIALS["AWS_SECRET_ACCESS_KEY"]}
        options = ["--port", address, "--quiet", "--keep-alive", "--health", "/health", "--access-log", str(log)]
        with _running([program("versitygw"), *options, "posix", str(bucket.parent)], f"http://{address}/health", keys):
            yield Gateway(address, bucket, log)


@contextmanager
def distant(upstream: str, delay: timedelta) -> Iterator[str]:
    """The address of a proxy before the `upstream` one, by which answers come that much later."""
    port = free_port()
    api = f"http://127.0.0.1:{port}"
    with _running([program("toxiproxy-server"), "-host", "127.0.0.1", "-port", str(port)], f"{api}/version", {}):
        made = _post(f"{api}/proxies", {"name": "s3", "listen": "127.0.0.1:0", "upstream": upstream})
        latency = {"latency": round(delay.total_seconds() * 1000)}
        _post(f"{api}/proxies/s3/toxics", {"name": "far", "type": "latency", "stream": "downstream", "attributes": latency})
        yield str(made["listen"])


def _post(url: str, body: object) -> Mapping[str, object]:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        found: Mapping[str, object] = json.load(answer)
        return found


@contextmanager
def _running(command: Sequence[str], url: str, environment: Mapping[str, str]) -> Iterator[None]:
    """A server process, from its first answer until the block is left. It may use all cores, as its clients do."""
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=said, stderr=said, env={**os.environ, **environment}, start_new_session=True
        )
        try:
            deadline = time.monotonic() + START_SECONDS
            while not _answers(url):
                if time.monotonic() > deadline or process.poll() is not None:
                    said.seek(0)
                    raise BenchFailed(f"{Path(command[0]).name} did not start: {tail(said.read())}")
                time.sleep(0.05)
            yield
        finally:
            end(process)


def _answers(url: str) -> bool:
    try:
        return get(url)[0] == 200
    except OSError:
        return False


@contextmanager
def credentials() -> Iterator[None]:
    """The gateway's, in our environment."""
    before = dict(os.environ)
    os.environ.update(CREDENTIALS)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
