"""Writes the pages of docs/reference/ from the code. With --check it writes nothing, prints the pages that are out of date, and then exits
with 1."""

from __future__ import annotations

import importlib
import inspect
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "reference"
sys.path.insert(0, str(ROOT))

import containers.errors  # noqa: E402
import sluice.core.errors  # noqa: E402
from containers.agent.metrics import (  # noqa: E402
    ContainerCollector,
    backup_metrics,
    disk_metrics,
    jvm_metrics,
    process_metrics,
)
from containers.engine import JvmUsage  # noqa: E402
from coordinator.api import new_api  # noqa: E402
from coordinator.api.middleware import Traffic  # noqa: E402
from coordinator.app import build  # noqa: E402
from coordinator.settings import Settings  # noqa: E402
from sluice import job as jobs  # noqa: E402
from sluice.blobs.counted import Requests  # noqa: E402
from sluice.cli.config import Program, settings_of  # noqa: E402
from sluice.cli.documents import documents_of  # noqa: E402
from sluice.cli.main import COMMANDS, LazyGroup  # noqa: E402
from sluice.clock import SystemClock  # noqa: E402
from sluice.core.errors import SluiceError  # noqa: E402
from sluice.core.remedies import REMEDIES  # noqa: E402
from sluice.disks import Thresholds  # noqa: E402

MADE = "`scripts/reference.py` writes this page from the code."


def _text(lines: Iterable[str]) -> str:
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip("\n") + "\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _paragraphs(doc: str | None) -> list[str]:
    """The paragraphs of a docstring, each on one line. Indented lines and doctests stay as they are, in a block."""
    found: list[str] = []
    for part in re.split(r"\n\s*\n", inspect.cleandoc(doc or "")):
        if part.lstrip().startswith(">>>") or part.startswith("    "):
            found += ["```python", inspect.cleandoc(re.sub(r"^(>>>|\.\.\.) ?", "", part, flags=re.M)), "```", ""]
        else:
            found += [" ".join(part.split()), ""]
    return found


# --- settings ----------------------------------------------------------------------------------------------------------

PROGRAMS: Mapping[Program, str] = {
    Program.COORDINATOR: "Of the coordinator",
    Program.CONTAINER: "Of a container",
    Program.RUN: "Of `sluice run`",
    Program.CLIENT: "Of commands and clients",
}


def settings() -> str:
    lines = [
        "# Settings",
        "",
        "Every setting with its default. [Operating](../operating.md#settings-of-the-coordinator) explains those that need it.",
        MADE,
        "",
        "Options of `sluice coordinator` override variables, which override the TOML file that `SLUICE_CONFIG` names. In that file the",
        "names of the coordinator's settings are in lower case and without `SLUICE_`. `sluice config show` prints the values in force, and",
        "where each comes from.",
    ]
    for program in Program:
        lines += ["", f"## {PROGRAMS[program]}", "", "| variable | default | |", "| --- | --- | --- |"]
        for each in settings_of(program, {}):
            default = "" if each.value in (None, "") else f"`{_cell(str(each.value))}`"
            lines.append(f"| `{each.variable}` | {default} | {_cell(each.description)} |")
    return _text(lines)


# --- the command line --------------------------------------------------------------------------------------------------


def command_line() -> str:
    group = LazyGroup(name="sluice")
    lines = [
        "# Command line",
        "",
        "The option `--help` of each command prints the same. [Exit codes](exit-codes.md) are listed on a page of their own.",
        MADE,
        "",
        "`sluice --install-completion` lets the shell (bash, zsh, fish or PowerShell) complete commands and options with the Tab key.",
        "`sluice --show-completion` prints the script that does it.",
        "",
        "## JSON",
        "",
        "With `--json` a command prints one JSON document on standard output, with the names that [the API](api.md) uses. Its body is",
        "named with each command below; [what may change](api.md#what-may-change) in it is said with the API. An error is then one line",
        "on standard error, a JSON object with `type`, `title` and `detail`, as the API's errors have, and `remedy`. Only commands that",
        "run until they are stopped, or that ask a person, have no `--json`.",
    ]
    printed = dict[str, Any]()
    for name, entry in COMMANDS.items():
        if not entry.help:
            continue
        command: Any = group.get_command(None, name)
        lines += ["", f"## sluice {name}", ""]
        subcommands: Mapping[str, Any] = getattr(command, "commands", {})
        if subcommands:
            lines += [*_paragraphs(command.help)]
            for of, sub in subcommands.items():
                lines += ["", f"### sluice {name} {of}", "", *_command(f"sluice {name} {of}", sub), *_printed(sub, printed)]
            lines += _printed(command, printed)
        else:
            lines += [*_command(f"sluice {name}", command), *_printed(command, printed)]
    lines += ["", "## Bodies of commands", "", "The other bodies are those of [the API](api.md#bodies)."]
    for name, schema in sorted(printed.items()):
        lines += ["", f"### {name}", "", *_schema(schema, _is_of_api, "api.md")]
    return _text(lines)


