"""Issuers of tokens: a small HTTP server that publishes keys and may misbehave, and a real OpenID Connect provider."""

from __future__ import annotations

import asyncio
import html
import json
import os
import re
import shutil
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from tests.support.processes import free_port, serving
from tests.support.servers import NotInstalled

AUDIENCE = "sluice"
KEYS_PATH = "/keys"
DISCOVERY_PATH = "/.well-known/openid-configuration"


PrivateKey = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey


def rsa_key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


def ec_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


class Issuer:
    """Publishes `keys` (by id) at its `url`. `answers`: by path, status, headers and body of other answers. `away`: no request is answered.
    `requests`: the requested paths. `authorizations`: the header of each request."""

    def __init__(self) -> None:
        self.keys: dict[str, PrivateKey] = {"one": rsa_key()}
        self.answers: dict[str, tuple[int, Mapping[str, str], bytes]] = {}
        self.away = False
        self.requests: list[str] = []
        self.authorizations: list[str] = []
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                issuer.requests.append(self.path)
                issuer.authorizations.append(self.headers.get("Authorization", ""))
                if issuer.away:
                    self.close_connection = True
                    return
                status, headers, body = issuer.answers.get(self.path) or (200, {}, issuer.answer(self.path))
                self.send_response(status)
                for name, value in {"Content-Length": str(len(body)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                """Requests are not logged."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def answer(self, path: str) -> bytes:
        if path == DISCOVERY_PATH:
            return json.dumps({"issuer": self.url, "jwks_uri": f"{self.url}{KEYS_PATH}"}).encode()
        return json.dumps({"keys": [self.public(name) for name in self.keys]}).encode()

    def public(self, key_id: str) -> dict[str, Any]:
        """The public key as a JWK."""
        key = self.keys[key_id]
        if isinstance(key, rsa.RSAPrivateKey):
            found: dict[str, Any] = jwt.algorithms.RSAAlgorithm.to_jwk(key.public_key(), as_dict=True)
        else:
            found = jwt.algorithms.ECAlgorithm.to_jwk(key.public_key(), as_dict=True)
        return found | {"kid": key_id, "use": "sig"}

    def claims(self, now: datetime, **changes: Any) -> dict[str, Any]:
        """The claims of a valid token, with these changes; None removes a claim."""
        good = {
            "iss": self.url,
            "aud": AUDIENCE,
            "sub": "ann",
            "groups": ["oncall"],
            "iat": int(now.timestamp()),
            "exp": int((now + timedelta(minutes=10)).timestamp()),
        }
        return {name: value for name, value in (good | changes).items() if value is not None}

    def token(self, now: datetime, key_id: str = "one", *, key: Any = None, algorithm: str = "RS256", **changes: Any) -> str:
        return jwt.encode(self.claims(now, **changes), key or self.keys[key_id], algorithm=algorithm, headers={"kid": key_id})


@contextmanager
def issuer() -> Iterator[Issuer]:
    made = Issuer()
    thread = threading.Thread(target=made.server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield made
    finally:
        made.server.shutdown()
        made.server.server_close()
        thread.join()


OIDC_PROVIDER = "SLUICE_OIDC_PROVIDER"
"""The variable with the directory of the npm package `oidc-provider`."""

PACKAGE = "npm install --prefix DIRECTORY oidc-provider@9, and set SLUICE_OIDC_PROVIDER=DIRECTORY/node_modules/oidc-provider"


@contextmanager
def oidc_provider(directory: Path, groups: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """A real OpenID Connect provider with these users. Yields its issuer. Raises NotInstalled."""
    node, library = shutil.which("node"), Path(os.environ.get(OIDC_PROVIDER, "/nonexistent")) / "lib" / "index.js"
    if node is None:
        raise NotInstalled("node", "apt install nodejs")
    if not library.is_file():
        raise NotInstalled("oidc-provider", PACKAGE)
    port = free_port()
    script = Path(__file__).with_name("oidc_provider.mjs")
    url = f"http://127.0.0.1:{port}"
    command = [node, str(script), str(library), str(port), json.dumps({name: list(each) for name, each in groups.items()})]
    with serving(command, url + DISCOVERY_PATH, directory / "oidc-provider.log", cwd=directory):
        yield url


def utc_now() -> datetime:
    return datetime.now(UTC)


# --- a user of the provider --------------------------------------------------------------------------------------------


async def submitted(browser: httpx.AsyncClient, page: httpx.Response, **fields: str) -> httpx.Response:
    """Submit the form of the page with these fields. Returns the answer after all redirects to pages of the provider."""
    [action] = re.findall(r'<form[^>]* action="([^"]*)"', page.text)
    hidden = dict(re.findall(r'<input type="hidden" name="([^"]*)" value="([^"]*)"', page.text))
    answer = await browser.post(str(page.url.join(html.unescape(action))), data={**hidden, **fields})
    return await followed(browser, answer)


async def followed(browser: httpx.AsyncClient, answer: httpx.Response) -> httpx.Response:
    while answer.is_redirect and "/ui/login/" not in answer.headers["location"]:
        answer = await browser.get(str(answer.url.join(answer.headers["location"])))
    return answer


def confirm(begun: Mapping[str, Any], user: str) -> None:
    """Log in and confirm the code of a device, as a user does in a browser."""

    async def run() -> None:
        async with httpx.AsyncClient(timeout=60) as browser:
            page = await followed(browser, await browser.get(begun["verification_uri_complete"]))
            for _ in range(6):
                if "<form" not in page.text:
                    return
                page = await submitted(browser, page, **({"login": user, "password": "x"} if 'name="login"' in page.text else {}))

    asyncio.run(run())
