from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pyspark
import pytest

from containers.worker_python import plain_environment, worker_python
from tests.support.traps import set_traps

LIBRARY = Path(pyspark.__file__).parent / "python" / "lib"
TELL = "import sys, os, pyspark; print(os.environ.get('PYTHONPATH'), pyspark.__file__, sys.executable, sys.argv[1:], sep='\\n')"


def printed_by(program: str, path: str | None) -> list[str]:
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment = kept if path is None else {**kept, "PYTHONPATH": path}
    done = subprocess.run([program, "-c", TELL, "a b", "*"], env=environment, capture_output=True, text=True, timeout=300, check=True)
    return done.stdout.splitlines()


def test_spark_s_own_zip_files_are_removed_from_the_path_and_nothing_else(tmp_path: Path) -> None:
    path = f"{LIBRARY}/pyspark.zip:{LIBRARY}/py4j-0.10.9.9-src.zip:/of the/user:/other/pyspark.zip:*"
    found = printed_by(worker_python(tmp_path), path)
    assert found == ["/of the/user:/other/pyspark.zip:*", pyspark.__file__, sys.executable, "['a b', '*']"]


def test_spark_s_zip_files_are_removed_also_in_an_environment_behind_a_link(tmp_path: Path) -> None:
    (tmp_path / "current").symlink_to(Path(pyspark.__file__).parents[1])
    text = f"import sys; sys.path.insert(0, {str(tmp_path / 'current')!r}); from containers.worker_python import worker_python; "
    text += f"from pathlib import Path; print(worker_python(Path({str(tmp_path)!r})))"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=300, check=True)
    path = f"{tmp_path}/current/pyspark/python/lib/pyspark.zip:{LIBRARY.resolve()}/pyspark.zip:/x"
    assert printed_by(done.stdout.strip(), path)[0] == "/x"


def test_without_pythonpath_the_worker_has_none(tmp_path: Path) -> None:
    assert printed_by(worker_python(tmp_path), None)[0] == ""


PROBE = """
import random, sys
import helper
print(helper.__file__, __name__, sys.modules["__main__"].__spec__.name, sys.argv, sys.orig_argv[1], sep="\\n")
"""


@pytest.fixture
def working_directory(tmp_path: Path) -> Path:
    """A directory with modules that fail when they are imported, among them `probe` and `helper`."""
    set_traps(tmp_path / "working", "probe", "helper")
    return tmp_path / "working"


def probed(program: str, tmp_path: Path, working_directory: Path, environment: Mapping[str, str]) -> list[str]:
    """The output of a module that is started with PYTHONPATH as Spark's JVM sets it for its children, in the working directory."""
    (tmp_path / "installed").mkdir(exist_ok=True)
    (tmp_path / "installed" / "probe.py").write_text(PROBE)
    path = os.pathsep.join(filter(None, [str(tmp_path / "installed"), environment.get("PYTHONPATH")]))
    done = subprocess.run(
        [program, "-m", "probe", "a b", "*"],
        cwd=working_directory,
        env={**os.environ, **environment, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        errors="surrogateescape",
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_module_can_import_from_the_directory_of_the_job_file_after_the_standard_library(tmp_path: Path, working_directory: Path) -> None:
    beside = tmp_path / "a job's \udcff{}"
    set_traps(beside)
    (beside / "helper.py").touch()
    found = probed(worker_python(tmp_path, beside), tmp_path, working_directory, {})
    assert found[:3] == [str(beside / "helper.py"), "__main__", "probe"]
    assert found[3:] == [str([str(tmp_path / "installed" / "probe.py"), "a b", "*"]), "-P"]


def test_without_a_job_file_the_working_directory_is_not_on_the_path_either(tmp_path: Path, working_directory: Path) -> None:
    (tmp_path / "installed").mkdir()
    (tmp_path / "installed" / "helper.py").touch()
    assert probed(worker_python(tmp_path), tmp_path, working_directory, {})[1] == "__main__"


def test_plain_python_gets_the_same_path_from_its_environment(tmp_path: Path, working_directory: Path) -> None:
    beside = tmp_path / "job"
    beside.mkdir()
    (beside / "helper.py").touch()
    assert probed(sys.executable, tmp_path, working_directory, plain_environment(beside))[0] == str(beside / "helper.py")


@pytest.fixture
def without_programs(tmp_path: Path) -> Iterator[Path]:
    """A file system mounted without permission to execute."""
    directory = tmp_path / "noexec"
    directory.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "noexec,size=1m", "tmpfs", str(directory)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("this user may not mount a small file system")
    yield directory
    subprocess.run(["umount", "--lazy", str(directory)], check=True)


def test_the_worker_is_plain_python_where_files_cannot_be_executed(without_programs: Path) -> None:
    assert worker_python(without_programs) == sys.executable
