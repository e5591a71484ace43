"""The Python processes that Sluice starts."""

from __future__ import annotations

import ast
from itertools import pairwise
from pathlib import Path

import containers
import coordinator

OURS = [Path(str(package.__file__)).parent for package in (containers, coordinator)]


def first_words(file: Path) -> list[str]:
    """The argument after `sys.executable` in each command in the source file."""
    commands = [node.elts for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.List | ast.Tuple)]
    return [ast.unparse(after) for words in commands for word, after in pairwise(words) if _is_python(word)]


def _is_python(word: ast.expr) -> bool:
    return isinstance(word, ast.Attribute) and word.attr == "executable"


def test_each_python_process_is_started_without_the_working_directory_on_its_path() -> None:
    words = [word for package in OURS for file in package.rglob("*.py") for word in first_words(file)]
    assert len(words) == 10
    assert set(words) == {"'-P'", "'-I'"}  # -I also ignores the variables of Python
