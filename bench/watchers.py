"""Browsers that watch a page, and the containers of its job, which report batches: `python -m bench.watchers FILE`.

A watcher reads one event stream as a browser does, compressed, and counts its bytes. It does not draw. Reports are sent over one
connection, one after the other, at an even rate. One line of JSON is written when all watchers have had their first event, and one at the
end, when standard input is closed.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter
from typing import Any
from urllib.parse import quote, urlsplit

import httpx


@dataclass(slots=True)
class Watcher:
    received: int = 0
    """Bytes since `began`, as sent."""
    events: int = 0


async def watch(url: str, page: str, watcher: Watcher, first: asyncio.Event) -> None:
    place = urlsplit(url)
    reader, writer = await asyncio.open_connection(place.hostname, place.port)
    target = f"/ui/events?page={quote(page, safe='')}&version=0"
    writer.write(f"GET {target} HTTP/1.1\r\nHost: {place.netloc}\r\nAccept-Encoding: gzip\r\n\r\n".encode())
    while data := await reader.read(65536):
        watcher.received += len(data)
        watcher.events += 1
        if watcher.received > 4096:
            first.set()


async def report(url: str, run_id: str, tasks: Sequence[dict[str, Any]], per_second: float) -> None:
    """Report another batch of each stage of one task after the other, until cancelled."""
    async with httpx.AsyncClient(base_url=url, timeout=60) as http:
        number, began = 0, perf_counter()
        while True:
            for task in tasks:
                for stage in task["stages"]:
                    stage["batchId"] += 1
                    body = {**stage, "metrics": {**stage["metrics"], "at": datetime.now(UTC).isoformat()}}
                    answer = await http.post(f"/runs/{run_id}/tasks/{quote(task['task'])}/progress", json=body)
                    answer.raise_for_status()
                    number += 1
                    await asyncio.sleep(max(0.0, began + number / per_second - perf_counter()))


async def main(given: dict[str, Any]) -> None:
    watchers = [Watcher() for _ in range(given["watchers"])]
    firsts = [asyncio.Event() for _ in watchers]
    jobs = [asyncio.create_task(watch(given["url"], given["page"], *each)) for each in zip(watchers, firsts, strict=True)]
    jobs.append(asyncio.create_task(report(given["url"], given["run"], given["tasks"], given["reports_per_second"])))
    for first in firsts:
        await first.wait()
    before, began = [each.received for each in watchers], perf_counter()
    print(json.dumps({"ready": True}), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    seconds = perf_counter() - began
    rates = sorted((each.received - had) / seconds for each, had in zip(watchers, before, strict=True))
    broken = [str(job.exception() or "an event stream has ended") for job in jobs if job.done()]
    print(json.dumps({"seconds": seconds, "bytes_per_second": rates, "broken": broken}), flush=True)


if __name__ == "__main__":
    asyncio.run(main(json.loads(Path(sys.argv[1]).read_text())))
