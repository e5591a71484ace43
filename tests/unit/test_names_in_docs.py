"""The commands, options, settings and metrics that the documentation names exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from containers.agent.metrics import backup_metrics
from containers.local.logs import RotationSettings
from containers.settings import ContainerSettings
from coordinator.settings import Settings
from sluice.blobs.counted import Requests
from sluice.cli.main import COMMANDS, LazyGroup, app
from sluice.logconfig import LogSettings
from sluice.tracing import TraceSettings

ROOT = Path(__file__).parents[2]
NOT_CURRENT = ("CHANGELOG.md",)
"""Pages that name what no longer exists."""

NOT_BUILT = "split"
"""The command that decision 9 is against."""

PAGES = [
    page for pattern in ("*.md", "docs/**/*.md", "examples/**/*.md") for page in sorted(ROOT.glob(pattern)) if page.name not in NOT_CURRENT
]
COMMAND = re.compile(r"`sluice ([^`]+)`|^[ (]*(?:run=\$\(|docker run .* sluice )?sluice ((?!/)[a-z][^#\n]*)", re.M)
VARIABLE = re.compile(r"\bSLUICE_[A-Z_]*[A-Z]\b(?!…)")
METRIC = re.compile(r"(?<![\w/])sluice_[a-z_]+[a-z](_…)?(?![\w(.])")


def name_of(file: Path) -> str:
    return str(file.relative_to(ROOT))


@cache
def source() -> str:
    """The text of all programs, and of the examples, whose tables the pages name, too."""
    files = [
        file
        for folder in ("sluice", "coordinator", "containers", "scripts", "deploy", "examples", "tests/simulation")
        for file in (ROOT / folder).rglob("*")
    ]
    texts = (file.read_text() for file in files if file.is_file() and file.suffix != ".pyc")
    return "\n".join([*texts, (ROOT / "Dockerfile").read_text(), (ROOT / "docker-compose.yml").read_text()])


# --- commands ----------------------------------------------------------------------------------------------------------


@cache
def command(name: str) -> Any:
    return LazyGroup(name="sluice").get_command(None, name)


def options_of(found: Any) -> set[str]:
    return {option for param in found.params for option in (*param.opts, *param.secondary_opts)}


def wrong_in(text: str) -> Iterator[str]:
    """What is wrong with the arguments of `sluice`, such as "streams create|grow S --partitions 2"."""
    name, *words = text.replace("\\|", "|").partition(" -- ")[0].split()
    if name == NOT_BUILT or name in options_of(get_command(app)):
        return
    if name not in COMMANDS:
        yield f"there is no command {name}"
        return
    found = command(name)
    commands = getattr(found, "commands", {})
    subcommands = words[0].split("|") if commands and words and re.fullmatch(r"[a-z|-]+", words[0]) else []
    yield from (f"there is no command {name} {each}" for each in subcommands if each not in commands)
    options = options_of(found).union(*(options_of(each) for each in commands.values()))
    for word in words:
        option = re.match(r"\[?(--[a-z-]+)", word)
        if option and option[1] not in options:
            yield f"{name} has no option {option[1]}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_commands_that_a_page_names_exist(page: Path) -> None:
    named = [first or second for first, second in COMMAND.findall(page.read_text())]
    assert [wrong for each in named for wrong in wrong_in(each)] == []


def test_a_command_or_an_option_that_does_not_exist_is_found() -> None:
    assert list(wrong_in("--install-complation")) == ["there is no command --install-complation"]
    assert list(wrong_in("strems ls")) == ["there is no command strems"]
    assert list(wrong_in("streams ls|grew")) == ["there is no command streams grew"]
    assert list(wrong_in("drain JOB --waits")) == ["drain has no option --waits"]
    assert list(wrong_in("exec --job JOB -- COMMAND --other")) == []


# --- settings and metrics ----------------------------------------------------------------------------------------------


@cache
def variables() -> frozenset[str]:
    """Variables of settings, and those that the source names."""
    models = (Settings, ContainerSettings, RotationSettings, LogSettings, TraceSettings)
    fields = {f"SLUICE_{name.upper()}" for model in models for name in model.model_fields}
    return frozenset(fields | set(VARIABLE.findall(source())))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_variables_that_a_page_names_exist(page: Path) -> None:
    assert set(VARIABLE.findall(page.read_text())) <= variables()


def test_the_settings_that_the_tables_list_exist() -> None:
    _, coordinator, _ = re.split(r"^## Settings of .*$", (ROOT / "docs" / "operating.md").read_text(), flags=re.M)
    rows = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", coordinator, re.M)
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert len(named) > 40
    assert named <= Settings.model_fields.keys()


@cache
def metrics() -> frozenset[str]:
    made = {family.name for family in backup_metrics({}, Requests(), {})}
    return frozenset(made | {found[0] for found in re.finditer(r"\bsluice_[a-z_]+[a-z]\b", source())})


def is_metric(name: str) -> bool:
    if name.endswith("_…"):
        return any(each.startswith(name.removesuffix("…")) for each in metrics())
    of_a_process = name.startswith("sluice_agent_process_")  # by the collector of prometheus_client
    return of_a_process or name in metrics() or re.sub(r"_(total|bucket|sum|count|info)$", "", name) in metrics()


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_metrics_that_a_page_names_exist(page: Path) -> None:
    assert [found[0] for found in METRIC.finditer(page.read_text()) if not is_metric(found[0])] == []
