"""The shape of the source: packages, their docstrings and imports."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("sluice", "coordinator", "containers")
FOLDERS = sorted(init.parent.relative_to(ROOT) for package in PACKAGES for init in (ROOT / package).rglob("__init__.py"))
IMPORTED_BY_SPARK_S_WORKERS = {Path("containers/spark"), Path("containers/spark/systems")}


def python(code: str, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-P", *options, "-c", code], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("folder", FOLDERS, ids=str)
def test_a_package_has_a_docstring(folder: Path) -> None:
    init = ast.parse((ROOT / folder / "__init__.py").read_text())
    assert ast.get_docstring(init)
    if folder in IMPORTED_BY_SPARK_S_WORKERS:
        assert len(init.body) == 1


def test_importing_the_library_imports_neither_spark_nor_a_server() -> None:
    code = "import sys, sluice; print([each for each in ('pyspark', 'pydantic', 'httpx', 'sqlalchemy') if each in sys.modules])"
    assert python(code).stdout.strip() == "[]"


def names_of(requirements: Iterable[str]) -> set[str]:
    """The distributions that requirements name, without those of extras."""
    return {re.split(r"[^\w.-]", each)[0].lower().replace("_", "-") for each in requirements if "extra ==" not in each}


def test_each_imported_package_comes_with_a_declared_dependency() -> None:
    """The environment of tests has more packages than an installation."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    installed, found = set[str](), names_of([*project["dependencies"], *extras["spark"], *extras["tracing"]])
    while found:
        installed |= found
        for each in tuple(found):
            with suppress(PackageNotFoundError):  # for another system or Python
                found |= names_of(requires(each) or ())
        found -= installed
    sources = [file.read_text() for package in (*PACKAGES, "migrations") for file in (ROOT / package).rglob("*.py")]
    imported = {name for source in sources for name in re.findall(r"^\s*(?:from|import) (\w+)", source, re.M)}
    lacking = {
        name: providers
        for name, providers in packages_distributions().items()
        if name in imported and name not in PACKAGES and names_of(providers).isdisjoint(installed)
    }
    assert lacking == {"types_aiobotocore_s3": ["types-aiobotocore-s3"]}  # for mypy only
