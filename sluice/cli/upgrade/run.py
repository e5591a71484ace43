"""Runs an upgrade: reads the state of the job, runs all checks, takes the step that `decide` chooses, and repeats."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from functools import partial
from typing import TypeVar, assert_never

from sluice.cli.console.bars import Bars
from sluice.cli.console.tables import count
from sluice.cli.drain import follow
from sluice.cli.runner import find_job
from sluice.cli.upgrade.decide import (
    GIVEN_UP,
    AwaitEnd,
    Deploy,
    Drain,
    Outcome,
    PlanOptions,
    Refuse,
    RollBack,
    Step,
    UpgradeOptions,
    UpgradeReply,
    UpgradeStatus,
    Watch,
    new_request,
    next_step,
    plan_lines,
    rollback_request,
    same_version,
    say,
    upgrade_request,
)
from sluice.cli.upgrade.watch import HealthState, HealthWatch, show_progress
from sluice.client import OperatorClient, Refused
from sluice.clock import SystemClock
from sluice.core.drain import Mode, Phase
from sluice.core.errors import ClientError, CoordinatorUnreachable, NotEmptied, NotTheCurrentRun, RunIsDraining
from sluice.core.ids import RunId
from sluice.deploy import missing_event_times
from sluice.job import load_job
from sluice.wire import drains as wire_drains
from sluice.wire import runs as wire_runs

T = TypeVar("T")

LOOK = timedelta(seconds=1)
RETRY = timedelta(seconds=0.5)
POLL = timedelta(seconds=20)
"""Duration of one long poll for notices."""


async def retrying(request: Callable[[], Awaitable[T]]) -> T:
    """Repeat the request until the coordinator answers."""
    reported = False
    while True:
        try:
            return await request()
        except CoordinatorUnreachable as error:
            if not reported:
                say(f"retrying: {error.title()} {error}")
            reported = True
            await asyncio.sleep(RETRY.total_seconds())


class Upgrade:
    """`standing`: the state of the upgrade and what to do next, printed after Ctrl-C."""

    def __init__(self, client: OperatorClient, options: UpgradeOptions, *, quiet: bool) -> None:
        self._client = client
        self._options = options
        self._quiet = quiet
        self._checks = Checks(client, options)
        self._job = self._checks.job
        self._acted = False
        self.standing = "nothing was changed"

    async def run(self) -> UpgradeReply:
        """Take steps until the new version is healthy or the upgrade has ended otherwise. Raises the errors of `upgrade_job`."""
        seen, request = await self._checks.look()
        await self._checks.check(seen, request)
        if self._options.dry_run:
            return await self._checks.plan(seen, request)
        while True:
            found = await self._take(seen, self._checks.next(seen, acted=self._acted), request)
            if found is not None:
                return found
            self._acted = True
            seen, request = await retrying(self._checks.look)

    def _reply(
        self,
        outcome: Outcome,
        summary: str,
        former: RunId | None = None,
        run: RunId | None = None,
        back: RunId | None = None,
        steps: tuple[str, ...] = (),
    ) -> UpgradeReply:
        self.standing = summary
        return UpgradeReply(
            job=self._job.name, outcome=outcome, summary=summary, former_run=former, run=run, rollback_run=back, steps=steps
        )

    # --- the steps -------------------------------------------------------------------------------------------------

    async def _take(self, seen: UpgradeStatus, step: Step, request: wire_runs.RunRequest) -> UpgradeReply | None:
        """Take the step. Returns None if the upgrade continues; the caller then reads the state of the job again."""
        match step:
            case Drain():
                return await self._drain(step.run_id)
            case Deploy():
                return await self._deploy(seen, step.former, request)
            case Watch():
                return await self._watch(seen, step)
            case AwaitEnd():
                await self._wait_for_end(step.run_id)
                return None
            case RollBack():
                return await self._roll_back(step.failed, step.former, seen.run.reason.removeprefix(GIVEN_UP))
            case Refuse():
                raise ClientError(step.why)
            case _:
                assert_never(step)

    async def _drain(self, run_id: RunId) -> UpgradeReply | None:
        request_body = wire_drains.DrainRequest(
            run_id=run_id,
            hard_deadline_seconds=self._options.timeout,
            require_empty=not self._options.allow_leftover_state and not self._options.keep_state,
            drain_mode=self._options.mode,
        )
        drain = await retrying(lambda: self._client.request_drain(request_body))
        self.standing = (
            f"the drain of run {run_id} continues in the background; run the same command again to continue the upgrade, or "
            f"`sluice drain {self._job.name} --cancel` to cancel it{'' if self._options.keep_state else ' before its flush begins'}"
        )
        say(f"run {run_id} is being drained: {drain.uuid}")
        over = await follow(self._client, drain, quiet=self._quiet)
        if over.phase is Phase.DRAINED:
            return None
        how = "was cancelled" if over.phase is Phase.CANCELLED else "failed"
        run = await retrying(lambda: self._client.run(run_id))
        left = (
            "it has ended, and its tasks are back at their pinned checkpoints: deploy the old version again, which continues from there"
            if run.state.ended or run.stop_requested_at is not None
            else "the run continues as before"
        )
        return self._reply(Outcome.NOT_DRAINED, f"the drain of run {run_id} {how} ({over.reason}); {left}", former=run_id)

    async def _deploy(self, seen: UpgradeStatus, former: RunId, request: wire_runs.RunRequest) -> UpgradeReply | None:
        self.standing = f"run {former} is drained and the job has no run: run the same command again to deploy the new version"
        left = await retrying(lambda: self._checks.rows_left(seen, former))
        if left and not self._options.allow_leftover_state:
            summary = f"run {former} is drained, but {left}: nothing was deployed; use --allow-leftover-state to deploy without these rows"
            return self._reply(Outcome.ROWS_LEFT, summary, former=former)
        if left:
            say(left)
        try:
            await self._client.deploy(upgrade_request(request, former, self._job.code), seen.run_id)
        except CoordinatorUnreachable as error:  # the run may have been created
            say(f"{error.title()} {error}")
            await asyncio.sleep(RETRY.total_seconds())
            return None
        except Refused as refused:
            if refused.refused_as == NotTheCurrentRun.slug:
                say(f"another run of the job was deployed in the meantime: {refused}")
                return None
            if refused.refused_as == RunIsDraining.slug or not self._options.rollback:
                raise
            return await self._deploy_old(None, former, seen.run_id, f"the coordinator refused it: {refused}")
        return None

    def _announce_run(self, run_id: RunId, containers: int, version: str) -> None:
        """Print the variables that the deployment platform must set for the containers."""
        if not self._quiet:
            print(f"run {run_id}", flush=True)
        slots = "0" if containers == 1 else f"0 to {containers - 1}"
        needs = f"SLUICE_COORDINATOR_URL={self._client.url} SLUICE_RUN_ID={run_id}, and SLUICE_PROCESSOR_ID {slots}"
        say(f"{version} is deployed as run {run_id}; its containers need {needs}")

    async def _watch(self, seen: UpgradeStatus, step: Watch) -> UpgradeReply:
        self.standing = (
            f"run {step.run_id} of the new version is deployed, and its health is not yet known: run the same command again to continue "
            "watching, or `sluice deploy OLDFILE --start drained` to roll back"
        )
        self._announce_run(step.run_id, seen.run.containers, "the new version")
        before = await retrying(lambda: self._checks.batches_before(seen, step.former))
        trial = HealthWatch(self._options.batches, self._options.watch, SystemClock(), before)
        verdict = await self._check_health(step.run_id, trial)
        if verdict is None:
            return self._reply(Outcome.UPGRADED, f"run {step.run_id} of the new version is healthy", step.former, step.run_id)
        how, why = verdict
        if how is HealthState.SUPERSEDED or not self._options.rollback or trial.too_late or seen.drained != step.former:
            hint = "" if how is HealthState.SUPERSEDED else "; use `sluice deploy OLDFILE --start drained` to roll back"
            return self._reply(
                Outcome.UNHEALTHY,
                f"run {step.run_id} of the new version is not healthy and was left running: {why}{hint}",
                step.former,
                step.run_id,
            )
        say(f"the new version failed: {why}; rolling back")
        return await self._roll_back(step.run_id, step.former, why)

    async def _check_health(self, run_id: RunId, trial: HealthWatch) -> tuple[HealthState, str] | None:
        """Watch the first batches. None if they are healthy, otherwise the state and the problem."""
        with Bars(run_id, quiet=self._quiet) as bars:
            while True:
                try:
                    found = trial.seen(await self._client.run(run_id))
                    show_progress(bars, run_id, found)
                    if found.how is HealthState.HEALTHY:
                        return None
                    if found.how in (HealthState.FAILED, HealthState.SUPERSEDED):
                        return found.how, found.reason
                except CoordinatorUnreachable as error:
                    bars.unreachable(error)
                await asyncio.sleep(LOOK.total_seconds())

    # --- rollback --------------------------------------------------------------------------------------------------

    async def _roll_back(self, failed: RunId, former: RunId, why: str) -> UpgradeReply:
        self.standing = (
            f"the upgrade is being rolled back: run the same command again to wait for the end of run {failed} and deploy the old version"
        )
        await retrying(lambda: self._client.stop_run(failed, GIVEN_UP + why, failed=True))
        await self._wait_for_end(failed)
        return await self._deploy_old(failed, former, failed, why)

    async def _wait_for_end(self, run_id: RunId) -> None:
        say(f"waiting for the end of run {run_id}")
        seq = 0
        while not (await retrying(lambda: self._client.run(run_id))).state.ended:
            notices = await retrying(partial(self._client.notices, run_id, seq, POLL))
            seq = notices[-1].seq if notices else seq

    async def _deploy_old(self, failed: RunId | None, former: RunId, present: RunId, why: str) -> UpgradeReply:
        """Deploy the old version at the drained offsets, replacing the job's `present` run."""
        request = rollback_request(await retrying(lambda: self._client.request_of(former)), failed)
        run_id = await self._deploy_once(request, present)
        self._announce_run(run_id, request.containers, "the old version")
        kept = "" if failed is None else "; the output of the new version is kept, and the records it read are processed again"
        summary = f"the new version failed: {why}; the old version was deployed again as run {run_id} at the drained offsets{kept}"
        return self._reply(Outcome.ROLLED_BACK, summary, former, failed, run_id)

    async def _deploy_once(self, request: wire_runs.RunRequest, present: RunId) -> RunId:
        """Deploy, unless the current run was already deployed by an equal request, because an answer was lost or another command has also
        rolled back. Raises Refused also if the current run was deployed by a different request."""
        while True:
            try:
                return RunId((await self._client.deploy(request, present)).run_id)
            except (CoordinatorUnreachable, Refused) as error:
                if isinstance(error, Refused) and error.refused_as != NotTheCurrentRun.slug:
                    raise
                current = RunId((await retrying(lambda: find_job(self._client, request.job))).current_run)
                if current != present and await retrying(partial(self._client.request_of, current)) == request:
                    return current
                if isinstance(error, Refused):
                    raise