@cache
def _api_document() -> Mapping[str, Any]:
    return new_api().openapi()


def _is_of_api(name: str) -> bool:
    return name in _api_document()["components"]["schemas"]


def _printed(command: Any, others: dict[str, Any]) -> list[str]:
    """The sentence that names the JSON documents of a command. Adds those that are not the API's to `others`."""
    documents = documents_of(command.callback) if command.callback else None
    if documents is None:
        return []
    for reply in documents.replies:
        schema = reply.model_json_schema(mode="serialization", by_alias=True)
        for name, each in {reply.__name__: schema, **schema.get("$defs", {})}.items():
            if not _is_of_api(name):
                others[name] = each
            elif each.get("properties", {}).keys() != _api_document()["components"]["schemas"][name].get("properties", {}).keys():
                raise SystemExit(f"{name} of a command is another body than that of the API: rename it")
    links = [f"[{name}]({'api.md' if _is_of_api(name) else ''}#{name.lower()})" for name in (each.__name__ for each in documents.replies)]
    return [f"With `--json` it prints {' or '.join(links)}.", ""]


def _command(name: str, command: Any) -> Iterator[str]:
    arguments = [param for param in command.params if param.param_type_name == "argument"]
    options = [param for param in command.params if param.param_type_name == "option" and not param.hidden and "--help" not in param.opts]
    usage = " ".join([name, *(_argument(each) for each in arguments), *(["[OPTIONS]"] if options else [])])
    yield from ["```", usage, "```", ""]
    yield from _paragraphs(command.help)
    rows = [(f"`{each.metavar or each.name.upper()}`", getattr(each, "help", "") or "", "") for each in arguments]
    rows += [(_option(each), each.help or "", _default(each)) for each in options]
    if rows:
        yield from ["| | | default |", "| --- | --- | --- |"]
        yield from (f"| {what} | {_cell(text)} | {default} |" for what, text, default in rows)
        yield ""


def _argument(param: Any) -> str:
    shown = param.metavar or param.name.upper()
    return shown if param.required else f"[{shown}]"


def _option(param: Any) -> str:
    names = ", ".join(f"`{each}`" for each in (*param.opts, *param.secondary_opts))
    return names if param.is_flag else f"{names} `{_metavar(param)}`"


def _metavar(param: Any) -> str:
    """The placeholder of the option's value: that of its help, or its name."""
    return param.metavar or str(param.opts[0]).lstrip("-").upper().replace("-", "_")


def _default(param: Any) -> str:
    value = param.default
    if callable(value) or value in (None, False, "", (), []):
        return ""
    if param.is_flag:
        return f"`{param.opts[0]}`"
    return f"`{getattr(value, 'value', value)}`"


# --- exit codes --------------------------------------------------------------------------------------------------------


def exit_codes() -> str:
    lines = [
        "# Exit codes",
        "",
        f"A command that is called with wrong arguments exits with 2 and prints its usage. {MADE}",
        "",
        "## Containers",
        "",
        "| code | meaning | a launcher |",
        "| --- | --- | --- |",
        "| 0 | stopped cleanly, or the run has ended | starts it again only for a new run |",
        "| 1 | failed; the reason is in the log and in `sluice jobs containers RUN` | starts it again |",
        "| 3 | lost its lease: it was replaced, or did not reach the coordinator for a whole lease | starts it again |",
        "| 4 | a batch has failed repeatedly with the same error, or every start of the same code would fail | waits before it starts it "
        "again, or stops |",
        "| 143, 137 | ended by SIGTERM or SIGKILL before it could report | starts it again; the tasks wait for lease and grace period |",
        "",
        "## Commands",
        "",
        "| command | codes |",
        "| --- | --- |",
    ]
    for name, entry in COMMANDS.items():
        if entry.help:
            lines.append(f"| `sluice {name}` | {_cell(_codes_of(name, entry.where))} |")
    return _text(lines)


