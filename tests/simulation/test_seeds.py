"""Seeds of the simulation that never change, chosen for coverage. `make simulate` runs new ones.

There are at most twenty, with those of `test_removed_fixes.py`. A seed that has found a fault replaces one that covers the same. It may be
shortened: fewer faults, only some of them, or of some kinds only.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.simulation.fault_injection import FAULTS, KAFKA_FAULTS, POSTGRESQL_FAULTS
from tests.simulation.runs import EVENT_TIMES, FAULTS_OF_A_SEED, place_of, plan_faults, run_seed
from tests.support.processes import ROOT, start, wait_for

OF_ALL_KINDS = (657, 1650, 3744, 3898, 4350, 4397, 4800)
"""Together they plan every kind of fault, and each place that a seed may run on."""
SLOWEST = (657, 1650, 4800)
"""Those of `make test-long`."""

NEWEST = (EVENT_TIMES, "faults_during_an_outage", "one_blob_store_fails")
NEWER = (*NEWEST, "all_away_for_months", "drain_that_fails", "move_backup_in_a_batch", "slow_batches")

KEPT: Mapping[int, Collection[str]] = {
    7005: NEWER,  # a snapshot was reported when its blobs had been deleted
    10108: NEWER,  # a drain failed a minute after a restart, while its tasks waited for the lease of a lost container
    469: NEWER,  # a coordinator granted nothing any more, after the answer of a commit was lost at its start
    153: NEWEST,  # batches were written to Kafka again: their marker was deleted before a restart, and the disk was lost after it
    448: NEWEST,  # a version of the job model was never adopted by all containers, since a registration had been repeated
    570: NEWEST,  # batches were written to Kafka again: their marker was deleted, and their records were trimmed
    833: NEWEST,  # the same, since the database was restored from a copy without the container's report
    857: NEWEST,  # a query that was starting when its container ended ran beside that of the next owner
    1115: NEWEST,  # a task that was acquired without an answer was never released after the job had been scaled
    30193: NEWEST,  # a container started an old checkpoint while no blob store answered
}
"""Seeds of `make test-long` that have found a fault, with the kinds of faults, and what else did not exist then."""

_FIRST = """
    blob_store_fails cancel_drain change_without_answer collect commit_without_answer crash_loop cut_container_off
    database_away deploy drain drain_and_keep_state drain_and_restore freeze_container freeze_coordinator grow_by_hand
    grow_input jump_clock kill_container kill_container_in_a_step long_coordinator_outage look lose_index lose_packets
    move_blob_stores pin put_clock_ahead replace_container restart_coordinator restart_coordinator_with_another_lease
    roll_back scale scale_after_a_lost_machine shorten_leases slow_network stop_container stop_run suspend_machine unpin
