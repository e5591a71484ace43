"""Load from wrk, in rounds that alternate between the subject and its peer. Every answer is accounted for."""

from __future__ import annotations

import http.client
import json
import shutil
import ssl
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from urllib.parse import urlsplit

from bench.harness import BenchFailed, Server, cores, note, pinned

SCRIPT = Path(__file__).with_name("load.lua")
CONNECTIONS = 32
WARM_UP_SECONDS = 2
BYTES_SLACK = 0.005
"""Tolerance, as a fraction of the expected bytes: wrk counts answers that were cut off at its end."""
BUSY_SHARE = 0.9
"""If a saturated server gets less of its core than this, other processes use the machine and the figures are not reliable."""


@dataclass(frozen=True, slots=True)
class Target:
    """The requests to a server: `path`, with %05d for the number of one of `count` containers, and one header. `tokens`: a file with a line
    for each container, the token of its requests."""

    name: str
    server: Server
    path: str
    header: tuple[str, str]
    status: int = 200
    count: int = 1
    tokens: Path | None = None

    @property
    def first_headers(self) -> dict[str, str]:
        """The headers of the first request."""
        if self.tokens is None:
            return dict([self.header])
        with self.tokens.open() as lines:
            return dict([self.header]) | {"Authorization": f"Bearer {next(lines).strip()}"}

    @property
    def first_path(self) -> str:
        return self.path % 0 if "%" in self.path else self.path


@dataclass(frozen=True, slots=True)
class Sample:
    """One round: number of answers and their rate per second, CPU microseconds of the server per answer, its share of a core, and
    latencies in milliseconds.
    """

    requests: int
    rate: float
    cpu: float
    core_share: float
    p50: float
    p99: float
    p999: float
    longest: float


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer as it is on the wire. All answers of a target have this size."""

    status: int
    headers: int
    size: int


def need_wrk() -> str:
    """The path of wrk. Raises BenchFailed if it is not installed."""
    found = shutil.which("wrk")
    if found is None:
        raise BenchFailed("wrk is not installed; it generates the load: apt-get install wrk")
    return found


def probe(target: Target) -> Answer:
    """Send one request. Returns status, number of headers and size in bytes. Raises BenchFailed if the status is not the expected one."""
    place = urlsplit(target.server.url)
    if place.scheme == "https":
        context = ssl.create_default_context(cafile=target.server.authority)
        connection: http.client.HTTPConnection = http.client.HTTPSConnection(place.hostname or "", place.port, timeout=10, context=context)
    else:
        connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=10)
    try:
        connection.request("GET", target.first_path, headers=target.first_headers)
        answer = connection.getresponse()
        body = answer.read()
        lines = [f"HTTP/1.1 {answer.status} {answer.reason}", *(f"{name}: {value}" for name, value in answer.getheaders()), ""]
        found = Answer(answer.status, len(answer.getheaders()), sum(len(line) + 2 for line in lines) + len(body))
    finally:
        connection.close()
    if found.status != target.status:
        raise BenchFailed(f"{target.name} answers {found.status} and not {target.status}: {body[:200]!r}")
    return found


def load(target: Target, seconds: int) -> Sample:
    """Load `target` with one thread of wrk on the load generator's core. Raises BenchFailed for any answer that differs from the first."""
    answer = probe(target)
    command = [need_wrk(), "-t1", f"-c{CONNECTIONS}", f"-d{seconds}s", "--latency", "-s", str(SCRIPT), target.server.url]
    used, began = target.server.cpu_seconds(), time.perf_counter()
    with pinned(cores()[1]):
        done = subprocess.run(
            [*command, "--", target.path, str(target.count), *target.header, *([str(target.tokens)] if target.tokens else [])],
            capture_output=True,
            text=True,
            timeout=seconds + 20,
            check=False,
        )
    used, measure_case = target.server.cpu_seconds() - used, time.perf_counter() - began
    if done.returncode != 0:
        raise BenchFailed(f"wrk failed: {(done.stderr or done.stdout).strip().splitlines()[-1:]}")
    counted = json.loads(done.stdout.strip().splitlines()[-1])
    _check(target, answer, counted)
    return Sample(
        requests=counted["requests"],
        rate=counted["requests"] / counted["microseconds"] * 1e6,
        cpu=used / counted["requests"] * 1e6,
        core_share=used / measure_case,
        p50=counted["p50"] / 1000,
        p99=counted["p99"] / 1000,
        p999=counted["p999"] / 1000,
        longest=counted["max"] / 1000,
    )


def _check(target: Target, answer: Answer, counted: Mapping[str, int]) -> None:
    if counted["failed"] or counted["refused"]:
        raise BenchFailed(f"{target.name}: {counted['failed']} requests failed and {counted['refused']} were refused")
    if not counted["requests"]:
        raise BenchFailed(f"{target.name}: no request was answered")
    expected = counted["requests"] * answer.size
    if abs(counted["bytes"] - expected) > max(BYTES_SLACK * expected, CONNECTIONS * answer.size):
        raise BenchFailed(f"{target.name}: {counted['bytes']} bytes for {counted['requests']} answers of {answer.size}: their sizes differ")


def alternate(targets: Sequence[Target], rounds: int, seconds: int) -> Mapping[str, Sequence[Sample]]:
    """Warm up every target, then load them in turns. Returns the samples by name of the target."""
    for target in targets:
        load(target, WARM_UP_SECONDS)
    samples: dict[str, list[Sample]] = {target.name: [] for target in targets}
    for number in range(1, rounds + 1):
        for target in targets:
            sample = load(target, seconds)
            samples[target.name].append(sample)
            reported = f"{sample.rate:8.0f}/s, p50 {sample.p50:.2f} ms, p99 {sample.p99:.2f} ms, {sample.cpu:.1f} CPU µs"
            note(f"round {number}: {target.name:<12} {reported}")
    share = median(sample.core_share for taken in samples.values() for sample in taken)
    if share < BUSY_SHARE:
        note(f"the servers had {share:.0%} of a core: other processes are busy here, so run this again when they are not")
    return samples


def median_rate(samples: Sequence[Sample]) -> float:
    return median(sample.rate for sample in samples)


def paired_ratio(subject: Sequence[Sample], peer: Sequence[Sample]) -> float:
    """The median over the rounds of the ratio of the rates: both targets of a round meet the same load of the machine."""
    return median(own.rate / peers.rate for own, peers in zip(subject, peer, strict=True))


def median_cpu(samples: Sequence[Sample]) -> float:
    """The median of the server's CPU microseconds per answer, which hardly depends on other processes."""
    return median(sample.cpu for sample in samples)


def median_share(samples: Sequence[Sample]) -> float:
    return median(sample.core_share for sample in samples)
