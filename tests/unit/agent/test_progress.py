from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any

import httpx
import pytest

from containers.agent.progress import FailureReport, ProgressReport, ProgressReporter
from sluice.client.agents import AgentClient
from sluice.core.errors import CoordinatorUnavailable, CoordinatorUnreachable, LeaseLost
from sluice.core.ids import Generation, Lineage, RunId, Ssp, StageName, TaskName
from tests.support.engines import soon

Answer = Callable[[], httpx.Response]


def problem(status: int, slug: str) -> httpx.Response:
    return httpx.Response(status, json={"type": f"urn:sluice:{slug}", "title": "t", "status": status, "detail": f"refused with {slug}"})


def unreachable() -> httpx.Response:
    raise httpx.ConnectError("refused")


class Scripted:
    """A coordinator behind the real client: it answers from a list, then always with 204. `got` are the accepted requests, `asked` all
    requests.
    """

    def __init__(self) -> None:
        self.script: list[Answer] = []
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.got: asyncio.Queue[tuple[str, int]] = asyncio.Queue()
        self.gate = asyncio.Event()
        self.gate.set()
        self.waiting = asyncio.Event()
        self.at_once = self.most_at_once = 0

    async def answer(self, request: httpx.Request) -> httpx.Response:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        body = json.loads(request.content)
        self.asked.append((request.url.path, body))
        self.waiting.set()
        await self.gate.wait()
        self.at_once -= 1
        answer = self.script.pop(0)() if self.script else httpx.Response(204)
        if answer.status_code == 204:
            self.got.put_nowait((body["stage"], body["batchId"]))
        return answer


@pytest.fixture
def there() -> Scripted:
    return Scripted()


@pytest.fixture
async def reports(there: Scripted) -> AsyncIterator[ProgressReporter]:
    client = AgentClient("http://c", httpx.MockTransport(there.answer))
    yield ProgressReporter(client, RunId("run 1"), timedelta(milliseconds=1))
    await client.close()


@pytest.fixture
async def running(reports: ProgressReporter) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(reports.run())
    yield task
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def report(batch: int, stage: str = "hourly", task: str = "Partition 0") -> ProgressReport:
    offsets = {Ssp("log", "in", 0): 10 * batch}
    return ProgressReport(TaskName(task), StageName(stage), Generation(2), Lineage("l"), batch, offsets)


async def test_a_report_names_the_task_the_stage_and_the_ends_of_its_batch(there: Scripted, reports: ProgressReporter) -> None:
    reports.put(report(7))
    await reports.flush()
    assert there.asked == [
        (
            "/runs/run 1/tasks/Partition 0/progress",
            {
                "generation": 2,
                "stage": "hourly",
                "lineage": "l",
                "batchId": 7,
                "offsets": [{"system": "log", "stream": "in", "partition": 0, "offset": 70}],
                "metrics": None,
            },
        )
    ]


async def test_of_many_batches_only_the_newest_is_sent(there: Scripted, reports: ProgressReporter) -> None:
    for batch in range(10):
        reports.put(report(batch))
    await reports.flush()
    assert [body["batchId"] for _, body in there.asked] == [9]


async def test_the_newest_report_is_kept_for_each_stage_of_each_task(there: Scripted, reports: ProgressReporter) -> None:
    for each in (report(1), report(2, stage="route"), report(3, task="Partition 1")):
        reports.put(each)
    await reports.flush()
    assert sorted(body["batchId"] for _, body in there.asked) == [1, 2, 3]


async def test_a_report_that_was_sent_is_not_sent_again(there: Scripted, reports: ProgressReporter) -> None:
    reports.put(report(1))
    await reports.flush()
    await reports.flush()
    assert len(there.asked) == 1


async def test_a_report_is_sent_without_a_request_for_it(there: Scripted, reports: ProgressReporter, running: asyncio.Task[None]) -> None:
    reports.put(report(1))
    assert await soon(there.got.get()) == ("hourly", 1)
    reports.put(report(2))
    assert await soon(there.got.get()) == ("hourly", 2)


async def test_a_report_that_comes_while_an_older_one_is_sent_is_sent_after_it(
    there: Scripted, reports: ProgressReporter, running: asyncio.Task[None]
) -> None:
    there.gate.clear()
    reports.put(report(1))
    await soon(there.waiting.wait())
    reports.put(report(2))
    there.gate.set()
    assert [await soon(there.got.get()) for _ in range(2)] == [("hourly", 1), ("hourly", 2)]


async def test_a_report_is_never_sent_by_two_requests_concurrently(
    there: Scripted, reports: ProgressReporter, running: asyncio.Task[None]
) -> None:
    there.gate.clear()
    reports.put(report(1))
    await soon(there.waiting.wait())
    flush = asyncio.create_task(reports.flush())
    await asyncio.sleep(0)
    there.gate.set()
    await soon(flush)
    assert (len(there.asked), there.most_at_once) == (1, 1)


@pytest.mark.parametrize("trouble", [unreachable, lambda: problem(503, "store-unavailable"), lambda: httpx.Response(502, text="proxy")])
async def test_while_the_coordinator_is_unreachable_the_newest_report_is_kept_and_sent_later(
    there: Scripted, reports: ProgressReporter, running: asyncio.Task[None], trouble: Answer
) -> None:
    there.script = [trouble] * 5
    reports.put(report(1))
    await soon(there.waiting.wait())
    reports.put(report(2))
    assert await soon(there.got.get()) == ("hourly", 2)
    assert there.got.empty()


async def test_a_last_flush_raises_while_the_coordinator_is_unreachable_and_keeps_the_report(
    there: Scripted, reports: ProgressReporter
) -> None:
    there.script = [unreachable]
    reports.put(report(1))
    with pytest.raises(CoordinatorUnreachable):
        await reports.flush()
    await reports.flush()
    assert await soon(there.got.get()) == ("hourly", 1)


async def test_a_lost_lease_ends_the_reporting(there: Scripted, reports: ProgressReporter, running: asyncio.Task[None]) -> None:
    there.script = [lambda: problem(409, "lease-lost")]
    reports.put(report(1))
    with pytest.raises(LeaseLost, match="refused with lease-lost"):
        await soon(running)


async def test_a_refused_report_is_logged_and_dropped_and_the_others_are_sent(
    there: Scripted, reports: ProgressReporter, running: asyncio.Task[None], caplog: pytest.LogCaptureFixture
) -> None:
    there.script = [lambda: problem(404, "unknown-task")]
    with caplog.at_level(logging.ERROR):
        reports.put(report(1))
        reports.put(report(2, stage="route"))
        assert await soon(there.got.get()) == ("route", 2)
    assert "refused the progress of Partition 0/hourly: refused with unknown-task" in caplog.text
    await reports.flush()
    assert len(there.asked) == 2


async def test_a_failure_is_reported_although_the_coordinator_cannot_store_progress_and_again_after_it(
    there: Scripted, reports: ProgressReporter
) -> None:
    reports.put(ProgressReport(TaskName("t"), StageName("a"), Generation(1), Lineage("l"), 1, {}))
    reports.put_failure(FailureReport(TaskName("t"), StageName("b"), Generation(1), "no room", 1, 1.0, ""))
    there.script = [lambda: problem(503, "store-unavailable"), lambda: httpx.Response(200, json={})]
    with pytest.raises(CoordinatorUnavailable):
        await reports.flush()
    there.script = [lambda: httpx.Response(200, json={}), lambda: httpx.Response(200, json={})]
    await reports.flush()
    await reports.flush()
    assert [path.rpartition("/")[2] for path, _ in there.asked] == ["progress", "failure", "progress", "failure"]
