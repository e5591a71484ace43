"""Which commands print JSON, and that each says what."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from sluice.cli.documents import documents_of
from sluice.cli.main import COMMANDS, LazyGroup

WITHOUT = ["run", "exec", "coordinator", "container", "logs", "login"]
"""They run until they are stopped, print logs, or ask a person."""


def shown_commands() -> Iterator[tuple[str, Any]]:
    group = LazyGroup(name="sluice")
    for name, entry in COMMANDS.items():
        if not entry.help:
            continue
        command: Any = group.get_command(None, name)
        subcommands = {of: each for of, each in getattr(command, "commands", {}).items() if not each.hidden}
        if not subcommands or any("--json" in param.opts for param in command.params):
            yield name, command
        yield from ((f"{name} {of}", each) for of, each in subcommands.items())


ALL = dict(shown_commands())


def test_all_commands_print_json_but_those_that_run_on_or_ask_a_person() -> None:
    assert [name for name, command in ALL.items() if not any("--json" in param.opts for param in command.params)] == WITHOUT


@pytest.mark.parametrize("name", [each for each in ALL if each not in WITHOUT])
def test_a_command_with_json_names_the_bodies_that_it_prints(name: str) -> None:
    documents = documents_of(ALL[name].callback)
    assert documents is not None
    assert documents.replies


def test_a_command_without_json_names_no_body() -> None:
    assert documents_of(ALL["logs"].callback) is None
