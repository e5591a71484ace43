"""A check that the executors of a cluster see the same directories as the driver.

Executors write state into the checkpoint directories and read the embedded log, at the driver's paths. If such a path is another directory
on an executor (a local disk, an emptyDir), state would be lost. So before any query, the driver writes a nonce into each directory. A job
on every executor reads the nonce and writes a file beside it, which the driver must then see. Executors that join later are checked at the
next liveness check; a batch that runs on them before fails, because it does not find its files.

The functions of that job are sent by value: the executors of a script need PyArrow, but not Sluice.
"""

from __future__ import annotations

import logging
import os
import shutil
import socket
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from itertools import pairwise
from pathlib import Path
from tempfile import mkstemp
from threading import Event, Timer
from typing import TYPE_CHECKING

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from containers.errors import ExecutorsMissing, PathNotShared
from sluice.clock import Clock
from sluice.randomness import token_hex

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


log = logging.getLogger(__name__)

STEP = timedelta(seconds=0.1)
"""How often the registered executors are polled; Spark has no event for that in Python."""

NONCE = "nonce"
_SCHEMA = "executor string, host string, path int, wrote string, problem string"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_SHOWN = 4


@dataclass(frozen=True, slots=True)
class SharedPath:
    """A directory that every executor must see. `of_one_machine`: all processes must be on one machine. `setting`: its name in messages."""

    directory: Path
    setting: str
    of_one_machine: bool = False


@dataclass(frozen=True, slots=True)
class Probe:
    """What executors must find: `directory` has the file NONCE with the text `nonce`. `machine`: the driver's, if they must be on it,
    too."""

    directory: str
    nonce: str
    machine: str | None


def this_machine() -> str | None:
    """An id of the running kernel, the same in all containers on it; None if the system has none."""
    return _BOOT_ID.read_text().strip() if _BOOT_ID.exists() else None


def check_probe(directory: str, nonce: str, machine: str | None) -> tuple[str, str]:
    """Read the nonce and write a file beside it; the file's name, and what is wrong ("" for nothing). Runs on an executor. See `Probe`."""
    if machine is not None and this_machine() not in (None, machine):
        return "", "is on another machine, and the embedded log is for processes of one machine (SQLite's WAL); use Kafka"
    try:
        if (Path(directory) / NONCE).read_text() != nonce:
            return "", "sees another directory there than the driver"
    except OSError as error:
        return "", f"does not see what the driver wrote there ({error.strerror})"
    try:
        file, name = mkstemp(prefix="seen-", dir=directory)
        os.close(file)
    except OSError as error:
        return "", f"cannot write into what the driver has created there ({error.strerror}; it runs as user {os.geteuid()})"
    return Path(name).name, ""


def _check_from(batches: Iterator[pa.RecordBatch], probes: Sequence[tuple[str, str, str | None]]) -> Iterator[pa.RecordBatch]:
    """`check_probe` for each row; a task has one, with the command line of the executor's JVM."""
    for batch in batches:
        for command in batch.column("command").to_pylist():
            words = command.split()
            named = {word: value for word, value in pairwise(words) if word in ("--executor-id", "--hostname")}
            found = [check_probe(*probe) for probe in probes]
            rows = [
                {
                    "executor": named.get("--executor-id", "?"),
                    "host": named.get("--hostname", socket.gethostname()),
                    "path": index,
                    "wrote": wrote,
                    "problem": problem,
                }
                for index, (wrote, problem) in enumerate(found)
            ]
            yield pa.RecordBatch.from_pylist(rows, _ARROW)


_ARROW = pa.schema([(name, pa.int32() if kind == "int" else pa.string()) for name, kind in (each.split() for each in _SCHEMA.split(", "))])


