from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from sluice.installed_spark import (
    LIBRARIES,
    NEWEST,
    OLDEST,
    SparkUnsupported,
    check_version,
    checked_spark,
    installed_spark,
    release_of,
)

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]


def named(requirements: list[str]) -> set[str]:
    return {re.split(r"[\[<>=; ]", each)[0] for each in requirements}


def test_an_installation_without_extras_has_nothing_of_spark() -> None:
    of_spark = named(PROJECT["optional-dependencies"]["spark"])
    assert {"pyspark", *LIBRARIES} <= of_spark
    assert not named(PROJECT["dependencies"]) & (of_spark | {"py4j", "numpy"})


def test_the_range_of_the_extra_is_that_of_the_check() -> None:
    (requirement,) = [each for each in PROJECT["optional-dependencies"]["spark"] if each.startswith("pyspark")]
    assert requirement == f"pyspark>={OLDEST[0]}.{OLDEST[1]},<{NEWEST[0]}.{NEWEST[1] + 1}"


def test_the_installed_pyspark_is_found_with_its_version() -> None:
    import pyspark

    found = installed_spark({})
    assert found is not None
    assert (found.home, found.version, found.python_version) == (Path(pyspark.__file__).parent, pyspark.__version__, pyspark.__version__)


def home_of(tmp_path: Path, version: str, scala: str = "2.13") -> dict[str, str]:
    jars = tmp_path / "jars"
    jars.mkdir()
    (jars / f"spark-core_{scala}-{version}.jar").touch()
    return {"SPARK_HOME": str(tmp_path)}


def test_the_jars_of_spark_home_say_the_version_that_a_session_has(tmp_path: Path) -> None:
    found = installed_spark(home_of(tmp_path, "3.5.9", "2.12"))
    assert found is not None
    assert (found.home, found.version, found.scala) == (tmp_path, "3.5.9", "2.12")


def test_a_job_is_refused_where_pyspark_and_spark_home_differ(tmp_path: Path) -> None:
    import pyspark

    other = "4.3.7" if release_of(pyspark.__version__) == (4, 2) else "4.2.7"
    with pytest.raises(
        SparkUnsupported, match=rf"PySpark is {re.escape(pyspark.__version__)}, and the Spark in .* is {other}.*unset SPARK_HOME"
    ):
        checked_spark(home_of(tmp_path, other))


@pytest.mark.parametrize("version", ["4.2.0", "4.2.9", "4.3.0", "4.3.0-SNAPSHOT", "4.3.1-amzn-0"])
def test_jobs_run_on_a_version_of_the_range(version: str) -> None:
    check_version(version)


@pytest.mark.parametrize("version", ["3.5.9", "4.1.4", "4.4.0", "4.10.0", "5.0.0-preview1", ""])
def test_jobs_are_refused_on_another_version_with_what_to_install(version: str) -> None:
    with pytest.raises(SparkUnsupported, match=r"jobs need Spark 4\.2 to 4\.3: pip install 'sluice-spark\[spark\]'"):
        check_version(version)
