"""The next step of an upgrade, decided from the job's current run and its drains. Also the options, the request that deploys the new
version, and the reply. This module does not call the coordinator.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from pathlib import Path

from sluice.cli.console.tables import shown
from sluice.core.drain import Mode, Phase
from sluice.core.errors import BadOption
from sluice.core.ids import RunId
from sluice.core.lifecycle import RunState
from sluice.deploy import bound_names, checked_request, config_of
from sluice.job import Job
from sluice.wire import body as wire_body
from sluice.wire import runs as wire_runs
from sluice.wire.drains import DrainSummary


class Outcome(StrEnum):
    UPGRADED = "upgraded"
    PLANNED = "planned"
    NOT_DRAINED = "not drained"
    ROWS_LEFT = "rows left"
    UNHEALTHY = "not well"
    """The new version was left running."""
    ROLLED_BACK = "went back"


EXIT_CODES = {
    Outcome.UPGRADED: 0,
    Outcome.PLANNED: 0,
    Outcome.NOT_DRAINED: 2,
    Outcome.ROWS_LEFT: 2,
    Outcome.UNHEALTHY: 3,
    Outcome.ROLLED_BACK: 4,
}


@dataclass(frozen=True, slots=True)
class UpgradeOptions:
    """The options of the command."""

    job_file: Path
    settings: Settings
    timeout: float | None = None
    watch: timedelta = timedelta(seconds=180)
    batches: int = 2
    allow_leftover_state: bool = False
    keep_state: bool = False
    rollback: bool = True
    force: bool = False
    dry_run: bool = False

    @property
    def mode(self) -> Mode:
        return Mode.KEEP_STATE if self.keep_state else Mode.DEFAULT


class UpgradeReply(wire_body.Reply):
    """The body of `sluice upgrade --json`. `run`: the run of the new version. `rollbackRun`: the run of the old version after a rollback.
    `steps`: only for a dry run."""

    job: str
    outcome: Outcome
    summary: str
    former_run: str | None = None
    run: str | None = None
    rollback_run: str | None = None
    steps: tuple[str, ...] = ()


def say(line: str) -> None:
    print(f"sluice: {shown(line)}", file=sys.stderr, flush=True)


FORMER, CODE, BACK = "upgrade.former", "upgrade.code", "upgrade.back"
"""Keys of a run's config: the drained run that it follows; a hash of its job file; the run that was rolled back."""

GIVEN_UP = "the upgrade failed: "
"""The reason of a run that an upgrade stopped begins with this."""


# --- runs that upgrades make -----------------------------------------------------------------------------------------


def upgrade_request(request: wire_runs.RunRequest, former: RunId, code: str) -> wire_runs.RunRequest:
    """The request that deploys the new version after the `former` run's drain."""
    marks = {FORMER: former, CODE: code}
    return request.model_copy(update={"start": "drained", "config": {**unmarked(request.config), **marks}})


def rollback_request(request: wire_runs.RunRequest, failed: RunId | None) -> wire_runs.RunRequest:
    """The request that deploys the old version again, from the request of its drained run. `failed`: the run of the new version; None if it
    could not be deployed."""
    config = {key: value for key, value in request.config.items() if key != BACK}
    return request.model_copy(update={"start": "drained", "config": config | ({} if failed is None else {BACK: failed})})


def unmarked(config: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in config.items() if key not in (FORMER, CODE, BACK)}


def same_version(present: wire_runs.RunRequest, new: wire_runs.RunRequest, code: str) -> bool:
    """Whether the present run was deployed by an upgrade to the same job file with the same settings."""

    def bare(request: wire_runs.RunRequest) -> wire_runs.RunRequest:
        return request.model_copy(update={"start": "drained", "config": unmarked(request.config)})

    marked = FORMER in present.config and BACK not in present.config and present.config.get(CODE) == code
    return marked and bare(present) == bare(new)


