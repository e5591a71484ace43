"""A container under spark-submit: `spark-submit --master MASTER sluice_driver.py JOBFILE`, with the environment of `sluice container`.

Needs Sluice in the Python that spark-submit starts (PYSPARK_DRIVER_PYTHON). See docs/spark-masters.md.
"""

import sys
from pathlib import Path

from containers.driver import run

if not sys.flags.safe_path:
    del sys.path[0]  # this file's directory: a file in it must not shadow a module of Sluice or of the standard library

run(Path(sys.argv[1]))
