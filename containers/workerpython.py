"""The Python that Spark starts on this machine for data sources and user functions.

Spark puts its own zip of PySpark before everything else on the path of each such process. Python keeps no compiled form of what is in a zip
and compiles it anew, 0.4 s of CPU, in each of some six processes until a container's first batch, and in one for each source of each query
that is started. What the driver runs on is the same PySpark, installed, and compiled once: this Python has the zip taken off its path.
"""

from __future__ import annotations

import logging
import os
import shlex
import sys
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
exec {python} "$@"
"""


def worker_python(directory: Path) -> str:
    """The program, in the directory if files may be executed there, else plain Python."""
    spark = find_spec("pyspark")
    for home in (spark.submodule_search_locations or ()) if spark else ():
        program = directory / "python"
        library = Path(home) / "python" / "lib"
        program.write_text(_SCRIPT.format(library=shlex.quote(str(library)), python=shlex.quote(sys.executable)), encoding="utf-8")
        program.chmod(0o700)
        if os.access(program, os.X_OK):
            return str(program)
        log.info("nothing may be executed in %s: Spark's Python processes start slower", directory)
    return sys.executable