class SharedPaths:
    """The check of one session, for its present and future executors. Methods block, except `check_new_executors`."""

    def __init__(self, spark: SparkSession, paths: Sequence[SharedPath], clock: Clock, timeout: timedelta) -> None:
        """`timeout`: how long to wait for executors, and for a job on them."""
        self._spark = spark
        self._paths = paths
        self._clock = clock
        self._timeout = timeout
        self._seen: set[str] = set()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sluice-shared-paths")
        self._checking: Future[None] | None = None

    def check(self, requested: int) -> None:
        """Wait until `requested` executors have registered, and check each. After the timeout, fewer are sufficient.

        Raises PathNotShared, ExecutorsMissing.
        """
        give_up = self._clock.elapsed() + self._timeout.total_seconds()
        while len(self._registered()) < requested and self._clock.elapsed() < give_up:
            Event().wait(STEP.total_seconds())
        found = len(self._registered())
        if found == 0:
            raise ExecutorsMissing(_NO_EXECUTORS.format(master=self._master, seconds=self._timeout.total_seconds()))
        if found < requested:
            log.warning("%d of %d executors have registered; the others are checked when they do", found, requested)
        self._check_all()

    def check_new_executors(self) -> None:
        """Start to check new executors on a separate thread, or raise the error of the previous check. An executor that was busy with a
        batch is checked again. Raises PathNotShared."""
        if self._checking is not None and self._checking.done():
            checked, self._checking = self._checking, None
            try:
                checked.result()
            except ExecutorsMissing as error:
                log.warning("%s", error)
        if self._checking is None and not self._registered() <= self._seen:
            self._checking = self._thread.submit(self._check_all)

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    @property
    def _master(self) -> str:
        return str(self._spark.sparkContext.master)

    def _registered(self) -> set[str]:
        ids = str(self._spark.sparkContext._jsc.sc().getExecutorIds().mkString(","))
        return set(filter(None, ids.split(",")))

    def _check_all(self) -> None:
        """Check until every registered executor has run a task. One job reaches all of them if each has a free core; else it takes more."""
        give_up = self._clock.elapsed() + self._timeout.total_seconds()
        with ExitStack() as stack:
            probes = [self._write_probe(path, stack) for path in self._paths]
            while new := self._registered() - self._seen:
                if self._clock.elapsed() >= give_up:
                    raise ExecutorsMissing(f"executors {', '.join(sorted(new))} of {self._master} have run no task: {_BUSY}")
                self._seen |= self._run_probes(probes)
                Event().wait(0 if self._registered() <= self._seen else STEP.total_seconds())
        log.info("executors %s share %s", ", ".join(sorted(self._seen)), ", ".join(str(path.directory) for path in self._paths))

    def _write_probe(self, path: SharedPath, stack: ExitStack) -> Probe:
        """Write the probe into a directory that is created like a checkpoint directory: an executor with another user has the same
        permissions in both."""
        directory, nonce = path.directory / f".shared-{token_hex(8)}", token_hex(16)
        try:
            directory.mkdir()
            stack.callback(shutil.rmtree, directory, ignore_errors=True)
            (directory / NONCE).write_text(nonce)
        except OSError as error:
            raise PathNotShared(f"the driver cannot write into {path.directory} ({error.strerror}): see {path.setting}") from error
        return Probe(str(directory), nonce, this_machine() if path.of_one_machine else None)

    def _run_probes(self, probes: Sequence[Probe]) -> set[str]:
        """Run one job; the executors that it ran on."""
        found = self._run(probes)
        problems = {}
        for executor, host, index, wrote, problem in found:
            path, probe = self._paths[index], probes[index]
            missing = wrote and not (Path(probe.directory) / wrote).exists()
            if problem or missing:
                what = problem or "writes there, and the driver does not see it"
                problems[executor, index] = f"executor {executor} on {host}: {path.directory} ({path.setting}): it {what}"
        if problems:
            raise PathNotShared(_message(self._master, list(problems.values()), {self._paths[index].setting for _, index in problems}))
        return {executor for executor, *_ in found}

    def _run(self, probes: Sequence[Probe]) -> list[tuple[str, str, int, str, str]]:
        context = self._spark.sparkContext
        tasks = max(context.defaultParallelism, len(self._registered()))
        command = F.reflect(F.lit("java.lang.System"), F.lit("getProperty"), F.lit("sun.java.command")).alias("command")
        cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
        check = partial(_check_from, probes=[(each.directory, each.nonce, each.machine) for each in probes])
        job = self._spark.range(0, tasks, 1, tasks).select(command).mapInArrow(check, _SCHEMA)
        tag = f"sluice-shared-paths-{token_hex(4)}"
        limit = Timer(self._timeout.total_seconds(), context.cancelJobsWithTag, [tag])
        context.addJobTag(tag)
        limit.start()
        try:
            return [(row.executor, row.host, row.path, row.wrote, row.problem) for row in job.collect()]
        except (PySparkException, Py4JError) as error:
            raise ExecutorsMissing(f"no job can be run on the executors of {self._master}: {_last_line(error)}: {_NEEDED}") from error
        finally:
            limit.cancel()
            context.removeJobTag(tag)


_NO_EXECUTORS = (
    "{master} gave no executor within {seconds:g} s (SLUICE_EXECUTORS_TIMEOUT_SECONDS): are there free cores and memory for one? A "
    "container on a standalone cluster takes every core that is free unless spark.cores.max says how many, and with dynamic allocation "
    "spark.dynamicAllocation.minExecutors must be 1 or more"
)
_BUSY = "they are busy with other work, or hang"
_NEEDED = "executors need this version of Python with PyArrow, and for a job file with Sluice, at the path in PYSPARK_PYTHON"


def _message(master: str, problems: Sequence[str], settings: set[str]) -> str:
    more = f"; and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
    return (
        f"under {master} the executors must share these paths with the driver: {'; '.join(problems[:_SHOWN])}{more}. "
        f"Put {' and '.join(sorted(settings))} on a path that all of them have, with the same user, or use a local master"
    )


def _last_line(error: Exception) -> str:
    """The error itself, from the traceback of the executor's Python; the rest is in the log."""
    log.warning("the job that checks shared paths failed", exc_info=error)
    lines = [line.strip() for line in str(error).splitlines() if line.strip() and not line.lstrip().startswith("at ")]
    named = [line for line in lines if "Error:" in line or "Exception:" in line]
    return (named or lines or [type(error).__name__])[-1][:300]