# --- the next step ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class UpgradeStatus:
    """The job's current run, whether it has the new version (`same_version`), and the job's drains, newest first."""

    run: wire_runs.RunDetail
    is_new: bool
    drains: Sequence[DrainSummary] = ()

    @property
    def run_id(self) -> RunId:
        return RunId(self.run.run_id)

    @property
    def drained(self) -> RunId | None:
        """The run of the job's last completed drain, after which the start "drained" begins."""
        return next((RunId(each.run_id) for each in self.drains if each.phase is Phase.DRAINED), None)


@dataclass(frozen=True, slots=True)
class Drain:
    run_id: RunId


@dataclass(frozen=True, slots=True)
class Deploy:
    """The new version, after the drain of the `former` run."""

    former: RunId


@dataclass(frozen=True, slots=True)
class Watch:
    """The new version is deployed as `run_id`."""

    run_id: RunId
    former: RunId


@dataclass(frozen=True, slots=True)
class RollBack:
    """Wait until the failed run has ended, and deploy the version of the former run again."""

    failed: RunId
    former: RunId


@dataclass(frozen=True, slots=True)
class AwaitEnd:
    """A failed run is still stopping."""

    run_id: RunId


@dataclass(frozen=True, slots=True)
class Refuse:
    why: str


Step = Drain | Deploy | Watch | RollBack | AwaitEnd | Refuse


def next_step(seen: UpgradeStatus, *, rollback: bool, force: bool = False, mode: Mode = Mode.DEFAULT) -> Step:
    """The next step. `rollback`: roll back a failed upgrade. `force`: upgrade a run even if it has the same version. `mode`: of the
    drain."""
    run = seen.run
    former = run.config.get(FORMER)
    if run.state is RunState.DRAINED:
        return _deploy_after(seen, seen.run_id, mode)
    if former is not None and run.reason.startswith(GIVEN_UP):
        return _after_a_failure(seen, RunId(former), mode, rollback=rollback and seen.is_new)
    if run.state.ended:
        return Refuse(_why_ended(seen))
    if run.state is RunState.DRAINING:
        return Drain(seen.run_id)
    if run.stop_requested_at is not None:
        return Refuse(
            f"run {run.run_id} is being stopped ({run.reason or 'no reason given'}), and a stopped run keeps its state: {_ONCE_MORE}"
        )
    if former is not None and seen.is_new and not force:
        return Watch(seen.run_id, RunId(former))
    return Drain(seen.run_id)


_ONCE_MORE = "deploy the old version again, which continues where it stopped, and upgrade that run"


def _deploy_after(seen: UpgradeStatus, former: RunId, mode: Mode) -> Step:
    """Deploy after the drain of the former run, if it had this mode."""
    drain = next((each for each in seen.drains if each.run_id == former and each.phase is Phase.DRAINED), None)
    if drain is None or drain.drain_mode == mode:
        return Deploy(former)
    if mode is Mode.KEEP_STATE:
        return Refuse(f"run {former} was drained without --keep-state, and its state is empty: leave out --keep-state")
    return Refuse(f"run {former} was drained with its state kept: use --keep-state; or deploy the old version again, and upgrade that run")


def _after_a_failure(seen: UpgradeStatus, former: RunId, mode: Mode, *, rollback: bool) -> Step:
    if seen.drained != former:
        return Refuse(f"run {seen.run_id} failed as an upgrade of run {former}, but the job's last drain is now that of run {seen.drained}")
    if rollback:
        return RollBack(seen.run_id, former)
    return _deploy_after(seen, former, mode) if seen.run.state.ended else AwaitEnd(seen.run_id)


def _why_ended(seen: UpgradeStatus) -> str:
    run = seen.run
    failed = next((each for each in seen.drains if each.run_id == run.run_id), None)
    if failed is not None and failed.phase is Phase.FAILED:
        ended = f"the drain of run {run.run_id} failed ({failed.reason}), and its tasks are back at their pinned checkpoints"
    else:
        ended = f"run {run.run_id} has ended as {run.state} without a drain, so its state is not empty"
    return f"{ended}: {_ONCE_MORE}"


