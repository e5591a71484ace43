"""`sluice drain`: finish what a job has read, empty or keep its state, and end its run.

Exit codes: 0; 1 when the coordinator cannot be reached or refuses; 2 when the drain was cancelled or failed, and for `--dry-run` when a
flush would leave rows in state, or when that is unknown (with `--keep-state`: when the drain would be refused).
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from sluice.cli.console.bars import Bars
from sluice.cli.console.tables import Column, count, duration, shown, table
from sluice.cli.documents import Document, Json, print_reply
from sluice.cli.runner import LOCAL, OptionalJob, Url, call, find_job
from sluice.client import OperatorClient
from sluice.core.drain import EFFECTS, LOSES, Effect, Mode, Phase
from sluice.core.errors import BadOption, CoordinatorUnreachable, UnknownDrain
from sluice.core.ids import RunId
from sluice.wire import drains as wire_drains

NOT_DRAINED = 2
REFRESH = timedelta(seconds=1)
"""How old the progress of a task may be on the screen. Changes of phase are shown immediately."""

RETRY = timedelta(seconds=0.2)


def drain(
    job: OptionalJob = None,
    wait: Annotated[bool, typer.Option("--wait", help="Show progress until the drain has ended.")] = False,
    keep_state: Annotated[
        bool, typer.Option("--keep-state", help="Keep the state for the next run, which must have the same stateful operators.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only report what a drain would do to the state of each stage.")] = False,
    require_empty: Annotated[bool, typer.Option("--require-empty", help="Refuse if a flush would leave rows in state.")] = False,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Cancel the current drain. Possible until its flush begins; with --keep-state until its end.")
    ] = False,
    soft_seconds: Annotated[
        float | None, typer.Option(min=0.001, max=1e9, metavar="SECONDS", help="Report which tasks hold up the drain after this long.")
    ] = None,
    hard_seconds: Annotated[
        float | None, typer.Option(min=0.001, max=1e9, metavar="SECONDS", help="Fail the drain after this long.")
    ] = None,
    as_json: Annotated[Json, Document(wire_drains.DrainSummary, wire_drains.DrainDetail, wire_drains.DrainPlanReply)] = False,
    coordinator: Url = LOCAL,
) -> None:
    """Drain a job: stop reading, flush all state, commit, and end the run.

    Every window is closed, every timer fires, and keys seen for deduplication are forgotten, so the next run starts at the drained offsets
    with empty state. With --keep-state the streams between stages are read to their ends, no window is closed, and the next run starts
    with the state as it is.
    """
    if dry_run and (wait or cancel):
        raise BadOption("--dry-run changes nothing: leave out --wait and --cancel")
    if cancel and (wait or require_empty or keep_state):
        raise BadOption("--cancel ends a drain: leave out --wait, --require-empty and --keep-state")
    if keep_state and require_empty:
        raise BadOption("--keep-state empties nothing: leave out --require-empty")
    if dry_run:
        plan = call(coordinator, lambda client: _plan(client, job))
        print_reply(plan, lambda width: _keeping_page(plan, width) if keep_state else _plan_page(plan, width), as_json=as_json)
        accepted = not plan.keep_state_refused if keep_state else plan.empties and not plan.refused
        raise typer.Exit(0 if accepted else NOT_DRAINED)
    if cancel:
        cancelled = call(coordinator, lambda client: _cancel(client, job))
        print_reply(cancelled, lambda _: _page(cancelled), as_json=as_json)
        return

    async def request(client: OperatorClient) -> wire_drains.DrainSummary:
        requested = await client.request_drain(
            wire_drains.DrainRequest(
                run_id=RunId((await find_job(client, job)).current_run),
                soft_deadline_seconds=soft_seconds,
                hard_deadline_seconds=hard_seconds,
                require_empty=require_empty,
                drain_mode=Mode.KEEP_STATE if keep_state else Mode.DEFAULT,
            )
        )
        return await follow(client, requested, quiet=as_json) if wait else requested

    try:
        reply = call(coordinator, request)
    except KeyboardInterrupt:
        print(
            "the drain continues in the background; `sluice drain --wait` follows it, `sluice drain --cancel` cancels it", file=sys.stderr
        )
        raise
    print_reply(reply, lambda _: _page(reply), as_json=as_json)
    raise typer.Exit(NOT_DRAINED if reply.phase in (Phase.FAILED, Phase.CANCELLED) else 0)


async def _cancel(client: OperatorClient, job: str | None) -> wire_drains.DrainSummary:
    name = (await find_job(client, job)).job
    newest = await client.drains(name, 1)
    if not newest:
        raise UnknownDrain(f"job {name} was never drained")
    return await client.cancel_drain(newest[0].uuid)


async def _plan(client: OperatorClient, job: str | None) -> wire_drains.DrainPlanReply:
    return await client.plan_drain((await find_job(client, job)).current_run)


# --- progress --------------------------------------------------------------------------------------------------------

STEPS: Mapping[str | None, int] = {None: 0, "stopped": 1, "flushing": 2, "flushed": 3, "committed": 4}
OTHER_LINES = 6
"""Number of lines of the terminal that are reserved for other output than bars."""


async def follow(client: OperatorClient, drain: wire_drains.DrainSummary, *, quiet: bool) -> wire_drains.DrainDetail:
    """Show progress until the drain has ended. While the coordinator does not answer, retry, because the drain is durable."""
    seq = 0
    with Bars(drain.job, quiet=quiet) as bars:
        while True:
            try:
                detail = await client.drain(drain.uuid)
                show_progress(bars, detail)
                if detail.phase.over:
                    return detail
                notices = await client.notices(RunId(drain.run_id), seq, REFRESH)
                seq = notices[-1].seq if notices else seq
            except CoordinatorUnreachable as error:
                notices = ()
                bars.unreachable(error)
            if not notices:
                await asyncio.sleep(RETRY.total_seconds())


def show_progress(bars: Bars, drain: wire_drains.DrainDetail) -> None:
    """A bar for the drain, and one for each task, or for each slot if there are more tasks than lines."""
    phase = str(drain.phase) + (" LATE" if drain.late else "")
    blocked_by = _blocked_by(drain)
    waits = f": waits for {blocked_by}" if blocked_by else ""
    done = sum(STEPS[stage.step] for slot in drain.containers for task in slot.tasks for stage in task.stages)
    bars.show(drain.job, done, 4 * drain.total, phase + (waits if drain.late else ""))
    groups = {shown(task.task): task.stages for slot in drain.containers for task in slot.tasks}
    if len(groups) > max(1, bars.height - OTHER_LINES):
        groups = {f"slot {slot.processor_id}": tuple(each for task in slot.tasks for each in task.stages) for slot in drain.containers}
    for name, stages in groups.items():
        slowest = min(stages, key=lambda each: STEPS[each.step])
        bars.show(name, sum(STEPS[each.step] for each in stages), 4 * len(stages), _step(slowest))
    bars.say(phase + waits, phase)


def _blocked_by(drain: wire_drains.DrainDetail, limit: int = 5) -> str:
    """The blockers of the drain, on one line."""
    parts = [
        f"slot {each.processor_id} ({each.why}{f'; the last one ended: {shown(each.last_exit)}' if each.last_exit else ''})"
        if each.task is None
        else f"{shown(each.task)}{f' {each.stage}' if each.stage else ''} ({each.why})"
        for each in drain.blocked_by
    ]
    more = f" and {len(parts) - limit} more" if len(parts) > limit else ""
    return ", ".join(parts[:limit]) + more


def _step(stage: wire_drains.DrainStageReply) -> str:
    waits = f", waits for {', '.join(stage.waits_for)}" if stage.waits_for else ""
    return f"{stage.stage}: {stage.step or 'at work'}{waits}{f', {shown(stage.note)}' if stage.note else ''}"


# --- pages -----------------------------------------------------------------------------------------------------------


def _page(reply: wire_drains.DrainSummary) -> RenderableType:
    lines = [Text(_last_line(reply))]
    if isinstance(reply, wire_drains.DrainDetail) and reply.leftover_rows:
        left = sorted({(s.stage, *s.leftover_operators) for c in reply.containers for t in c.tasks for s in t.stages if s.leftover_rows})
        where = "; ".join(f"stage {stage}: {', '.join(map(shown, names)) or 'unknown'}" for stage, *names in left)
        lines.insert(0, Text(f"the flush left {count(reply.leftover_rows)} rows in state ({where})", style="bold red"))
    return Group(*lines)


def _last_line(reply: wire_drains.DrainSummary) -> str:
    of = f"run {reply.run_id} of job {reply.job}"
    took = "" if reply.ended_at is None else f" in {duration((reply.ended_at - reply.requested_at).total_seconds())}"
    match reply.phase:
        case Phase.DRAINED:
            state = "with its state" if reply.drain_mode == Mode.KEEP_STATE else "with empty state"
            return f"drained {of}{took}: the next run starts at the recorded offsets of {len(reply.drained)} partitions, {state}"
        case Phase.FAILED:
            return f"the drain of {of} failed{took}: {shown(reply.reason)}"
        case Phase.CANCELLED:
            return f"the drain of {of} was cancelled: {shown(reply.reason)}"
        case _:
            return f"the drain of {of} is {reply.phase}: {reply.uuid}"


def _plan_page(reply: wire_drains.DrainPlanReply, width: int | None) -> RenderableType:
    rows = [(each.stage, count(each.tasks), count(each.state_rows), _flushed(each)) for each in reply.stages]
    verdict = {
        True: "a drain would empty all state",
        False: "a drain would leave rows in some state, and report how many",
        None: "it is not yet known whether a drain would empty all state: some tasks have not reported",
    }[reply.empties]
    lines = [Text(shown(reply.refused) or verdict)]
    if losing := _losing(reply):
        lines.append(Text(f"{losing} would forget the records from before the drain: use --keep-state if the operators stay the same"))
    return Group(table(_PLAN_COLUMNS, rows, width), *lines)


_PLAN_COLUMNS = (
    *(Column("STAGE"), Column("TASKS", right=True, rank=1), Column("ROWS NOW", right=True, rank=2)),
    *(Column("WHAT A DRAIN DOES TO THE STATE", folds=True),),
)


def _flushed(stage: wire_drains.StagePlanReply) -> str:
    """The effect of a flush on each stateful operator."""
    if stage.stateful is None:
        does: Sequence[str] = [f"{each}: {EFFECTS[Effect.LEAVES]}" for each in stage.operators]
    else:
        does = [f"{each.operator}{f' ({each.why})' if each.why else ''}: {each.does}" for each in stage.stateful]
    unknown = [f"{len(stage.unknown_tasks)} tasks have not reported"] if stage.unknown_tasks else []
    return "; ".join(map(shown, [*does, *unknown])) or "no state"


def _losing(reply: wire_drains.DrainPlanReply) -> str:
    """The operators that lose state which later input needs, with their stages."""
    named = [f"{each.operator} of stage {stage.stage}" for stage in reply.stages for each in stage.stateful or () if each.effect in LOSES]
    return ", ".join(dict.fromkeys(map(shown, named)))


def _keeping_page(reply: wire_drains.DrainPlanReply, width: int | None) -> RenderableType:
    columns = [*_PLAN_COLUMNS[:-1], Column("KEPT", folds=True)]
    rows = [(each.stage, count(each.tasks), count(each.state_rows), _kept(each)) for each in reply.stages]
    refused = f"a drain that keeps the state would be refused: {shown(reply.keep_state_refused)}"
    accepted = "a drain would keep all state for a next run with these operators, and would not write open windows"
    return Group(table(columns, rows, width), Text(refused if reply.keep_state_refused else accepted))


def _kept(stage: wire_drains.StagePlanReply) -> str:
    if stage.stateful is None:
        return "unknown: no task has reported its operators"
    return ", ".join(shown(each.operator) for each in stage.stateful) or "no state"
