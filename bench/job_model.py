"""The job model of 10,000 partitions and 100 containers: checking whether it has changed, and planning it.

Measured: answers per second to `GET /jobModel?job=NAME` with `If-None-Match` (304), compared with heartbeats at the same coordinator in the
same run. Also reported: the time to plan the model (`sluice.core.jobmodels.model.plan_model`, in this process) and to encode it, the whole
`POST /runs` over HTTP for a first and a second deployment, and the time of one registration of a container of that run.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from bench.deployment import JOB, STREAM, deploy, make_stream, metric, register, run_request
from bench.harness import BenchFailed, Result, Server, coordinator, note, running
from bench.heartbeats import ALIVE, INVALID, check_beats, heartbeat_target
from bench.load import CONNECTIONS, Sample, Target, alternate, median_cpu, median_rate, median_share, need_wrk, paired_ratio
from coordinator.api.runs import spec_of
from sluice.core.jobmodels.grouping import GroupByPartition, PreviousAssignment
from sluice.core.jobmodels.model import plan_model
from sluice.core.jobmodels.placement import slots
from sluice.wire import samza as wire_samza
from tests.support.processes import free_port, get

NAME = "job-model"
PARTITIONS = 10_000
CONTAINERS = 100
ROUNDS = 5
SECONDS = 2
REPEATS = 5
LEAST_RATIO = 0.8


def run() -> Result:
    need_wrk()
    figures: dict[str, float] = {"partitions": PARTITIONS, "containers": CONTAINERS, **_planning()}
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as made:
        port = free_port()
        with running(coordinator(Path(made), port), port) as server:
            figures |= _deployments(server.url, Path(made))
            unchanged, beats = _lookups(server)
    ratio = paired_ratio(unchanged, beats)
    figures |= {
        "connections": CONNECTIONS,
        "unchanged_per_second": round(median_rate(unchanged)),
        "heartbeats_per_second": round(median_rate(beats)),
        "unchanged_cpu_us": round(median_cpu(unchanged), 2),
        "heartbeat_cpu_us": round(median_cpu(beats), 2),
        "core_share": round(median_share(unchanged), 3),
        "unchanged_p99_ms": round(median(sample.p99 for sample in unchanged), 3),
    }
    return Result(
        name=NAME,
        figures=figures,
        ratio=round(ratio, 4),
        target=f"rate of 304 >= {LEAST_RATIO} of the heartbeat's",
        met=ratio >= LEAST_RATIO,
    )


def _planning() -> dict[str, float]:
    """Milliseconds, medians of several: plan, encode, hash; and the size of the encoded model."""
    spec = spec_of(run_request(CONTAINERS)).with_counts({STREAM: PARTITIONS})
    grouper, processors = GroupByPartition(), slots(CONTAINERS)
    first = plan_model(spec, grouper, PreviousAssignment(), None, processors)
    return {
        "plan_ms": _milliseconds(lambda: plan_model(spec, grouper, PreviousAssignment(), None, processors)),
        "plan_again_ms": _milliseconds(lambda: plan_model(spec, grouper, first.assignment, first.model, processors)),
        "spell_ms": _milliseconds(lambda: wire_samza.job_model_bytes(first.model)),
        "hash_ms": _milliseconds(first.model.content_hash),
        "model_bytes": len(wire_samza.job_model_bytes(first.model)),
    }


def _milliseconds(work: Callable[[], object]) -> float:
    taken = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        work()
        taken.append((time.perf_counter() - began) * 1000)
    return round(median(taken), 2)


def _deployments(url: str, home: Path) -> dict[str, float]:
    """The first deployment, a second one of the same job, and the registrations of the second run."""
    make_stream(home, PARTITIONS)
    _, first = deploy(url, CONTAINERS)
    run_id, again = deploy(url, CONTAINERS)
    each = register(url, run_id, CONTAINERS)
    note(f"POST /runs took {first:.2f} s, and {again:.2f} s over a former run; a registration {each * 1000:.1f} ms")
    return {
        "post_runs_ms": round(first * 1000, 1),
        "post_runs_again_ms": round(again * 1000, 1),
        "register_ms": round(each * 1000, 2),
    }


def _lookups(server: Server) -> tuple[list[Sample], list[Sample]]:
    """The 304s and the heartbeats, alternately."""
    url, path = server.url, f"/jobModel?job={JOB}"
    answer = get(url + path)
    if answer.status_code != 200 or not answer.content or "etag" not in answer.headers:
        raise BenchFailed(f"{path} answered {answer.status_code} with {len(answer.content)} bytes")
    unchanged = Target("unchanged", server, path, ("If-None-Match", answer.headers["etag"]), status=304)
    beats = heartbeat_target(server, CONTAINERS)
    before = metric(url, ALIVE)
    samples = alternate([beats, unchanged], ROUNDS, SECONDS)
    check_beats(metric(url, ALIVE) - before, metric(url, INVALID), sum(sample.requests for sample in samples[beats.name]))
    return list(samples[unchanged.name]), list(samples[beats.name])
