"""`sluice gc`: garbage in the blob stores.

Exit codes: 0; 1 when the coordinator cannot be reached or refuses; 2 when `audit` finds blobs missing or indexes that cannot be read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from sluice.cli.console.tables import Column, count, duration, moment, shown, table
from sluice.cli.documents import Document, Json, print_reply
from sluice.cli.operations import call_operation
from sluice.cli.runner import LOCAL, Url, call
from sluice.wire import snapshots as wire_snapshots

app = typer.Typer(no_args_is_help=True, help="Find and delete garbage in the blob stores: blobs that no snapshot refers to.")

INCONSISTENT = 2

Store = Mapping[str, Any]


@app.command()
def plan(as_json: Annotated[Json, Document(wire_snapshots.OperationReply)] = False, coordinator: Url = LOCAL) -> None:
    """Show what a collection would mark and delete now. Changes nothing."""
    _collect(coordinator, "plan", "searching for garbage", as_json=as_json)


@app.command()
def run(as_json: Annotated[Json, Document(wire_snapshots.OperationReply)] = False, coordinator: Url = LOCAL) -> None:
    """Collect garbage now: mark unreferenced blobs, and delete those marked longer than the grace period."""
    _collect(coordinator, "run", "collecting garbage", as_json=as_json)


def _collect(url: str, what: str, title: str, *, as_json: bool) -> None:
    reply = call_operation(url, title, lambda client: client.collection(what), quiet=as_json)
    print_reply(reply, lambda width: _collection_page(reply.result or {}, width), as_json=as_json)


@app.command()
def explain(
    blob: Annotated[str, typer.Argument(metavar="BLOB", help="Id of the blob.")],
    as_json: Annotated[Json, Document(wire_snapshots.ExplainsReply)] = False,
    coordinator: Url = LOCAL,
) -> None:
    """Show why a blob is kept, or when it will be deleted."""
    reply = call(coordinator, lambda client: client.explain(blob))
    print_reply(reply, lambda _: Group(*(line for each in reply.stores for line in _explained(each))), as_json=as_json)


@app.command()
def audit(as_json: Annotated[Json, Document(wire_snapshots.OperationReply)] = False, coordinator: Url = LOCAL) -> None:
    """Compare the blob stores with the catalog: list missing blobs and garbage. Changes nothing."""
    reply = call_operation(coordinator, "auditing", lambda client: client.collection("audit"), quiet=as_json)
    result: Mapping[str, Any] = reply.result or {}
    print_reply(reply, lambda width: _audit_page(result, width), as_json=as_json)
    raise typer.Exit(0 if result.get("good") else INCONSISTENT)


# --- pages -----------------------------------------------------------------------------------------------------------


def _collection_page(result: Mapping[str, Any], width: int | None) -> RenderableType:
    would = "WOULD BE " if result.get("dryRun") else ""
    columns = [
        *(Column("BLOB STORE"), Column("BLOBS", right=True), Column("REFERENCED", right=True, rank=2)),
        *(Column(f"{would}MARKED", right=True), Column("WAITING", right=True), Column(f"{would}DELETED", right=True)),
        *(Column("BYTES", right=True), Column("UNMARKED", right=True, rank=1)),
    ]
    stores: Sequence[Store] = result.get("stores", [])
    rows = [
        (
            *(each["blobStore"], count(each["lookedAt"]), count(each["referenced"]), count(each["condemned"]["blobs"])),
            *(count(each["waiting"]["blobs"]), count(each["deleted"]["blobs"]), count(each["deleted"]["bytes"]), count(each["pardoned"])),
        )
        for each in stores
    ]
    left = [Text(f"skipped: {each['blobStore']} {prefix}: {shown(why)}") for each in stores for prefix, why in each["notJudged"].items()]
    grace = Text(
        f"marked blobs are deleted after {duration(result.get('graceSeconds'))}, unless a snapshot refers to them by then", style="dim"
    )
    return Group(table(columns, rows, width), *left, grace)


def _explained(found: wire_snapshots.ExplainReply) -> Sequence[Text]:
    there = f"{count(found.size)} bytes, written {moment(found.modified)}" if found.there else "does not exist"
    why = f": {shown(found.why)}" if found.why else ""
    lines = [Text(f"{found.blob_store}: {found.verdict}{why} ({there})")]
    return [*lines, *(Text(f"  {shown(each)}") for each in found.referenced_by)]


def _audit_page(result: Mapping[str, Any], width: int | None) -> RenderableType:
    columns = [
        *(Column("BLOB STORE"), Column("SNAPSHOTS", right=True), Column("BLOBS", right=True, rank=1), Column("MISSING", right=True)),
        *(Column("UNREAD INDEXES", right=True), Column("GARBAGE", right=True), Column("BYTES", right=True)),
    ]
    stores: Sequence[Store] = result.get("stores", [])
    rows = [
        (
            *(each["blobStore"], count(each["snapshots"]), count(each["lookedAt"]), count(each["missing"]["blobs"])),
            *(count(len(each["unreadIndexes"])), count(each["garbage"]["blobs"]), count(each["garbage"]["bytes"])),
        )
        for each in stores
    ]
    return Group(table(columns, rows, width), *(Text(line, style="bold red") for each in stores for line in _problems(each)))


def _problems(store: Store) -> Sequence[str]:
    missing = [
        f"missing in {store['blobStore']}: {blob}, of snapshot {checkpoint}" for blob, checkpoint in store["missing"]["first"].items()
    ]
    unread = [f"unreadable in {store['blobStore']}: {blob}: {shown(why)}" for blob, why in store["unreadIndexes"].items()]
    unknown = [
        f"{store['blobStore']}: {count(n)} blobs under {prefix} belong to no known job" for prefix, n in store["unknownJobs"].items()
    ]
    return [*missing, *unread, *unknown]
