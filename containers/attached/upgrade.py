"""`sluice upgrade JOB -- COMMAND`: replaces the command of an attached job by a new version.

The job is drained, its next run is made for the new command, and the command is started here, as by `sluice exec`. Its first batches are
watched. If they fail, that run is stopped, and a run for the former command is made, which begins at the same drained offsets with new
checkpoints. The `sluice exec` of the former command starts it.

The config of a run says which command may start: without that, a supervisor that still has the former command could start it first.

Each step may be interrupted, and the upgrade repeated: it drains only if a run has started since the last drain.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from hashlib import sha256
from typing import TypeVar

from containers.attached.agent_process import run_command
from containers.attached.claim import COMMAND, REFUSED, Request, command_digest
from containers.attached.script_drains import CHECKPOINTS
from containers.attached.submit import check_deploy_mode
from sluice.cli.drain import follow
from sluice.cli.runner import find_job
from sluice.cli.upgrade.watch import HealthState, HealthWatch, VersionHealth
from sluice.client import OperatorClient, Refused
from sluice.clock import Clock, SystemClock
from sluice.core.drain import Mode, Phase
from sluice.core.errors import CoordinatorUnreachable, NotAttached, NotTheCurrentRun, StaleRun
from sluice.core.ids import ExecutionContainerId, JobName, RunId
from sluice.core.jobmodels.spec import JobKind
from sluice.core.lifecycle import RunState
from sluice.randomness import new_uuid
from sluice.wire import drains as wire_drains
from sluice.wire import runs as wire_runs

log = logging.getLogger("sluice")

T = TypeVar("T")

NOT_DRAINED, UNHEALTHY, ROLLED_BACK = 2, 3, 4
"""Exit codes, as those of the upgrade of a job file. After an upgrade the exit code is the command's."""

LOOK = timedelta(seconds=1)

RETRY = timedelta(seconds=2)

ROLLBACK_WITHIN = timedelta(minutes=10)
"""How long a step of a rollback is repeated while the coordinator cannot be reached."""


@dataclass(frozen=True, slots=True)
class ScriptUpgrade:
    """`timeout`: fail the drain after that long. `watch`: the new command must be healthy within this time."""

    job: JobName
    command: Sequence[str]
    timeout: float | None
    watch: timedelta
    batches: int
    rollback: bool
    dry_run: bool
    allow_leftover_state: bool
    stop_timeout: timedelta = timedelta(seconds=120)


def upgrade_script(url: str, upgrade: ScriptUpgrade) -> int:
    """Upgrade, then run the command until it ends. Returns the exit code. Before anything is changed, raises NotAttached, StaleRun,
    AttachedJob, QueriesNotDrainable, NotEmptied, and the errors of `OperatorClient`."""
    check_deploy_mode(upgrade.command, os.environ)
    try:
        return asyncio.run(_upgrade(url, upgrade))
    except KeyboardInterrupt:
        _say(
            "interrupted: a drain that was requested continues; run the same command again to continue the upgrade, or cancel the drain "
            f"with `sluice drain {upgrade.job} --cancel`"
        )
        raise


async def _upgrade(url: str, upgrade: ScriptUpgrade) -> int:
    client = OperatorClient(url)
    try:
        former = await drained_run(client, upgrade)
        if former is None:
            return 0 if upgrade.dry_run else NOT_DRAINED
        run = await run_for(client, former, upgrade.command)
        return await _run(url, client, upgrade, former, run)
    finally:
        await client.close()


async def drained_run(client: OperatorClient, upgrade: ScriptUpgrade) -> wire_runs.RunDetail | None:
    """The job's run, drained, or one that has not started since the last drain; None if it could not be drained, or for a dry run."""
    run = await client.run((await find_job(client, upgrade.job)).current_run)
    if run.kind is not JobKind.ATTACHED:
        raise NotAttached(f"job {upgrade.job} is run from a job file: use `sluice upgrade JOBFILE`")
    if run.state is RunState.DRAINED or await _is_unused(client, run):
        if upgrade.dry_run:
            for line in (f"1. nothing: job {upgrade.job} is drained already", *_start_lines(upgrade.command)):
                print(line)
            return None
        _say(f"job {upgrade.job} is drained already")
        return run
    if run.state.ended or run.stop_requested_at is not None:
        raise StaleRun(
            f"job {upgrade.job} is {run.state.value if run.state.ended else 'stopping'}, and keeps its state: start the former command "
            f"with `sluice start {upgrade.job}`, so that it can be drained"
        )
    if run.state is not RunState.DRAINING:
        plan = await client.plan_drain(RunId(run.run_id))
        if upgrade.dry_run:
            for line in plan_lines(plan, upgrade.command):
                print(line)
            return None
    requested = await client.request_drain(
        wire_drains.DrainRequest(
            run_id=RunId(run.run_id),
            hard_deadline_seconds=upgrade.timeout,
            require_empty=not upgrade.allow_leftover_state and run.state is not RunState.DRAINING,
            drain_mode=Mode.DEFAULT,
        )
    )
    ended = await follow(client, requested, quiet=False)
    if ended.phase is not Phase.DRAINED:
        _say(f"the drain is {ended.phase}: {ended.reason}; {_after_failure(await client.run(RunId(run.run_id)))}")
        return None
    return await client.run(RunId(run.run_id))


