"""Traces, as a collector gets them."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from sluice import tracing
from sluice.core.access.tokens import SECRET_BYTES, TokenId, new_token
from sluice.core.errors import BadSettings
from sluice.logconfig import FieldsFilter, LogSettings, new_handler
from tests.integration.agent.test_adoption import grown
from tests.integration.agent.test_adoption import start as start_of_adoption
from tests.integration.agent.test_drains import drained
from tests.support.agents import acting, counting, place
from tests.support.api import calling
from tests.support.backups import BACKED_UP, EVERY_BATCH, began, one_stage, start, stopped
from tests.support.fakes import FakeClock

GENEROUS = 600.0


class Collector:
    """An OTLP/HTTP receiver. `silent`: it accepts requests and never answers."""

    def __init__(self, *, silent: bool = False) -> None:
        self.spans: list[Span] = []
        self.authorizations: set[str | None] = set()
        outer, self.over = self, threading.Event()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                if silent:
                    outer.over.wait(GENEROUS)
                    return
                assert self.path == "/v1/traces"
                request = ExportTraceServiceRequest.FromString(self.rfile.read(int(self.headers["content-length"])))
                outer.authorizations.add(self.headers["authorization"])
                outer.spans += [span for each in request.resource_spans for scope in each.scope_spans for span in scope.spans]
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.address = f"127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self.over.set()
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    made = Collector()
    monkeypatch.setenv(tracing.ENDPOINT, f"http://ann:hunter2@{made.address}")
    tracing.configure("test")
    yield made
    tracing.shutdown()
    made.close()


async def test_a_deployment_and_a_commit_are_each_one_trace_on_both_sides(collector: Collector, tmp_path: Path) -> None:
    async with place(tmp_path / "home", **BACKED_UP) as there:
        with tracing.span("deploy"):
            run_id = await there.deploy(job=one_stage())
        container = start(there, run_id, "c1", "disk1", **EVERY_BATCH)
        disk, query = await began(container)
        await disk.runs(query, 0, {0: 1, 1: 0})
        await container.wire.after("snapshots")
        await stopped(container)
        await began(start(there, run_id, "c2", "disk2", **EVERY_BATCH))
    tracing.shutdown()
    traces: dict[bytes, set[str]] = {}
    for span in collector.spans:
        traces.setdefault(span.trace_id, set()).add(span.name)
    assert {"deploy", "POST /runs", "deploy.create"} in traces.values()
    (commit,) = (names for names in traces.values() if "upload" in names)
    assert {"commit", "freeze", "upload", "report"} < commit
    assert any(name.startswith("POST /runs/") and name.endswith("/snapshots") for name in commit)
    assert {"restore"} in traces.values()
    assert collector.authorizations == {"Basic YW5uOmh1bnRlcjI="}


def traces(collector: Collector) -> dict[bytes, list[Span]]:
    """The spans of each trace."""
    tracing.shutdown()
    found: dict[bytes, list[Span]] = {}
    for span in collector.spans:
        found.setdefault(span.trace_id, []).append(span)
    return found


async def test_a_drain_is_one_trace_of_its_phases_and_of_the_steps_of_each_stage(collector: Collector, tmp_path: Path) -> None:
    async with place(tmp_path / "home", **BACKED_UP) as there:
        run_id = await there.deploy(job=one_stage())
        container = start(there, run_id, "c1", "disk1", **EVERY_BATCH)
        disk, query = await began(container)
        await disk.runs(query, 0, {0: 1, 1: 0})
        uuid = (await drained(there, run_id))["uuid"]
        await container.ending()
        assert await there.state(run_id) == "DRAINED"
    (drain,) = (spans for spans in traces(collector).values() if any(span.name == "drain" for span in spans))
    names = {span.name for span in drain}
    assert {"drain requested", "drain stopping", "drain flushing", "drain committing", "drain.stop", "drain.flush", "drain.commit"} < names
    assert any(name.startswith("POST /runs/") and name.endswith("/drain") for name in names)
    (root,) = (span for span in drain if not span.parent_span_id)
    assert (root.name, {each.key: each.value.string_value for each in root.attributes}["outcome"]) == ("drain", "DRAINED")
    assert {span.parent_span_id for span in drain if span.name.startswith("drain ")} == {root.span_id}
    assert all(root.start_time_unix_nano <= span.start_time_unix_nano for span in drain if span.name.startswith("drain "))
    assert tracing.drain_subject(uuid) == f"drain {uuid}"


async def test_a_version_is_one_trace_with_its_adoption_by_each_container(collector: Collector, tmp_path: Path) -> None:
    async with place(tmp_path / "home", **BACKED_UP) as there:
        run_id = await there.deploy(job=counting())
        container = start_of_adoption(there, run_id, "c1")
        await acting(container.engine, 2)
        assert await grown(there, run_id, **{"in": 4}) == 2
        await acting(container.engine, 2)
        await container.wire.after("adopted")
        await stopped(container)
    (version,) = (spans for spans in traces(collector).values() if any(span.name == "version" for span in spans))
    assert [span.name for span in version if not span.parent_span_id] == ["version"]
    assert [span.name for span in version].count("adopt") == 1
    assert any(span.name.endswith("/adopted") for span in version)


async def test_a_token_in_the_path_of_a_request_is_in_no_trace(collector: Collector, tmp_path: Path) -> None:
    token = new_token(TokenId("0123456789abcdef"), b"s" * SECRET_BYTES)
    headers = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    async with calling(tmp_path, FakeClock()) as caller:
        transport = httpx.ASGITransport(caller.coordinator.asgi)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", headers=headers) as http:
            assert (await http.delete(f"/tokens/{token}")).status_code == 400
            assert (await http.get("/jobs")).status_code == 200
    names = [span.name for spans in traces(collector).values() for span in spans]
    assert "GET /jobs" in names
    assert not [each for each in names if token in each]


def test_records_within_a_trace_have_its_id(collector: Collector, capsys: pytest.CaptureFixture[str]) -> None:
    log = logging.getLogger("tests.traces")
    log.propagate = False
    for form in ("json", "text"):
        log.handlers = [new_handler(LogSettings(log_format=form), FieldsFilter({}))]
        with tracing.span("work"):
            log.warning("inside")
        log.warning("outside")
    log.handlers.clear()
    as_json, plain, as_text, plain_text = capsys.readouterr().err.splitlines()
    assert len(json.loads(as_json)["trace_id"]) == 32
    assert "trace_id" not in json.loads(plain)
    assert as_text.endswith("]")
    assert " inside [trace " in as_text
    assert "trace" not in plain_text.removeprefix(plain_text.split(": ")[0])
    tracing.shutdown()
    assert json.loads(as_json)["trace_id"] in {each.trace_id.hex() for each in collector.spans}


def python(code: str, endpoint: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, tracing.ENDPOINT: endpoint}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=GENEROUS, check=False, env=environment)


def test_nothing_is_imported_while_there_is_no_endpoint() -> None:
    code = (
        "import sys; from sluice import tracing; import sluice.client; tracing.configure('x')\n"
        "with tracing.span('a'): assert not tracing.headers()\n"
        "assert not [each for each in sys.modules if each.startswith('opentelemetry')]"
    )
    assert python(code, "").returncode == 0


@pytest.mark.parametrize("silent", [True, False], ids=["hangs", "is away"])
def test_a_process_ends_although_the_collector_does_not_answer(silent: bool) -> None:
    made = Collector(silent=silent)
    if not silent:
        made.close()
    done = python("from sluice import tracing; tracing.configure('x')\nwith tracing.span('a'): print('done')", f"http://{made.address}")
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
    if silent:
        made.close()


@pytest.mark.parametrize("url", ["collector:4318", "ftp://c", "http://", "http://u:hunter2@c:port", "http://c?token=hunter2"])
def test_a_bad_endpoint_is_an_error_of_settings_that_does_not_show_it(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv(tracing.ENDPOINT, url)
    with pytest.raises(BadSettings, match=r"^SLUICE_OTLP_ENDPOINT: ") as refused:
        tracing.configure("x")
    assert "hunter2" not in str(refused.value)


def test_a_missing_extra_is_named() -> None:
    code = (
        "import sys; sys.modules['opentelemetry.sdk'] = None\n"
        "from sluice import tracing\ntry: tracing.configure('x')\nexcept tracing.BadSettings as e: print(e)"
    )
    assert "install sluice-spark[tracing], or unset SLUICE_OTLP_ENDPOINT" in python(code, "http://c:4318").stdout