COORDINATOR_CODES = "0 stopped by a signal; 1 when it cannot start, or another coordinator has taken over its database."
OTHER_CODES: Mapping[str, str] = {
    "run": "0 when the run has ended or was stopped; 1 when it failed.",
    "deploy": "0; 1 when the job file is wrong, or the coordinator cannot be reached or refuses.",
    "coordinator": COORDINATOR_CODES,
    "container": "Those of containers, above.",
    "exec": "The command's; 128 and the number of the signal that ended it; 127 or 126 if it cannot be started; 3 when the lease was lost; "
    "1 when the coordinator refuses.",
    "doctor": "0; 1 when there is a problem.",
    "upgrade": "0 upgraded, or planned; 1 refused, or the coordinator was unreachable; 2 not drained, or rows are left; 3 failed and left "
    "as it is; 4 rolled back.",
}
"""For commands whose module does not name its exit codes."""

FAILED_CODES = "0; 1 when it fails, with the reason on standard error."


def _codes_of(name: str, where: str) -> str:
    module = importlib.import_module(where.partition(":")[0])
    found = re.search(r"^Exit codes: (.*?)(?:\n\s*\n|\Z)", inspect.cleandoc(module.__doc__ or ""), re.M | re.S)
    return found[1] if found else OTHER_CODES.get(name, FAILED_CODES)


# --- errors ------------------------------------------------------------------------------------------------------------


def errors() -> str:
    lines = [
        "# Errors",
        "",
        "Errors of the coordinator are `application/problem+json`: `type` is `urn:sluice:` and the error's name, `status` and `title` are",
        "in these tables, `detail` says what is wrong in this case, and `remedy` what to do. Commands print title and detail as one line,",
        f"and what to do on the next. {MADE}",
        "",
        "The status says who must act: with 4xx the caller; with 503 no one at first, because the request is tried again; with 500 an",
        "operator. 409 `lease-lost` means that another incarnation has what the request acts on.",
        "",
        "## Of the coordinator and of commands",
        "",
        *_error_rows(sluice.core.errors, with_status=True),
        "",
        "## Of containers",
        "",
        "They are logged, and are the reason with which a container exits.",
        "",
        *_error_rows(containers.errors, with_status=False),
    ]
    return _text(lines)


def error_classes(module: Any) -> Sequence[type[SluiceError]]:
    """The errors that the module defines, in its order."""
    found = [each for each in vars(module).values() if inspect.isclass(each) and issubclass(each, SluiceError) and each is not SluiceError]
    return [each for each in found if each.__module__ == module.__name__]


def _error_rows(module: Any, *, with_status: bool) -> Iterator[str]:
    yield "| name | status | title | what to do |" if with_status else "| name | title | what to do |"
    yield "| --- | --- | --- | --- |" if with_status else "| --- | --- | --- |"
    for each in error_classes(module):
        status = f" {each.status} |" if with_status else ""
        yield f"| `{each.slug}` |{status} {_cell(each.title())} | {REMEDIES[each.__name__]} |"


# --- metrics -----------------------------------------------------------------------------------------------------------


def metrics() -> str:
    lines = [
        "# Metrics",
        "",
        "In Prometheus' format: the coordinator's under `/metrics`, a container's under the address that `/prometheus/targets` lists.",
        f"[Operating](../operating.md#metrics) explains those that need it, and [alerts](../alerts.md) use them. {MADE}",
        "",
        "Names of counters have the suffix `_total`, those of histograms `_bucket`, `_sum` and `_count`, those of infos `_info`.",
        "",
        "## Of the coordinator",
        "",
        *_metric_rows(_coordinator_metrics()),
        "",
        "## Of a container",
        "",
        "Prometheus adds the labels `sluice_job`, `run`, `processor` and `container`.",
        "",
        *_metric_rows(_container_metrics()),
    ]
    return _text(lines)


def _coordinator_metrics() -> Sequence[Any]:
    with tempfile.TemporaryDirectory() as home:
        found = build(Settings(home=Path(home))).api.state.parts.exposition.collect()
        return [each for each in found if each is not None]


