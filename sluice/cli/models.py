"""`sluice plan`, `sluice scale` and `sluice models`: what would become of a job's model, and what became of it.

Exit codes: 0; 1 when the coordinator cannot be reached or refuses; `plan` has 2 when the change would be refused, or that is not known.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from sluice.cli.client import VersionClient
from sluice.cli.console.tables import NONE, Column, count, moment, shown, table
from sluice.cli.runner import LOCAL, JobArgument, Json, Url, find_job, tell
from sluice.core.errors import BadSettings
from sluice.core.expansion import Verdict
from sluice.wire import jobmodels as wire_jobmodels

app = typer.Typer(no_args_is_help=True, help="The versions of a job's model: who made each, when and why, and what changed.")

Job = Annotated[str, typer.Argument(help="The job.")]
Version = Annotated[int, typer.Argument(min=1, help="A version's number.")]
Why = Annotated[str, typer.Option(help="Why, for others.")]
IfVersion = Annotated[int | None, typer.Option(min=1, help="Only while this version is in force.")]


def plan(
    job: JobArgument = None,
    stream: Annotated[list[str] | None, typer.Option(help="An input of the job, by its name for it; may be repeated.")] = None,
    partitions: Annotated[list[int] | None, typer.Option(min=1, help="How many partitions that stream would have.")] = None,
    containers: Annotated[int | None, typer.Option(help="How many containers the run would have.")] = None,
    as_json: Json = False,
    coordinator: Url = LOCAL,
) -> None:
    """Tell what would happen if streams had other partition counts, or the run another number of containers. Nothing is changed."""

    raise typer.Exit(show_plan(coordinator, job, stream or [], partitions or [], containers, as_json=as_json))


def scale(
    job: Job,
    containers: Annotated[int, typer.Argument(metavar="N", help="How many containers the run is to have.")],
    why: Why = "",
    if_version: IfVersion = None,
    as_json: Json = False,
    coordinator: Url = LOCAL,
) -> None:
    """Change the number of containers of a job that runs. As few tasks as balance allows move, between batches. Start the new ones."""

    scale_job(coordinator, job, containers, why, if_version, as_json=as_json)


@app.command("ls")
def list_versions(
    job: JobArgument = None,
    limit: Annotated[int, typer.Option(min=1, max=200, help="How many at most.")] = 20,
    before: Annotated[int | None, typer.Option(min=1, help="Only those with lower numbers.")] = None,
    as_json: Json = False,
    coordinator: Url = LOCAL,
) -> None:
    """The versions of a job's model, newest first."""

    show_versions(coordinator, job, before, limit, as_json=as_json)


@app.command()
def show(job: Job, version: Version, as_json: Json = False, coordinator: Url = LOCAL) -> None:
    """One version: which slot has which task, and what each task reads."""

    show_version(coordinator, job, version, as_json=as_json)


@app.command()
def diff(job: Job, version: Version, later: Version, as_json: Json = False, coordinator: Url = LOCAL) -> None:
    """What a later version changed."""

    show_difference(coordinator, job, version, later, as_json=as_json)


@app.command()
def grow(job: Job, why: Why = "", as_json: Json = False, coordinator: Url = LOCAL) -> None:
    """Look at the partition counts of the job's inputs now, and let it grow as far as is safe; also to what was rolled back."""

    grow_job(coordinator, job, why, as_json=as_json)


@app.command()
def rollback(
    job: Job, version: Version, why: Why = "", if_version: IfVersion = None, as_json: Json = False, coordinator: Url = LOCAL
) -> None:
    """Put an older version in force again, as long as no container has adopted a later one."""

    roll_back(coordinator, job, version, why, if_version, as_json=as_json)


T = TypeVar("T")

NOT_SAFE = 2
LISTED = 20
"""How many moves or partitions one page names."""


def _asked(url: str, ask: Callable[[VersionClient], Awaitable[T]]) -> T:
    async def run() -> T:
        client = VersionClient(url)
        try:
            return await ask(client)
        finally:
            await client.close()

    return asyncio.run(run())


# --- plans and changes -----------------------------------------------------------------------------------------------


