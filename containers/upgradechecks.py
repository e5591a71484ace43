"""How a job is that is to be upgraded, and everything about its upgrade that can be known before it begins."""

from __future__ import annotations

from typing import assert_never

from containers.client import Refused
from containers.drainclient import DrainClient
from containers.job import load_job
from containers.starts import check_job
from containers.status import the_job
from containers.tables import count
from containers.upgrade import (
    AwaitEnd,
    Deploy,
    Drain,
    GoBack,
    Refuse,
    Seen,
    Step,
    Terms,
    Watch,
    gone_back,
    next_step,
    plan_lines,
    same_version,
)
from containers.upgraderequest import new_request
from containers.upgradewish import Outcome, UpgradeReply, Wish
from sluice.core.drain import Phase
from sluice.core.errors import NotEmptied, YourRequest
from sluice.core.ids import RunId
from sluice.wire import drains as wire_drains
from sluice.wire import runs as wire_runs


class Checks:
    """Raises BadJobFile."""

    def __init__(self, client: DrainClient, wish: Wish) -> None:
        self._client = client
        self._wish = wish
        self._old = load_job(wish.local.old) if wish.local is not None and wish.local.old is not None else None
        self.job = load_job(wish.job_file)

    async def look(self) -> tuple[Seen, wire_runs.RunRequest]:
        """How the job is, and the request of the new version."""
        job = await the_job(self._client, self.job.name)
        run_id = RunId(job.current_run)
        present = await self._client.request_of(run_id)
        request = new_request(self.job, self._wish.settings, present)
        ours = same_version(present, request, self.job.code)
        return Seen(await self._client.run(run_id), ours, await self._client.drains(job.job)), request

    def next(self, seen: Seen, *, acted: bool) -> Step:
        """`acted`: this command has taken a step already."""
        return next_step(seen, back=self._wish.back, anew=self._wish.anew and not acted)

    async def check(self, seen: Seen, request: wire_runs.RunRequest) -> None:
        """Everything that can be known beforehand. Raises YourRequest for what would not come to a good end."""
        step = self.next(seen, acted=False)
        match step:
            case Refuse():
                raise YourRequest(step.why)
            case Drain():
                await self._check_drain(seen)
                await self._check_requests(seen.run_id, request)
            case Deploy():
                await self._check_requests(step.former, request)
            case AwaitEnd():
                await self._client.plan_run(request)
            case Watch():
                live = [each.execution_container_id for each in seen.run.incarnations if each.state == "LIVE"]
                if self._wish.local is not None and live:
                    raise YourRequest(
                        f"run {seen.run_id} is of this version already, and has containers ({', '.join(live)}): "
                        "leave out --local to watch it"
                    )
                await self._check_old(step.former)
            case GoBack():
                await self._check_old(step.former)
            case _:
                assert_never(step)

    async def _check_drain(self, seen: Seen) -> None:
        if (seen.run.drain is not None and not seen.run.drain.phase.over) or self._wish.allow_left or self._wish.dry_run:
            return
        left = _left(await self._client.plan_drain(seen.run_id))
        if left:
            raise NotEmptied(f"{left}: --allow-left upgrades all the same, and those rows are lost to the new version")

    async def _check_requests(self, former: RunId, request: wire_runs.RunRequest) -> None:
        await self._client.plan_run(request)
        await self._check_old(former)
        if self._wish.back:
            try:
                await self._client.plan_run(gone_back(await self._client.request_of(former), None))
            except Refused as refused:
                raise YourRequest(f"going back would be refused ({refused}): --no-back upgrades without a way back") from refused

    async def _check_old(self, former: RunId) -> None:
        if self._old is not None:
            check_job(self._old, await self._client.run(former))

    async def plan(self, seen: Seen, request: wire_runs.RunRequest) -> UpgradeReply:
        wish, step = self._wish, self.next(seen, acted=False)
        here, old_here = self._wish.local is not None, self._old is not None
        terms = Terms(wish.allow_left, wish.back, wish.batches, wish.watch, here, old_here)
        steps = plan_lines(step, terms, await self._client.plan_run(request), request.containers)
        told = f"job {self.job.name}, run {seen.run_id} ({seen.run.state}): an upgrade to {wish.job_file} would"
        outcome = Outcome.PLANNED
        if isinstance(step, Drain) and not seen.run.state.ended:
            left = _left(await self._client.plan_drain(seen.run_id))
            if left and not wish.allow_left:
                outcome, told = Outcome.ROWS_LEFT, f"{left}; {told} be refused without --allow-left, else"
        return UpgradeReply(job=self.job.name, outcome=outcome, told=told, former_run=seen.run_id, steps=tuple(steps))

    async def rows_left(self, seen: Seen, former: RunId) -> str:
        uuid = next(each.uuid for each in seen.drains if each.run_id == former and each.phase is Phase.DRAINED)
        detail = await self._client.drain(uuid)
        stages = sorted({each.stage for slot in detail.containers for task in slot.tasks for each in task.stages if each.rows_left})
        return f"{count(detail.rows_left)} rows are left that a flush could not empty (in {', '.join(stages)})" if detail.rows_left else ""


def _left(plan: wire_drains.DrainPlanReply) -> str:
    """What a drain would leave, or that it is not known; "" when nothing."""
    if plan.empties:
        return ""
    told = [f"stage {each.stage}: {', '.join(each.operators)}" for each in plan.stages if each.operators]
    unknown = [f"stage {each.stage}: {len(each.untold)} of {each.tasks} tasks have not told yet" for each in plan.stages if each.untold]
    return f"a flush would leave rows, or it is not known ({'; '.join([*told, *unknown])})"
