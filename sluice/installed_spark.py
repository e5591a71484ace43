"""Which Spark this machine has for jobs: the installed PySpark, else that of SPARK_HOME. Nothing of Spark is imported here.

PySpark is an extra of the distribution, so that `pip install` never replaces the Spark of a user. Commands that need none run without it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from sluice.core.errors import ClientError

OLDEST, NEWEST = (4, 2), (4, 3)
"""The versions of Spark on which jobs run: those that `make matrix` tries, and the range of the extra in pyproject.toml."""

RANGE = f"Spark {OLDEST[0]}.{OLDEST[1]} to {NEWEST[0]}.{NEWEST[1]}"

INSTALL = "pip install 'sluice-spark[spark]'"

LIBRARIES = ("pandas", "pyarrow")
"""Libraries of the extra that jobs need beside PySpark."""

_VERSION = re.compile(r"__version__[^=]*=\s*[\"']([^\"']+)")
_CORE = re.compile(r"spark-core_(\d+\.\d+)-(.+)\.jar")


class PySparkMissing(ClientError):
    """PySpark is not installed."""


class SparkUnsupported(ClientError):
    """Jobs do not run on this version of Spark."""


@dataclass(frozen=True, slots=True)
class InstalledSpark:
    """`home` has the directory `jars`: SPARK_HOME, else the package pyspark. `version`: of the jars. `python_version`: of the package."""

    home: Path
    version: str
    python_version: str
    scala: str


def installed_spark(environment: Mapping[str, str]) -> InstalledSpark | None:
    """The Spark that a session would start; None if PySpark cannot be imported. See `find_pyspark`."""
    spec = find_pyspark(environment)
    locations = spec.submodule_search_locations if spec is not None else None
    if spec is None or not locations:
        return None
    given = environment.get("SPARK_HOME")
    home = Path(given).absolute() if given else Path(locations[0])
    python_version = _version_of(spec, locations[0])
    cores = [match for jar in sorted((home / "jars").glob("spark-core_*.jar")) if (match := _CORE.fullmatch(jar.name))]
    return InstalledSpark(home, cores[-1][2] if cores else python_version, python_version, cores[-1][1] if cores else "2.13")


def find_pyspark(environment: Mapping[str, str]) -> ModuleSpec | None:
    """The package pyspark. If it cannot be imported and SPARK_HOME is set, the path of this process gets that of SPARK_HOME, last."""
    found = find_spec("pyspark")
    home = environment.get("SPARK_HOME")
    if found is None and home:
        python = Path(home).absolute() / "python"
        sys.path += [str(each) for each in (python, *sorted(python.glob("lib/py4j-*-src.zip"))) if str(each) not in sys.path]
        found = find_spec("pyspark")
    return found


def checked_spark(environment: Mapping[str, str]) -> InstalledSpark:
    """The Spark for a job. Raises PySparkMissing, SparkUnsupported."""
    found = installed_spark(environment)
    if found is None:
        raise missing(environment)
    check_version(found.version)
    if found.python_version and release_of(found.python_version) != release_of(found.version):
        raise SparkUnsupported(
            f"PySpark is {found.python_version}, and the Spark in {found.home} is {found.version}: install the same version of both, or "
            "unset SPARK_HOME"
        )
    if lacking := [each for each in LIBRARIES if find_spec(each) is None]:
        raise PySparkMissing(f"jobs need {' and '.join(lacking)} beside PySpark: {INSTALL}")
    return found


def missing(environment: Mapping[str, str]) -> PySparkMissing:
    home = environment.get("SPARK_HOME")
    where = f"; SPARK_HOME ({home}) has no python/pyspark" if home else ", or set SPARK_HOME to the directory of an installation of Spark"
    return PySparkMissing(f"install it: {INSTALL}{where}")


def check_version(version: str) -> None:
    """Raises SparkUnsupported for a version on which jobs do not run."""
    if not OLDEST <= release_of(version) <= NEWEST:
        raise SparkUnsupported(
            f"this is Spark {version}, and jobs need {RANGE}: {INSTALL}. A script that was not written for Sluice runs under `sluice exec` "
            "with any version"
        )


def release_of(version: str) -> tuple[int, int]:
    """Major and minor number; (0, 0) for a text without them."""
    match = re.match(r"(\d+)\.(\d+)", version)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def _version_of(spec: ModuleSpec, location: str) -> str:
    """`__version__` in a file of the package, which may be a zip file; "" if there is none."""
    loader: Any = spec.loader
    try:
        match = _VERSION.search(loader.get_data(f"{location}/version.py").decode())
    except (AttributeError, OSError):
        return ""
    return match[1] if match else ""
