"""The actions of the pages.

The address of an action is `actions/NAME` with its subject in the query. `GET` shows its plan: what it would do now, according to the dry
runs of the API. `POST` performs it. The dialog also shows the equivalent command.
"""

from __future__ import annotations

import shlex
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from urllib.parse import urlencode

from coordinator.api.access import ADMINISTER, CHANGE, OPERATE, RequestGuard
from coordinator.api.deps import DrainParts, JobModelParts, Parts, SnapshotParts
from coordinator.api.drains import plan_reply
from coordinator.drains.drains import DrainRequest
from coordinator.jobmodels.versions import ChangeReason, ModelChange, Proposal
from coordinator.snapshots.catalog import PinSpec, SnapshotDetails
from coordinator.snapshots.operations import Progress
from sluice.core.drain import DrainId, Mode
from sluice.core.errors import ClientError
from sluice.core.ids import JobName, RunId, StageKey, StageName, TaskName
from sluice.core.jobmodels.spec import JobKind
from sluice.core.snapshots.snapshot import CommitId
from sluice.wire import drains as wire_drains
from sluice.wire import runs as wire_runs

Subject = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Link:
    """A button of a page: the address of an action below `/ui/`, with its subject. `danger`: it stops or deletes something."""

    label: str
    href: str
    danger: bool = False


@dataclass(frozen=True, slots=True)
class Field:
    """An input field of the dialog. `kind`: "number" or "text"."""

    name: str
    label: str
    value: str
    kind: str = "text"


@dataclass(frozen=True, slots=True)
class Plan:
    """`lines`: what the action would do now, one sentence each. `refused`: why it cannot be performed; "" if it can. `command`: the
    equivalent command. `fields`: the input fields; "Show the plan" requests the plan for their values."""

    title: str
    lines: Sequence[str]
    command: str
    refused: str = ""
    danger: bool = False
    fields: Sequence[Field] = field(default_factory=tuple)


@dataclass(frozen=True, slots=True)
class Done:
    """`link`: the page, below `/ui/`, that shows the effect; "" for the current page."""

    text: str
    link: str = ""


def _link(label: str, name: str, *, danger: bool = False, **subject: str) -> Link:
    return Link(label, f"actions/{name}?{urlencode(subject)}", danger)


def of_job(run: wire_runs.RunDetail) -> Sequence[Link]:
    """The actions that the state of a job's current run allows. An existing script has one container; it can be drained if it has
    reported queries."""
    if run.state.ended:
        return [_link("Remove…", "remove", danger=True, job=run.job)]
    stop = _link("Stop…", "stop", danger=True, job=run.job, run=run.run_id)
    if run.stop_requested_at is not None or run.drain is not None or (run.kind is JobKind.ATTACHED and not run.stages):
        return [stop]
    if run.kind is JobKind.ATTACHED:
        return [_link("Drain…", "drain", job=run.job, run=run.run_id), stop]
    return [
        _link("Drain…", "drain", job=run.job, run=run.run_id),
        _link("Drain, keep state…", "drain", job=run.job, run=run.run_id, keep="yes"),
        _link("Scale…", "scale", job=run.job, run=run.run_id, containers=str(run.containers)),
        _link("Pin…", "pin", job=run.job),
        stop,
    ]


def of_drain(drain: wire_drains.DrainDetail) -> Sequence[Link]:
    return () if drain.ended_at is not None else [_link("Cancel…", "cancel", danger=True, drain=drain.uuid)]


def of_version(job: str, version: int) -> Sequence[Link]:
    return [_link("Roll back to this version…", "rollback", job=job, version=str(version))]


def of_snapshot(found: SnapshotDetails) -> Sequence[Link]:
    row = found.row
    return [_link("Restore…", "restore", danger=True, job=row.job, task=row.task, stage=row.stage, checkpoint=row.checkpoint)]


def of_garbage() -> Sequence[Link]:
    return [_link("Collect now…", "collect", danger=True)]


def _command(*words: str) -> str:
    return shlex.join(("sluice", *words))


