"""What every route of the API declares: its refusals, and names in paths."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Path

from sluice.wire import body as wire_body

PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"content": {"application/problem+json": {"schema": wire_body.Problem.model_json_schema()}}, "description": told}
    for status, told in {
        400: "The body cannot be read",
        404: "Unknown",
        409: "Stale, in use, or lease lost",
        412: "Another version of the job model is in force",
        413: "Body too large",
        422: "Refused",
        500: "Stored data is not what was written",
        503: "Try again",
    }.items()
}

RunIdPath = Annotated[str, Path(alias="runId", max_length=300)]
TaskPath = Annotated[str, Path(max_length=600)]
StagePath = Annotated[str, Path(max_length=300)]
JobPath = Annotated[str, Path(max_length=300)]
CheckpointPath = Annotated[str, Path(alias="checkpointId", max_length=300)]
