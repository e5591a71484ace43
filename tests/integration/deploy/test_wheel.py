"""The wheel: what is in it, and what is not. The sdist builds, and its metadata and README can be shown by a package index."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    directory = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-P", "-m", "hatchling", "build", "-t", "wheel", "-d", str(directory)], cwd=ROOT, check=True, capture_output=True
    )
    (made,) = directory.glob("sluice_spark-*.whl")
    return zipfile.ZipFile(made)


def test_the_wheel_has_the_three_packages_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    tops = {name.split("/")[0] for name in wheel.namelist()}
    (metadata,) = [top for top in tops if top.endswith(".dist-info")]
    assert tops == {"sluice", "coordinator", "containers", metadata}
    assert f"{metadata}/licenses/LICENSE" in wheel.namelist()


def test_the_wheel_has_the_migrations_the_java_sources_and_the_marker_files_of_typed_packages(wheel: zipfile.ZipFile) -> None:
    names = set(wheel.namelist())
    assert {"sluice/py.typed", "coordinator/py.typed", "containers/py.typed", "coordinator/migrations/env.py"} <= names
    assert {f"containers/spark/java/sluice/{each}.java" for each in ("InputGates", "LocalFiles")} <= names
    ours = {each.name for each in (ROOT / "migrations" / "versions").glob("*.py")}
    assert ours == {name.rsplit("/", 1)[1] for name in names if name.startswith("coordinator/migrations/versions/")}


def test_the_packages_in_the_wheel_can_be_imported_without_the_checkout(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    wheel.extractall(tmp_path)
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import sluice, coordinator.app, containers.driver; "
        "assert all(module.__file__.startswith(sys.argv[1]) for module in (sluice, coordinator.app, containers.driver))"
    )
    subprocess.run([sys.executable, "-P", "-c", code, str(tmp_path)], cwd=tmp_path, check=True)


def test_the_sdist_passes_the_check_of_its_metadata_and_readme(tmp_path: Path) -> None:
    build = [sys.executable, "-P", "-m", "hatchling", "build", "-t", "sdist", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (made,) = tmp_path.glob("sluice_spark-*.tar.gz")
    done = subprocess.run(
        [sys.executable, "-m", "twine", "check", "--strict", str(made)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    with tarfile.open(made) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"README.md", "LICENSE", "PKG-INFO", "pyproject.toml"} <= names