def _container_metrics() -> Sequence[Any]:
    usage = JvmUsage(0, 1, {})
    clock = SystemClock()
    from datetime import timedelta

    collector = ContainerCollector(lambda: [], timedelta(seconds=1), lambda: timedelta(0), lambda: 0, clock)
    return [
        *collector.collect(),
        *backup_metrics({}, Requests(), {}),
        *disk_metrics({}, Thresholds(0, 0)),
        *jvm_metrics(usage),
        *process_metrics(os.getpid()),
    ]


def _metric_rows(found: Iterable[Any]) -> Iterator[str]:
    traffic = Traffic(SystemClock())
    labelled = {each._name: each._labelnames for each in (traffic.requests, traffic.durations)}
    yield "| metric | type | labels | |"
    yield "| --- | --- | --- | --- |"
    for each in found:
        labels = labelled.get(each.name) or getattr(each, "_labelnames", ())
        shown = ", ".join(f"`{label}`" for label in labels)
        yield f"| `{each.name}` | {each.type} | {shown} | {_cell(each.documentation)} |"


# --- the API -----------------------------------------------------------------------------------------------------------

VERSIONING = """
## What may change

Within a release series (0.2.x) routes, fields and the names of errors keep their meaning, and nothing that a client sends is refused that
was accepted before. A release may add routes, optional fields of requests, fields of answers, query parameters and names of errors: a
client must ignore fields that it does not know, and treat an unknown error by its status. The coordinator accepts agents of the release
before its own.

## Requests that are repeated

A client that got no answer may repeat any request, as commands and containers do:

- `GET`, `PUT` and `DELETE` can always be repeated.
- `POST /drain` with a `uuid` of your own is answered with the drain that it started. So is a repeated one without a uuid, as long as the
  run is under this drain or was ended by it.
- `POST /runs` with the header `Sluice-Replaces`, the id of the run that it is to replace, is refused with 412 `not-the-current-run` if it
  has been carried out already, or another run was deployed. Without the header a repeated request makes another run, which replaces the
  one before.
- `PATCH /runs/{runId}` and rollbacks with the header `If-Match`, the ETag of the version that they change, are refused with 412
  `version-conflict` if the version has changed.
- `POST /runs/{runId}/stop` changes nothing when it is repeated.
- Reports of containers carry epoch, generation and batch, and are recorded once.
"""


def api() -> str:
    document = _api_document()
    lines = [
        "# API",
        "",
        "The same as `/openapi.json`, which a coordinator serves; `/docs` shows it and can send requests. Bodies are JSON, times ISO 8601",
        f"in UTC, names in camel case. [Roles](../roles.md) says which token may send what, and [errors](errors.md) lists refusals. {MADE}",
        *VERSIONING.splitlines(),
        "",
        "## Requests",
    ]
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            lines += ["", f"### {method.upper()} {path}", "", *_operation(operation)]
    lines += ["", "## Bodies"]
    for name, schema in sorted(document["components"]["schemas"].items()):
        lines += ["", f"### {name}", "", *_schema(schema)]
    return _text(lines)


def _operation(operation: Mapping[str, Any]) -> Iterator[str]:
    yield from _paragraphs(operation.get("description", operation.get("summary", "")))
    parameters = operation.get("parameters", [])
    if parameters:
        yield from ["| parameter | in | type | |", "| --- | --- | --- | --- |"]
        for each in parameters:
            needed = "" if each.get("required") else "optional"
            text = "; ".join(part for part in (needed, each.get("description", "")) if part)
            yield f"| `{each['name']}` | {each['in']} | {_type(each['schema'])} | {_cell(text)} |"
        yield ""
    body = operation.get("requestBody")
    if body:
        yield from [f"Body: {_content(body)}.", ""]
    answers = [
        f"{status} {_content(answer) or _cell(answer.get('description', ''))}"
        for status, answer in operation["responses"].items()
        if status.startswith("2") or status == "304"
    ]
    yield f"Answer: {'; '.join(answers)}."


def _content(of: Mapping[str, Any]) -> str:
    types = [_type(media["schema"]) for media in of.get("content", {}).values() if media.get("schema")]
    return " or ".join(dict.fromkeys(types))


