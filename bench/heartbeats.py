"""Heartbeats of a fleet of 10,000 containers, compared with a bare ASGI function under the same server.

Measured: answers per second to `GET /containerHeartbeat` with `Sluice-Epoch`, the containers in turns, over 32 connections without pauses,
at a real coordinator with its chores running; and the latency under that load. The peer (`bench/bare.py`) sends an equal body and the same
number of headers and reads nothing. Every answer must be `{"alive": true}`: the coordinator's own counters are compared with the load
generator's.

The same is measured with a token in each heartbeat, and with tokens and TLS. With TLS the bare function uses it, too, and the connections
stay open, as between coordinator and containers that send heartbeats often.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from bench.deployment import CONTAINER, EPOCH, metric, token_of, write_fleet
from bench.harness import BenchFailed, Result, Server, coordinator, note, running
from bench.load import CONNECTIONS, Sample, Target, alternate, median_cpu, median_rate, median_share, need_wrk, paired_ratio, probe
from tests.support.processes import free_port
from tests.support.s3servers import Certificate, certified

NAME = "heartbeats"
CONTAINERS = 10_000
ROUNDS = 5
SECONDS = 3
LEAST_RATIO = 0.85
MOST_P99 = 10.0
ALIVE = 'sluice_heartbeats_total{answer="alive"}'
INVALID = 'sluice_heartbeats_total{answer="invalid"}'


def heartbeat_target(server: Server, containers: int, name: str = NAME, tokens: Path | None = None) -> Target:
    path = f"/containerHeartbeat?executionContainerId={CONTAINER}"
    return Target(name, server, path, ("Sluice-Epoch", str(EPOCH)), count=containers, tokens=tokens)


def run() -> Result:
    need_wrk()
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as made:
        home = Path(made)
        began = time.perf_counter()
        write_fleet(home, CONTAINERS, CONTAINERS)
        tokens = home / "tokens"
        tokens.write_text("".join(f"{token_of(slot)}\n" for slot in range(CONTAINERS)))
        note(f"a fleet of {CONTAINERS} containers written in {time.perf_counter() - began:.1f} s")
        plain = _measure(home, "plain", None, None)
        with_tokens = _measure(home, "tokens", tokens, None)
        with_tls = _measure(home, "tls", tokens, certified(home))
    ratios = {kind: paired_ratio(*samples) for kind, samples in (("plain", plain), ("tokens", with_tokens), ("tls", with_tls))}
    own, peers = plain
    ratio, p99 = min(ratios.values()), max(median(sample.p99 for sample in each[0]) for each in (plain, with_tokens, with_tls))
    return Result(
        name=NAME,
        figures={
            "containers": CONTAINERS,
            "connections": CONNECTIONS,
            "heartbeats_per_second": round(median_rate(own)),
            "bare_asgi_per_second": round(median_rate(peers)),
            "heartbeat_cpu_us": round(median_cpu(own), 2),
            "bare_cpu_us": round(median_cpu(peers), 2),
            "core_share": round(median_share(own), 3),
            "p50_ms": round(median(sample.p50 for sample in own), 3),
            "p99_ms": round(median(sample.p99 for sample in own), 3),
            "p999_ms": round(median(sample.p999 for sample in own), 3),
            "longest_ms": round(max(sample.longest for sample in own), 3),
            "bare_p99_ms": round(median(sample.p99 for sample in peers), 3),
            "ratio": round(ratios["plain"], 4),
            "tokens_per_second": round(median_rate(with_tokens[0])),
            "tokens_cpu_us": round(median_cpu(with_tokens[0]), 2),
            "tokens_ratio": round(ratios["tokens"], 4),
            "tls_per_second": round(median_rate(with_tls[0])),
            "tls_bare_per_second": round(median_rate(with_tls[1])),
            "tls_cpu_us": round(median_cpu(with_tls[0]), 2),
            "tls_ratio": round(ratios["tls"], 4),
        },
        ratio=round(ratio, 4),
        target=f"rate >= {LEAST_RATIO} of the bare ASGI function, with tokens and TLS, too, p99 < {MOST_P99:g} ms",
        met=ratio >= LEAST_RATIO and p99 < MOST_P99,
    )


def _measure(home: Path, kind: str, tokens: Path | None, tls: Certificate | None) -> tuple[Sequence[Sample], Sequence[Sample]]:
    """Samples of the coordinator and of the bare function. `tokens`: of the containers; without them requests need none."""
    port, bare_port = free_port(), free_port()
    first = home / f"first-token-{kind}"
    settings = {} if tokens is None else {"SLUICE_AUTHENTICATION": "true", "SLUICE_FIRST_TOKEN_FILE": str(first)}
    options = [] if tls is None else ["--tls-certificate", str(tls.certificate), "--tls-key", str(tls.key)]
    files = [] if tls is None else [str(tls.certificate), str(tls.key)]
    authority = None if tls is None else tls.authority
    with (
        running([*coordinator(home, port), *options], port, settings, authority) as server,
        running([sys.executable, "-m", "bench.bare", str(bare_port), *files], bare_port, authority=authority) as bare_server,
    ):
        admin = _token(home) if tokens is not None else ""
        beats, bare = (heartbeat_target(each, CONTAINERS, name, tokens) for each, name in ((server, NAME), (bare_server, "bare")))
        valid = metric(server.url, "sluice_valid_containers", admin, authority)
        if valid != CONTAINERS:
            raise BenchFailed(f"the coordinator recovered {valid} containers of {CONTAINERS}")
        if probe(beats).headers != probe(bare).headers:
            raise BenchFailed("the bare function and the coordinator send different numbers of headers: change bench/bare.py")
        before = metric(server.url, ALIVE, admin, authority)
        note(f"heartbeats: {kind}")
        samples = alternate([bare, beats], ROUNDS, SECONDS)
        own, peers = samples[beats.name], samples[bare.name]
        answered = sum(sample.requests for sample in own)
        check_beats(metric(server.url, ALIVE, admin, authority) - before, metric(server.url, INVALID, admin, authority), answered)
    return own, peers


def _token(home: Path) -> str:
    """The first administrator's token, which the first coordinator with tokens has written."""
    return next(home.glob("first-token-*")).read_text().strip()


def check_beats(alive: int, invalid: int, answered: int) -> None:
    """The coordinator answered "alive" at least as often as the load generator got an answer, and nothing else."""
    if invalid or alive < answered:
        raise BenchFailed(f"{answered} answers, of which {alive} were alive and {invalid} not: every one must be alive")
