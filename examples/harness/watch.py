"""The progress of a run, as its coordinator reports it."""

from __future__ import annotations

from collections.abc import Mapping

import httpx

from sluice.client import EnvironmentToken, verification
from sluice.wire.runs import RunDetail

_TIMEOUT_SECONDS = 5.0


def offsets_read(detail: RunDetail, stage: str, stream: str) -> dict[int, int]:
    """Partition -> the next offset that the stage reads, for partitions of which a batch was reported."""
    names = {each.stream for each in detail.streams if each.name == stream}
    progress = (each for task in detail.tasks for each in task.stages if each.stage == stage)
    return {at.partition: at.offset for each in progress for at in each.offsets if at.stream in names}


def is_assigned(detail: RunDetail) -> bool:
    """Every task has an owner."""
    return bool(detail.tasks) and all(task.holder for task in detail.tasks)


def is_started(detail: RunDetail) -> bool:
    """Every stage of every task has committed a batch, possibly an empty one."""
    stages = len(detail.stages)
    return is_assigned(detail) and all(sum(1 for each in task.stages if each.batch_id is not None) == stages for task in detail.tasks)


class RunWatch:
    """Polls one run. Methods may be called from any thread; None means that the coordinator did not answer."""

    def __init__(self, coordinator: str, run_id: str) -> None:
        self._url = f"{coordinator.rstrip('/')}/runs/{run_id}"
        token = EnvironmentToken()()
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._client = httpx.Client(timeout=_TIMEOUT_SECONDS, trust_env=False, verify=verification(coordinator), headers=headers)

    def detail(self) -> RunDetail | None:
        """None if the coordinator does not answer, or answers with a 5xx. Raises httpx.HTTPStatusError if the run does not exist."""
        try:
            answer = self._client.get(self._url)
        except httpx.TransportError:
            return None
        if answer.is_server_error:
            return None
        return RunDetail.model_validate_json(answer.raise_for_status().content)

    def drain(self) -> str:
        """Request a drain of the run. Returns the id of the drain. Raises httpx.HTTPError."""
        body = {"runId": self._url.rpartition("/")[2], "drainMode": "DEFAULT"}
        return str(self._client.post(f"{self._url.rpartition('/runs/')[0]}/drain", json=body).raise_for_status().json()["uuid"])

    def draining(self, uuid: str) -> str | None:
        """Progress of a drain: its phase, and the number of stages that it waits for."""
        try:
            answer = self._client.get(f"{self._url.rpartition('/runs/')[0]}/drain/{uuid}")
        except httpx.TransportError:
            return None
        if answer.is_error:
            return None
        reply = answer.json()
        return f"{reply['phase']}, {reply['remaining']} of {reply['total']} stages to go"

    def read(self, readers: Mapping[str, str]) -> dict[str, dict[int, int]] | None:
        """How far streams are read: stream -> partition -> next offset. `readers`: stream -> the stage that reads it."""
        detail = self.detail()
        return None if detail is None else {stream: offsets_read(detail, stage, stream) for stream, stage in readers.items()}