def _after_failure(run: wire_runs.RunDetail) -> str:
    """What happens to the former command after a drain that has not succeeded. In its flush the run is stopped."""
    if run.state.ended or run.stop_requested_at is not None:
        return f"the run is stopped: `sluice start {run.job}` lets the former command start again"
    return "the former command keeps the job"


async def _is_unused(client: OperatorClient, run: wire_runs.RunDetail) -> bool:
    """Whether the run has never started, and no run of the job has since the last drain. It may be stopped: an upgrade to another command
    stops it first."""
    if run.state is RunState.DRAINING or run.started_at is not None:
        return False
    former = (each for each in (await client.runs(run.job)).runs if each.started_at is not None)
    last = next(former, None)
    return last is not None and last.state is RunState.DRAINED


async def run_for(client: OperatorClient, former: wire_runs.RunDetail, command: Sequence[str]) -> RunId:
    """A run that only this command may start. It is made, unless an interrupted upgrade has made it. Raises the errors of
    `OperatorClient`."""
    if not former.state.ended:
        if former.stop_requested_at is None and former.config.get(COMMAND) == command_digest(command):
            _say(f"run {former.run_id} was made for this command before")
            return RunId(former.run_id)
        await client.stop_run(RunId(former.run_id), "it has not started, and the job is upgraded")
        await _await_end(client, RunId(former.run_id), Insistence(SystemClock()))
    request = await _request(client, former, config_for(former.config, command))
    made = await client.deploy(request, replaces=RunId(former.run_id))
    _say(f"run {made.run_id} is made for the new command")
    return RunId(made.run_id)


async def _request(client: OperatorClient, former: wire_runs.RunDetail, config: Mapping[str, str]) -> wire_runs.RunRequest:
    request = await client.request_of(RunId(former.run_id))
    return request.model_copy(update={"start": "checkpoint", "config": dict(config)})


async def _run(url: str, client: OperatorClient, upgrade: ScriptUpgrade, former: wire_runs.RunDetail, run: RunId) -> int:
    """Run the new command, and watch its first batches."""
    request = Request(
        upgrade.job,
        ExecutionContainerId(f"container-{new_uuid().hex}"),
        host=socket.gethostname(),
        command=command_digest(upgrade.command),
    )
    supervising = asyncio.create_task(run_command(request, upgrade.command, url, upgrade.stop_timeout))
    try:
        found = await _watch(client, upgrade, run, supervising, SystemClock())
        if found.how is HealthState.HEALTHY:
            _say(f"upgraded: run {run} is healthy; this process stays with the command")
            return await supervising
        if found.how is HealthState.SUPERSEDED or not upgrade.rollback:
            _say(f"run {run} is not healthy and was left running: {found.reason}")
            code = await supervising
            return code or UNHEALTHY
        _say(f"the new command failed: {found.reason}; going back to the former one")
        back = await roll_back(client, upgrade, former, run, found.reason, partial(_end_of, supervising), Insistence(SystemClock()))
        _say(
            f"run {back} is made for the former command, which begins where the drain has ended: a `sluice exec` that waits starts it; "
            "otherwise start it again"
        )
        return ROLLED_BACK
    finally:
        if not supervising.done():
            supervising.cancel()


async def _end_of(supervising: asyncio.Task[int]) -> None:
    with suppress(Exception):
        await supervising


@dataclass(frozen=True, slots=True)
class Insistence:
    """Repeats requests that may arrive twice."""

    clock: Clock
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep

    async def repeat(self, request: Callable[[], Awaitable[T]]) -> T:
        """The answer. Raises CoordinatorUnreachable if there is none within ROLLBACK_WITHIN."""
        until = self.clock.elapsed() + ROLLBACK_WITHIN.total_seconds()
        last = ""
        while True:
            try:
                return await request()
            except CoordinatorUnreachable as error:
                if self.clock.elapsed() >= until:
                    raise
                if str(error) != last:
                    last = str(error)
                    _say(f"the coordinator cannot be reached: {last}; trying again for {ROLLBACK_WITHIN.total_seconds():.0f} s")
            await self.sleep(RETRY.total_seconds())