"""
FIRST_KINDS = _FIRST.split()
"""The kinds of faults that existed when the seeds from 5000 on were run."""

WITH_KINDS = [
    (0, 4, None, ("kill_container", "shorten_leases")),  # records that a stage without a snapshot needs were trimmed
    pytest.param(5002, 20, None, FIRST_KINDS, marks=pytest.mark.long),  # a disk that a task had left lacked records that were trimmed
    # a container that was suspended until its lease had ended read records that were trimmed, and nothing was lost
    pytest.param(781128062, 20, {0, 1, 2, 3, 6, 7, 10}, (), marks=pytest.mark.long),
    (5057, 20, {0, 1, 4, 5, 6, 7, 13, 14}, FIRST_KINDS),  # records of the history before a drain that kept the state were skipped
]
"""Seeds that have found a fault: how many faults they have, which of them happen, and of which kinds they are."""


def test_the_seeds_plan_every_kind_of_fault_on_every_place() -> None:
    assert {each.name for seed in OF_ALL_KINDS for each in plan_faults(seed, FAULTS_OF_A_SEED)} == FAULTS.keys()
    places = [place_of(seed, ()) for seed in OF_ALL_KINDS]
    for kind in ("kafka", "postgresql", "standby", "removal", "early", "event_times"):
        assert {getattr(each, kind) for each in places} == {True, False}, kind


@pytest.mark.parametrize("seed", [pytest.param(each, marks=[pytest.mark.long] if each in SLOWEST else []) for each in OF_ALL_KINDS])
def test_a_seed_of_all_kinds_breaks_no_invariant(seed: int) -> None:
    outcome = run_seed(seed)
    assert not outcome.broken, "\n".join([*outcome.trace[-50:], *outcome.broken])
    assert outcome.drains


@pytest.mark.long
@pytest.mark.parametrize(("seed", "newer"), KEPT.items())
def test_a_seed_that_once_failed_breaks_no_invariant(seed: int, newer: Collection[str]) -> None:
    outcome = run_seed(seed, without=newer)
    assert not outcome.broken, "\n".join([*outcome.trace[-50:], *outcome.broken])
    assert outcome.drains


@pytest.mark.parametrize(("seed", "faults", "only", "kinds"), WITH_KINDS)
def test_a_seed_that_once_failed_with_chosen_faults_breaks_no_invariant(
    seed: int, faults: int, only: Collection[int] | None, kinds: Sequence[str]
) -> None:
    outcome = run_seed(seed, faults, only, kinds)
    assert not outcome.broken, "\n".join([*outcome.trace[-50:], *outcome.broken])
    assert outcome.drains


def test_output_is_exactly_once_on_kafka_without_answers_without_markers_and_after_kills_in_transactions() -> None:
    outcome = run_seed(1, 10, None, [*sorted(KAFKA_FAULTS), "drain", "kill_container_in_a_step"])
    assert not outcome.broken, "\n".join([*outcome.trace[-50:], *outcome.broken])
    assert outcome.drains
    assert outcome.transactions["committed"]


def test_a_coordinator_that_lost_its_claim_on_postgresql_ends_and_no_task_has_two_holders() -> None:
    outcome = run_seed(2, 6, None, [*sorted(POSTGRESQL_FAULTS), "kill_container", "cut_container_off"])
    assert not outcome.broken, "\n".join([*outcome.trace[-50:], *outcome.broken])
    assert any("still reaches coordinator" in line for line in outcome.trace)


@pytest.mark.long
def test_watermarks_rise_and_no_row_is_late_through_kills_growth_deployments_and_restarts_of_the_coordinator() -> None:
    kinds = (EVENT_TIMES, "kill_container", "freeze_container", "grow_input", "deploy", "restart_coordinator")
    outcome = run_seed(112, kinds=kinds)
    assert not outcome.broken, "\n".join([*outcome.trace[-50:], *outcome.broken])
    assert len(set(outcome.watermarks)) > 5, "the watermark has hardly risen"


def test_spare_containers_take_slots() -> None:
    outcome = run_seed(5, 8, None, ["kill_container", "open_spares", "scale"])
    assert not outcome.broken, "\n".join([*outcome.trace[-50:], *outcome.broken])
    assert any(" takes slot " in line for line in outcome.trace)


@pytest.mark.long
def test_no_impostor_may_act_for_a_container_through_kills_replacements_and_restarts_of_the_coordinator() -> None:
    outcome = run_seed(0, 14, None, ("impostor", "kill_container", "replace_container", "restart_coordinator", "cut_container_off"))
    assert not outcome.broken, "\n".join([*outcome.trace[-50:], *outcome.broken])
    assert any(" may not " in line for line in outcome.trace)


@pytest.mark.long
@pytest.mark.parametrize(
    ("seed", "arguments"), [(3, "faults=6"), pytest.param(615, f"only=range(5), without={NEWEST}", marks=pytest.mark.long)]
)
def test_the_same_seed_gives_the_same_trace_in_two_processes(seed: int, arguments: str) -> None:
    """Also with different hash seeds. Seed 3 is on Kafka and PostgreSQL; in seed 615 much work is cancelled at the same time."""
    code = f"from tests.simulation.runs import run_seed; print('\\n'.join(run_seed({seed}, {arguments}).trace))"

    def trace(hash_seed: str) -> str:
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True).stdout

    first = trace("1")
    assert "faults are over" in first
    assert trace("2") == first


@pytest.mark.long
def test_seeds_run_in_several_processes() -> None:
    command = [sys.executable, "-m", "tests.simulation", "--workers", "2", "--seeds", "3", "--from", "0", "--faults", "0"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "3 seeds from 0" in ended.stdout


def test_new_seeds_are_drawn_and_the_first_is_printed() -> None:
    command = [sys.executable, "-m", "tests.simulation", "--workers", "1", "--seeds", "1", "--faults", "0", "--seconds", "0"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert int(ended.stderr.removeprefix("seeds from ")) > 1_000_000


def test_workers_end_with_the_process_that_has_started_them(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.simulation", "--workers", "2", "--seeds", "50", "--no-shrink"]
    process = start(command, tmp_path / "log", environment={"PYTHONPATH": str(ROOT)})
    workers = wait_for("its workers", lambda: [each for each in children_of(process) if "spawn_main" in " ".join(each.cmdline())])
    process.kill()
    process.wait()
    wait_for("their end", lambda: not any(each.is_running() for each in workers), 60)


def children_of(process: subprocess.Popen[bytes]) -> Sequence[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(process.pid).children()
    return []
