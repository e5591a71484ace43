"""How containers and runs end: steps that several verbs take inside their own transactions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from coordinator.store.port import ContainerRow, ContainerState, HoldRow, Reading, RunRow, Writing
from sluice.core.errors import UnknownRun
from sluice.core.failover import HeldUntil, HoldBack, Incarnation, held_until
from sluice.core.ids import RunId
from sluice.core.lifecycle import RunState
from sluice.core.lifecycle import moved as run_moved


async def the_run(tx: Reading, run_id: RunId) -> RunRow:
    """The run. Raises UnknownRun."""
    run = await tx.run(run_id)
    if run is None:
        raise UnknownRun(f"there is no run {run_id!r}")
    return run


async def end_container(
    tx: Writing, container: ContainerRow, state: ContainerState, now: datetime, *, exit_code: int | None = None, reason: str = ""
) -> tuple[ContainerRow, Sequence[HoldRow]]:
    """The container is gone: free its tasks. What is known of its end already is kept, so this may run twice. The container, and the tasks
    that it held: ring for them (`Freed`) when the transaction has ended."""
    gone = replace(
        container,
        state=container.state if container.ended_at else state,
        ended_at=container.ended_at or now,
        exit_code=exit_code if container.exit_code is None else container.exit_code,
        reason=container.reason or reason,
    )
    await tx.put_container(gone)
    holds = await tx.holds_of(container.execution_id)
    for held in holds:
        await tx.put_hold(replace(held, hold=replace(held.hold, released=True)))
    return gone, holds


def held_back(containers: Sequence[ContainerRow], rule: HoldBack) -> HeldUntil | None:
    """Until when the slot with these incarnations, by epoch, is held back. Not while one of them may still act, nor for one that was
    replaced, or ended since its time was up: that was no failure of its own."""
    if any(each.ended_at is None for each in containers[-1:]):
        return None
    ended = [
        Incarnation(each.registered_at, each.ended_at, each.state is ContainerState.LOST or each.exit_code not in _NO_FAILURES)
        for each in containers
        if each.ended_at is not None
    ]
    return held_until(ended, rule)


_NO_FAILURES = (None, 0, 3)


async def settle_run(tx: Writing, run: RunRow, now: datetime) -> RunRow:
    """End a run that was asked to stop once its last container is gone; any other run stays as it is."""
    if run.state.ended or run.stop_requested_at is None:
        return run
    if await tx.has_standing(run.run_id):
        return run
    ended = replace(run, state=run_moved(run.state, RunState.FAILED if run.failing else RunState.STOPPED), ended_at=now)
    await tx.put_run(ended)
    await tx.add_notice(run.run_id, "ENDED", now, {"state": ended.state.value, "reason": ended.reason})
    return ended


async def ask_to_stop(tx: Writing, run: RunRow, now: datetime, reason: str, *, failing: bool = False) -> RunRow:
    """Tell a run's containers to stop between batches; the run ends when the last is gone. May run twice: the first request stands."""
    if run.state.ended or run.stop_requested_at is not None:
        return run
    asked = replace(run, stop_requested_at=now, reason=reason, failing=failing)
    await tx.put_run(asked)
    await tx.add_notice(run.run_id, "STOP", now, {"reason": reason})
    return await settle_run(tx, asked, now)
