"""`sluice plan`, `sluice scale` and `sluice models`: change a job's model, and show its versions.

Exit codes: 0; 1 when the coordinator cannot be reached or refuses; 2 when `plan` finds that the change would be refused, or cannot
determine it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from sluice.cli.console.tables import NONE, Column, count, moment, shown, table
from sluice.cli.documents import Document, Json, print_reply
from sluice.cli.runner import LOCAL, Job, Limit, OptionalJob, Url, call, find_job, with_next_page
from sluice.client import OperatorClient
from sluice.core.errors import BadOption
from sluice.core.jobmodels.expansion import Verdict
from sluice.wire import jobmodels as wire_jobmodels

app = typer.Typer(
    no_args_is_help=True, help="Show and change the versions of a job's model, which assigns partitions to tasks and tasks to slots."
)

Version = Annotated[int, typer.Argument(min=1, metavar="VERSION", help="Number of the version.")]
Why = Annotated[str, typer.Option("--why", metavar="TEXT", help="Reason, recorded with the change.")]
IfVersion = Annotated[int | None, typer.Option("--if-version", min=1, metavar="VERSION", help="Refuse unless this version is in force.")]

NOT_SAFE = 2
MOST_CONTAINERS = 100_000
"""Of a run, as `sluice.wire` limits them."""
LISTED = 20
"""Maximum number of moves or partitions on one page."""


# --- plans and changes -----------------------------------------------------------------------------------------------


def plan(
    job: OptionalJob = None,
    stream: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Input stream, by the job's name for it. May be repeated, each with --partitions."),
    ] = None,
    partitions: Annotated[list[int] | None, typer.Option(min=1, metavar="N", help="Assumed number of partitions of that stream.")] = None,
    containers: Annotated[int | None, typer.Option(min=1, max=MOST_CONTAINERS, metavar="N", help="Assumed number of containers.")] = None,
    as_json: Annotated[Json, Document(wire_jobmodels.PlanReply)] = False,
    coordinator: Url = LOCAL,
) -> None:
    """Show what would change with other partition counts or another number of containers. Changes nothing."""
    streams, counts = stream or [], partitions or []
    if len(streams) != len(counts) or len(set(streams)) < len(streams):
        raise BadOption("give --stream and --partitions in pairs, each stream once")

    async def request(client: OperatorClient) -> wire_jobmodels.PlanReply:
        name = job or (await find_job(client, None)).job
        wanted = dict(zip(streams, counts, strict=True))
        return await client.plan(wire_jobmodels.PlanRequest(job=name, streams=wanted, containers=containers))

    reply = call(coordinator, request)
    print_reply(reply, lambda width: _plan_page(reply, width), as_json=as_json)
    raise typer.Exit(0 if reply.verdict in (Verdict.SAFE, Verdict.UNCHANGED) else NOT_SAFE)


def scale(
    job: Job,
    containers: Annotated[int, typer.Argument(min=1, max=MOST_CONTAINERS, metavar="N", help="New number of containers.")],
    why: Why = "",
    if_version: IfVersion = None,
    as_json: Annotated[Json, Document(wire_jobmodels.ChangeReply)] = False,
    coordinator: Url = LOCAL,
) -> None:
    """Change the number of containers of a running job.

    As few tasks as possible move, between two batches. Starting the new containers is up to the deployment platform.
    """
    _change(coordinator, job, wire_jobmodels.ChangeRequest(containers=containers, why=why), if_version, as_json=as_json)


@app.command()
def grow(job: Job, why: Why = "", as_json: Annotated[Json, Document(wire_jobmodels.ChangeReply)] = False, coordinator: Url = LOCAL) -> None:
    """Check the inputs for new partitions now, and add those that are safe to add, also after a rollback."""
    _change(coordinator, job, wire_jobmodels.ChangeRequest(grow=True, why=why), None, as_json=as_json)


def _change(url: str, job: str, body: wire_jobmodels.ChangeRequest, version: int | None, *, as_json: bool) -> None:
    async def request(client: OperatorClient) -> wire_jobmodels.ChangeReply:
        return await client.change((await find_job(client, job)).current_run, body, version)

    reply = call(url, request)
    print_reply(reply, lambda width: _change_page(reply, width), as_json=as_json)


@app.command()
def rollback(
    job: Job,
    version: Version,
    why: Why = "",
    if_version: IfVersion = None,
    as_json: Annotated[Json, Document(wire_jobmodels.ChangeReply)] = False,
    coordinator: Url = LOCAL,
) -> None:
    """Put an older version back in force. Refused once a container has adopted a later one."""
    reply = call(coordinator, lambda client: client.roll_back(job, version, wire_jobmodels.RollbackRequest(why=why), if_version))
    print_reply(reply, lambda width: _change_page(reply, width), as_json=as_json)


def _plan_page(reply: wire_jobmodels.PlanReply, width: int | None) -> RenderableType:
    verdict = {
        Verdict.SAFE: "the change would be safe",
        Verdict.UNCHANGED: "nothing would change",
        Verdict.REFUSED: "the change would be refused, and the job would continue unchanged",
        Verdict.UNKNOWN: "it cannot be determined what the change would do",
    }[reply.verdict]
    style = "green" if reply.verdict in (Verdict.SAFE, Verdict.UNCHANGED) else "bold red"
    head = f"run {reply.run_id} of job {reply.job}, version {reply.version}: "
    return Group(Text(head).append(verdict, style=style), *_details(reply, width))


def _change_page(reply: wire_jobmodels.ChangeReply, width: int | None) -> RenderableType:
    of = f"run {reply.run_id} of job {reply.job}"
    if reply.version == reply.former:
        done = Text(f"{of} is at version {reply.version}: nothing to change")
    else:
        done = Text(f"{of} changed from version {reply.former} to version {reply.version}, with {reply.containers} containers")
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
        f"{count(len(reply.tasks_affected))} tasks restart their queries",
        f"{count(len(reply.tasks_new))} new tasks",
        f"{count(len(reply.moves))} moves",
        *([f"{count(len(reply.tasks_gone))} tasks removed"] if reply.tasks_gone else []),
    ]
    skew = table([Column("MAX (MEAN)"), Column("BEFORE", right=True), Column("AFTER", right=True)], spreads, width)
    return [*page, Text(""), skew, Text(""), Text(", ".join(numbers))]


def _more(total: int) -> Sequence[RenderableType]:
    return [Text(f"and {total - LISTED:,} more: use --json for all", style="dim")] if total > LISTED else []


def _spread(spread: wire_jobmodels.Spread) -> str:
    return f"{spread.max} ({spread.mean:g})"


# --- history ---------------------------------------------------------------------------------------------------------


@app.command("ls")
def list_versions(
    job: OptionalJob = None,
    limit: Limit = 20,
    before: Annotated[int | None, typer.Option(min=1, metavar="VERSION", help="List only versions older than this one.")] = None,
    as_json: Annotated[Json, Document(wire_jobmodels.VersionsReply)] = False,
    coordinator: Url = LOCAL,
) -> None:
    """List the versions of a job's model, newest first."""

    async def request(client: OperatorClient) -> wire_jobmodels.VersionsReply:
        return await client.versions(job or (await find_job(client, None)).job, before, limit)

    reply = call(coordinator, request)
    print_reply(reply, lambda width: with_next_page(_versions_table(reply, width), reply.next), as_json=as_json)


