"""The shape of the source: packages, their docstrings and sizes, and errors for old imports."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from importlib.util import find_spec
from pathlib import Path

import pytest

from sluice.moved import MOVED

ROOT = Path(__file__).parents[2]
PACKAGES = ("sluice", "coordinator", "containers")
FOLDERS = sorted(init.parent.relative_to(ROOT) for package in PACKAGES for init in (ROOT / package).rglob("__init__.py"))
IMPORTED_BY_SPARK_S_WORKERS = {Path("containers/spark"), Path("containers/spark/systems")}
RECORD = ROOT / "docs" / "decisions" / "0001-three-packages.md"


def python(code: str, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-P", *options, "-c", code], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("folder", FOLDERS, ids=str)
def test_a_package_has_a_docstring_and_at_most_twenty_modules(folder: Path) -> None:
    init = ast.parse((ROOT / folder / "__init__.py").read_text())
    assert ast.get_docstring(init)
    if folder in IMPORTED_BY_SPARK_S_WORKERS:
        assert len(init.body) == 1
    files = [each for each in (ROOT / folder).glob("*.py") if each.name not in ("__init__.py", "__main__.py")]
    assert len(files) <= (12 if len(folder.parts) == 1 else 20)


@pytest.mark.parametrize("old", MOVED)
def test_an_old_import_fails_with_a_new_name_that_exists(old: str) -> None:
    for new in re.sub(r" \(.*\)", "", MOVED[old]).split(", "):
        assert find_spec(new) is not None
    if not (ROOT / old.replace(".", "/")).is_dir():
        with pytest.raises(ModuleNotFoundError, match=re.escape(f"{old} has moved: it is now {MOVED[old]}")):
            importlib.import_module(old)


def test_the_message_about_a_module_that_became_a_package_names_the_new_modules() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"has no Runs: .* in coordinator\.runs\.runs"):
        from coordinator.runs import Runs  # type: ignore[attr-defined]  # noqa: F401


def test_the_record_has_the_same_map() -> None:
    rows = dict(re.findall(r"^\| `(\S+?)\.py` \| (.*) \|$", RECORD.read_text(), re.M))
    assert {old.replace("/", ".") for old in rows} == set(MOVED)


def test_a_job_file_of_the_release_before_works_and_is_warned() -> None:
    done = python("from containers import Input, Job, Output, Task; import sluice; assert Job is sluice.Job", "-W", "always")
    assert done.returncode == 0
    assert "`from containers import Job` is deprecated: write `from sluice import Job`" in done.stderr


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
