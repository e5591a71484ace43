"""`sluice config show`: the settings of this environment, with their sources and descriptions."""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic_core import PydanticUndefined, to_jsonable_python
from pydantic_settings import BaseSettings
from rich.table import Table
from rich.text import Text

from sluice.cli.documents import Document, Json, print_reply
from sluice.client import CA_FILE, CLIENT_CERTIFICATE, CLIENT_KEY, TOKEN, TOKEN_FILE
from sluice.client.connection import PROXY
from sluice.core.access.credentials import HIDDEN, without_credentials
from sluice.core.access.secrets import looks_secret
from sluice.core.errors import BadSettings
from sluice.wire.body import Reply

app = typer.Typer(no_args_is_help=True, help="Show the settings of this environment, and where each comes from.")

CONFIG_FILE = "SLUICE_CONFIG"


class Program(StrEnum):
    COORDINATOR = "coordinator"
    CONTAINER = "container"
    RUN = "run"
    CLIENT = "client"


CLASSES: Mapping[Program, Sequence[str]] = {
    Program.COORDINATOR: ("coordinator.settings:Settings", "sluice.logconfig:LogSettings", "sluice.tracing:TraceSettings"),
    Program.CONTAINER: ("containers.settings:ContainerSettings", "sluice.logconfig:LogSettings", "sluice.tracing:TraceSettings"),
    Program.RUN: ("containers.local.logs:RotationSettings",),
}
"""The settings classes of the programs, as "module:name", because this package must not import the programs."""

CLIENT = {
    "SLUICE_COORDINATOR_URL": ("http://127.0.0.1:8180", "the coordinator that commands call; several URLs are separated by commas"),
    PROXY: ("", "URL of an HTTP proxy for requests to the coordinator; HTTP_PROXY and similar variables are not used for them"),
    TOKEN: ("", "token of this process"),
    TOKEN_FILE: ("", "file with the token of this process; read again when it changes"),
    CLIENT_CERTIFICATE: ("", "PEM file of the client certificate of this process, with its chain"),
    CLIENT_KEY: ("", "PEM file of its key; default: the same file"),
    CA_FILE: ("", "PEM file of the authorities that may sign the coordinator's certificate; default: those of the system"),
}
"""Variables that commands and containers read: default and description."""


class Setting(Reply):
    """`value`: as text, without secrets; null if it has no default and is not set. `source`: "default", the name of the variable that sets
    it, or the file."""

    program: str
    variable: str
    value: str | None
    source: str
    description: str


class SettingsReply(Reply):
    settings: tuple[Setting, ...]


@app.command("show")
def show(
    program: Annotated[Program | None, typer.Argument(help="Only the settings of this program. Default: of all.")] = None,
    changed: Annotated[bool, typer.Option("--changed", help="Only settings that differ from the default.")] = False,
    as_json: Annotated[Json, Document(SettingsReply)] = False,
) -> None:
    """Show each setting with its value, source and description. Secrets are hidden.

    Options of `sluice coordinator` override the variables, which override the file that SLUICE_CONFIG names.
    """
    for each in unknown_variables(os.environ):
        typer.echo(f"sluice: {each}", err=True)
    found = [each for one in Program if program in (None, one) for each in settings_of(one, os.environ)]
    reply = SettingsReply(settings=tuple(each for each in found if not changed or each.source != "default"))
    print_reply(reply, lambda _: _table(reply.settings), as_json=as_json)


OTHERS = (
    *(
        CONFIG_FILE,
        "SLUICE_JARS_DIR",
        "SLUICE_IVY_SETTINGS",
        "SLUICE_STOP_WITH_STDIN",
        "SLUICE_AGENT_FD",
        "SLUICE_PROCESS_OF",
        "SLUICE_EXEC_SOCKET",
    ),
    *("SLUICE_WITHOUT_COORDINATOR", "SLUICE_JOB", "SLUICE_GENERATION", "SLUICE_EPOCH"),
)
"""Variables that are no settings: where to find files, and what Sluice tells its child processes."""

_OF_KUBERNETES = re.compile(r"SLUICE(_\w+)?_(SERVICE_(HOST|PORT)|PORT_\d+_)")
"""Variables that Kubernetes sets in every pod for services whose names begin with "sluice"."""


def unknown_variables(environment: Mapping[str, str]) -> Sequence[str]:
    """A sentence for each variable SLUICE_… that no program reads, by name."""
    known = {each.variable for program in Program for each in settings_of(program, {})} | {*CLIENT, *OTHERS}
    names = (name for name in sorted(environment) if name.upper().startswith("SLUICE_") and not _OF_KUBERNETES.match(name))
    found = []
    for name in names:
        if name.upper() not in known:
            likely = get_close_matches(name.upper(), known, 1, 0.85)
            found.append(f"no program reads {name}" + (f": did you mean {likely[0]}?" if likely else ""))
    return found


def settings_of(program: Program, environment: Mapping[str, str]) -> Iterator[Setting]:
    """Raises BadSettings if the file that SLUICE_CONFIG names cannot be read."""
    if program is Program.CLIENT:
        for variable, (default, description) in CLIENT.items():
            value = environment.get(variable, default)
            source = variable if variable in environment else "default"
            yield Setting(program=program, variable=variable, value=_shown(variable, value), source=source, description=description)
        return
    file = _file(environment) if program is Program.COORDINATOR else {}
    for where in CLASSES[program]:
        module, _, name = where.partition(":")
        yield from _of_class(program, getattr(import_module(module), name), environment, file)


def _of_class(program: Program, settings: type[BaseSettings], environment: Mapping[str, str], file: Mapping[str, Any]) -> Iterator[Setting]:
    prefix = str(settings.model_config.get("env_prefix", ""))
    for name, field in settings.model_fields.items():
        variable = str(field.validation_alias or prefix + name).upper()
        value, source = None, "default"
        if variable in environment:
            value, source = environment[variable], variable
        elif name in file:
            value, source = _text(file[name]), environment[CONFIG_FILE]
        elif field.default_factory is not None:
            value = None
        elif field.default is not PydanticUndefined:
            value = _text(field.default)
        yield Setting(program=program, variable=variable, value=_shown(variable, value), source=source, description=field.description or "")


def _file(environment: Mapping[str, str]) -> Mapping[str, Any]:
    named = environment.get(CONFIG_FILE)
    if not named:
        return {}
    try:
        return tomllib.loads(Path(named).read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadSettings(f"{CONFIG_FILE}: {named} cannot be read: {error}") from error


def _text(value: object) -> str:
    plain = to_jsonable_python(value)
    return plain if isinstance(plain, str) else "" if plain is None else json.dumps(plain)


def _shown(variable: str, value: str | None) -> str | None:
    """The value without secrets. A JSON object is shown without the values of the entries that are secret."""
    if value is None:
        return None
    if value and looks_secret(variable, value) and "://" not in value:
        return HIDDEN
    try:
        entries = json.loads(value)
    except ValueError:
        entries = None
    if isinstance(entries, dict):
        return json.dumps({name: _shown(name, each) if isinstance(each, str) else each for name, each in entries.items()})
    return without_credentials(value)


def _table(settings: Sequence[Setting]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("PROGRAM", "VARIABLE", "VALUE", "SOURCE", "DESCRIPTION"):
        table.add_column(heading, overflow="fold")
    for each in settings:
        value = "-" if each.value is None else each.value
        table.add_row(each.program, each.variable, Text(value), each.source, Text(each.description))
    return table
