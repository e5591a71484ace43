"""Makes the Python program that Spark starts on this machine for data sources and user functions: a shell script around this Python.

Spark starts it with `-m`, for which Python puts the working directory first on the path. With `-P` it is not on the path. The job file's
directory is last. So neither directory shadows a module of Sluice, of PySpark or of the standard library. The variable PYTHONSAFEPATH has
the same effect as `-P`, but programs that user functions start would inherit it, and Python scripts among them could not import modules
beside them.

Spark puts its zip of PySpark first on the path of each such process. Python does not cache compiled modules of a zip: it compiles them, 0.4
s of CPU time, in each of about six processes before a container's first batch, and in one for each source of each query that starts. The
driver runs on the same PySpark, installed and compiled once. So the script removes the zip from the path.

With a fork server (`containers.spark.start.fork_server`) the script starts a client of it.
"""

from __future__ import annotations

import logging
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

log = logging.getLogger(__name__)

_SCRIPT = """\
#!/bin/sh
set -f
IFS=:
kept=
for each in $PYTHONPATH; do
    case $each in
        {libraries}) ;;
        *) kept=$kept${{kept:+:}}$each ;;
    esac
done
export PYTHONPATH="$kept"
unset IFS
if [ "$1" = -m ]; then
    exec {forked}{python} -P {run}"$@"
fi
exec {python} -P "$@"
"""

_RUN_LAST_ON_PATH = (
    "import runpy, sys; sys.path.append(sys.argv[1]); del sys.argv[:3]; runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)"
)


def last_on_path(directory: Path) -> list[str]:
    """Arguments for Python, to be followed by `-m MODULE …`: it runs the module with the directory last on its path. PYTHONPATH would put
    the directory before the standard library."""
    return ["-c", _RUN_LAST_ON_PATH, str(directory)]


def plain_environment(job_directory: Path | None) -> Mapping[str, str]:
    """The environment for a JVM that starts plain Python: without the working directory on the path. `job_directory` is on the path, before
    the standard library, since a variable cannot put it last."""
    if job_directory is None:
        return {"PYTHONSAFEPATH": "1"}
    return {"PYTHONSAFEPATH": "1", "PYTHONPATH": os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(job_directory)]))}


def worker_python(directory: Path, job_directory: Path | None = None, forked_by: Sequence[str] = ()) -> str:
    """Write the program into `directory`, and return its path. If files may not be executed there, return plain Python. `job_directory`:
    the directory of the job file, from which helper modules are imported. `forked_by`: arguments before those of Python, if a client of the
    fork server is to be started."""
    run = "".join(f"{shlex.quote(each)} " for each in last_on_path(job_directory)) if job_directory is not None else ""
    forked = "".join(f"{shlex.quote(each)} " for each in forked_by)
    spark = find_spec("pyspark")
    for home in (spark.submodule_search_locations or ()) if spark else ():
        program = directory / "python"
        places = dict.fromkeys([home, os.path.realpath(home)])  # Spark follows links when it names them
        libraries = "|".join(f"{shlex.quote(f'{place}/python/lib')}/*.zip" for place in places)
        text = _SCRIPT.format(libraries=libraries, python=shlex.quote(sys.executable), run=run, forked=forked)
        program.write_bytes(os.fsencode(text))
        program.chmod(0o700)
        if os.access(program, os.X_OK):
            return str(program)
        log.info(
            "nothing can be executed in %s: Python processes of Spark start more slowly, with the job file's directory first on the path",
            directory,
        )
    return sys.executable