class Checks:
    """Raises BadJobFile."""

    def __init__(self, client: OperatorClient, options: UpgradeOptions) -> None:
        self._client = client
        self._options = options
        self.job = load_job(options.job_file)
        for warning in missing_event_times(self.job):
            say(f"! {warning}")

    async def look(self) -> tuple[UpgradeStatus, wire_runs.RunRequest]:
        """The state of the job, and the request of the new version."""
        job = await find_job(self._client, self.job.name)
        run_id = RunId(job.current_run)
        present = await self._client.request_of(run_id)
        request = new_request(self.job, self._options.settings, present)
        is_new = same_version(present, request, self.job.code)
        return UpgradeStatus(await self._client.run(run_id), is_new, await self._client.drains(job.job)), request

    def next(self, seen: UpgradeStatus, *, acted: bool) -> Step:
        """`acted`: this command has already taken a step."""
        force = self._options.force and not acted
        return next_step(seen, rollback=self._options.rollback, force=force, mode=self._options.mode)

    async def check(self, seen: UpgradeStatus, request: wire_runs.RunRequest) -> None:
        """Check everything that can be checked before a change. Raises ClientError."""
        step = self.next(seen, acted=False)
        match step:
            case Refuse():
                raise ClientError(step.why)
            case Drain():
                await self._check_drain(seen)
                await self._check_requests(seen.run_id, request)
                self._check_can_return(seen)
            case Deploy():
                await self._check_requests(step.former, request)
            case AwaitEnd():
                await self._client.plan_run(request, self._options.mode)
            case Watch() | RollBack():
                pass
            case _:
                assert_never(step)

    async def _check_drain(self, seen: UpgradeStatus) -> None:
        if seen.run.drain is not None and not seen.run.drain.phase.over:
            return
        if self._options.keep_state:
            if refused := (await self._client.plan_drain(seen.run_id)).keep_state_refused:
                raise ClientError(f"the state cannot be kept: {refused}")
            return
        if self._options.allow_leftover_state or self._options.dry_run:
            return
        left = _left(await self._client.plan_drain(seen.run_id))
        if left:
            raise NotEmptied(f"{left}: use --allow-leftover-state to upgrade anyway; the new version does not get these rows")

    def _check_can_return(self, seen: UpgradeStatus) -> None:
        """Check that a rollback is possible: the old version returns to kept state with the snapshots of the drain. Raises ClientError."""
        if self._options.keep_state and self._options.rollback and not seen.run.backup_to:
            raise ClientError(
                f"run {seen.run_id} is not backed up, so after the first batches of the new version the old one could not return to its "
                "state: use --no-rollback to upgrade without the possibility to roll back"
            )

    async def _check_requests(self, former: RunId, request: wire_runs.RunRequest) -> None:
        await self._client.plan_run(request, self._options.mode)
        if self._options.rollback:
            try:
                await self._client.plan_run(rollback_request(await self._client.request_of(former), None), self._options.mode)
            except Refused as refused:
                raise ClientError(
                    f"a rollback would be refused ({refused}): use --no-rollback to upgrade without the possibility to roll back"
                ) from refused

    async def plan(self, seen: UpgradeStatus, request: wire_runs.RunRequest) -> UpgradeReply:
        options, step = self._options, self.next(seen, acted=False)
        terms = PlanOptions(options.allow_leftover_state, options.rollback, options.batches, options.watch, options.mode)
        steps = plan_lines(step, terms, await self._client.plan_run(request, options.mode), request.containers)
        summary = f"job {self.job.name}, run {seen.run_id} ({seen.run.state}): an upgrade to {options.job_file} would"
        outcome = Outcome.PLANNED
        if isinstance(step, Drain) and not seen.run.state.ended and not options.keep_state:
            left = _left(await self._client.plan_drain(seen.run_id))
            if left and not options.allow_leftover_state:
                outcome, summary = Outcome.ROWS_LEFT, f"{left}; {summary} be refused without --allow-leftover-state; with it, it would"
        return UpgradeReply(job=self.job.name, outcome=outcome, summary=summary, former_run=seen.run_id, steps=tuple(steps))

    async def batches_before(self, seen: UpgradeStatus, former: RunId) -> Mapping[tuple[str, str], int]:
        """The last batch of each stage of a task when the former run was drained, if its state was kept. The new version continues
        to count from it."""
        drain = next((each for each in seen.drains if each.run_id == former and each.phase is Phase.DRAINED), None)
        if drain is None or drain.drain_mode != Mode.KEEP_STATE:
            return {}
        detail = await self._client.drain(drain.uuid)
        stages = [(task.task, each) for slot in detail.containers for task in slot.tasks for each in task.stages]
        return {(task, each.stage): each.batch_id for task, each in stages if each.batch_id is not None}

    async def rows_left(self, seen: UpgradeStatus, former: RunId) -> str:
        uuid = next(each.uuid for each in seen.drains if each.run_id == former and each.phase is Phase.DRAINED)
        detail = await self._client.drain(uuid)
        stages = sorted({each.stage for slot in detail.containers for task in slot.tasks for each in task.stages if each.leftover_rows})
        return f"the flush left {count(detail.leftover_rows)} rows in state (of {', '.join(stages)})" if detail.leftover_rows else ""


def _left(plan: wire_drains.DrainPlanReply) -> str:
    """The state that a drain would not empty, or that this is unknown; "" if it would empty all."""
    if plan.empties:
        return ""
    leftover = [f"stage {each.stage}: {', '.join(each.operators)}" for each in plan.stages if each.operators]
    unknown = [
        f"stage {each.stage}: {len(each.unknown_tasks)} of {each.tasks} tasks have not reported yet"
        for each in plan.stages
        if each.unknown_tasks
    ]
    return f"a flush would leave rows in state, or it is unknown whether it would ({'; '.join([*leftover, *unknown])})"
