"""What `sluice upgrade` would deploy: the job of the new file, with what the command line leaves open as the present run has it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from containers.deploy import bound_names, checked_request, config_of
from containers.job import Job
from containers.upgrade import unmarked
from sluice.core.errors import BadSettings
from sluice.wire import runs as wire_runs


@dataclass(frozen=True, slots=True)
class Settings:
    """What the command line says of the new run: None, or nothing, for what the present run has."""

    containers: int | None = None
    system: str | None = None
    bind: Sequence[str] = ()
    config: Sequence[str] = ()


def new_request(job: Job, settings: Settings, present: wire_runs.RunRequest) -> wire_runs.RunRequest:
    """The request for the new version. Streams that the present run has are bound as there unless a system is named; `config` goes over the
    present one. Raises BadSettings, BadPlacement."""
    bindings = bound_names(job, settings.bind)
    if settings.system is None:
        bindings = {**_present_bindings(job, present), **bindings}
    containers = present.containers if settings.containers is None else settings.containers
    config = unmarked({**present.config, **config_of(settings.config)})
    return checked_request(job, containers, "drained", settings.system or _only_system(job, present, bindings), config, bindings)


def _names(job: Job) -> set[str]:
    return {s.name for s in job.inputs} | {s.name for s in job.intermediates} | {s.name for s in job.outputs}


def _present_bindings(job: Job, present: wire_runs.RunRequest) -> dict[str, dict[str, str]]:
    names = _names(job)
    return {
        each.name: {"system": each.system} | ({"stream": each.stream} if each.stream else {})
        for each in present.streams
        if each.name in names
    }


def _only_system(job: Job, present: wire_runs.RunRequest, bindings: dict[str, dict[str, str]]) -> str:
    """That of streams which the present run does not have. Raises BadSettings when there are several to choose from."""
    systems = sorted({each.system for each in present.streams})
    new = sorted(_names(job) - bindings.keys())
    if len(systems) > 1 and new:
        raise BadSettings(
            f"the present run uses several systems ({', '.join(systems)}): say where {', '.join(new)} is with --bind NAME=SYSTEM"
        )
    return systems[0]
