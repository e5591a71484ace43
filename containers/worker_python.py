"""The Python that Spark starts on this machine for data sources and user functions.

Spark starts it with `-m`, for which Python puts the working directory before everything else on the path. `-P` keeps it off, and the job
file's directory comes last: neither shadows a module of Sluice, of PySpark or of the standard library. The variable PYTHONSAFEPATH would do
the same as `-P`, but programs that user functions start would inherit it: a Python script among them could not import what is beside it.

Spark puts its own zip of PySpark before everything else on the path of each such process. Python keeps no compiled form of what is in a zip
and compiles it anew, 0.4 s of CPU, in each of some six processes until a container's first batch, and in one for each source of each query
that is started. What the driver runs on is the same PySpark, installed, and compiled once: this Python has the zip taken off its path.
"""

from __future__ import annotations

import logging
import os
import shlex
import sys
from collections.abc import Mapping
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
        {library}/*.zip) ;;
        *) kept=$kept${{kept:+:}}$each ;;
    esac
done
export PYTHONPATH="$kept"
unset IFS
if [ "$1" = -m ]; then
    set -- {run}"$@"
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


def plain_environment(beside: Path | None) -> Mapping[str, str]:
    """What a JVM needs in its environment where it starts plain Python: the working directory is off the path then, too. `beside` is on it,
    before the standard library, as there is no other way."""
    if beside is None:
        return {"PYTHONSAFEPATH": "1"}
    return {"PYTHONSAFEPATH": "1", "PYTHONPATH": os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(beside)]))}


def worker_python(directory: Path, beside: Path | None = None) -> str:
    """The program, in `directory` if files may be executed there, else plain Python. `beside`: the directory of the job file, whose helper
    modules are to be found."""
    run = "".join(f"{shlex.quote(each)} " for each in last_on_path(beside)) if beside is not None else ""
    spark = find_spec("pyspark")
    for home in (spark.submodule_search_locations or ()) if spark else ():
        program = directory / "python"
        library = Path(home) / "python" / "lib"
        text = _SCRIPT.format(library=shlex.quote(str(library)), python=shlex.quote(sys.executable), run=run)
        program.write_bytes(os.fsencode(text))
        program.chmod(0o700)
        if os.access(program, os.X_OK):
            return str(program)
        log.info(
            "nothing may be executed in %s: Spark's Python processes start slower, the job file's directory first on their path", directory
        )
    return sys.executable
