"""Taking the steps of an upgrade: look at the job, check what can be known beforehand, take the step that `decide` names, look again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar, assert_never

from sluice.cli.client import OperatorClient
from sluice.cli.console.bars import Bars
from sluice.cli.console.tables import count
from sluice.cli.drain import follow
from sluice.cli.main import load
from sluice.cli.runner import find_job
from sluice.cli.upgrade.decide import (
    GIVEN_UP,
    AwaitEnd,
    Deploy,
    Drain,
    GoBack,
    LocalOptions,
    Outcome,
    Refuse,
    Step,
    Terms,
    UpgradeOptions,
    UpgradeReply,
    UpgradeStatus,
    Watch,
    gone_back,
    new_request,
    next_step,
    plan_lines,
    same_version,
    say,
    upgraded,
)
from sluice.cli.upgrade.watch import HealthState, Trial, show_progress
from sluice.client import Refused
from sluice.clock import SystemClock
from sluice.core.drain import Phase
from sluice.core.errors import ClientError, CoordinatorUnreachable, NotEmptied, NotTheCurrentRun, RunIsDraining
from sluice.core.ids import RunId
from sluice.deploy import check_job
from sluice.job import load_job
from sluice.wire import drains as wire_drains
from sluice.wire import runs as wire_runs

T = TypeVar("T")

LOOK = timedelta(seconds=1)
RETRY = timedelta(seconds=0.5)
POLL = timedelta(seconds=20)
"""How long one poll for notices is held."""


async def patiently(ask: Callable[[], Awaitable[T]]) -> T:
    """A coordinator that is away is waited for."""
    told = False
    while True:
        try:
            return await ask()
        except CoordinatorUnreachable as error:
            if not told:
                say(f"the coordinator does not answer, trying again: {error}")
            told = True
            await asyncio.sleep(RETRY.total_seconds())


class LocalContainers(Protocol):
    """The containers of an upgrade with `--local`, which `containers.local.upgrade` provides."""

    def has(self, run_id: RunId) -> bool: ...

    def take(self, job_file: Path, run_id: RunId, containers: int) -> None: ...

    async def keep_up(self) -> str: ...

    async def see_out(self) -> None: ...

    async def leave(self) -> None: ...

    async def stay(self) -> str: ...


def _local_containers(options: LocalOptions, client: OperatorClient) -> LocalContainers:
    made: LocalContainers = load("containers.local.upgrade:LocalUpgrade")(options, client.url, client, SystemClock())
    return made


class Upgrade:
    """`standing`: what is on and what to do next, for whoever presses Ctrl-C."""

    def __init__(self, client: OperatorClient, options: UpgradeOptions, *, quiet: bool) -> None:
        self._client = client
        self._options = options
        self._quiet = quiet
        self._checks = Checks(client, options)
        self._job = self._checks.job
        self._local = _local_containers(options.local, client) if options.local is not None else None
        self._acted = False
        self._stays = False
        self.standing = "nothing was changed"

    async def close(self) -> None:
        if self._local is not None:
            await self._local.leave()

    async def run(self) -> UpgradeReply:
        """Until the new version does well, or the upgrade has ended otherwise. Raises what `upgrade_job` does."""
        seen, request = await self._checks.look()
        await self._checks.check(seen, request)
        if self._options.dry_run:
            return await self._checks.plan(seen, request)
        while True:
            found = await self._take(seen, self._checks.next(seen, acted=self._acted), request)
            if found is not None:
                return found
            self._acted = True
            seen, request = await patiently(self._checks.look)

    def _reply(
        self,
        outcome: Outcome,
        told: str,
        former: RunId | None = None,
        run: RunId | None = None,
        back: RunId | None = None,
        steps: tuple[str, ...] = (),
    ) -> UpgradeReply:
        self.standing = told
        return UpgradeReply(job=self._job.name, outcome=outcome, told=told, former_run=former, run=run, back_run=back, steps=steps)

    # --- the steps -------------------------------------------------------------------------------------------------

    async def _take(self, seen: UpgradeStatus, step: Step, request: wire_runs.RunRequest) -> UpgradeReply | None:
        """Take the step; None: look again."""
        match step:
            case Drain():
                return await self._drain(step.run_id)
            case Deploy():
                return await self._deploy(seen, step.former, request)
            case Watch():
                return await self._watch(seen, step)
            case AwaitEnd():
                await self._see_end(step.run_id)
                return None
            case GoBack():
                return await self._go_back(step.failed, step.former, seen.run.reason.removeprefix(GIVEN_UP))
            case Refuse():
                raise ClientError(step.why)
            case _:
                assert_never(step)

    async def _drain(self, run_id: RunId) -> UpgradeReply | None:
        asked = wire_drains.DrainRequest(
            run_id=run_id, hard_deadline_seconds=self._options.timeout, require_empty=not self._options.allow_leftover_state
        )
        drain = await patiently(lambda: self._client.request_drain(asked))
        self.standing = (
            f"the drain of run {run_id} goes on without this command; the same command again goes on with the upgrade, "
            f"`sluice drain {self._job.name} --cancel` cancels until the flush"
        )
        say(f"run {run_id} is being drained: {drain.uuid}")
        over = await follow(self._client, drain, quiet=self._quiet)
        if over.phase is Phase.DRAINED:
            return None
        how = "was cancelled" if over.phase is Phase.CANCELLED else "failed"
        run = await patiently(lambda: self._client.run(run_id))
        left = (
            "it has ended, and its tasks are back at their pinned checkpoints: deploy the old version once more, which goes on from there"
            if run.state.ended or run.stop_requested_at is not None
            else "it goes on as before"
        )
        return self._reply(Outcome.NOT_DRAINED, f"the drain of run {run_id} {how} ({over.reason}); {left}", former=run_id)

    async def _deploy(self, seen: UpgradeStatus, former: RunId, request: wire_runs.RunRequest) -> UpgradeReply | None:
        self.standing = f"run {former} is drained and nothing of the job runs: the same command again goes on with the new version"
        left = await patiently(lambda: self._checks.rows_left(seen, former))
        if left and not self._options.allow_leftover_state:
            told = f"run {former} is drained, but {left}: nothing is deployed; --allow-leftover-state goes on without these rows"
            return self._reply(Outcome.ROWS_LEFT, told, former=former)
        if left:
            say(left)
        try:
            await self._client.deploy(upgraded(request, former, self._job.code), seen.run_id)
        except CoordinatorUnreachable as error:  # it may have been made
            say(f"the coordinator does not answer: {error}")
            await asyncio.sleep(RETRY.total_seconds())
            return None
        except Refused as refused:
            if refused.refused_as == NotTheCurrentRun.slug:
                say(f"somebody else has deployed the job meanwhile: {refused}")
                return None
            if refused.refused_as == RunIsDraining.slug or not self._options.rollback:
                raise
            return await self._old_again(None, former, seen.run_id, f"the coordinator refused it: {refused}")
        return None

    def _tell_run(self, run_id: RunId, containers: int, version: str) -> None:
        """For platforms: what containers need."""
        if not self._quiet:
            print(f"run {run_id}", flush=True)
        slots = "0" if containers == 1 else f"0 to {containers - 1}"
        needs = f"SLUICE_COORDINATOR_URL={self._client.url} SLUICE_RUN_ID={run_id}, and SLUICE_PROCESSOR_ID {slots}"
        say(f"{version} is deployed as run {run_id}" + ("" if self._local else f"; its containers need {needs}"))

    async def _watch(self, seen: UpgradeStatus, step: Watch) -> UpgradeReply:
        again = (
            "its containers stop; the same command again starts them and watches on" if self._local else "the same command again watches on"
        )
        self.standing = (
            f"run {step.run_id} of the new version is deployed and nobody has judged it: {again}, "
            "`sluice deploy` of the old job file with --start drained goes back"
        )
        self._tell_run(step.run_id, seen.run.containers, "the new version")
        if self._local is not None:
            self._local.take(self._options.job_file, step.run_id, seen.run.containers)
        trial = Trial(self._options.batches, self._options.watch)
        told = await self._judge(step.run_id, trial)
        if told is None:
            self._stays = self._local is not None
            return self._reply(Outcome.UPGRADED, f"run {step.run_id} of the new version does well", step.former, step.run_id)
        how, why = told
        if how is HealthState.TAKEN_AWAY or not self._options.rollback or trial.too_late or seen.drained != step.former:
            hint = "" if how is HealthState.TAKEN_AWAY else "; `sluice deploy` of the old job file with --start drained goes back"
            return self._reply(
                Outcome.NOT_WELL, f"run {step.run_id} of the new version is left as it is: {why}{hint}", step.former, step.run_id
            )
        say(f"the new version is given up: {why}")
        return await self._go_back(step.run_id, step.former, why)

    async def _judge(self, run_id: RunId, trial: Trial) -> tuple[HealthState, str] | None:
        """Watch the first batches: None when they are well, else what is wrong."""
        with Bars(run_id, quiet=self._quiet) as bars:
            while True:
                crashed = await self._local.keep_up() if self._local is not None else ""
                try:
                    found = trial.seen(await self._client.run(run_id), crashed)
                    show_progress(bars, run_id, found)
                    if found.how is HealthState.WELL:
                        return None
                    if found.how in (HealthState.BADLY, HealthState.TAKEN_AWAY):
                        return found.how, found.told
                except CoordinatorUnreachable as error:
                    bars.unreachable(str(error))
                await asyncio.sleep(LOOK.total_seconds())

    # --- going back ------------------------------------------------------------------------------------------------

    async def _go_back(self, failed: RunId, former: RunId, why: str) -> UpgradeReply:
        self.standing = f"run {failed} is being given up: the same command again sees it end, and deploys the old version"
        await patiently(lambda: self._client.stop_run(failed, GIVEN_UP + why, failed=True))
        if self._local is not None and self._local.has(failed):
            await self._local.see_out()
        await self._see_end(failed)
        return await self._old_again(failed, former, failed, why)

    async def _see_end(self, run_id: RunId) -> None:
        say(f"waiting for the end of run {run_id}")
        seq = 0
        while not (await patiently(lambda: self._client.run(run_id))).state.ended:
            heard = await patiently(partial(self._client.notices, run_id, seq, POLL))
            seq = heard[-1].seq if heard else seq

    async def _old_again(self, failed: RunId | None, former: RunId, present: RunId, why: str) -> UpgradeReply:
        """Deploy the old version at the drained offsets, in the place of the job's `present` run."""
        request = gone_back(await patiently(lambda: self._client.request_of(former)), failed)
        run_id = await self._deploy_surely(request, present)
        self._tell_run(run_id, request.containers, "the old version")
        stays = "" if failed is None else "; what the new one has written stays, and its records are processed again"
        told = f"the new version failed: {why}; the old one is back as run {run_id} at the drained offsets{stays}"
        if self._local is not None and self._options.local is not None and self._options.local.old is not None:
            self._local.take(self._options.local.old, run_id, request.containers)
            self._stays = True
        return self._reply(Outcome.WENT_BACK, told, former, failed, run_id)

    async def _deploy_surely(self, request: wire_runs.RunRequest, present: RunId) -> RunId:
        """In the place of the present run there may be one by this very request already: the answer was lost, or another command went back
        as well. Raises Refused also when it is somebody's other run."""
        while True:
            try:
                return RunId((await self._client.deploy(request, present)).run_id)
            except (CoordinatorUnreachable, Refused) as error:
                if isinstance(error, Refused) and error.refused_as != NotTheCurrentRun.slug:
                    raise
                current = RunId((await patiently(lambda: find_job(self._client, request.job))).current_run)
                if current != present and await patiently(partial(self._client.request_of, current)) == request:
                    return current
                if isinstance(error, Refused):
                    raise

    # --- afterwards ------------------------------------------------------------------------------------------------

    async def stay(self, code: int) -> int:
        """In the foreground with the containers that were started here, if there are any; the exit code."""
        if not self._stays or self._local is None:
            return code
        failure = await self._local.stay()
        if failure:
            say(failure)
        return code or (1 if failure else 0)