def show_plan(
    url: str, job: str | None, streams: Sequence[str], partitions: Sequence[int], containers: int | None, *, as_json: bool
) -> int:
    """The exit code. Raises BadSettings."""
    if len(streams) != len(partitions) or len(set(streams)) < len(streams):
        raise BadSettings("name each --stream once, and its --partitions with it")

    async def ask(client: VersionClient) -> wire_jobmodels.PlanReply:
        name = job or (await find_job(client, None)).job
        counts = dict(zip(streams, partitions, strict=True))
        return await client.plan(wire_jobmodels.PlanRequest(job=name, streams=counts, containers=containers))

    reply = _asked(url, ask)
    tell(reply, lambda width: _plan_page(reply, width), as_json=as_json)
    return 0 if reply.verdict in (Verdict.SAFE, Verdict.UNCHANGED) else NOT_SAFE


def scale_job(url: str, job: str, containers: int, why: str, version: int | None, *, as_json: bool) -> None:
    _change(url, job, wire_jobmodels.ChangeRequest(containers=containers, why=why), version, as_json=as_json)


def grow_job(url: str, job: str, why: str, *, as_json: bool) -> None:
    _change(url, job, wire_jobmodels.ChangeRequest(grow=True, why=why), None, as_json=as_json)


def _change(url: str, job: str, request: wire_jobmodels.ChangeRequest, version: int | None, *, as_json: bool) -> None:
    async def ask(client: VersionClient) -> wire_jobmodels.ChangeReply:
        return await client.change((await find_job(client, job)).current_run, request, version)

    reply = _asked(url, ask)
    tell(reply, lambda width: _change_page(reply, width), as_json=as_json)


def roll_back(url: str, job: str, version: int, why: str, current: int | None, *, as_json: bool) -> None:
    reply = _asked(url, lambda client: client.roll_back(job, version, wire_jobmodels.RollbackRequest(why=why), current))
    tell(reply, lambda width: _change_page(reply, width), as_json=as_json)


def _plan_page(reply: wire_jobmodels.PlanReply, width: int | None) -> RenderableType:
    told = {
        Verdict.SAFE: "this would be safe",
        Verdict.UNCHANGED: "this would change nothing",
        Verdict.REFUSED: "this would be refused, and the job would go on as it is",
        Verdict.UNKNOWN: "nobody can tell what this would do",
    }[reply.verdict]
    style = "green" if reply.verdict in (Verdict.SAFE, Verdict.UNCHANGED) else "bold red"
    head = f"run {reply.run_id} of job {reply.job}, version {reply.version}: "
    return Group(Text(head).append(told, style=style), *_details(reply, width))


def _change_page(reply: wire_jobmodels.ChangeReply, width: int | None) -> RenderableType:
    of = f"run {reply.run_id} of job {reply.job}"
    if reply.version == reply.former:
        done = Text(f"{of} is at version {reply.version}: there was nothing to change")
    else:
        done = Text(f"{of} was at version {reply.former} and is at version {reply.version}, with {reply.containers} containers")
    return Group(done, *_details(reply, width))


def _details(reply: wire_jobmodels.PlanReply, width: int | None) -> Sequence[RenderableType]:
    lines: list[RenderableType] = [Text(shown(each.reason)) for each in reply.streams if each.reason]
    if reply.reason and not lines:
        lines.append(Text(shown(reply.reason)))
    lines += [Text(f"! {shown(warning)}", style="yellow") for warning in reply.warnings]
    return [*lines, *_effect(reply, width)]