def _schema(schema: Mapping[str, Any], elsewhere: Callable[[str], bool] = lambda _: False, page: str = "") -> Iterator[str]:
    """`elsewhere`: whether a body is described on `page`."""
    yield from _paragraphs(schema.get("description"))
    if "enum" in schema:
        yield ", ".join(f"`{value}`" for value in schema["enum"])
        return
    properties = schema.get("properties", {})
    if not properties:
        return
    required = schema.get("required", ())
    yield from ["| field | type | |", "| --- | --- | --- |"]
    for name, each in properties.items():
        default = each.get("default")
        notes = "" if name in required else "optional" if default is None else f"default `{_cell(str(default))}`"
        text = "; ".join(part for part in (notes, each.get("description", "")) if part)
        yield f"| `{name}` | {_type(each, elsewhere, page)} | {_cell(text)} |"


def _type(schema: Mapping[str, Any], elsewhere: Callable[[str], bool] = lambda _: False, page: str = "") -> str:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}]({page if elsewhere(name) else ''}#{name.lower()})"
    for several in ("anyOf", "oneOf", "allOf"):
        if several in schema:
            return " or ".join(dict.fromkeys(_type(each, elsewhere, page) for each in schema[several]))
    if "enum" in schema:
        return " or ".join(f"`{value}`" for value in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`"
    match schema.get("type"):
        case "array":
            return f"array of {_type(schema['items'], elsewhere, page)}" if schema.get("items") else "array"
        case "object":
            values = schema.get("additionalProperties")
            return f"object of {_type(values, elsewhere, page)}" if isinstance(values, dict) and values else "object"
        case None:
            return "any"
        case found:
            return f"{found} ({schema['format']})" if schema.get("format") else str(found)


# --- Job and Task ------------------------------------------------------------------------------------------------------


def job() -> str:
    lines = [
        "# Job and Task",
        "",
        f"What a job file imports: `from sluice import Job`. {MADE}",
        "",
        "## Job",
        "",
        *_paragraphs(jobs.Job.__doc__),
        *_signature("Job", jobs.Job.__init__),
        *_paragraphs(jobs.Job.__init__.__doc__),
    ]
    for name in ("input", "intermediate", "output", "stage"):
        method = getattr(jobs.Job, name)
        lines += [f"### job.{name}", "", *_signature(f"job.{name}", method), *_paragraphs(method.__doc__)]
    lines += ["", "## Task", "", *_paragraphs(jobs.Task.__doc__)]
    for name, member in vars(jobs.Task).items():
        if name.startswith("_") or not (inspect.isfunction(member) or isinstance(member, property)):
            continue
        function: Any = member.fget if isinstance(member, property) else member
        lines += [f"### task.{name}", ""]
        if isinstance(member, property):
            lines += ["```python", f"task.{name}: {function.__annotations__['return']}", "```", ""]
        else:
            lines += _signature(f"task.{name}", function)
        lines += _paragraphs(function.__doc__)
    for kind in (jobs.Input, jobs.Intermediate, jobs.Output, jobs.Delivery):
        lines += ["", f"## {kind.__name__}", "", *_paragraphs(kind.__doc__)]
    return _text(lines)


def _signature(name: str, function: Callable[..., Any]) -> list[str]:
    signature = inspect.signature(function)
    parameters = [each for each in signature.parameters.values() if each.name != "self"]
    shown = re.sub(r"(: |-> )'([^']*)'", r"\1\2", str(signature.replace(parameters=parameters)))
    return ["```python", f"{name}{shown}".replace(" -> None", ""), "```", ""]


# --- pages -------------------------------------------------------------------------------------------------------------

PAGES: Mapping[str, Callable[[], str]] = {
    "settings.md": settings,
    "command-line.md": command_line,
    "exit-codes.md": exit_codes,
    "errors.md": errors,
    "metrics.md": metrics,
    "api.md": api,
    "job.md": job,
}


def main(check: bool) -> int:
    outdated = [name for name, page in PAGES.items() if not (FOLDER / name).exists() or (FOLDER / name).read_text() != page()]
    if check:
        print("\n".join(f"docs/reference/{name} is out of date: run scripts/reference.py" for name in outdated), end="")
        return 1 if outdated else 0
    for name in outdated:
        (FOLDER / name).write_text(PAGES[name]())
    return 0


if __name__ == "__main__":
    raise SystemExit(main("--check" in sys.argv))
