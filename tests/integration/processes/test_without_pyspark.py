"""Where the extra `spark` is not installed, commands that need no Spark run, and the others say what to install."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyspark
import pytest

from sluice.cli.main import COMMANDS
from tests.support.coordinators import Running, running
from tests.support.processes import free_port
from tests.support.without_spark import PlainPython

JOB = """
from pyspark.sql import functions as F
from sluice import Job

job = Job("words")
lines = job.input("lines")


@job.stage(reads=lines)
def count(task):
    return task.read(lines).writeStream
"""

MISSING = "PySpark is not installed. install it: pip install 'sluice-spark[spark]'"


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> PlainPython:
    return PlainPython(tmp_path_factory.mktemp("plain"))


@pytest.fixture(scope="module")
def coordinator(python: PlainPython, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Without PySpark, too."""
    with running(tmp_path_factory.mktemp("coordinator") / "home", program=python.command("-m", "sluice"), **python.environment) as found:
        yield found


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    file = tmp_path / "job.py"
    file.write_text(JOB)
    return file


def call(python: PlainPython, command: Sequence[str], cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=cwd, env={**python.environment, **environment}, capture_output=True, text=True, check=False, timeout=600
    )


def sluice(python: PlainPython, cwd: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return call(python, python.command("-m", "sluice", *arguments), cwd, **environment)


def test_every_command_can_be_loaded(python: PlainPython, tmp_path: Path) -> None:
    code = (
        "import sys\nfrom sluice.cli.main import COMMANDS, load\n"
        "for each in COMMANDS.values():\n    load(each.where)\n"
        "print(len(COMMANDS), [each for each in ('pyspark', 'py4j', 'pandas', 'pyarrow') if each in sys.modules])"
    )
    done = call(python, python.command("-c", code), tmp_path)
    assert done.stdout.split(" ", 1) == [str(len(COMMANDS)), "[]\n"], done.stderr


@pytest.mark.parametrize(
    ("command", "said"),
    [(("status",), "there are no jobs"), (("drain", "words"), "there are no jobs")],
    ids=lambda each: each[0] if isinstance(each, tuple) else "",
)
def test_a_command_that_asks_the_coordinator_works(
    python: PlainPython, coordinator: Running, tmp_path: Path, command: Sequence[str], said: str
) -> None:
    done = sluice(python, tmp_path, *command, SLUICE_COORDINATOR_URL=str(coordinator.http.base_url))
    assert said in done.stdout + done.stderr
    assert "pyspark" not in (done.stdout + done.stderr).lower()
    assert "Traceback" not in done.stderr


def test_a_command_of_another_language_runs_under_exec(python: PlainPython, coordinator: Running, tmp_path: Path) -> None:
    done = sluice(
        python,
        tmp_path,
        *("exec", "--job", "scala", "--coordinator", str(coordinator.http.base_url), "--", "sh", "-c", "echo it runs; exit 7"),
    )
    assert (done.stdout, done.returncode) == ("it runs\n", 7), done.stderr


@pytest.mark.parametrize(
    "command", [("deploy", "job.py"), ("run", "job.py"), ("kafka", "jars", "--connector"), ("class-archive",)], ids=" ".join
)
@pytest.mark.usefixtures("job_file")
def test_a_command_that_needs_spark_says_what_to_install(python: PlainPython, tmp_path: Path, command: Sequence[str]) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    done = sluice(python, tmp_path, *command, SLUICE_COORDINATOR_URL=url, SLUICE_JARS_DIR=str(tmp_path / "jars"))
    assert done.returncode == 1
    assert MISSING in done.stderr
    assert not (tmp_path / ".sluice").exists()


def test_a_container_says_what_to_install_and_is_not_restarted(python: PlainPython, job_file: Path, tmp_path: Path) -> None:
    environment = {"SLUICE_RUN_ID": "words-1", "SLUICE_PROCESSOR_ID": "0", "SLUICE_HOME": str(tmp_path / "home")}
    done = sluice(python, tmp_path, "container", str(job_file), **environment)
    assert MISSING in done.stderr
    assert done.returncode == 4


def test_doctor_says_what_to_install(python: PlainPython, tmp_path: Path) -> None:
    done = sluice(python, tmp_path, "doctor", "--json", "--coordinator", f"http://127.0.0.1:{free_port()}")
    found = {each["check"]: each for each in json.loads(done.stdout)["findings"]}
    assert found["spark"]["level"] == "problem"
    assert "pip install 'sluice-spark[spark]'" in found["spark"]["text"]


# --- the Spark of SPARK_HOME -----------------------------------------------------------------------------------------


@pytest.fixture
def spark_home(tmp_path: Path) -> Path:
    """Laid out as the downloads of Spark are."""
    package, home = Path(pyspark.__file__).parent, tmp_path / "spark"
    (home / "python").mkdir(parents=True)
    (home / "python" / "pyspark").symlink_to(package)
    (home / "python" / "lib").symlink_to(package / "python" / "lib")
    (home / "jars").symlink_to(package / "jars")
    return home


def test_the_spark_of_spark_home_is_used_where_none_is_installed(
    python: PlainPython, spark_home: Path, job_file: Path, tmp_path: Path
) -> None:
    code = (
        "import os, sys\nfrom pathlib import Path\nfrom sluice.job import load_job\nfrom sluice.installed_spark import installed_spark\n"
        "load_job(Path(sys.argv[1]))\nimport py4j, pyspark\nprint(py4j.__file__, pyspark.__file__, installed_spark(os.environ).home)"
    )
    done = call(python, python.command("-c", code, str(job_file)), tmp_path, SPARK_HOME=str(spark_home))
    assert done.returncode == 0, done.stderr
    py4j, package, home = done.stdout.split()
    assert py4j.startswith(f"{spark_home}/python/lib/py4j-")
    assert (package, home) == (f"{spark_home}/python/pyspark/__init__.py", str(spark_home))


def test_a_job_on_the_spark_of_spark_home_needs_the_other_libraries_of_the_extra(
    python: PlainPython, spark_home: Path, job_file: Path, tmp_path: Path
) -> None:
    done = sluice(python, tmp_path, "run", str(job_file), SPARK_HOME=str(spark_home))
    assert "jobs need pandas and pyarrow beside PySpark: pip install" in done.stderr


def test_a_session_of_spark_connect_cannot_be_attached_where_py4j_is_missing(python: PlainPython, tmp_path: Path) -> None:
    """As with the distribution pyspark-client."""
    code = (
        "import sluice; Session = type('SparkSession', (), {'__module__': 'pyspark.sql.connect.session'})\n"
        "sluice.attach(Session(), job='orders')"
    )
    done = call(python, python.command("-c", code), tmp_path)
    assert "CannotAttach: spark is a session of Spark Connect" in done.stderr


def test_a_script_is_attached_without_the_other_libraries_of_the_extra(tmp_path: Path) -> None:
    """`sluice.attach` must not need more than the script's own Spark."""
    python = PlainPython(tmp_path / "script", "pyspark", "py4j")
    code = "import sys, containers.attached.app; print([each for each in ('pandas', 'pyarrow') if each in sys.modules])"
    done = call(python, python.command("-c", code), tmp_path)
    assert done.stdout == "[]\n", done.stderr
