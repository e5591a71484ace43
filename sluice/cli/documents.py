"""The option `--json` of each command.

It carries a `Document` in its annotation, from which `scripts/reference.py` writes
docs/reference/command-line.md.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Annotated

import typer
from rich.console import RenderableType

from sluice.cli.console.tables import Screen
from sluice.wire.body import Reply

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document, with the names that the API uses.")]


class Document:
    """In the annotation of an option `--json`: what the command prints. `replies`: one body, or one for each way to call the command."""

    def __init__(self, *replies: type[Reply]) -> None:
        self.replies = replies


def print_reply(reply: Reply, page: Callable[[int | None], RenderableType], *, as_json: bool) -> None:
    """Print a reply as JSON or as a page. `page` returns the page for the number of columns; None: unlimited. A string is printed as it
    is."""
    screen = Screen(sys.stdout)
    if as_json:
        screen.say(reply.model_dump_json(by_alias=True, indent=2))
        return
    shown = page(screen.width)
    if isinstance(shown, str):
        screen.say(shown)
    else:
        screen.show(shown)


def documents_of(command: Callable[..., object]) -> Document | None:
    """What a command prints with `--json`; None if it has no such option."""
    parameters = inspect.signature(inspect.unwrap(command), eval_str=True).parameters.values()
    return next((each for one in parameters for each in getattr(one.annotation, "__metadata__", ()) if isinstance(each, Document)), None)
