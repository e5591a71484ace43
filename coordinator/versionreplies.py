"""Versions of job models spelled as HTTP bodies."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from coordinator.blobstores import BlobStores
from coordinator.modelhistory import Version
from coordinator.replies import stage_snapshot
from coordinator.standbys import Kept
from coordinator.store.versions import ModelHead
from coordinator.versions import Change, Proposal
from sluice.core.expansion import Effect, Judged, Skew
from sluice.wire import jobmodels as wire_jobmodels


def plan_reply(proposal: Proposal, blob_stores: BlobStores) -> wire_jobmodels.PlanReply:
    return wire_jobmodels.PlanReply.model_validate(_proposal_fields(proposal, blob_stores) | {"version": proposal.run.model_version})


def standby_reply(kept: Kept) -> wire_jobmodels.StandbyReply:
    copies = tuple(
        wire_jobmodels.StandbyCopy(task=each.store.task, stage=each.store.stage, snapshot=stage_snapshot(each.snapshot, each.store))
        for each in kept.copies
    )
    return wire_jobmodels.StandbyReply(copies=copies, own=tuple(sorted(kept.own)))


def refused_reply(proposal: Proposal, containers: int, reason: str, blob_stores: BlobStores) -> wire_jobmodels.PlanReply:
    """The answer to a plan for so many containers that nothing else can be said of it; `proposal` leaves the run as it is."""
    told = {"verdict": "REFUSED", "reason": reason, "containers": containers, "version": proposal.run.model_version}
    return wire_jobmodels.PlanReply.model_validate(_proposal_fields(proposal, blob_stores) | told)


def change_reply(change: Change, blob_stores: BlobStores) -> wire_jobmodels.ChangeReply:
    versions = {"version": change.run.model_version, "former": change.proposal.run.model_version}
    return wire_jobmodels.ChangeReply.model_validate(_proposal_fields(change.proposal, blob_stores) | versions)


def _proposal_fields(proposal: Proposal, blob_stores: BlobStores) -> dict[str, Any]:
    return _effect_fields(proposal.effect) | {
        "job": proposal.run.job,
        "run_id": proposal.run.run_id,
        "containers": proposal.containers,
        "verdict": proposal.verdict,
        "reason": "; ".join(proposal.reasons),
        "streams": tuple(_stream(each, proposal) for each in proposal.judged),
        "warnings": tuple(_warnings(proposal, blob_stores)),
    }


def _warnings(proposal: Proposal, blob_stores: BlobStores) -> Sequence[str]:
    if proposal.effect.moves and not blob_stores.backup(proposal.run.backup).to:
        return ["the run is not backed up: a task that moves finds its state only where both containers have the same disk"]
    return []


def _stream(judged: Judged, proposal: Proposal) -> wire_jobmodels.StreamVerdict:
    counted = judged.counted
    return wire_jobmodels.StreamVerdict(
        name=counted.name,
        system=counted.stream.system,
        stream=counted.stream.stream,
        before=counted.known,
        after=counted.now,
        baseline=proposal.plan.assignment.baselines.get(counted.stream),
        verdict=judged.verdict,
        reason=judged.reason,
    )


def _effect_fields(effect: Effect) -> dict[str, Any]:
    return {
        "partitions": tuple(
            wire_jobmodels.NewPartition(system=ssp.system, stream=ssp.stream, partition=ssp.partition, task=task)
            for ssp, task in effect.partitions.items()
        ),
        "tasks_affected": tuple(effect.affected),
        "tasks_new": tuple(effect.made),
        "tasks_gone": tuple(effect.gone),
        "moves": tuple(wire_jobmodels.MoveReply(task=move.task, former=move.former, to=move.to) for move in effect.moves),
        "skew_before": _skew(effect.before),
        "skew_after": _skew(effect.after),
    }


def _skew(skew: Skew) -> wire_jobmodels.SkewReply:
    def spread(numbers: tuple[int, float]) -> wire_jobmodels.Spread:
        return wire_jobmodels.Spread(max=numbers[0], mean=numbers[1])

    return wire_jobmodels.SkewReply(
        partitions_per_task=spread(skew.partitions_per_task), tasks_per_container=spread(skew.tasks_per_container)
    )


def _summary_fields(head: ModelHead, *, current: bool) -> dict[str, Any]:
    return {
        "version": head.version,
        "run_id": head.run_id,
        "at": head.created_at,
        "who": head.who,
        "why": head.why,
        "content_hash": head.content_hash,
        "current": current,
    }


def versions_reply(job: str, heads: Sequence[ModelHead], current: int, limit: int) -> wire_jobmodels.VersionsReply:
    """`heads` holds one more than `limit` where there is another page."""
    page = heads[:limit]
    listed = tuple(wire_jobmodels.VersionSummary.model_validate(_summary_fields(each, current=each.version == current)) for each in page)
    return wire_jobmodels.VersionsReply(job=job, models=listed, next=page[-1].version if len(heads) > limit else None)


def version_detail(found: Version) -> wire_jobmodels.VersionDetail:
    fields = _summary_fields(found.head, current=found.current)
    return wire_jobmodels.VersionDetail.model_validate(fields | {"model": json.loads(found.document)})


def difference_reply(job: str, former: int, later: int, effect: Effect) -> wire_jobmodels.DifferenceReply:
    return wire_jobmodels.DifferenceReply.model_validate(_effect_fields(effect) | {"job": job, "former": former, "later": later})