# --- the plan --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """The options that affect the plan. `mode`: of the drain."""

    allow_leftover_state: bool
    rollback: bool
    batches: int
    watch: timedelta
    mode: Mode = Mode.DEFAULT


def plan_lines(step: Step, options: PlanOptions, plan: wire_runs.RunPlanReply, containers: int) -> Sequence[str]:
    """This step and those after it, one per line."""
    if isinstance(step, RollBack):
        return [f"wait until run {step.failed} has ended", _rollback(step.former)]
    lines = []
    if isinstance(step, AwaitEnd):
        lines.append(f"wait until run {step.run_id} has ended")
    if isinstance(step, Drain):
        left = (
            "rows that a flush cannot empty are left in state"
            if options.allow_leftover_state
            else "refused if a flush would leave rows in state"
        )
        if options.mode is Mode.KEEP_STATE:
            lines.append(f"drain run {step.run_id}: the streams between stages are read to their ends, and all state is kept")
        else:
            lines.append(f"drain run {step.run_id}: {left}")
            lines.append("check that state is empty" if not options.allow_leftover_state else "report how many rows are left in state")
    if not isinstance(step, Watch):
        made = f", creating {', '.join(plan.creates)}" if plan.creates else ""
        lines.append(f"deploy the new version at the drained offsets: {len(plan.tasks)} tasks in {containers} containers{made}")
        if options.mode is Mode.KEEP_STATE:
            lines.append("before its first batch, compare its stateful operators with those whose state was kept: if they differ, it fails")
    lines.append("wait for its containers, which the deployment platform starts")
    lines.append(
        f"watch until each stage has committed {options.batches} batches or has nothing to read, at most "
        f"{options.watch.total_seconds():g} s"
    )
    former = step.run_id if isinstance(step, Drain) else None if isinstance(step, AwaitEnd | Refuse) else step.former
    lines.append(f"if it fails: {_rollback(former)}" if options.rollback else "if it fails: leave it running")
    return lines


def _rollback(former: RunId | None) -> str:
    of = "" if former is None else f" (the request of run {former})"
    return f"stop it, and deploy the old version{of} at the same offsets; output of the new version is kept"


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of the new run. None or an empty list: those of the present run."""

    containers: int | None = None
    system: str | None = None
    bind: Sequence[str] = ()
    config: Sequence[str] = ()


def new_request(job: Job, settings: Settings, present: wire_runs.RunRequest) -> wire_runs.RunRequest:
    """The request for the new version. Streams of the present run keep their bindings unless a system is named. `config` is added to
    that of the present run. Raises BadOption, BadPlacement."""
    bindings = bound_names(job, settings.bind)
    if settings.system is None:
        bindings = {**_present_bindings(job, present), **bindings}
    containers = present.containers if settings.containers is None else settings.containers
    config = unmarked({**present.config, **config_of(settings.config)})
    return checked_request(job, containers, "drained", settings.system or _only_system(job, present, bindings), config, bindings)


def _names(job: Job) -> set[str]:
    return {s.name for s in job.inputs} | {s.name for s in job.intermediates} | {s.name for s in job.outputs}


def _present_bindings(job: Job, present: wire_runs.RunRequest) -> dict[str, dict[str, str]]:
    names = _names(job)
    return {
        each.name: {"system": each.system} | ({"stream": each.stream} if each.stream else {})
        for each in present.streams
        if each.name in names
    }


def _only_system(job: Job, present: wire_runs.RunRequest, bindings: dict[str, dict[str, str]]) -> str:
    """The system of streams that the present run does not have. Raises BadOption if the present run uses several."""
    systems = sorted({each.system for each in present.streams})
    new = sorted(_names(job) - bindings.keys())
    if len(systems) > 1 and new:
        raise BadOption(
            f"the present run uses several systems ({', '.join(systems)}): give the system of {', '.join(new)} with --bind NAME=SYSTEM"
        )
    return systems[0]
