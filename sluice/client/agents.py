"""The calls of agents. A module of its own, because commands start faster without these bodies."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property

from pydantic import ValidationError

from sluice.client.connection import TIMEOUT
from sluice.client.coordinator import IDLE_CONNECTION, CoordinatorClient, Refused, path_segment, sendable
from sluice.core.access.tokens import SECRET_BYTES, new_incarnation_token
from sluice.core.errors import CoordinatorUnreachable, NoStoreRole
from sluice.core.ids import Epoch, ExecutionContainerId, Generation, JobName, Lineage, RunId, StageName, TaskName
from sluice.core.lifecycle import RunState
from sluice.core.snapshots.snapshot import BlobStoreName, CommitId
from sluice.randomness import random_bytes
from sluice.wire import agents as wire_agents
from sluice.wire import body as wire_body
from sluice.wire import drains as wire_drains
from sluice.wire import jobmodels as wire_jobmodels
from sluice.wire import snapshots as wire_snapshots


@dataclass(frozen=True, slots=True)
class Alive:
    lease: timedelta
    interval: timedelta
    model_version: int
    adopted: int | None = None
    """The version that the coordinator has recorded as adopted; None if it is `model_version`, or the coordinator does not say."""


@dataclass(frozen=True, slots=True)
class NotValid:
    """`ended`: the final state of the run, after which this container exits normally; None if another incarnation has its slot."""

    ended: RunState | None


class AgentClient(CoordinatorClient):
    """Every method raises as those of `CoordinatorClient` do."""

    @cached_property
    def _chosen(self) -> dict[ExecutionContainerId, str]:
        """The tokens of the containers that this client has registered."""
        return {}

    async def register(self, run_id: RunId, request: wire_agents.RegisterRequest) -> wire_agents.RegisterReply:
        """Chooses the token of a container that sends one. All registrations of a container by this client have the same, so it does not
        matter in which order, and how often, they arrive."""
        if request.token is None and not request.bare:
            container = ExecutionContainerId(request.execution_container_id)
            token = self._chosen.setdefault(container, new_incarnation_token(container, random_bytes(SECRET_BYTES)))
            request = request.model_copy(update={"token": token})
        return await self._read(wire_agents.RegisterReply, "POST", f"/runs/{path_segment(run_id)}/containers", request)

    async def exited(self, execution_id: ExecutionContainerId, exit_code: int, reason: str) -> None:
        body = wire_agents.ExitRequest(exit_code=exit_code, reason=sendable(reason))
        await self._request("POST", f"/containers/{path_segment(execution_id)}/exit", body)

    async def heartbeat(self, execution_id: ExecutionContainerId, epoch: Epoch, within: timedelta) -> Alive | NotValid:
        """Never raises Refused: an answer that is not a coordinator's counts as CoordinatorUnreachable. `within` limits the whole request,
        because httpx's timeout restarts with every byte.

        If the connection would be closed as idle before the next heartbeat, it is closed right after the answer. Otherwise the coordinator
        of a large fleet would hold thousands of idle connections."""
        asked = self._addresses.current
        headers = {wire_body.EPOCH_HEADER: str(epoch)} | ({"Connection": "close"} if self._beats_every > IDLE_CONNECTION else {})
        try:
            async with asyncio.timeout(within.total_seconds()):
                answer = await self._request(
                    "GET",
                    "/containerHeartbeat",
                    params={"executionContainerId": execution_id},
                    headers=headers,
                )
            alive = wire_body.HeartbeatReply.model_validate_json(answer.content, strict=True).alive
            if not alive:
                state = answer.headers.get(wire_body.RUN_STATE_HEADER)
                return NotValid(RunState(state) if state else None)
            self._beats_every = timedelta(seconds=float(answer.headers[wire_body.NEXT_HEADER]))
            adopted = answer.headers.get(wire_body.ADOPTED_VERSION_HEADER)
            return Alive(
                lease=timedelta(seconds=float(answer.headers[wire_body.LEASE_HEADER])),
                interval=self._beats_every,
                model_version=int(answer.headers[wire_body.MODEL_VERSION_HEADER]),
                adopted=None if adopted is None else int(adopted),
            )
        except TimeoutError as error:
            self._addresses.failed(asked)
            raise CoordinatorUnreachable(f"{self.url} did not answer within {within.total_seconds():.3g} s") from error
        except (Refused, ValidationError, ValueError, KeyError) as error:
            raise CoordinatorUnreachable(f"{self.url} does not answer heartbeats as a coordinator does: {error}") from error

    async def blob_credentials(self, run_id: RunId, store: BlobStoreName) -> wire_agents.BlobCredentialsReply | None:
        """Short-lived credentials of a blob store. None if the coordinator hands out none for it, or belongs to a release that hands out
        none."""
        path = f"/runs/{path_segment(run_id)}/blob-stores/{path_segment(store)}/credentials"
        try:
            return await self._read(wire_agents.BlobCredentialsReply, "GET", path)
        except Refused as refused:
            if refused.refused_as in ("http-404", NoStoreRole.slug):
                return None
            raise

    async def adopted(self, run_id: RunId, execution_id: ExecutionContainerId, epoch: Epoch, version: int) -> wire_jobmodels.AdoptedReply:
        """Report that the container runs this version of its run's job model. Idempotent."""
        body = wire_jobmodels.AdoptedRequest(version=version, epoch=epoch)
        path = f"/runs/{path_segment(run_id)}/containers/{path_segment(execution_id)}/adopted"
        return await self._read(wire_jobmodels.AdoptedReply, "POST", path, body)

    async def standby(self, run_id: RunId, execution_id: ExecutionContainerId) -> wire_jobmodels.StandbyReply:
        """The snapshots of which the container keeps standby copies."""
        return await self._read(
            wire_jobmodels.StandbyReply, "GET", f"/runs/{path_segment(run_id)}/containers/{path_segment(execution_id)}/standby"
        )

    async def acquire(
        self, run_id: RunId, task: TaskName, execution_id: ExecutionContainerId, epoch: Epoch, wait: timedelta = timedelta(0)
    ) -> wire_agents.AcquireReply | wire_agents.WaitReply:
        """Acquire a task. The coordinator waits up to `wait` for it to become free. Returns WaitReply if it does not."""
        body = wire_agents.AcquireRequest(execution_container_id=execution_id, epoch=epoch)
        timeout = (wait + TIMEOUT).total_seconds()
        path = f"/runs/{path_segment(run_id)}/tasks/{path_segment(task)}/acquire"
        answer = await self._request("POST", path, body, params={"wait": wait.total_seconds()}, timeout=timeout)
        model = wire_agents.WaitReply if answer.status_code == 202 else wire_agents.AcquireReply
        return model.model_validate_json(answer.content)

    async def confirm_owner(self, run_id: RunId, task: TaskName, generation: Generation) -> None:
        """Returns if the task is still owned under that generation."""
        path = f"/runs/{path_segment(run_id)}/tasks/{path_segment(task)}/owner"
        await self._request("GET", path, params={"generation": generation})

    async def progress(self, run_id: RunId, task: TaskName, body: wire_agents.ProgressRequest) -> None:
        await self._request("POST", f"/runs/{path_segment(run_id)}/tasks/{path_segment(task)}/progress", body)

    async def report_queries(self, run_id: RunId, task: TaskName, body: wire_agents.QueriesRequest) -> wire_agents.QueriesReply:
        """Report the queries of an attached job."""
        path = f"/runs/{path_segment(run_id)}/tasks/{path_segment(task)}/queries"
        return await self._read(wire_agents.QueriesReply, "PUT", path, body)

    async def stage_failed(
        self,
        run_id: RunId,
        task: TaskName,
        stage: StageName,
        generation: Generation,
        error: str,
        failures: int,
        retry_seconds: float | None,
        log_place: str,
    ) -> None:
        """Report a failure of a stage; see `FailureRequest`."""
        body = wire_agents.FailureRequest(
            generation=generation,
            error=sendable(error)[:2_000],
            failures=failures,
            retry_seconds=retry_seconds,
            log=sendable(log_place)[:1_000],
        )
        await self._request("POST", f"{_stage(run_id, task, stage)}/failure", body)

    async def report_watermarks(self, run_id: RunId, body: wire_agents.WatermarksRequest) -> wire_agents.WatermarksReply:
        return await self._read(wire_agents.WatermarksReply, "POST", f"/runs/{path_segment(run_id)}/watermarks", body)

    async def open_checkpoint(
        self, run_id: RunId, task: TaskName, stage: StageName, body: wire_snapshots.CheckpointOpening
    ) -> wire_snapshots.OpenedCheckpoint:
        """Begin to use a checkpoint of an attached job."""
        return await self._read(wire_snapshots.OpenedCheckpoint, "PUT", f"{_stage(run_id, task, stage)}/checkpoint", body)

    async def report_snapshot(
        self, run_id: RunId, task: TaskName, stage: StageName, body: wire_snapshots.SnapshotRequest
    ) -> wire_snapshots.SnapshotAccepted:
        return await self._read(wire_snapshots.SnapshotAccepted, "POST", f"{_stage(run_id, task, stage)}/snapshots", body)

    async def replace_index(
        self, run_id: RunId, task: TaskName, stage: StageName, checkpoint: CommitId, body: wire_snapshots.IndexReplacement
    ) -> None:
        """Refused as `unknown-snapshot` if the snapshot is not retained any more, as `snapshot-conflict` if it has neither of the two
        indexes. A repeated request changes nothing."""
        path = f"{_stage(run_id, task, stage)}/snapshots/{path_segment(checkpoint)}/index"
        await self._read(wire_snapshots.SnapshotAccepted, "PUT", path, body)

    async def snapshots_of(self, job: JobName, task: TaskName, stage: StageName) -> wire_snapshots.SnapshotsReply:
        """The newest 200 retained snapshots of a stage, newest first."""
        query = {"task": task, "stage": stage, "limit": "200"}
        return await self._read(wire_snapshots.SnapshotsReply, "GET", f"/jobs/{path_segment(job)}/snapshots", params=query)

    async def new_lineage(
        self,
        run_id: RunId,
        task: TaskName,
        stage: StageName,
        generation: Generation,
        lineage: Lineage,
        why: str,
        checkpoint: CommitId | None = None,
    ) -> Lineage:
        """Begin the stage's next lineage, at the snapshot `checkpoint` (None: the newest). Idempotent: a repeated call with the same
        `lineage` returns the same new one."""
        body = wire_snapshots.LineageRequest(generation=generation, lineage=lineage, why=sendable(why), checkpoint_id=checkpoint)
        answer = await self._read(wire_snapshots.LineageReply, "POST", f"{_stage(run_id, task, stage)}/lineage", body)
        return Lineage(answer.lineage)

    async def drain_step(
        self, run_id: RunId, task: TaskName, stage: StageName, body: wire_drains.DrainStepRequest
    ) -> wire_drains.DrainStepReply:
        """Report a step of a drain. Refused as `unknown-drain` if the run is under another drain or none, and as `drain-too-early` if the
        drain has not reached the step's phase."""
        return await self._read(wire_drains.DrainStepReply, "POST", f"{_stage(run_id, task, stage)}/drain", body)

    async def release(self, run_id: RunId, task: TaskName, generation: Generation) -> None:
        await self._request(
            "POST", f"/runs/{path_segment(run_id)}/tasks/{path_segment(task)}/release", wire_agents.ReleaseRequest(generation=generation)
        )


def _stage(run_id: RunId, task: TaskName, stage: StageName) -> str:
    return f"/runs/{path_segment(run_id)}/tasks/{path_segment(task)}/stages/{path_segment(stage)}"