class Checks:
    """Raises BadJobFile."""

    def __init__(self, client: OperatorClient, options: UpgradeOptions) -> None:
        self._client = client
        self._options = options
        self._old = load_job(options.local.old) if options.local is not None and options.local.old is not None else None
        self.job = load_job(options.job_file)

    async def look(self) -> tuple[UpgradeStatus, wire_runs.RunRequest]:
        """How the job is, and the request of the new version."""
        job = await find_job(self._client, self.job.name)
        run_id = RunId(job.current_run)
        present = await self._client.request_of(run_id)
        request = new_request(self.job, self._options.settings, present)
        ours = same_version(present, request, self.job.code)
        return UpgradeStatus(await self._client.run(run_id), ours, await self._client.drains(job.job)), request

    def next(self, seen: UpgradeStatus, *, acted: bool) -> Step:
        """`acted`: this command has taken a step already."""
        return next_step(seen, rollback=self._options.rollback, force=self._options.force and not acted)

    async def check(self, seen: UpgradeStatus, request: wire_runs.RunRequest) -> None:
        """Everything that can be known beforehand. Raises ClientError for what would not come to a good end."""
        step = self.next(seen, acted=False)
        match step:
            case Refuse():
                raise ClientError(step.why)
            case Drain():
                await self._check_drain(seen)
                await self._check_requests(seen.run_id, request)
            case Deploy():
                await self._check_requests(step.former, request)
            case AwaitEnd():
                await self._client.plan_run(request)
            case Watch():
                live = [each.execution_container_id for each in seen.run.incarnations if each.state == "LIVE"]
                if self._options.local is not None and live:
                    raise ClientError(
                        f"run {seen.run_id} is of this version already, and has containers ({', '.join(live)}): "
                        "leave out --local to watch it"
                    )
                await self._check_old(step.former)
            case GoBack():
                await self._check_old(step.former)
            case _:
                assert_never(step)

    async def _check_drain(self, seen: UpgradeStatus) -> None:
        if (seen.run.drain is not None and not seen.run.drain.phase.over) or self._options.allow_leftover_state or self._options.dry_run:
            return
        left = _left(await self._client.plan_drain(seen.run_id))
        if left:
            raise NotEmptied(f"{left}: --allow-leftover-state upgrades all the same, and those rows are lost to the new version")

    async def _check_requests(self, former: RunId, request: wire_runs.RunRequest) -> None:
        await self._client.plan_run(request)
        await self._check_old(former)
        if self._options.rollback:
            try:
                await self._client.plan_run(gone_back(await self._client.request_of(former), None))
            except Refused as refused:
                raise ClientError(f"going back would be refused ({refused}): --no-rollback upgrades without a way back") from refused

    async def _check_old(self, former: RunId) -> None:
        if self._old is not None:
            check_job(self._old, await self._client.run(former))

    async def plan(self, seen: UpgradeStatus, request: wire_runs.RunRequest) -> UpgradeReply:
        options, step = self._options, self.next(seen, acted=False)
        here, old_here = self._options.local is not None, self._old is not None
        terms = Terms(options.allow_leftover_state, options.rollback, options.batches, options.watch, here, old_here)
        steps = plan_lines(step, terms, await self._client.plan_run(request), request.containers)
        told = f"job {self.job.name}, run {seen.run_id} ({seen.run.state}): an upgrade to {options.job_file} would"
        outcome = Outcome.PLANNED
        if isinstance(step, Drain) and not seen.run.state.ended:
            left = _left(await self._client.plan_drain(seen.run_id))
            if left and not options.allow_leftover_state:
                outcome, told = Outcome.ROWS_LEFT, f"{left}; {told} be refused without --allow-leftover-state, else"
        return UpgradeReply(job=self.job.name, outcome=outcome, told=told, former_run=seen.run_id, steps=tuple(steps))

    async def rows_left(self, seen: UpgradeStatus, former: RunId) -> str:
        uuid = next(each.uuid for each in seen.drains if each.run_id == former and each.phase is Phase.DRAINED)
        detail = await self._client.drain(uuid)
        stages = sorted({each.stage for slot in detail.containers for task in slot.tasks for each in task.stages if each.leftover_rows})
        return (
            f"{count(detail.leftover_rows)} rows are left that a flush could not empty (in {', '.join(stages)})"
            if detail.leftover_rows
            else ""
        )


def _left(plan: wire_drains.DrainPlanReply) -> str:
    """What a drain would leave, or that it is not known; "" when nothing."""
    if plan.empties:
        return ""
    told = [f"stage {each.stage}: {', '.join(each.operators)}" for each in plan.stages if each.operators]
    unknown = [
        f"stage {each.stage}: {len(each.unknown_tasks)} of {each.tasks} tasks have not told yet"
        for each in plan.stages
        if each.unknown_tasks
    ]
    return f"a flush would leave rows, or it is not known ({'; '.join([*told, *unknown])})"