def _effect(reply: wire_jobmodels.EffectReply, width: int | None) -> Sequence[RenderableType]:
    page: list[RenderableType] = []
    if reply.partitions:
        columns = [Column("STREAM"), Column("PARTITION", right=True), Column("READ BY")]
        rows = [(f"{p.system}.{p.stream}", str(p.partition), shown(p.task) if p.task else "every task") for p in reply.partitions[:LISTED]]
        page += [Text(""), table(columns, rows, width), *_more(len(reply.partitions))]
    if reply.moves:
        columns = [Column("TASK"), Column("FROM SLOT"), Column("TO SLOT")]
        moves = [(shown(move.task), move.former, move.to) for move in reply.moves[:LISTED]]
        page += [Text(""), table(columns, moves, width), *_more(len(reply.moves))]
    before, after = reply.skew_before, reply.skew_after
    spreads = [
        ("partitions per task", _spread(before.partitions_per_task), _spread(after.partitions_per_task)),
        ("tasks per container", _spread(before.tasks_per_container), _spread(after.tasks_per_container)),
    ]
    numbers = [
        f"{count(len(reply.partitions))} new partitions",
        f"{count(len(reply.tasks_affected))} tasks start their queries again",
        f"{count(len(reply.tasks_new))} new tasks",
        f"{count(len(reply.moves))} moves",
        *([f"{count(len(reply.tasks_gone))} tasks gone"] if reply.tasks_gone else []),
    ]
    skew = table([Column("MOST (MEAN)"), Column("BEFORE", right=True), Column("AFTER", right=True)], spreads, width)
    return [*page, Text(""), skew, Text(""), Text(", ".join(numbers))]


def _more(total: int) -> Sequence[RenderableType]:
    return [Text(f"and {total - LISTED:,} more: --json has all", style="dim")] if total > LISTED else []


def _spread(spread: wire_jobmodels.Spread) -> str:
    return f"{spread.max} ({spread.mean:g})"


# --- history ---------------------------------------------------------------------------------------------------------


def show_versions(url: str, job: str | None, before: int | None, limit: int, *, as_json: bool) -> None:
    async def ask(client: VersionClient) -> wire_jobmodels.VersionsReply:
        return await client.versions(job or (await find_job(client, None)).job, before, limit)

    reply = _asked(url, ask)
    tell(reply, lambda width: _versions_page(reply, width), as_json=as_json)


def _versions_page(reply: wire_jobmodels.VersionsReply, width: int | None) -> RenderableType:
    columns = [
        *(Column("VERSION", right=True), Column("IN FORCE", rank=1), Column("MADE"), Column("BY"), Column("RUN", rank=3)),
        *(Column("CONTENT", rank=2), Column("WHY", folds=True)),
    ]
    rows = [
        (
            *(str(each.version), "yes" if each.current else "", moment(each.at), shown(each.who) or NONE, each.run_id),
            *(each.content_hash[:12], shown(each.why)),
        )
        for each in reply.models
    ]
    page = table(columns, rows, width)
    return page if reply.next is None else Group(page, Text(f"older ones: --before {reply.next}", style="dim"))


def show_version(url: str, job: str, version: int, *, as_json: bool) -> None:
    reply = _asked(url, lambda client: client.version(job, version))
    tell(reply, lambda width: _version_page(reply, width), as_json=as_json)


def _version_page(reply: wire_jobmodels.VersionDetail, width: int | None) -> RenderableType:
    in_force = ", which is in force" if reply.current else ""
    by = f" by {shown(reply.who)}" if reply.who else ""
    head = Text(f"version {reply.version}{in_force}; made {moment(reply.at)}{by} for run {reply.run_id}: {shown(reply.why)}")
    rows = [
        (slot, shown(name), _reads(task["system-stream-partitions"]))
        for slot, container in sorted(reply.model["containers"].items(), key=lambda each: (len(each[0]), each[0]))
        for name, task in container["tasks"].items()
    ]
    return Group(head, Text(""), table([Column("SLOT"), Column("TASK"), Column("READS", folds=True)], rows, width))


def _reads(ssps: Sequence[dict[str, Any]]) -> str:
    """ "kafka.flights 0, 2; kafka.weather 0"."""
    by_stream: dict[str, list[str]] = {}
    for ssp in ssps:
        by_stream.setdefault(f"{ssp['system']}.{ssp['stream']}", []).append(str(ssp["partition"]))
    return "; ".join(f"{stream} {', '.join(partitions)}" for stream, partitions in by_stream.items())


def show_difference(url: str, job: str, version: int, later: int, *, as_json: bool) -> None:
    reply = _asked(url, lambda client: client.difference(job, version, later))
    tell(reply, lambda width: Group(Text(f"version {later} of job {job} against {version}:"), *_effect(reply, width)), as_json=as_json)