async def roll_back(
    client: OperatorClient,
    upgrade: ScriptUpgrade,
    former: wire_runs.RunDetail,
    run: RunId,
    why: str,
    command_ends: Callable[[], Awaitable[None]],
    insistence: Insistence,
) -> RunId:
    """Stop the run of the new command, and make one for the former command. Returns it. Until it is made, neither command may start."""
    try:
        await insistence.repeat(partial(client.stop_run, run, f"the upgrade failed: {why}"))
        await command_ends()
        await _await_end(client, run, insistence)
        config = rollback_config(former.config, upgrade.command, run)
        request = await insistence.repeat(partial(_request, client, former, config))
        return await insistence.repeat(partial(_deployed_once, client, request, run))
    except CoordinatorUnreachable:
        _say(
            f"the job was not given back to the former command: `sluice stop {upgrade.job}` and then `sluice start {upgrade.job}` let any "
            "command start, on the checkpoints of the new one"
        )
        raise


async def _deployed_once(client: OperatorClient, request: wire_runs.RunRequest, replaces: RunId) -> RunId:
    """The run that the request makes, or has made, if that answer was lost."""
    try:
        return RunId((await client.deploy(request, replaces=replaces)).run_id)
    except Refused as refused:
        present = await client.run((await find_job(client, request.job)).current_run)
        if refused.refused_as != NotTheCurrentRun.slug or present.config != request.config:
            raise
        return RunId(present.run_id)


async def _watch(client: OperatorClient, upgrade: ScriptUpgrade, run: RunId, supervising: asyncio.Task[int], clock: Clock) -> VersionHealth:
    trial = HealthWatch(upgrade.batches, upgrade.watch, clock)
    last = ""
    while True:
        crashed = f"the command has ended with exit code {supervising.result()}" if supervising.done() else ""
        try:
            detail = await client.run(run)
            found = trial.seen(detail, crashed) if detail.stages or crashed else trial.seen(_without_queries(detail))
        except CoordinatorUnreachable as error:
            log.warning("%s", error)
        else:
            if found.how in (HealthState.HEALTHY, HealthState.FAILED, HealthState.SUPERSEDED):
                return found
            if found.reason != last:
                _say(f"{found.done} of {found.total} queries: {found.reason or 'healthy so far'}")
            last = found.reason
        await asyncio.wait([supervising], timeout=LOOK.total_seconds())


def _without_queries(run: wire_runs.RunDetail) -> wire_runs.RunDetail:
    """A run of which no query is known is not healthy yet: it counts as one without its container."""
    return run.model_copy(update={"incarnations": tuple(each for each in run.incarnations if each.exit_code is not None)})


async def _await_end(client: OperatorClient, run: RunId, insistence: Insistence) -> None:
    seq = 0
    while not (await insistence.repeat(partial(client.run, run))).state.ended:
        for each in await insistence.repeat(partial(client.notices, run, seq, LOOK)):
            seq = max(seq, each.seq)


def config_for(former: Mapping[str, str], command: Sequence[str]) -> dict[str, str]:
    """The config of the run of a new command: no other one may start."""
    kept = {name: value for name, value in former.items() if name not in (COMMAND, REFUSED)}
    return {**kept, COMMAND: command_digest(command)}


def rollback_config(former: Mapping[str, str], command: Sequence[str], failed: RunId) -> dict[str, str]:
    """The config of the run of the former command, after the new one has failed: the new one may not start, and the checkpoints that it has
    used are not used."""
    kept = {name: value for name, value in former.items() if name not in (COMMAND, REFUSED)}
    return {**kept, REFUSED: command_digest(command), CHECKPOINTS: sha256(failed.encode()).hexdigest()[:8]}


def plan_lines(plan: wire_drains.DrainPlanReply, command: Sequence[str]) -> Sequence[str]:
    """What an upgrade would do."""
    if plan.refused:
        return [plan.refused]
    left = [f"{stage.stage}: {', '.join(stage.operators)}" for stage in plan.stages if stage.operators]
    return [
        f"1. drain run {plan.run_id}: {', '.join(stage.stage for stage in plan.stages)}",
        *(f"   rows would be left in state: {each}" for each in left),
        *_start_lines(command),
    ]


def _start_lines(command: Sequence[str]) -> Sequence[str]:
    return [f"2. start {json.dumps(list(command))}", "3. watch its first batches, and go back if they fail"]


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
