"""`sluice gc`: garbage in the blob stores.

Exit codes: 0; 1 when the coordinator cannot be reached or refuses; `audit` has 2 for blobs that are missing or indexes that cannot be read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from sluice.cli.console.tables import Column, count, duration, moment, shown, table
from sluice.cli.runner import LOCAL, Json, Url, tell
from sluice.cli.snapshots import asked, errand
from sluice.wire import snapshots as wire_snapshots

app = typer.Typer(no_args_is_help=True, help="Garbage in the blob stores: what nothing refers to.")


@app.command()
def plan(as_json: Json = False, coordinator: Url = LOCAL) -> None:
    """What a collection would condemn and delete now. Changes nothing."""

    show_collection(coordinator, "plan", as_json=as_json)


@app.command()
def run(as_json: Json = False, coordinator: Url = LOCAL) -> None:
    """Collect garbage now: condemn what nothing refers to, delete what was condemned a grace ago."""

    show_collection(coordinator, "run", as_json=as_json)


@app.command()
def explain(blob: Annotated[str, typer.Argument(help="The blob's id.")], as_json: Json = False, coordinator: Url = LOCAL) -> None:
    """Why a blob is there, and how long it will be."""

    show_explanation(coordinator, blob, as_json=as_json)


@app.command()
def audit(as_json: Json = False, coordinator: Url = LOCAL) -> None:
    """Compare the blob stores with the registry: what is missing, what nothing refers to. Changes nothing."""

    raise typer.Exit(show_audit(coordinator, as_json=as_json))


NOT_GOOD = 2

Store = Mapping[str, Any]


def show_collection(url: str, what: str, *, as_json: bool) -> None:
    reply = errand(url, "looking for garbage" if what == "plan" else "collecting", lambda client: client.collection(what), quiet=as_json)
    tell(reply, lambda width: _collection_page(reply.result or {}, width), as_json=as_json)


def _collection_page(result: Mapping[str, Any], width: int | None) -> RenderableType:
    would = "WOULD BE " if result.get("dryRun") else ""
    columns = [
        *(Column("BLOB STORE"), Column("BLOBS", right=True), Column("REFERRED TO", right=True, rank=2)),
        *(Column(f"{would}CONDEMNED", right=True), Column("IN GRACE", right=True), Column(f"{would}DELETED", right=True)),
        *(Column("BYTES", right=True), Column("PARDONED", right=True, rank=1)),
    ]
    stores: Sequence[Store] = result.get("stores", [])
    rows = [
        (
            *(each["blobStore"], count(each["lookedAt"]), count(each["referenced"]), count(each["condemned"]["blobs"])),
            *(count(each["waiting"]["blobs"]), count(each["deleted"]["blobs"]), count(each["deleted"]["bytes"]), count(each["pardoned"])),
        )
        for each in stores
    ]
    left = [Text(f"left alone: {each['blobStore']} {prefix}: {shown(why)}") for each in stores for prefix, why in each["notJudged"].items()]
    grace = Text(f"what is condemned is deleted {duration(result.get('graceSeconds'))} later, if nothing refers to it then", style="dim")
    return Group(table(columns, rows, width), *left, grace)


def show_explanation(url: str, blob: str, *, as_json: bool) -> None:
    reply = asked(url, lambda client: client.explain(blob))
    tell(reply, lambda _: Group(*(line for each in reply.stores for line in _explained(each))), as_json=as_json)


def _explained(found: wire_snapshots.ExplainReply) -> Sequence[Text]:
    there = f"{count(found.size)} bytes of {moment(found.modified)}" if found.there else "not there"
    why = f": {shown(found.why)}" if found.why else ""
    lines = [Text(f"{found.blob_store}: {found.verdict}{why} ({there})")]
    return [*lines, *(Text(f"  {shown(each)}") for each in found.referenced_by)]


def show_audit(url: str, *, as_json: bool) -> int:
    """The exit code."""
    reply = errand(url, "auditing", lambda client: client.collection("audit"), quiet=as_json)
    result: Mapping[str, Any] = reply.result or {}
    tell(reply, lambda width: _audit_page(result, width), as_json=as_json)
    return 0 if result.get("good") else NOT_GOOD


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
    return Group(table(columns, rows, width), *(Text(line, style="bold red") for each in stores for line in _troubles(each)))


def _troubles(store: Store) -> Sequence[str]:
    missing = [f"missing in {store['blobStore']}: {blob}, of {checkpoint}" for blob, checkpoint in store["missing"]["first"].items()]
    unread = [f"unreadable in {store['blobStore']}: {blob}: {shown(why)}" for blob, why in store["unreadIndexes"].items()]
    unknown = [f"{store['blobStore']}: {count(n)} blobs under {prefix} are of no known job" for prefix, n in store["unknownJobs"].items()]
    return [*missing, *unread, *unknown]
