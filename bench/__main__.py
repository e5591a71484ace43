"""`python -m bench NAME` runs one benchmark, and with the variable RECORD replaces its row of docs/benchmarks.md; `python -m bench` runs
all, and writes the page.

Exit code 0 when the benchmark ran, whether or not its target was met; 1 when one failed to run; 2 for an unknown name.
"""

from __future__ import annotations

import os
import platform
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from importlib import import_module

import httpx

from bench.harness import BenchFailed, Result, note, report, shown
from tests.support.processes import ROOT, ProcessFailed

BENCHMARKS: Mapping[str, str] = {
    "agents": "bench.agents",
    "assignment": "bench.assignment",
    "attach": "bench.attach",
    "backup": "bench.backup",
    "checkpoint-latency": "bench.checkpoint_latency",
    "collection": "bench.collection",
    "connections": "bench.connections",
    "diff": "bench.diff",
    "drain": "bench.drain",
    "failover": "bench.failover",
    "fleet": "bench.fleet",
    "flights": "bench.flights",
    "growth": "bench.growth",
    "heartbeats": "bench.heartbeats",
    "history": "bench.history",
    "hostile-bodies": "bench.hostile_bodies",
    "job-model": "bench.job_model",
    "kafka-exactly-once": "bench.kafka_exactly_once",
    "page": "bench.page",
    "kafka-memory": "bench.kafka_memory",
    "keyed": "bench.keyed",
    "latency": "bench.latency",
    "start": "bench.start",
}
"""Name -> module with `run() -> Result`, imported when it is run."""

PAGE = ROOT / "docs" / "benchmarks.md"


def benchmark(name: str) -> Callable[[], Result]:
    run: Callable[[], Result] = import_module(BENCHMARKS[name]).run
    return run


def one(name: str) -> Result | None:
    """Run and report one benchmark. Returns None if it could not be run."""
    try:
        result = benchmark(name)()
    except (BenchFailed, ProcessFailed) as error:
        print(f"bench {name}: {error}", file=sys.stderr)
        return None
    except (ImportError, OSError, httpx.HTTPError) as error:
        print(f"bench {name}: {type(error).__name__}: {error}", file=sys.stderr)
        return None
    report(result)
    return result


def every() -> int:
    """Run all benchmarks, and write the page if none failed."""
    results = [one(name) for name in BENCHMARKS]
    ran = [result for result in results if result is not None]
    if len(ran) < len(results):
        return 1
    _write({result.name: row(result, datetime.now(UTC)) for result in ran})
    return 0


def record(result: Result) -> None:
    """Replace the row of one benchmark on the page."""
    rows = rows_of(PAGE.read_text(encoding="utf-8")) if PAGE.exists() else {}
    _write({**rows, result.name: row(result, datetime.now(UTC))})


def _write(rows: Mapping[str, str]) -> None:
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page(rows), encoding="utf-8")
    note(f"wrote {PAGE.relative_to(ROOT)}")


def row(result: Result, at: datetime) -> str:
    met = "yes" if result.met else "**no**"
    return f"| {result.name} | {result.target} | {_figures(result.figures)} | {result.ratio:.3f} | {met} | {at:%Y-%m-%d} |"


def rows_of(text: str) -> Mapping[str, str]:
    """The rows of a page, by the names of their benchmarks."""
    names = ((line, line.split("|")[1].strip()) for line in text.splitlines() if line.startswith("| "))
    return {name: line for line, name in names if name in BENCHMARKS}


def page(rows: Mapping[str, str]) -> str:
    """The page in Markdown. It names only the version of Python and the number of cores of the machine."""
    return "\n".join(
        [
            "# Benchmarks",
            "",
            f"Written by `make bench`, or `make bench NAME=… RECORD=1` for one row, with Python {platform.python_version()} on "
            f"{os.cpu_count()} cores.",
            "",
            "Measurements vary by up to a third between runs, and those of different days by more, because other machines share the",
            "processors. So compare the ratios. Each ratio is between two things that were measured in one run: alternately, unless the",
            "docstring of the benchmark's file in `bench/` says otherwise. The docstring also describes what is compared. `flights`,",
            "`keyed` and `latency` measure each case once, one after the other, so their ratios vary with the machine, too. The",
            "coordinator under load has one core and the load generator another; Spark is not pinned to cores. A core share well below 1",
            "means that other processes used the server's core: repeat such a run.",
            "",
            "| name | target | figures | ratio | met | measured |",
            "|---|---|---|---|---|---|",
            *(rows[name] for name in BENCHMARKS if name in rows),
            "",
        ]
    )


def _figures(figures: Mapping[str, float]) -> str:
    return "<br>".join(f"{name.replace('_', ' ')}: {shown(value)}" for name, value in figures.items())


def main(arguments: Sequence[str]) -> int:
    if not arguments:
        return every()
    if len(arguments) > 1 or arguments[0] not in BENCHMARKS:
        print(f"bench: no benchmark {' '.join(arguments)!r}: there is {', '.join(BENCHMARKS)}", file=sys.stderr)
        return 2
    result = one(arguments[0])
    if result is not None and os.environ.get("RECORD"):
        record(result)
    return 0 if result is not None else 1


def _end(_signal: int, _frame: object) -> None:
    """Ctrl-C and SIGTERM end the benchmark, and its child processes on the way out."""
    raise SystemExit(128 + signal.SIGTERM)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _end)
    raise SystemExit(main(sys.argv[1:]))