def required(subject: Subject, name: str) -> str:
    """Raises ClientError."""
    value = subject.get(name, "")
    if not value:
        raise ClientError(f"{name} is missing: open the dialog from a page")
    return value


class Actions:
    def __init__(self, parts: Parts, draining: DrainParts, backups: SnapshotParts, versioning: JobModelParts) -> None:
        self._parts = parts
        self._draining = draining
        self._backups = backups
        self._versioning = versioning

    async def plan(self, name: str, subject: Subject) -> Plan:
        """What the action would do. Changes nothing. Raises ClientError."""
        return await self._named(name)[0](subject)

    async def perform(self, name: str, subject: Subject, actor: str) -> Done:
        """Perform the action. Raises ClientError and the errors of the API's function."""
        return await self._named(name)[1](subject, actor)

    async def check(self, name: str, subject: Subject, guard: RequestGuard, *, perform: bool) -> None:
        """Check that the principal may see the plan of the action, or perform it. The role must be for the job of the subject, and for the
        job of its run or drain. Raises Forbidden, NotFound."""
        if perform:
            guard = guard.needing({"restore": OPERATE, "remove": ADMINISTER, "collect": ADMINISTER}.get(name, CHANGE))
        if name == "collect":
            await guard.all_jobs()
        elif name == "cancel":
            await guard.job((await self._draining.drains.describe(DrainId(required(subject, "drain")))).drain.job)
        else:  # both, because an action may use either
            await guard.job(required(subject, "job"))
            if "run" in subject:
                await guard.run(subject["run"])

    def _named(self, name: str) -> tuple[Callable[[Subject], Awaitable[Plan]], Callable[[Subject, str], Awaitable[Done]]]:
        known = {
            "stop": (self._plan_stop, self._stop),
            "drain": (self._plan_drain, self._drain),
            "cancel": (self._plan_cancel, self._cancel),
            "scale": (self._plan_scale, self._scale),
            "rollback": (self._plan_rollback, self._rollback),
            "pin": (self._plan_pin, self._pin),
            "unpin": (self._plan_unpin, self._unpin),
            "restore": (self._plan_restore, self._restore),
            "remove": (self._plan_remove, self._remove),
            "collect": (self._plan_collect, self._collect),
        }
        if name not in known:
            raise ClientError(f"there is no action {name!r}")
        return known[name]

    # --- runs -----------------------------------------------------------------------------------------------------------

    async def _plan_stop(self, subject: Subject) -> Plan:
        job, run_id = required(subject, "job"), required(subject, "run")
        run = await self._parts.runs.current(JobName(job))
        if run.spec.kind is JobKind.ATTACHED:
            lines = [
                "The queries of a script that has called sluice.attach end between two batches. Another command gets SIGTERM.",
                f"Until sluice start {job}, the command is not started again, also not by a supervisor.",
            ]
        else:
            lines = [
                f"Each container of run {run_id} finishes its batch and exits.",
                "Windows stay open and state is kept: the next deployment continues where the job was stopped.",
            ]
        other = "" if run.run_id == run_id else f"run {run_id} is not the job's current run"
        return Plan(f"Stop {job}", lines, _command("stop", job), other, danger=True)

    async def _stop(self, subject: Subject, actor: str) -> Done:
        reason = f"stopped on the page{f' by {actor}' if actor else ''}"
        await self._parts.runs.stop(RunId(required(subject, "run")), reason, failed=False)
        return Done(f"{required(subject, 'job')} stops after the current batches.")

    async def _plan_drain(self, subject: Subject) -> Plan:
        job, mode = required(subject, "job"), _mode(subject)
        found = plan_reply(await self._draining.drains.plan(RunId(required(subject, "run"))))
        words = ["drain", job, *(["--keep-state"] if mode is Mode.KEEP_STATE else [])]
        if mode is Mode.KEEP_STATE:
            lines = ["Reading stops, all data in flight is processed and committed, then the run ends. All state is kept."]
            return Plan(f"Drain {job} and keep its state", lines, _command(*words), found.keep_state_refused)
        lines = ["Reading stops, all data in flight is processed, windows are closed, timers fire, then the run ends."]
        for stage in found.stages:
            lines += [f"{stage.stage}: {each.operator}: {each.does}" for each in stage.stateful or ()]
            if stage.unknown_tasks:
                lines.append(f"{stage.stage}: not reported yet by {len(stage.unknown_tasks)} of {stage.tasks} tasks")
        return Plan(f"Drain {job}", lines, _command(*words), found.refused, danger=found.empties is False)

    async def _drain(self, subject: Subject, _: str) -> Done:
        run_id = RunId(required(subject, "run"))
        drain, _new = await self._draining.drains.request(DrainRequest(run_id, _mode(subject), self._draining.times, require_empty=False))
        return Done("The drain has begun.", f"drains/{drain.drain_id}")

    async def _plan_cancel(self, subject: Subject) -> Plan:
        found = await self._draining.drains.describe(DrainId(required(subject, "drain")))
        lines = ["The run continues. A drain that has begun to flush cannot be cancelled."]
        return Plan("Cancel the drain", lines, _command("drain", found.drain.job, "--cancel"), danger=True)

    async def _cancel(self, subject: Subject, _: str) -> Done:
        await self._draining.drains.cancel(DrainId(required(subject, "drain")))
        return Done("The drain was cancelled. The run continues.")

    async def _plan_scale(self, subject: Subject) -> Plan:
        job, wanted = required(subject, "job"), _number(subject, "containers")
        fields = [Field("containers", "Containers", str(wanted), "number")]
        command = _command("scale", job, str(wanted))
        try:
            proposal = await self._versioning.versions.propose(RunId(required(subject, "run")), ModelChange(containers=wanted))
        except ClientError as error:
            return Plan(f"Scale {job}", [], command, f"{error.title()} {error}", fields=fields)
        return Plan(f"Scale {job}", _effect(proposal), command, fields=fields)

    async def _scale(self, subject: Subject, actor: str) -> Done:
        wanted, reason = ModelChange(containers=_number(subject, "containers")), ChangeReason(actor, "scaled on the page", None)
        change = await self._versioning.versions.change(RunId(required(subject, "run")), wanted, reason)
        return Done(f"Version {change.run.model_version} of the job model is in force.")

    async def _plan_rollback(self, subject: Subject) -> Plan:
        job, version = required(subject, "job"), _number(subject, "version")
        current = (await self._parts.runs.current(JobName(job))).model_version
        effect = await self._versioning.history.difference(JobName(job), current, version)
        lines = [f"Version {version} comes into force again, as a new version.", f"{len(effect.moves)} tasks move to other containers."]
        return Plan(f"Roll back {job}", lines, _command("models", "rollback", job, str(version)), danger=True)

    async def _rollback(self, subject: Subject, actor: str) -> Done:
        job = required(subject, "job")
        reason = ChangeReason(actor, "rolled back on the page", None)
        change = await self._versioning.history.roll_back(JobName(job), _number(subject, "version"), reason)
        return Done(f"Version {change.run.model_version} of the job model is in force.", f"jobs/{job}")

    # --- state ------------------------------------------------------------------------------------------------------------

    async def _plan_pin(self, subject: Subject) -> Plan:
        job = required(subject, "job")
        lines = ["The newest snapshot of each stage of each task is kept until the pin expires, regardless of the retention rules."]
        days = subject.get("days", "7")
        fields = [Field("days", "Days until it expires", days, "number"), Field("reason", "Reason", subject.get("reason", ""))]
        return Plan(
            f"Pin the snapshots of {job}",
            lines,
            _command("snapshots", "pin", job, "--hours", str(24 * _number({"days": days}, "days"))),
            fields=fields,
        )

    async def _pin(self, subject: Subject, _: str) -> Done:
        job, days = required(subject, "job"), _number(subject, "days")
        wanted = PinSpec(None, None, None, None, subject.get("reason", "")[:1000], timedelta(days=days))
        rows = await self._backups.catalog.pin(JobName(job), wanted)
        return Done(f"{len(rows)} snapshots are pinned as {rows[0].pin_id}.", f"jobs/{job}/state")

    async def _plan_unpin(self, subject: Subject) -> Plan:
        job, pin = required(subject, "job"), required(subject, "pin")
        lines = ["Snapshots that no other rule retains are deleted."]
        return Plan(f"Delete pin {pin}", lines, _command("snapshots", "unpin", job, pin), danger=True)

    async def _unpin(self, subject: Subject, _: str) -> Done:
        await self._backups.catalog.unpin(JobName(required(subject, "job")), required(subject, "pin"))
        return Done("The pin was deleted.")

    async def _plan_restore(self, subject: Subject) -> Plan:
        key, checkpoint = _stage_key(subject), required(subject, "checkpoint")
        found = await self._backups.catalog.snapshot(key, CommitId(checkpoint))
        lines = [
            f"The next container that acquires task {key.task} restores this snapshot of stage {key.stage}.",
            f"It was reported at {found.row.reported_at:%Y-%m-%d %H:%M:%S} UTC and holds the state after batch {found.row.batch_id}.",
            "The batches after it run again: rows may be written twice, but none are lost.",
            "The restore is refused while a container owns the task.",
        ]
        command = _command("snapshots", "restore", key.job, key.task, key.stage, checkpoint)
        return Plan(f"Restore {checkpoint}", lines, command, danger=True)

    async def _restore(self, subject: Subject, _: str) -> Done:
        found = await self._backups.catalog.choose(_stage_key(subject), CommitId(required(subject, "checkpoint")))
        return Done("; ".join(["The next owner of the task restores this snapshot", *found.warnings]) + ".")

    async def _plan_remove(self, subject: Subject) -> Plan:
        job = required(subject, "job")
        rows = await self._parts.removal.plan(JobName(job))
        lines = [f"{number} {name.replace('_', ' ')} are deleted." for name, number in rows.items() if number]
        lines.append("Its blobs become garbage and are deleted after the grace period.")
        return Plan(f"Remove {job}", lines, _command("jobs", "rm", job), danger=True)

    async def _remove(self, subject: Subject, actor: str) -> Done:
        job = required(subject, "job")
        await self._parts.removal.remove(JobName(job), actor)
        return Done(f"{job} was removed.", ".")

    async def _plan_collect(self, _: Subject) -> Plan:
        found = await self._backups.collection.run(Progress("blobs"), dry=True)
        lines = [
            f"{each.blob_store}: {each.condemned.blobs} blobs would be marked, {each.waiting.blobs} wait for the end of the grace period, "
            f"{each.deleted.blobs} would be deleted; {each.referenced} are referred to."
            for each in found
        ]
        return Plan("Collect garbage", lines or ["There is no blob store."], _command("gc", "run"), danger=True)

    async def _collect(self, _: Subject, __: str) -> Done:
        async def work(progress: Progress) -> Mapping[str, object]:
            return {"stores": len(await self._backups.collection.run(progress, dry=False))}

        self._backups.operations.start("run", "", "blobs", work)
        return Done("The collection has begun.", "garbage")


def _mode(subject: Subject) -> Mode:
    return Mode.KEEP_STATE if subject.get("keep") else Mode.DEFAULT


def _number(subject: Subject, name: str) -> int:
    """Raises ClientError."""
    text = required(subject, name)
    if not text.isascii() or not text.isdigit() or len(text) > 6 or not 1 <= int(text) <= 100_000:
        raise ClientError(f"{name}: enter a number from 1 to 100,000, not {text[:50]!r}")
    return int(text)


def _stage_key(subject: Subject) -> StageKey:
    return StageKey(JobName(required(subject, "job")), TaskName(required(subject, "task")), StageName(required(subject, "stage")))


def _effect(proposal: Proposal) -> Sequence[str]:
    if not proposal.changed:
        return ["Nothing would change."]
    effect = proposal.effect
    moves = [f"Task {move.task} moves from slot {move.former} to slot {move.to}." for move in effect.moves[:10]]
    rest = [f"{len(effect.moves) - 10} more tasks move."] if len(effect.moves) > 10 else []
    return [f"The run has {proposal.containers} slots.", *moves, *rest, *proposal.reasons]
