"""Deploys a job file: builds the request, checks it as far as possible, and sends it."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import CellType, CodeType, FunctionType, ModuleType

from pydantic import ValidationError

from sluice import tracing
from sluice.client import CoordinatorClient
from sluice.core.errors import BadJobFile, BadOption
from sluice.core.jobmodels.placement import slots
from sluice.core.watermarks import event_time_missing
from sluice.job import Job, JobDescription, load_job
from sluice.wire import runs as wire_runs

log = logging.getLogger(__name__)


def job_request(
    job_file: Path, containers: int, start: str, system: str, config: Sequence[str], bind: Sequence[str] = ()
) -> wire_runs.RunRequest:
    """The request that deploys the job of a file. `config` has KEY=VALUE, `bind` NAME=SYSTEM[:STREAM]. Raises BadJobFile, BadOption,
    BadPlacement."""
    job = load_job(job_file)
    for warning in missing_event_times(job):
        log.warning("%s", warning)
    return checked_request(job, containers, start, system, config_of(config), bound_names(job, bind))


def checked_request(
    job: Job, containers: int, start: str, system: str, config: dict[str, str], bindings: Mapping[str, Mapping[str, str]]
) -> wire_runs.RunRequest:
    """`deploy_request`, with errors that name the options of the commands. Raises BadOption, BadPlacement."""
    slots(containers)
    try:
        return deploy_request(job, containers, system, start, config, bindings)
    except ValidationError as error:
        if any(each["loc"][0] == "start" for each in error.errors()):
            raise BadOption(f"--start takes checkpoint, drained, earliest, latest or an ISO time, not {start!r}") from error
        raise BadOption("; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())) from error


def config_of(pairs: Sequence[str]) -> dict[str, str]:
    """Raises BadOption."""
    for each in pairs:
        if not each.partition("=")[0] or "=" not in each:
            raise BadOption(f"--config takes key=value, not {each!r}")
    return dict(each.split("=", 1) for each in pairs)


def bound_names(job: Job, bind: Sequence[str]) -> dict[str, dict[str, str]]:
    """Parse NAME=SYSTEM or NAME=SYSTEM:STREAM into a mapping by name. Raises BadOption."""
    names = {s.name for s in job.inputs} | {s.name for s in job.intermediates} | {s.name for s in job.outputs}
    found: dict[str, dict[str, str]] = {}
    for each in bind:
        name, _, where = each.partition("=")
        system, _, stream = where.partition(":")
        if name not in names or not system:
            known = ", ".join(sorted(names))
            raise BadOption(f"--bind takes NAME=SYSTEM or NAME=SYSTEM:STREAM with a stream of the job ({known}), not {each!r}")
        found[name] = {"system": system} | ({"stream": stream} if stream else {})
    return found


def deploy_request(
    job: Job,
    containers: int,
    system: str,
    start: str,
    config: dict[str, str],
    bindings: Mapping[str, Mapping[str, str]] | None = None,
) -> wire_runs.RunRequest:
    """The request that deploys a job with its streams on one system, except for those in `bindings`."""

    def at(name: str) -> dict[str, str]:
        return {"name": name, "system": system, **(bindings or {}).get(name, {})}

    return wire_runs.RunRequest.model_validate(
        {
            "job": job.name,
            "containers": containers,
            "inputs": [{**at(each.name), "broadcast": each.broadcast} for each in job.inputs],
            "intermediates": [{**at(each.name), "partitions": each.partitions} for each in job.intermediates],
            "outputs": [{**at(each.name), "partitions": each.partitions} for each in job.outputs],
            "stages": [
                {"name": s.stage.name, "reads": s.stage.reads, "writes": s.stage.writes, "stateful": s.stage.stateful} for s in job.stages
            ],
            "grouper": job.grouper,
            "maxTasks": job.max_tasks,
            "stateful": job.stateful,
            "start": start,
            "config": config,
        }
    )


def missing_event_times(job: Job) -> Sequence[str]:
    """A sentence for each stage that writes an intermediate stream, does not report its progress in event time, and has a stage behind it
    that needs it: one whose function, or a function that it calls in the job's own modules, names `withWatermark`. A stage reports its
    progress if these functions name `withWatermark` or pass `event_time`."""
    names = {declared.stage.name: _names(declared.function, job) for declared in job.stages}
    watermarked = {stage for stage, named in names.items() if WATERMARK in named}
    readers = {each.name: {d.stage.name for d in job.stages if each.name in d.stage.reads} for each in job.intermediates}
    writes = {d.stage.name: [each for each in sorted(d.stage.writes) if each in readers] for d in job.stages}

    def behind(stream: str) -> set[str]:
        found, waiting = set[str](), {stream}
        while waiting:
            new = readers[waiting.pop()] - found
            found |= new
            waiting.update(*(writes[stage] for stage in new))
        return found

    needed = {stage: [each for each in streams if behind(each) & watermarked] for stage, streams in writes.items()}
    return [event_time_missing(stage, streams) for stage, streams in needed.items() if streams and not names[stage] & {WATERMARK, COLUMN}]


WATERMARK, COLUMN = "withWatermark", "event_time"


def _names(function: object, job: Job) -> set[str]:
    """The names and keywords in the code of the function and of those that it calls in the job's own modules."""
    seen: set[int] = set()
    waiting = [function]
    all_names: set[str] = set()
    while waiting:
        found = waiting.pop()
        if not isinstance(found, FunctionType) or id(found) in seen or not _is_of(found, job):
            continue
        seen.add(id(found))
        names = {name for code in _codes(found.__code__) for name in code.co_names}
        keywords = {name for code in _codes(found.__code__) for const in code.co_consts if isinstance(const, tuple) for name in const}
        all_names |= names | {each for each in keywords if isinstance(each, str)}
        named = [found.__globals__[name] for name in names if name in found.__globals__]
        waiting += named
        waiting += [getattr(module, name, None) for module in named if isinstance(module, ModuleType) for name in names]
        waiting += [cell.cell_contents for cell in found.__closure__ or () if cell != _EMPTY_CELL]
    return all_names


_EMPTY_CELL = CellType()


def _codes(code: CodeType) -> Iterable[CodeType]:
    """The code of a function, and the code of the functions defined in it."""
    yield code
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield from _codes(const)


def _is_of(function: FunctionType, job: Job) -> bool:
    """Whether the function is defined in the job file, or in a module beside it."""
    return job.directory is None or Path(function.__code__.co_filename).is_relative_to(job.directory)


async def deploy(url: str, request: wire_runs.RunRequest) -> wire_runs.RunReply:
    """Create the run on the coordinator at `url`, and return it. Raises CoordinatorUnreachable, Refused."""
    coordinator = CoordinatorClient(url)
    try:
        with tracing.span("deploy", job=request.job):
            return await coordinator.deploy(request)
    finally:
        await coordinator.close()


def check_job(job: JobDescription, run: wire_runs.RunReply) -> None:
    """Check that the job file matches the run. Raises BadJobFile, which says what differs."""
    if job.name != run.job:
        raise BadJobFile(f"the file defines job {job.name}, but run {run.run_id} belongs to job {run.job}")
    here: dict[str, object] = {each.name: (each.reads, each.writes, each.stateful) for each in job.stages}
    there: dict[str, object] = {each.name: (each.reads, each.writes, each.stateful) for each in run.stages}
    if here != there:
        differing = sorted(name for name in here.keys() | there.keys() if here.get(name) != there.get(name))
        raise BadJobFile(f"the stages in the file differ from those of run {run.run_id} ({', '.join(differing)}): deploy the file again")