def _versions_table(reply: wire_jobmodels.VersionsReply, width: int | None) -> RenderableType:
    columns = [
        *(Column("VERSION", right=True), Column("IN FORCE", rank=1), Column("CREATED"), Column("BY"), Column("RUN", rank=3)),
        *(Column("CONTENT", rank=2), Column("WHY", folds=True)),
    ]
    rows = [
        (
            *(str(each.version), "yes" if each.current else "", moment(each.at), shown(each.actor) or NONE, each.run_id),
            *(each.content_hash[:12], shown(each.why)),
        )
        for each in reply.models
    ]
    return table(columns, rows, width)


@app.command()
def show(
    job: Job,
    version: Version,
    as_json: Annotated[Json, Document(wire_jobmodels.VersionDetail)] = False,
    coordinator: Url = LOCAL,
) -> None:
    """Show one version: the tasks of each slot, and the partitions of each task."""
    reply = call(coordinator, lambda client: client.version(job, version))
    print_reply(reply, lambda width: _version_page(reply, width), as_json=as_json)


def _version_page(reply: wire_jobmodels.VersionDetail, width: int | None) -> RenderableType:
    in_force = ", which is in force" if reply.current else ""
    by = f" by {shown(reply.actor)}" if reply.actor else ""
    head = Text(f"version {reply.version}{in_force}; created {moment(reply.at)}{by} for run {reply.run_id}: {shown(reply.why)}")
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


@app.command()
def diff(
    job: Job,
    version: Version,
    later: Annotated[int, typer.Argument(min=1, metavar="LATER", help="Number of a later version.")],
    as_json: Annotated[Json, Document(wire_jobmodels.DifferenceReply)] = False,
    coordinator: Url = LOCAL,
) -> None:
    """Show what a later version changed."""
    reply = call(coordinator, lambda client: client.difference(job, version, later))
    heading = Text(f"changes from version {version} to version {later} of job {job}:")
    print_reply(reply, lambda width: Group(heading, *_effect(reply, width)), as_json=as_json)
