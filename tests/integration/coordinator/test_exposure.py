"""Where a coordinator listens, and what protects it there: tokens, TLS, proxies."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from coordinator.server import Certificate, listen, server
from coordinator.settings import read_settings
from sluice.client import IDLE_CONNECTION, OperatorClient, Refused
from sluice.core.errors import BadSettings, CoordinatorUnreachable

pytestmark = pytest.mark.real_time

PAIR = {"tls_certificate": Path("tls.crt"), "tls_key": Path("tls.key")}
PROXY = {"behind_proxy": True, "trusted_proxies": ["10.0.0.0/8"]}


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"host": "0.0.0.0"}, "0.0.0.0 is not loopback, so tokens need TLS"),
        ({"host": "::"}, "tokens need TLS"),
        ({"host": "sluice.example.com"}, "tokens need TLS"),
        ({"host": "0.0.0.0", "authentication": True}, "tokens need TLS"),
        ({"host": "0.0.0.0", "authentication": False, **PAIR}, "authentication is needed"),
        ({"host": "0.0.0.0", "authentication": False, **PROXY}, "behind_proxy always needs authentication"),
        ({"authentication": False, **PROXY}, "behind_proxy always needs authentication"),
        ({"behind_proxy": True}, "behind_proxy needs trusted_proxies"),
        ({"trusted_proxies": ["10.0.0.1/8"]}, "has host bits set"),
        ({"trusted_proxies": ["proxy.example.com"]}, "write networks as"),
        ({"tls_certificate": Path("tls.crt")}, "are needed together"),
        ({"tls_client_authorities": Path("ca.crt")}, "needs tls_certificate"),
        ({"client_certificates": [{"name": "ci", "roles": ["viewer"]}], **PAIR}, "needs tls_client_authorities"),
    ],
    ids=str,
)
def test_settings_that_would_be_open_to_a_network_are_refused(settings: dict[str, object], why: str) -> None:
    with pytest.raises(BadSettings, match=why):
        read_settings(**settings)


@pytest.mark.parametrize(
    ("settings", "authenticates"),
    [
        ({}, False),
        ({"host": "localhost"}, False),
        ({"host": "::1"}, False),
        ({"authentication": True}, True),
        ({"host": "0.0.0.0", "insecure": True}, False),
        ({"host": "0.0.0.0", **PAIR}, True),
        ({"host": "0.0.0.0", **PROXY}, True),
        (PROXY, True),
        ({"insecure": True, **PROXY}, True),
    ],
    ids=str,
)
def test_beyond_loopback_and_behind_a_proxy_requests_need_a_token(settings: dict[str, object], authenticates: bool) -> None:
    assert read_settings(**settings).authenticates == authenticates


def make_certificate(directory: Path, name: str) -> tuple[Path, Path]:
    """A certificate for localhost that is its own authority."""
    certificate, key = directory / f"{name}.crt", directory / f"{name}.key"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    command += [
        "-subj",
        f"/CN={name}",
        "-addext",
        "subjectAltName=DNS:localhost,IP:127.0.0.1",
        "-keyout",
        str(key),
        "-out",
        str(certificate),
    ]
    subprocess.run(command, check=True, capture_output=True)
    return certificate, key


@contextmanager
def serving(home: Path, **settings: object) -> Iterator[int]:
    """The port of a coordinator in a thread of its own."""
    listening = listen("127.0.0.1", 0)
    running = server(read_settings(home=home, first_token_file=home.with_name("admin.token"), **settings))
    thread = threading.Thread(target=running.run, args=([listening],))
    thread.start()
    try:
        yield listening.getsockname()[1]
    finally:
        running.should_exit = True
        thread.join()


def test_with_tls_clients_that_know_the_authority_are_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate, key = make_certificate(tmp_path, "one")
    with serving(tmp_path / "home", authentication=True, tls_certificate=certificate, tls_key=key) as port:
        url = f"https://localhost:{port}"
        monkeypatch.setenv("SLUICE_CA_FILE", str(certificate))
        assert httpx.get(f"{url}/livez", verify=ssl.create_default_context(cafile=str(certificate)), timeout=300).text == "ok"
        token = tmp_path / "admin.token"
        assert token.stat().st_mode & 0o777 == 0o600
        monkeypatch.setenv("SLUICE_TOKEN_FILE", str(token))

        async def jobs() -> object:
            client = OperatorClient(url)
            try:
                return (await client.jobs()).jobs
            finally:
                await client.close()

        assert asyncio.run(jobs()) == ()
        monkeypatch.delenv("SLUICE_CA_FILE")
        with pytest.raises(CoordinatorUnreachable, match="certificate verify failed"):
            asyncio.run(jobs())


def test_the_error_about_a_certificate_that_cannot_be_read_names_it(tmp_path: Path) -> None:
    certificate, _ = make_certificate(tmp_path, "one")
    with pytest.raises(BadSettings, match=r"lost\.key"):
        server(read_settings(home=tmp_path, tls_certificate=certificate, tls_key=tmp_path / "lost.key"))


async def test_a_certificate_that_has_changed_is_read_again(tmp_path: Path) -> None:
    files, others = make_certificate(tmp_path, "one"), make_certificate(tmp_path, "another")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*files)
    certificate = Certificate(context, *files)

    async def presented() -> bytes:
        served = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=context)
        trusting = ssl.create_default_context()
        trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
        async with served:
            _, writer = await asyncio.open_connection("127.0.0.1", served.sockets[0].getsockname()[1], ssl=trusting)
            found: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
            writer.close()
        return found

    first = await presented()
    assert not certificate.refresh()
    others[0].replace(files[0])
    assert not certificate.refresh()
    assert await presented() == first, "the former one is used until both files were replaced"
    others[1].replace(files[1])
    assert certificate.refresh()
    assert await presented() != first
    assert not certificate.refresh()


@pytest.mark.parametrize(
    ("proxies", "counted"), [(["127.0.0.1"], "192.0.2.7"), (["127.0.0.0/8"], "192.0.2.7"), (["10.0.0.0/8"], "127.0.0.1")]
)
def test_forwarded_addresses_are_accepted_from_listed_proxies_only(
    tmp_path: Path, proxies: list[str], counted: str, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(tmp_path / "home", behind_proxy=True, trusted_proxies=proxies) as port:
        headers = {"X-Forwarded-For": "192.0.2.7", "Authorization": "Bearer wrong"}
        assert httpx.get(f"http://127.0.0.1:{port}/jobs", headers=headers).status_code == 401
        assert f"was sent by {counted}" in caplog.text


# --- client certificates -------------------------------------------------------------------------------------------------


def signed(directory: Path, authority: tuple[Path, Path], name: str, *extensions: str) -> tuple[Path, Path]:
    """A client certificate with this common name."""
    certificate, key = directory / f"client-{name}.crt", directory / f"client-{name}.key"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    command += [
        "-subj",
        f"/CN={name}",
        "-CA",
        str(authority[0]),
        "-CAkey",
        str(authority[1]),
        "-addext",
        "basicConstraints=critical,CA:FALSE",
    ]
    for extension in extensions:
        command += ["-addext", extension]
    subprocess.run([*command, "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True)
    return certificate, key


def test_a_client_certificate_gives_the_roles_of_its_name(tmp_path: Path) -> None:
    server_files, authority, foreign = (make_certificate(tmp_path, name) for name in ("server", "authority", "foreign"))
    rows = [{"name": "ci", "roles": ["viewer"]}, {"name": "spiffe://example.org/ns/flights/*", "roles": ["agent"], "jobs": ["flight-*"]}]
    clients = {
        "ci": signed(tmp_path, authority, "ci"),
        "pod": signed(tmp_path, authority, "pod", "subjectAltName=DNS:ci,URI:spiffe://example.org/ns/flights/agent"),
        "unknown": signed(tmp_path, authority, "unknown"),
        "foreign": signed(tmp_path, foreign, "ci-of-others"),
    }
    settings = {"tls_certificate": server_files[0], "tls_key": server_files[1], "tls_client_authorities": authority[0]}
    with serving(tmp_path / "home", authentication=True, client_certificates=rows, **settings) as port:

        def status(client: str | None, method: str = "GET", path: str = "/jobs", **headers: str) -> int:
            context = ssl.create_default_context(cafile=str(server_files[0]))
            if client is not None:
                context.load_cert_chain(*clients[client])
            return httpx.request(method, f"https://localhost:{port}{path}", verify=context, headers=headers, timeout=300).status_code

        assert status(None) == 401, "a certificate is not needed"
        assert status("ci") == 200
        assert status("ci", "POST", "/gc/run") == 403
        assert status("pod") == 403, "its name is the URI"
        assert status("pod", "POST", "/runs/none/containers") == 403
        assert status("unknown") == 401
        assert status("ci", Authorization="Bearer wrong") == 401, "a token goes before the certificate"
        admin = (tmp_path / "admin.token").read_text().strip()
        assert status("unknown", Authorization=f"Bearer {admin}") == 200
        with pytest.raises(httpx.HTTPError):
            status("foreign")


async def renewed_while_a_client_lives(port: int, files: tuple[Path, Path], renewed: tuple[Path, Path]) -> None:
    """The new certificate has another name, so that its first request is refused."""
    client = OperatorClient(f"https://localhost:{port}")
    for new, old in zip(renewed, files, strict=True):
        assert (await client.jobs()).jobs == (), "the former certificate is used until both files were replaced"
        await asyncio.sleep(1.2 * IDLE_CONNECTION.total_seconds())  # then the coordinator has closed the connection
        new.replace(old)
    with pytest.raises(Refused, match="send a token"):
        await client.jobs()
    await client.close()


def test_commands_present_the_certificate_of_their_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server_files, authority = (make_certificate(tmp_path, name) for name in ("server", "authority"))
    certificate, key = signed(tmp_path, authority, "ci")
    settings = {"tls_certificate": server_files[0], "tls_key": server_files[1], "tls_client_authorities": authority[0]}
    rows = [{"name": "ci", "roles": ["viewer"]}]
    monkeypatch.setenv("SLUICE_CA_FILE", str(server_files[0]))
    monkeypatch.setenv("SLUICE_CLIENT_CERTIFICATE", str(certificate))
    monkeypatch.setenv("SLUICE_CLIENT_KEY", str(key))
    with serving(tmp_path / "home", authentication=True, client_certificates=rows, **settings) as port:

        async def jobs() -> object:
            client = OperatorClient(f"https://localhost:{port}")
            try:
                return (await client.jobs()).jobs
            finally:
                await client.close()

        assert asyncio.run(jobs()) == ()
        asyncio.run(renewed_while_a_client_lives(port, (certificate, key), signed(tmp_path, authority, "unknown")))
    monkeypatch.setenv("SLUICE_CLIENT_KEY", str(server_files[1]))
    with pytest.raises(BadSettings, match="SLUICE_CLIENT_CERTIFICATE"):
        OperatorClient("https://localhost:1")
