from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator

import pytest
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, SummaryMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from coordinator.api.exposition import PER_STEP, Exposition

MANY = 2 * PER_STEP + 1


def of_every_type() -> Iterator[Metric]:
    ages = GaugeMetricFamily("sluice_snapshot_age_seconds", "Its\ntext has two lines, and a \\.", labels=["task"])
    counter = CounterMetricFamily("sluice_many", "Many.", labels=["task"])
    summary = SummaryMetricFamily("sluice_took_seconds", "Each has two samples.", labels=["task"])
    for number in range(MANY):
        ages.add_metric([f'"{number}\n'], number)
        counter.add_metric([f"é{number}"], number)
        summary.add_metric([str(number)], number, 0.5)
    full = GaugeMetricFamily("sluice_full_step", "As many as in a step.", labels=["task"])
    for number in range(PER_STEP):
        full.add_metric([str(number)], number)
    info = InfoMetricFamily("sluice_build", "Versions.")
    info.add_metric([], {"version": "1"})
    yield from (ages, counter, summary, full, info, GaugeMetricFamily("sluice_none", "Without samples.", labels=["task"]))
    registry = CollectorRegistry()
    Counter("sluice_asked", "Asked.", registry=registry).inc()
    Histogram("sluice_lasted_seconds", "Lasted.", ["route"], registry=registry).labels("/").observe(1)
    yield from registry.collect()


class Whole(Collector):
    def collect(self) -> Iterable[Metric]:
        return of_every_type()


async def test_the_page_is_the_same_text_as_if_it_were_computed_at_once() -> None:
    page = await Exposition([of_every_type]).page()
    expected = generate_latest(Whole())
    assert page.startswith(expected)
    assert page[len(expected) :].startswith(b"# HELP process_virtual_memory_bytes")


async def test_other_tasks_get_their_turn_while_the_page_is_computed() -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    await Exposition([of_every_type]).page()
    counting.cancel()
    assert turns > 10


async def test_requests_that_arrive_while_the_page_is_computed_share_it() -> None:
    computed = 0

    def counted() -> Iterator[Metric | None]:
        nonlocal computed
        computed += 1
        yield None
        yield GaugeMetricFamily("sluice_computed", "How often.", computed)

    exposition = Exposition([counted])
    first, impatient, second = (asyncio.create_task(exposition.page()) for _ in range(3))
    await asyncio.sleep(0)
    impatient.cancel()
    assert await first is await second
    assert impatient.cancelled()
    assert b"sluice_computed 1.0\n" in await first
    assert b"sluice_computed 2.0\n" in await exposition.page()


async def test_after_a_failure_the_next_request_computes_the_page_again() -> None:
    failures = [ValueError("x")]

    def failing() -> Iterator[Metric]:
        if failures:
            raise failures.pop()
        yield GaugeMetricFamily("sluice_well", "Well.", 1)

    exposition = Exposition([failing])
    with pytest.raises(ValueError, match="x"):
        await exposition.page()
    assert b"sluice_well 1.0\n" in await exposition.page()
