"""Requests whose connection ends before the whole body has arrived."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

import pytest

from tests.support.api import Caller

ROUTES = [
    ("POST", "/runs", b"application/json"),
    ("POST", "/drain", b"application/json"),
    ("POST", "/runs/none/stop", b"application/json"),
    ("PATCH", "/runs/none", b"application/json"),
    ("POST", "/jobs/none/models/1/rollback", b"application/json"),
    ("POST", "/ui/login", b"application/x-www-form-urlencoded"),
]


async def _cut_off(caller: Caller, method: str, path: str, media_type: bytes) -> int:
    """Send half a body and close the connection. Returns the status of the answer, which no client reads."""
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [(b"host", b"c"), (b"content-type", media_type), (b"content-length", b"100")],
        "client": ("127.0.0.1", 1),
        "server": ("c", 80),
    }
    incoming: list[dict[str, Any]] = [{"type": "http.request", "body": b"{", "more_body": True}]
    statuses = []

    async def receive() -> dict[str, Any]:
        return incoming.pop(0) if incoming else {"type": "http.disconnect"}

    async def send(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    await caller.coordinator.asgi(scope, receive, send)
    [status] = statuses
    return status  # type: ignore[no-any-return]


@pytest.mark.parametrize(("method", "path", "media_type"), ROUTES, ids=lambda each: each if isinstance(each, str) else "")
async def test_a_connection_that_ends_within_a_body_is_no_error_of_the_coordinator(
    caller: Caller, method: str, path: str, media_type: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    assert 400 <= await _cut_off(caller, method, path, media_type) < 500
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
    assert (await caller.http.get("/runs")).json()["runs"] == []
