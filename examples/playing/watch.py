"""The progress of a run, from its coordinator."""

from __future__ import annotations

from collections.abc import Mapping

import httpx

from sluice.wire.runs import RunDetail

_TIMEOUT_SECONDS = 5.0


def offsets_read(detail: RunDetail, stage: str, stream: str) -> dict[int, int]:
    """Partition of the stream -> the next offset that the stage reads, where a batch has been reported."""
    names = {each.stream for each in detail.streams if each.name == stream}
    progress = (each for task in detail.tasks for each in task.stages if each.stage == stage)
    return {at.partition: at.offset for each in progress for at in each.offsets if at.stream in names}


def is_held(detail: RunDetail) -> bool:
    """Every task has a holder."""
    return bool(detail.tasks) and all(task.holder for task in detail.tasks)


def is_started(detail: RunDetail) -> bool:
    """Every stage of every task has committed a batch, if only the empty first one."""
    stages = len(detail.stages)
    return is_held(detail) and all(sum(1 for each in task.stages if each.batch_id is not None) == stages for task in detail.tasks)


class RunWatch:
    """Asks about one run. Methods may be called from any thread; what cannot be told now is None."""

    def __init__(self, coordinator: str, run_id: str) -> None:
        self._url = f"{coordinator.rstrip('/')}/runs/{run_id}"
        self._client = httpx.Client(timeout=_TIMEOUT_SECONDS, trust_env=False)

    def detail(self) -> RunDetail | None:
        """None if the coordinator does not answer, or with a 5xx. Raises httpx.HTTPStatusError if there is no such run."""
        try:
            answer = self._client.get(self._url)
        except httpx.TransportError:
            return None
        if answer.is_server_error:
            return None
        return RunDetail.model_validate_json(answer.raise_for_status().content)

    def drain(self) -> str:
        """Ask for the run to be drained; the drain's id. Raises httpx.HTTPError."""
        body = {"runId": self._url.rpartition("/")[2], "drainMode": "DEFAULT"}
        return str(self._client.post(f"{self._url.rpartition('/runs/')[0]}/drain", json=body).raise_for_status().json()["uuid"])

    def draining(self, uuid: str) -> str | None:
        """How far a drain is: its phase, and how many stages it waits for."""
        try:
            answer = self._client.get(f"{self._url.rpartition('/runs/')[0]}/drain/{uuid}")
        except httpx.TransportError:
            return None
        if answer.is_error:
            return None
        reply = answer.json()
        return f"{reply['phase']}, {reply['remaining']} of {reply['total']} stages to go"

    def read(self, readers: Mapping[str, str]) -> dict[str, dict[int, int]] | None:
        """How far streams are read. `readers`: stream -> the stage that reads it; stream -> partition -> the next offset."""
        detail = self.detail()
        return None if detail is None else {stream: offsets_read(detail, stage, stream) for stream, stage in readers.items()}
