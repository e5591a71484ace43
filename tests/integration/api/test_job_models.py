"""The job model, localities, health and metrics, as tools read them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta

import httpx
import pytest

from coordinator.api.errors import MEDIA_TYPE
from sluice.streams.log import LogSystem
from tests.support.api import Caller, chained_body, problem_slug, run_body

MODEL = "/jobModel?job=flight-delays"


async def test_the_job_model_is_served_in_samzas_spelling(caller: Caller) -> None:
    run = await caller.deploy(run_body(config={"x": "y"}))
    answer = await caller.http.get(MODEL)
    assert (answer.headers["content-type"], answer.headers["sluice-run-id"]) == ("application/json", run["runId"])
    assert answer.headers["sluice-job-model-version"] == "1"
    document = answer.json()
    assert document["config"] == {"job.name": "flight-delays", "job.container.count": "1", "x": "y"}
    assert document["max-change-log-stream-partitions"] == 2
    assert document["containers"]["0"]["tasks"]["Partition 1"] == {
        "task-name": "Partition 1",
        "system-stream-partitions": [{"system": "log", "partition": 1, "stream": "flights", "keyBucket": -1}],
        "changelog-partition": 1,
        "task-mode": "Active",
    }


@pytest.mark.parametrize("spelling", ["{}", "W/{}", '"other", {}', "*", ' {} , "x"'])
async def test_a_model_that_the_client_already_has_is_not_sent_again(caller: Caller, spelling: str) -> None:
    await caller.deploy()
    etag = (await caller.http.get(MODEL)).headers["etag"]
    answer = await caller.http.get(MODEL, headers={"If-None-Match": spelling.format(etag)})
    assert (answer.status_code, answer.content, answer.headers["etag"]) == (304, b"", etag)


@pytest.mark.parametrize("known", ['"1-0000"', "1", '""'])
async def test_a_model_is_sent_to_a_client_that_has_another_one(caller: Caller, known: str) -> None:
    await caller.deploy()
    assert (await caller.http.get(MODEL, headers={"If-None-Match": known})).status_code == 200


async def test_a_new_model_has_a_new_etag(caller: Caller) -> None:
    etags = []
    for containers in (1, 2):
        await caller.deploy(run_body(containers=containers))
        etags.append((await caller.http.get(MODEL)).headers["etag"])
    answer = await caller.http.get(MODEL, headers={"If-None-Match": etags[0]})
    assert (answer.status_code, answer.headers["etag"]) == (200, etags[1])
    assert etags[0] != etags[1]


async def test_load_balancers_may_probe_with_head(caller: Caller) -> None:
    for path in ("/livez", "/readyz", "/metrics"):
        whole, head = await caller.http.get(path), await caller.http.head(path)
        assert (head.status_code, head.headers["content-type"]) == (200, whole.headers["content-type"])
        assert (head.content, head.headers.get("content-length")) in ((b"", None), (b"", whole.headers["content-length"]))


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
async def test_the_refusal_of_a_method_lists_the_allowed_methods(caller: Caller, method: str) -> None:
    answer = await caller.http.request(method, MODEL)
    assert problem_slug(answer) == (405, "http-405")
    assert "GET" in answer.headers["allow"]


async def test_localities_show_the_host_of_the_newest_incarnation(caller: Caller) -> None:
    run = await caller.deploy(run_body(containers=2))
    await caller.registered(run["runId"], "c1", "0")
    await caller.registered(run["runId"], "c2", "0")
    assert (await caller.http.get("/locality")).json() == {
        "processor-localities": {
            "0": {"id": "0", "host": "host-of-c2", "jmx-url": "", "jmx-tunneling-url": ""},
            "1": {"id": "1", "host": "", "jmx-url": "", "jmx-tunneling-url": ""},
        }
    }
    one = await caller.http.get("/locality?processorId=0")
    assert one.json() == {"id": "0", "host": "host-of-c2", "jmx-url": "", "jmx-tunneling-url": ""}


async def test_the_locality_of_an_unknown_processor_is_not_found(caller: Caller) -> None:
    await caller.deploy()
    assert problem_slug(await caller.http.get("/locality?processorId=9")) == (404, "unknown-slot")


async def test_with_several_jobs_a_request_of_localities_must_name_one(caller: Caller) -> None:
    await caller.deploy()
    await caller.deploy(run_body(job="other", outputs=[{"name": "delays", "system": "log", "stream": "other"}]))
    assert problem_slug(await caller.http.get("/locality")) == (422, "bad-request")
    assert (await caller.http.get("/locality?job=other")).status_code == 200


async def test_a_coordinator_that_works_is_live_and_ready(caller: Caller) -> None:
    assert (await caller.http.get("/livez")).text == "ok"
    assert (await caller.http.get("/readyz")).text == "ready\n"
    verbose = (await caller.http.get("/readyz?verbose")).text.splitlines()
    of_blobs = [line for line in verbose if line[3:].startswith(" blob store ")]  # opened by a chore, a moment later
    assert [line.split(":")[0][4:] for line in of_blobs] == ["blob store local"]
    vital = [line.split(":")[0] for line in verbose if line not in of_blobs]
    disks = ["[+] disk log", "[+] disk database", "[+] disk blob store local"]
    assert vital == ["[+] database", "[+] system log", *disks, "[+] catalog", "[+] chores", "[+] backups", "[+] leases", "ready"]


async def test_without_its_log_the_coordinator_is_live_and_not_ready(caller: Caller) -> None:
    for file in caller.log.directory.iterdir():
        file.unlink()
    caller.log.directory.rmdir()
    answer = await caller.http.get("/readyz?verbose")
    assert (answer.status_code, answer.text.splitlines()[1][:15]) == (503, "[-] system log:")
    assert (await caller.http.get("/livez")).status_code == 200


async def test_a_system_that_does_not_answer_is_reported_and_delays_no_answer(caller: Caller) -> None:
    class Silent(LogSystem):
        async def partitions(self, stream: str) -> int:
            await asyncio.Event().wait()
            raise AssertionError("unreachable")

    health = caller.coordinator.api.state.parts.health
    silent = replace(health, systems={"log": Silent(caller.log.directory)}, timeout=timedelta(milliseconds=20))
    reported = {check.name: (check.ok, check.text) for check in await silent.check()}
    assert reported["system log"] == (False, "no answer within 0.02 s")


async def test_an_unavailable_log_answers_with_retry_after(caller: Caller) -> None:
    (caller.log.directory / "flights.db").write_bytes(b"not a database, whatever its name says" * 100)
    answer = await caller.http.post("/runs", json=chained_body())
    assert problem_slug(answer) == (503, "stream-unavailable")
    assert answer.headers["retry-after"] == "1"


async def test_every_metric_has_a_help_text(caller: Caller) -> None:
    output = (await caller.http.get("/metrics")).text.splitlines()
    names = {line.split()[2] for line in output if line.startswith("# TYPE sluice_")}
    assert names
    assert names == {line.split()[2] for line in output if line.startswith("# HELP sluice_") and len(line.split()) > 3}


async def chunks(count: int) -> AsyncIterator[bytes]:
    for _ in range(count):
        yield b"x" * 1_000_000


def announced(body: bytes) -> httpx.Request:
    return httpx.Request("POST", "http://c/runs", content=body, headers={"Content-Type": "application/json"})


async def test_a_body_that_is_too_large_is_refused(caller: Caller) -> None:
    assert problem_slug(await caller.http.send(announced(b" " * 50_000_000))) == (413, "body-too-large")


async def test_a_body_that_is_too_large_and_has_no_declared_length_is_refused(caller: Caller) -> None:
    answer = await caller.http.post("/runs", content=chunks(50), headers={"Content-Type": "application/json"})
    assert problem_slug(answer) == (413, "body-too-large")
    assert answer.headers["content-type"] == MEDIA_TYPE
