"""`sluice drain`: finish what a job has read, empty its state, and end its run.

Exit codes: 0; 1 when the coordinator cannot be reached or refuses; 2 when the drain was cancelled or failed, and for `--dry-run` when a
flush would leave rows or that is not known.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, TypeVar

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from sluice.cli.client import DrainClient
from sluice.cli.console.bars import DrainBars
from sluice.cli.console.tables import Column, count, duration, shown, table
from sluice.cli.runner import LOCAL, Json, Url, find_job, tell
from sluice.core.drain import Phase
from sluice.core.errors import BadSettings, CoordinatorUnreachable, UnknownDrain
from sluice.core.ids import RunId
from sluice.wire import drains as wire_drains


def drain(
    job: Annotated[str | None, typer.Argument(metavar="JOB", help="Default: the only job.")] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Show how it goes on until it is over.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only tell what a flush could not empty.")] = False,
    require_empty: Annotated[bool, typer.Option("--require-empty", help="Refuse if a flush would leave rows in some state.")] = False,
    cancel: Annotated[bool, typer.Option("--cancel", help="Cancel the drain that is on, if nothing is flushed yet.")] = False,
    soft_seconds: Annotated[float | None, typer.Option(min=0.001, max=1e9, help="When to name the late.")] = None,
    hard_seconds: Annotated[float | None, typer.Option(min=0.001, max=1e9, help="When to give up.")] = None,
    as_json: Json = False,
    coordinator: Url = LOCAL,
) -> None:
    """Drain a job: process all that it has read, close every window, fire every timer, commit, and end its run.

    The next run starts at the drained offsets with empty state.
    """

    wish = DrainOptions(wait, dry_run, require_empty, cancel, soft_seconds, hard_seconds)
    raise typer.Exit(drain_job(coordinator, job, wish, as_json=as_json))


T = TypeVar("T")

NOT_DRAINED = 2
REFRESH = timedelta(seconds=1)
"""How long a bar may be behind its task; changes of phase are seen at once."""

RETRY = timedelta(seconds=0.2)


@dataclass(frozen=True, slots=True)
class DrainOptions:
    """What the command line asks for."""

    wait: bool
    dry_run: bool
    require_empty: bool
    cancel: bool
    soft_seconds: float | None
    hard_seconds: float | None

    def checked(self) -> DrainOptions:
        """Raises BadSettings."""
        if self.dry_run and (self.wait or self.cancel):
            raise BadSettings("--dry-run changes nothing: leave out --wait and --cancel")
        if self.cancel and (self.wait or self.require_empty):
            raise BadSettings("--cancel ends a drain: leave out --wait and --require-empty")
        return self


def drain_job(url: str, job: str | None, wish: DrainOptions, *, as_json: bool) -> int:
    """The exit code. Raises BadSettings, UnknownJob, UnknownDrain, and what `Coordinator` raises."""
    if wish.checked().dry_run:
        return _show_plan(url, job, as_json=as_json)
    if wish.cancel:
        return _cancel(url, job, as_json=as_json)

    async def ask(client: DrainClient) -> wire_drains.DrainSummary:
        run = RunId((await find_job(client, job)).current_run)
        request = wire_drains.DrainRequest(
            run_id=run,
            soft_deadline_seconds=wish.soft_seconds,
            hard_deadline_seconds=wish.hard_seconds,
            require_empty=wish.require_empty,
        )
        asked = await client.request_drain(request)
        return await follow(client, asked, quiet=as_json) if wish.wait else asked

    try:
        reply = _asked(url, ask)
    except KeyboardInterrupt:
        print("the drain goes on without this command; --wait shows it again, --cancel ends it", file=sys.stderr)
        raise
    tell(reply, lambda _: _page(reply), as_json=as_json)
    return NOT_DRAINED if reply.phase in (Phase.FAILED, Phase.CANCELLED) else 0


def _asked(url: str, ask: Callable[[DrainClient], Awaitable[T]]) -> T:
    async def run() -> T:
        client = DrainClient(url)
        try:
            return await ask(client)
        finally:
            await client.close()

    return asyncio.run(run())


# --- a drain ---------------------------------------------------------------------------------------------------------


async def follow(client: DrainClient, asked: wire_drains.DrainSummary, *, quiet: bool) -> wire_drains.DrainDetail:
    """Until the drain is over. A coordinator that is away is waited for: the drain is durable."""
    seq = 0
    with DrainBars(asked.job, quiet=quiet) as bars:
        while True:
            try:
                detail = await client.drain(asked.uuid)
                bars.show(detail)
                if detail.phase.over:
                    return detail
                heard = await client.notices(RunId(asked.run_id), seq, REFRESH)
                seq = heard[-1].seq if heard else seq
            except CoordinatorUnreachable as error:
                heard = ()
                bars.away(str(error))
            if not heard:
                await asyncio.sleep(RETRY.total_seconds())


def _page(reply: wire_drains.DrainSummary) -> RenderableType:
    lines = [Text(_last_line(reply))]
    if isinstance(reply, wire_drains.DrainDetail) and reply.rows_left:
        left = sorted({(s.stage, *s.operators_left) for c in reply.containers for t in c.tasks for s in t.stages if s.rows_left})
        told = "; ".join(f"stage {stage}: {', '.join(map(shown, names)) or 'unknown'}" for stage, *names in left)
        lines.insert(0, Text(f"{count(reply.rows_left)} rows are left that a flush could not empty ({told})", style="bold red"))
    return Group(*lines)


def _last_line(reply: wire_drains.DrainSummary) -> str:
    of = f"run {reply.run_id} of job {reply.job}"
    took = "" if reply.ended_at is None else f" in {duration((reply.ended_at - reply.requested_at).total_seconds())}"
    match reply.phase:
        case Phase.DRAINED:
            return f"drained {of}{took}: the next run starts at the recorded offsets of {len(reply.drained)} partitions, with empty state"
        case Phase.FAILED:
            return f"the drain of {of} failed{took}: {shown(reply.reason)}"
        case Phase.CANCELLED:
            return f"the drain of {of} is cancelled: {shown(reply.reason)}"
        case _:
            return f"the drain of {of} is {reply.phase}: {reply.uuid}"


def _cancel(url: str, job: str | None, *, as_json: bool) -> int:
    async def ask(client: DrainClient) -> wire_drains.DrainSummary:
        name = (await find_job(client, job)).job
        newest = await client.newest_drain(name)
        if newest is None:
            raise UnknownDrain(f"job {name} was never drained")
        return await client.cancel_drain(newest.uuid)

    reply = _asked(url, ask)
    tell(reply, lambda _: _page(reply), as_json=as_json)
    return 0


# --- a plan ----------------------------------------------------------------------------------------------------------


def _show_plan(url: str, job: str | None, *, as_json: bool) -> int:
    async def ask(client: DrainClient) -> wire_drains.DrainPlanReply:
        return await client.plan_drain((await find_job(client, job)).current_run)

    reply = _asked(url, ask)
    tell(reply, lambda width: _plan_page(reply, width), as_json=as_json)
    return 0 if reply.empties else NOT_DRAINED


def _plan_page(reply: wire_drains.DrainPlanReply, width: int | None) -> RenderableType:
    columns = [
        *(Column("STAGE"), Column("TASKS", right=True, rank=1), Column("ROWS NOW", right=True, rank=2)),
        *(Column("CANNOT BE EMPTIED", folds=True),),
    ]
    rows = [(each.stage, count(each.tasks), count(each.state_rows), _cannot(each)) for each in reply.stages]
    verdict = {
        True: "a drain would empty all state",
        False: "a drain would leave rows in some state; it tells how many",
        None: "it is not known yet whether a drain would empty all state: some tasks have not reported",
    }[reply.empties]
    return Group(table(columns, rows, width), Text(verdict))


def _cannot(stage: wire_drains.StagePlanReply) -> str:
    told: Sequence[str] = [shown(each) for each in stage.operators]
    untold = [f"{len(stage.untold)} tasks have not told"] if stage.untold else []
    return ", ".join([*told, *untold]) or "nothing is left"
