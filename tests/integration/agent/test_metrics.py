"""What an agent reports of its stages, to the coordinator and to Prometheus."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest

from containers.engine import Batch, StateSize
from containers.supervision.exit_report import EXIT_OK
from sluice.core.ids import RunId, Ssp
from sluice.wire import runs as wire_runs
from tests.support.agents import Incarnation, Place, place
from tests.support.engines import FakeQuery

AT = datetime(2026, 3, 1, tzinfo=UTC)


@pytest.fixture
async def there(tmp_path: Path) -> AsyncIterator[Place]:
    async with place(tmp_path) as made:
        yield made


async def running(there: Place, run_id: RunId, name: str = "c1") -> tuple[Incarnation, dict[str, FakeQuery]]:
    """A container whose four queries have started."""
    container = there.start(run_id, name, metrics_host="127.0.0.1")
    return container, await container.engine.all_started(4)


async def stage_of(there: Place, run_id: RunId, task: str = "Partition 0", stage: str = "first") -> wire_runs.StageProgress:
    tasks = (await there.run(run_id)).tasks
    return next(s for t in tasks if t.task == task for s in t.stages if s.stage == stage)


async def commits(query: FakeQuery, batch: int, **more: object) -> None:
    reported = Batch(query.start.query, batch, 100, 50, {Ssp("log", "in", 0): 100 * (batch + 1)}, **more)  # type: ignore[arg-type]
    await asyncio.to_thread(query.callbacks.on_batch, reported)


async def idles(query: FakeQuery) -> None:
    await asyncio.to_thread(query.callbacks.on_idle, query.start.query)


async def address_of(there: Place, run_id: RunId) -> str:
    address = (await there.run(run_id)).incarnations[-1].metrics_address
    assert address is not None
    return address


async def scraped(address: str) -> list[str]:
    async with httpx.AsyncClient() as http:
        answer = await http.get(f"http://{address}/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    return [line for line in answer.text.splitlines() if not line.startswith("#")]


# --- to the coordinator ----------------------------------------------------------------------------------------------


async def test_a_batch_is_reported_with_its_measures(there: Place) -> None:
    run_id = await there.deploy()
    container, queries = await running(there, run_id)
    state = StateSize(rows=7, memory_bytes=1000, disk_bytes=50, dropped_late=0)
    await commits(queries["Partition 0/first"], 0, parts_ms={"addBatch": 45}, behind=12, state=state, watermark=AT, event_time_max=AT)
    await container.wire.after("progress")
    measures = (await stage_of(there, run_id)).metrics
    assert measures is not None
    assert (measures.rows, measures.batch_millis, measures.batch_millis_by_part) == (100, 50, {"addBatch": 45})
    assert (measures.lag, measures.state_rows, measures.state_bytes) == (12, 7, 1000)
    assert (measures.watermark, measures.event_time_max) == (AT, AT)
    assert measures.rows_per_second > 0


async def test_a_stage_with_nothing_to_read_continues_to_report_and_its_rate_is_0(there: Place) -> None:
    run_id = await there.deploy()
    container, queries = await running(there, run_id)
    query = queries["Partition 0/first"]
    await commits(query, 4)
    await container.wire.after("progress", 1)
    before = await stage_of(there, run_id)
    there.clock.advance(1)
    await idles(query)
    await container.wire.after("progress", 2)
    after = await stage_of(there, run_id)
    assert before.metrics is not None
    assert after.metrics is not None
    assert (after.metrics.rows, after.metrics.rows_per_second, after.metrics.lag) == (0, 0, 0)
    assert after.metrics.at > before.metrics.at
    assert (after.batch_id, after.offsets, after.reported_at) == (4, before.offsets, before.reported_at)


async def test_a_container_that_starts_with_nothing_to_read_reports_the_last_batch_of_the_one_before(there: Place) -> None:
    run_id = await there.deploy()
    first, queries = await running(there, run_id)
    await commits(queries["Partition 0/first"], 4)
    first.agent.stop_requested()
    await first.ending()
    second, queries = await running(there, run_id, "c2")
    await idles(queries["Partition 0/first"])
    await idles(queries["Partition 0/second"])
    await second.wire.after("progress", 1)
    reply = await stage_of(there, run_id)
    assert (reply.batch_id, [each.offset for each in reply.offsets]) == (4, [500])
    assert reply.metrics is not None
    assert reply.metrics.rows == 0
    assert (await stage_of(there, run_id, stage="second")).metrics is None, "it has had no batch to report"


# --- to Prometheus ---------------------------------------------------------------------------------------------------


@pytest.mark.real_time
async def test_a_container_serves_its_metrics_at_the_address_that_it_registered(there: Place) -> None:
    run_id = await there.deploy()
    _, queries = await running(there, run_id)
    for batch in range(3):
        await commits(queries["Partition 0/first"], batch)
    address = await address_of(there, run_id)
    assert address.startswith("127.0.0.1:")
    lines = await scraped(address)
    assert 'sluice_stage_input_rows_total{stage="first",task="Partition 0"} 300.0' in lines
    assert "sluice_container_tasks_owned 2.0" in lines
    assert any(line.startswith("sluice_container_lease_seconds_left ") for line in lines)


@pytest.mark.real_time
async def test_the_counters_of_a_query_continue_when_it_is_started_again_and_the_restart_is_counted(there: Place) -> None:
    run_id = await there.deploy()
    container, queries = await running(there, run_id)
    await commits(queries["Partition 0/first"], 0)
    await queries["Partition 0/first"].ends("it broke")
    await commits(await container.engine.started(), 1)
    lines = await scraped(await address_of(there, run_id))
    assert 'sluice_stage_restarts_total{stage="first",task="Partition 0"} 1.0' in lines
    assert 'sluice_stage_input_rows_total{stage="first",task="Partition 0"} 200.0' in lines


@pytest.mark.real_time
async def test_a_container_that_has_ended_serves_no_metrics(there: Place) -> None:
    run_id = await there.deploy()
    container, _ = await running(there, run_id)
    address = await address_of(there, run_id)
    container.agent.stop_requested()
    assert (await container.ending()).exit_code == EXIT_OK
    for thread in threading.enumerate():
        if thread.name == "sluice-metrics-end":
            await asyncio.to_thread(thread.join)
    with pytest.raises(httpx.ConnectError):
        await scraped(address)


async def test_a_container_whose_metrics_port_is_in_use_runs_without_metrics(there: Place, caplog: pytest.LogCaptureFixture) -> None:
    run_id = await there.deploy()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        container = there.start(run_id, "c1", metrics_host="127.0.0.1", metrics_port=port)
        await container.engine.all_started(4)
    assert (await there.run(run_id)).incarnations[0].metrics_address is None
    assert f"metrics are not served: 127.0.0.1, port {port}" in caplog.text


@pytest.mark.parametrize("host", ["192.0.2.1", "no such host", "a" * 64 + ".example"])
async def test_a_container_whose_metrics_address_cannot_be_bound_runs_without_metrics(
    there: Place, host: str, caplog: pytest.LogCaptureFixture
) -> None:
    run_id = await there.deploy()
    container = there.start(run_id, "c1", metrics_host=host)
    await container.engine.all_started(4)
    assert (await there.run(run_id)).incarnations[0].metrics_address is None
    assert "metrics are not served" in caplog.text


@pytest.mark.real_time
async def test_a_container_that_listens_on_all_addresses_is_scraped_at_the_one_from_which_it_registered(there: Place) -> None:
    run_id = await there.deploy()
    container = there.start(run_id, "c1", metrics_host="0.0.0.0", SLUICE_CONTAINER_HOST="node-3")
    await container.engine.all_started(4)
    address = await address_of(there, run_id)
    assert address.startswith("127.0.0.1:")
    assert await scraped(address)


async def test_a_host_name_that_cannot_be_resolved_is_not_registered(there: Place) -> None:
    run_id = await there.deploy()
    container = there.start(run_id, "c1", metrics_host="0.0.0.0", SLUICE_CONTAINER_HOST="the third from the left")
    await container.engine.all_started(4)
    assert (await there.run(run_id)).incarnations[0].metrics_address is None
