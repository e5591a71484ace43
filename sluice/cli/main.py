"""The `sluice` command.

A command's module is imported only when the command is called, so that other commands start faster. The commands that start the coordinator
and containers are in `coordinator.cli` and `containers.cli`. They are listed here; other modules of this package never import them.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version
from typing import Annotated, Any, NamedTuple, NoReturn

import typer
from pydantic import ValidationError
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command, get_group

from sluice import logconfig
from sluice.core.errors import ClientError, SluiceError
from sluice.core.remedies import plain, remedy_of_error

DISTRIBUTION = "sluice-spark"

JOBS, INSPECT, STATE, STREAMS, PROCESSES = "Jobs", "Inspect", "State", "Streams", "Processes"


class Command(NamedTuple):
    """`where`: "module:name" of a function or a `typer.Typer`. `help`: the first sentence of the command's help; "" hides the command,
    which is another name of one that is shown. `panel`: its heading in `sluice --help`."""

    where: str
    help: str = ""
    panel: str = ""


COMMANDS = {
    "run": Command("containers.cli.run:run", "Run a job on this machine: a coordinator and its containers.", JOBS),
    "init": Command("sluice.cli.init:init", "Write a first job, a test of it, and a Compose file, to start from.", JOBS),
    "deploy": Command("sluice.cli.deploy:deploy", "Create a run of a job, and print its id.", JOBS),
    "upgrade": Command("sluice.cli.upgrade.command:upgrade", "Replace a job by a new version, and roll back if it fails.", JOBS),
    "exec": Command(
        "containers.cli.exec:execute",
        "Run a command, such as spark-submit, as the only one of its job: `sluice exec --job orders -- spark-submit orders.py`.",
        JOBS,
    ),
    "stop": Command("sluice.cli.stop:stop", "Stop a job between two batches.", JOBS),
    "start": Command("sluice.cli.stop:start", "Start a job that was stopped or drained: create its next run, and print its id.", JOBS),
    "drain": Command("sluice.cli.drain:drain", "Drain a job: stop reading, flush all state, commit, and end the run.", JOBS),
    "scale": Command("sluice.cli.models:scale", "Change the number of containers of a running job.", JOBS),
    "plan": Command("sluice.cli.models:plan", "Show what would change with other partition counts or another number of containers.", JOBS),
    "status": Command(
        "sluice.cli.status:status", "Show the health of jobs: containers, tasks, and the throughput and lag of each stage.", INSPECT
    ),
    "jobs": Command("sluice.cli.jobs:app", "List jobs, their runs, containers and tasks, and remove finished jobs.", INSPECT),
    "runs": Command("sluice.cli.status:runs"),
    "containers": Command("sluice.cli.status:containers"),
    "tasks": Command("sluice.cli.status:tasks"),
    "events": Command(
        "sluice.cli.events:events",
        "Show what has happened to a job, newest first: deployments, versions of its model, drains, containers, and requests.",
        INSPECT,
    ),
    "models": Command(
        "sluice.cli.models:app",
        "Show and change the versions of a job's model, which assigns partitions to tasks and tasks to slots.",
        INSPECT,
    ),
    "snapshots": Command(
        "sluice.cli.snapshots:app", "List, pin, verify and restore the snapshots of jobs' state in the blob stores.", STATE
    ),
    "export": Command(
        "containers.cli.export:export",
        "Write the newest snapshot of each checkpoint of a job as a plain checkpoint of Spark, which needs no Sluice.",
        STATE,
    ),
    "gc": Command("sluice.cli.gc:app", "Find and delete garbage in the blob stores: blobs that no snapshot refers to.", STATE),
    "rebuild": Command("coordinator.cli.rebuild:rebuild", "Rebuild the catalog of snapshots from the blob stores.", STATE),
    "streams": Command("sluice.cli.streams:app", "Create, grow, list, fill and print streams of the embedded log or of Kafka.", STREAMS),
    "kafka": Command("containers.cli.kafka:app", "Start and stop a Kafka broker for development on this machine.", STREAMS),
    "coordinator": Command("coordinator.cli.serve:coordinator", "Run the coordinator until SIGTERM or Ctrl-C.", PROCESSES),
    "container": Command("containers.cli.container:container", "Run one container of a run.", PROCESSES),
    "audit-log": Command(
        "sluice.cli.access.audit:audit_log", "Show the requests for changes and the refused requests, newest first.", INSPECT
    ),
    "doctor": Command(
        "sluice.cli.doctor:doctor",
        "Check what a job needs: Java, Spark, the connector, settings, disks, the coordinator, streams, and rights in blob stores.",
        INSPECT,
    ),
    "logs": Command("containers.cli.logs:logs", "Print the logs of the processes that `sluice run` starts on this machine.", INSPECT),
    "config": Command("sluice.cli.config:app", "Show the settings of this environment, and where each comes from.", PROCESSES),
    "login": Command("sluice.cli.access.login:login", "Log in with an identity provider.", PROCESSES),
    "logout": Command("sluice.cli.access.login:logout", "Delete the stored login of `sluice login`.", PROCESSES),
    "token": Command("sluice.cli.access.tokens:app", "Create, list and revoke the tokens of users and programs.", PROCESSES),
    "db": Command("coordinator.cli.db:db", "Migrate, back up and restore the coordinator's database.", PROCESSES),
    "class-archive": Command(
        "containers.cli.class_archive:class_archive", "Create an archive of Spark's classes, so that containers start faster.", PROCESSES
    ),
}


def load(where: str) -> Any:
    """The object at "module:name"."""
    module, _, name = where.partition(":")
    return getattr(import_module(module), name)


class LazyGroup(TyperGroup):
    """The commands of `COMMANDS`. click's types are not used, because some versions of typer contain a copy of click."""

    def __init__(self, **given: Any) -> None:
        suggested: Any = {name: None for name, command in COMMANDS.items() if command.help}
        super().__init__(**{**given, "commands": suggested})  # typer suggests those whose names are similar to an unknown one

    def list_commands(self, ctx: Any) -> list[str]:
        return [name for name, command in COMMANDS.items() if command.help]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        found = load(COMMANDS[cmd_name].where)
        if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # by `sluice.__main__`, for the time of imports
            signal.signal(signal.SIGINT, signal.default_int_handler)
        if isinstance(found, typer.Typer):
            command: Any = get_group(found)
            command.name = cmd_name
        else:
            alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
            alone.command(cmd_name)(found)
            command = get_command(alone)
        _reflow_help(command)
        return command

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Format the help with the texts in `COMMANDS`, because importing all commands would take a second."""
        self._listed().format_help(ctx, formatter)

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """The names of commands and options that a shell offers, without importing the commands."""
        listed = self._listed()
        return TyperGroup.shell_complete(listed, type(ctx)(listed, parent=ctx.parent, info_name=ctx.info_name), incomplete)

    def _listed(self) -> _Listed:
        return _Listed(name=self.name, help=self.help, params=self.params, rich_markup_mode=self.rich_markup_mode)


class _Listed(LazyGroup):
    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return TyperCommand(cmd_name, help=COMMANDS[cmd_name].help, rich_help_panel=COMMANDS[cmd_name].panel)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        TyperGroup.format_help(self, ctx, formatter)


def _reflow_help(command: Any) -> None:
    """Join the lines of each paragraph, because typer keeps the line breaks of a docstring."""
    if command.help:
        command.help = "\n\n".join(" ".join(paragraph.split()) for paragraph in command.help.split("\n\n"))
    for each in getattr(command, "commands", {}).values():
        _reflow_help(each)


app = typer.Typer(
    cls=LazyGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Run and operate PySpark streaming jobs.",
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
    """Calls the command. An error of Sluice is printed with its remedy on the next line, or as JSON with `--json`; the exit code is 1."""
    try:
        app(prog_name="sluice")
    except SluiceError as error:
        _end_with(error)
    except ValidationError as error:
        if not _is_of_request(error):
            raise
        _end_with(ClientError("; ".join(": ".join([*map(str, each["loc"][:1]), each["msg"]]) for each in error.errors())))


def _is_of_request(error: ValidationError) -> bool:
    """Whether an argument of a command is not valid in the body of its request. The title is the name of the body's class."""
    waiting, names = [load("sluice.wire.body:Body")], set[str]()
    while waiting:
        kind = waiting.pop()
        names.add(kind.__name__)
        waiting += kind.__subclasses__()
    return error.title in names


def _end_with(error: SluiceError) -> NoReturn:
    remedy = plain(remedy_of_error(error))
    if _wants_json(sys.argv[1:]):
        problem = {"type": f"urn:sluice:{error.slug}", "title": error.title(), "detail": str(error), "remedy": remedy}
        print(json.dumps(problem), file=sys.stderr)
    else:
        logconfig.print_final_error(f"{error.title()} {error}", remedy)
    raise SystemExit(1) from None


def _wants_json(arguments: Sequence[str]) -> bool:
    """Whether the option is given, and not to another command, which `sluice exec` runs."""
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return "--json" in own
