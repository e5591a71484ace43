"""S3 servers, and a proxy that disturbs connections to them; see `servers`."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import httpx

from tests.support.processes import free_port, serving
from tests.support.servers import NotInstalled, program

S3_CREDENTIALS: Mapping[str, str] = {"AWS_ACCESS_KEY_ID": "sluice", "AWS_SECRET_ACCESS_KEY": "sluice-secret"}


@dataclass(frozen=True, slots=True)
class S3Server:
    """An S3 server at `endpoint`, and the directory of its objects, if it has one. Its credentials are `S3_CREDENTIALS`."""

    endpoint: str
    directory: Path | None = None

    def new_bucket(self) -> str:
        """Create an empty bucket. Returns its name."""
        name = f"test-{uuid4().hex[:20]}"
        import boto3  # slow import

        keys = [S3_CREDENTIALS["AWS_ACCESS_KEY_ID"], S3_CREDENTIALS["AWS_SECRET_ACCESS_KEY"]]
        client = boto3.client(
            "s3", endpoint_url=self.endpoint, region_name="us-east-1", aws_access_key_id=keys[0], aws_secret_access_key=keys[1]
        )
        client.create_bucket(Bucket=name)
        client.close()
        return name


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate for 127.0.0.1, signed by `authority`. All files are in PEM format."""

    authority: Path
    certificate: Path
    key: Path


def certified(directory: Path) -> Certificate:
    """A certificate of an authority that no client trusts by default."""
    if shutil.which("openssl") is None:
        raise NotInstalled("openssl")
    made = Certificate(directory / "authority.pem", directory / "certificate.pem", directory / "key.pem")
    new = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    signing = str(directory / "signing.pem")
    signed = ["-CA", str(made.authority), "-CAkey", signing, "-addext", "subjectAltName=IP:127.0.0.1"]
    for command in (
        [*new, "-subj", "/CN=Test authority", "-keyout", signing, "-out", str(made.authority)],
        [
            *new,
            "-subj",
            "/CN=127.0.0.1",
            *signed,
            "-addext",
            "basicConstraints=critical,CA:FALSE",
            "-keyout",
            str(made.key),
            "-out",
            str(made.certificate),
        ],
    ):
        subprocess.run(command, check=True, capture_output=True)
    return made


@contextmanager
def versitygw(
    directory: Path, *, readonly: bool = False, tls: Certificate | None = None, options: Sequence[str] = (), new_session: bool = False
) -> Iterator[S3Server]:
    """A new S3 server with its objects in `directory`. It has no lifecycle rules. A `readonly` one may share the directory of another."""
    (directory / "s3").mkdir(exist_ok=True)
    address, scheme = f"127.0.0.1:{free_port()}", "http" if tls is None else "https"
    root = {"ROOT_ACCESS_KEY": S3_CREDENTIALS["AWS_ACCESS_KEY_ID"], "ROOT_SECRET_KEY": S3_CREDENTIALS["AWS_SECRET_ACCESS_KEY"]}
    command = [program("versitygw"), "--port", address, "--quiet", "--health", "/health", *options, *(["--readonly"] if readonly else [])]
    if tls is not None:
        command += ["--cert", str(tls.certificate), "--key", str(tls.key)]
    with serving(
        [*command, "posix", str(directory / "s3")],
        f"{scheme}://{address}/health",
        directory / f"versitygw-{'readonly' if readonly else 'first'}.log",
        cwd=directory,
        environment=root,
        new_session=new_session,
        authority=None if tls is None else tls.authority,
    ):
        yield S3Server(f"{scheme}://{address}", directory)


@contextmanager
def moto() -> Iterator[S3Server]:
    """An S3 server with lifecycle rules, in this process."""
    from moto.server import ThreadedMotoServer  # slow import

    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        yield S3Server(f"http://{host}:{port}")
    finally:
        server.stop()


@dataclass(frozen=True, slots=True)
class Toxiproxy:
    """Proxies whose connections can be slowed down, stalled or broken. `api` is the address of Toxiproxy's API."""

    api: str

    def proxy(self, upstream: str) -> str:
        """Create a proxy. Returns its host and port."""
        made = httpx.post(f"{self.api}/proxies", json={"name": upstream, "listen": "127.0.0.1:0", "upstream": upstream}).raise_for_status()
        return str(made.json()["listen"])

    def poison(self, upstream: str, kind: str, stream: str, **attributes: int) -> None:
        """Add a toxic of that kind (see Toxiproxy), in the direction `upstream` or `downstream`."""
        toxic = {"name": kind, "type": kind, "stream": stream, "attributes": attributes}
        httpx.post(f"{self.api}/proxies/{upstream}/toxics", json=toxic).raise_for_status()

    def heal(self, upstream: str, kind: str) -> None:
        httpx.delete(f"{self.api}/proxies/{upstream}/toxics/{kind}").raise_for_status()

    def cut(self, upstream: str, *, on: bool) -> None:
        """Disable or enable the proxy."""
        httpx.post(f"{self.api}/proxies/{upstream}", json={"enabled": not on}).raise_for_status()


@contextmanager
def toxiproxy(directory: Path, *, new_session: bool = False) -> Iterator[Toxiproxy]:
    port = free_port()
    command = [program("toxiproxy-server"), "-host", "127.0.0.1", "-port", str(port)]
    api = f"http://127.0.0.1:{port}"
    with serving(command, f"{api}/version", directory / "toxiproxy.log", cwd=directory, new_session=new_session):
        yield Toxiproxy(api)
