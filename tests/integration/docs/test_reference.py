"""The pages of docs/reference are those that scripts/reference.py makes of the code."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import containers.errors
import sluice.core.errors
from sluice.cli.main import COMMANDS
from sluice.core.errors import SluiceError
from sluice.core.remedies import REMEDIES

ROOT = Path(__file__).parents[3]


def test_the_pages_are_up_to_date() -> None:
    command = [sys.executable, "scripts/reference.py", "--check"]
    checked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


def defined_in(module: ModuleType) -> set[str]:
    found = [each for each in vars(module).values() if inspect.isclass(each) and issubclass(each, SluiceError) and each is not SluiceError]
    return {each.__name__ for each in found if each.__module__ == module.__name__}


def errors_of_the_source() -> set[str]:
    """The names of all public subclasses of SluiceError, and its own."""
    files = [file for package in ("sluice", "coordinator", "containers") for file in (ROOT / package).rglob("*.py")]
    classes = [each for file in files for each in ast.parse(file.read_text()).body if isinstance(each, ast.ClassDef)]
    found, before = {"SluiceError"}, 0
    while len(found) > before:
        before = len(found)
        found |= {each.name for each in classes if any(isinstance(of, ast.Name) and of.id in found for of in each.bases)}
    return {name for name in found if not name.startswith("_")}


def test_every_error_has_a_remedy_and_no_remedy_is_of_no_error() -> None:
    errors = errors_of_the_source()
    assert errors >= defined_in(sluice.core.errors) | defined_in(containers.errors)
    assert REMEDIES.keys() == errors


@pytest.mark.parametrize("page", ["settings", "command-line", "exit-codes", "errors", "metrics", "api", "job"])
def test_a_page_says_that_it_is_made_from_the_code(page: str) -> None:
    assert "`scripts/reference.py` writes this page" in (ROOT / "docs" / "reference" / f"{page}.md").read_text()


def test_every_command_is_listed_with_its_options_and_its_exit_codes() -> None:
    commands, codes = ((ROOT / "docs" / "reference" / f"{page}.md").read_text() for page in ("command-line", "exit-codes"))
    for name, entry in COMMANDS.items():
        assert (f"\n## sluice {name}\n" in commands) == bool(entry.help), name
        assert (f"| `sluice {name}` |" in codes) == bool(entry.help), name
