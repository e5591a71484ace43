"""The effect of a change, for the audit log: the state of a job before and after it, as short texts by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from coordinator.store.access import TokenRow
from coordinator.store.sql import ReadTransaction
from sluice.core.ids import JobName

AuditedState = Mapping[str, str]

MAX_ENTRIES = 200
"""Entries of a stored state. A job may have thousands of pins and tasks."""


async def state_of_job(tx: ReadTransaction, job: JobName, *, with_snapshots: bool = True) -> AuditedState:
    """The current run of the job and its drain, and, with `with_snapshots`, pins and the snapshots that users chose to continue from; empty
    without such a job."""
    run = await tx.runs.current(job)
    if run is None:
        return {}
    found = {
        "run": run.run_id,
        "state": run.state.value,
        "containers": str(run.spec.containers),
        "job model version": str(run.model_version),
        "stop requested": "no" if run.stop_requested_at is None else "yes",
        "backup": "default" if run.backup is None else ", ".join(map(str, run.backup.get("to", ()))),
    }
    drain = await tx.drains.newest(run.run_id)
    if drain is not None:
        found["drain"] = f"{drain.drain_id} {drain.phase.value}"
    if not with_snapshots:
        return found
    found |= {f"pin {each.pin_id} of {each.task}/{each.stage}": each.checkpoint for each in await tx.snapshots.pins(job)}
    found |= {f"chosen snapshot of {each.task}/{each.stage}": str(each.head) for each in await tx.fleet.stage_states(job, only_chosen=True)}
    return found


def state_of_tokens(rows: Sequence[TokenRow]) -> AuditedState:
    """The tokens that have not been revoked, by id."""
    return {
        f"token {row.token_id}": f"{row.name}: {', '.join(sorted(row.grant.roles))} for {', '.join(row.grant.jobs)}"
        for row in rows
        if row.revoked_at is None
    }


def differences(before: AuditedState, after: AuditedState) -> tuple[dict[str, str], dict[str, str]]:
    """The entries that are not the same in both, at most MAX_ENTRIES of each."""
    return (
        dict([(name, value) for name, value in before.items() if after.get(name) != value][:MAX_ENTRIES]),
        dict([(name, value) for name, value in after.items() if before.get(name) != value][:MAX_ENTRIES]),
    )
