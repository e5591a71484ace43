"""`sluice gc`: garbage in the blob stores.

Exit codes: 0; 1 when the coordinator cannot be reached or refuses; `audit` has 2 for blobs that are missing or indexes that cannot be read.
"""

from __future__ import annotations

from typing import Annotated

import typer

from containers.statuscli import LOCAL, Json, Url

app = typer.Typer(no_args_is_help=True, help="Garbage in the blob stores: what nothing refers to.")


@app.command()
def plan(as_json: Json = False, coordinator: Url = LOCAL) -> None:
    """What a collection would condemn and delete now. Changes nothing."""
    from containers.garbage import show_collection

    show_collection(coordinator, "plan", as_json=as_json)


@app.command()
def run(as_json: Json = False, coordinator: Url = LOCAL) -> None:
    """Collect garbage now: condemn what nothing refers to, delete what was condemned a grace ago."""
    from containers.garbage import show_collection

    show_collection(coordinator, "run", as_json=as_json)


@app.command()
def explain(blob: Annotated[str, typer.Argument(help="The blob's id.")], as_json: Json = False, coordinator: Url = LOCAL) -> None:
    """Why a blob is there, and how long it will be."""
    from containers.garbage import show_explanation

    show_explanation(coordinator, blob, as_json=as_json)


@app.command()
def audit(as_json: Json = False, coordinator: Url = LOCAL) -> None:
    """Compare the blob stores with the registry: what is missing, what nothing refers to. Changes nothing."""
    from containers.garbage import show_audit

    raise typer.Exit(show_audit(coordinator, as_json=as_json))
