"""The page of `/metrics`, in Prometheus' text format."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy

from prometheus_client import ProcessCollector, disable_created_metrics, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from coordinator.turns import free_in_turns

Source = Callable[[], Iterable[Metric | None]]
"""Makes metrics, of which it keeps no reference. None: the end of a step."""

PER_STEP = 100
"""Samples that are processed before other requests get their turn on the event loop: about three milliseconds."""


class _One(Collector):
    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> Iterable[Metric]:
        return [self._metric]


class Exposition:
    """The page. It is computed in steps, because in one the page of a job with many tasks would delay heartbeats by seconds. So the values
    are of slightly different moments. Requests that arrive meanwhile get the same page."""

    def __init__(self, sources: Sequence[Source]) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # else every counter has a second series with the time of its creation
        self._sources = [*sources, ProcessCollector(registry=None).collect]
        self._computing: asyncio.Task[bytes] | None = None

    def collect(self) -> Iterator[Metric | None]:
        """The metrics. None: the end of a step."""
        for source in self._sources:
            yield from source()

    async def page(self) -> bytes:
        if self._computing is None or self._computing.done():
            self._computing = asyncio.create_task(self._compute())
        return await asyncio.shield(self._computing)  # others may wait for it

    async def _compute(self) -> bytes:
        pieces: list[bytes] = []
        for metric in self.collect():
            if metric is None:
                await asyncio.sleep(0)
            else:
                pieces += await _encoded(metric)
        return b"".join(pieces)


async def _encoded(metric: Metric) -> Iterable[bytes]:
    """The lines of the metric. Removes its samples."""
    lines: list[bytes] = []
    for start in range(0, max(1, len(metric.samples)), PER_STEP):
        part = copy(metric)
        part.samples = metric.samples[start : start + PER_STEP]
        text = generate_latest(_One(part))
        lines.append(text.split(b"\n", 2)[2] if start else text)  # HELP and TYPE only once
        await asyncio.sleep(0)
    await free_in_turns(metric.samples)
    return lines
