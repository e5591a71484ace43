"""The `sluice` command. A command's module is imported when the command is called, so that each starts as fast as its own imports allow.

Commands of the coordinator and of containers are found by the entry points of the group `sluice.commands`: this package imports neither.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import entry_points, version
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command, get_group

from sluice import logconfig
from sluice.core.errors import SluiceError

DISTRIBUTION = "sluice-spark"

COMMANDS = {
    "status": ("sluice.cli.status:status", "How the jobs are: containers, tasks, and what each stage does."),
    "jobs": ("sluice.cli.status:jobs", "The jobs and their current runs."),
    "runs": ("sluice.cli.status:runs", "The runs of a job, newest first."),
    "containers": ("sluice.cli.status:containers", "The containers of a run, those that are gone too."),
    "tasks": ("sluice.cli.status:tasks", "The tasks of a run: who holds them, and how far their stages have come."),
    "drain": (
        "sluice.cli.drain:drain",
        "Drain a job: process all that it has read, close every window, fire every timer, commit, and end its run.",
    ),
    "upgrade": (
        "sluice.cli.upgrade.command:upgrade",
        "Upgrade a job: drain it, check that its state is empty, start the new version from the drained offsets, watch its first batches, "
        "and go back to the old version from the same point if it fails.",
    ),
    "plan": (
        "sluice.cli.models:plan",
        "Tell what would happen if streams had other partition counts, or the run another number of containers. Nothing is changed.",
    ),
    "scale": (
        "sluice.cli.models:scale",
        "Change the number of containers of a job that runs. As few tasks as balance allows move, between batches. Start the new ones.",
    ),
    "models": ("sluice.cli.models:app", "The versions of a job's model: who made each, when and why, and what changed."),
    "snapshots": (
        "sluice.cli.snapshots:app",
        "Snapshots of jobs' state in the blob stores: look at them, keep them, go back to one.",
    ),
    "gc": ("sluice.cli.gc:app", "Garbage in the blob stores: what nothing refers to."),
}
"""Each command of this package: where it is, and its line in `sluice --help`, which is the beginning of its own help."""


class LazyGroup(TyperGroup):
    """The commands of `COMMANDS`, and those that other packages provide. Types of click are not named: some versions of typer bring their
    own copy of it."""

    def list_commands(self, ctx: Any) -> list[str]:
        return sorted({*COMMANDS, *entry_points(group="sluice.commands").names})

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in COMMANDS:
            module, _, name = COMMANDS[cmd_name][0].partition(":")
            return _command(cmd_name, getattr(import_module(module), name))
        found = entry_points(group="sluice.commands", name=cmd_name)
        return _command(cmd_name, next(iter(found)).load()) if found else None

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Of the commands of this package only the line that stands here: to import them all would take a second."""
        _Listed(name=self.name, help=self.help, params=self.params, rich_markup_mode=self.rich_markup_mode).format_help(ctx, formatter)


class _Listed(LazyGroup):
    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in COMMANDS:
            return TyperCommand(cmd_name, help=COMMANDS[cmd_name][1])
        return super().get_command(ctx, cmd_name)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        TyperGroup.format_help(self, ctx, formatter)


def _command(name: str, made: Any) -> Any:
    """`made` is a function, or a typer.Typer with commands of its own."""
    if isinstance(made, typer.Typer):
        group = get_group(made)
        group.name = name
        return group
    alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    alone.command(name)(made)
    return get_command(alone)


app = typer.Typer(
    cls=LazyGroup, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help="Coordinates PySpark streaming jobs."
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"sluice {version(DISTRIBUTION)}")
        raise typer.Exit


@app.callback()
def _options(
    _: Annotated[bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")] = False,
) -> None: ...


def main() -> None:
    """The entry point: an error that a person must act on is one line and exit code 1."""
    try:
        app(prog_name="sluice")
    except SluiceError as error:
        logconfig.last_words(f"{error.title()} {error}")
        raise SystemExit(1) from None
