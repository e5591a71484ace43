"""`sluice run` in a directory whose files have the names of Sluice's packages, of Spark's and of the standard library's."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from sluice.core.ids import Generation, Lineage
from sluice.streams.log import Log, Record, Writer
from tests.support.processes import WAIT_SECONDS, completed, kill_whole, wait_for
from tests.support.traps import set_traps

pytestmark = [pytest.mark.spark, pytest.mark.slow]

RECORDS = 20

JOB = """
import random

import helper
from sluice import Job
from parts.naming import NAME
from pyspark.sql import functions as F

assert random.choice([NAME]) == "toy"
job = Job(NAME, grouper="grouping:Mine")
numbers, out = job.input("numbers"), job.output("out")


@job.stage(reads=numbers, writes=out)
def helped(task):
    import imported_late

    rows = task.read(numbers).select(F.udf(helper.help_out)(F.col("value").cast("string")).alias("v"))
    return task.write(rows, out, value=imported_late.COLUMN)
"""

HELPERS = {
    "helper.py": """
def help_out(text):
    import json
    import random
    import imported_late

    return json.dumps([random.choice([imported_late.WORD]), text])
""",
    "imported_late.py": "COLUMN, WORD = 'v', 'helped'\n",
    "parts/__init__.py": "",
    "parts/naming.py": "NAME = 'toy'\n",
    "grouping.py": "import random\nclass Mine:\n    def group(self, previous, ssps):\n        return {random.choice(['mine']): ssps}\n",
}


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    """The job file with its helper modules, in a directory full of traps."""
    directory = tmp_path / "job"
    set_traps(directory)
    for name, text in {**HELPERS, "job.py": JOB}.items():
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_text(text)
    return directory / "job.py"


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """A working directory full of traps, also for the helper modules."""
    set_traps(tmp_path / "elsewhere", "helper", "imported_late", "parts", "grouping")
    return tmp_path / "elsewhere"


@pytest.mark.long  # as tests/spark/test_helper_modules_on_spark.py and tests/integration/agent/test_worker_python.py
def test_a_job_and_its_modules_run_although_other_files_have_the_names_of_packages(tmp_path: Path, job_file: Path, elsewhere: Path) -> None:
    home = tmp_path / "home"
    log = Log(home / "log")
    log.create("numbers", 2)
    log.create("out", 1)
    records = [Record(str(n).encode(), partition=n % 2) for n in range(RECORDS)]
    assert log.append("numbers", records, writer=Writer(Lineage("feeder"), "feeder", Generation(1)), batch=0, now_micros=1)

    sluice = str(Path(sys.executable).with_name("sluice"))
    command = [sluice, "run", "../job/job.py", "--home", str(home), "--port", "0", "--start", "earliest", "--master", "local[1]"]
    with (tmp_path / "run.log").open("wb") as said:
        process = subprocess.Popen(command, cwd=elsewhere, stdin=subprocess.DEVNULL, stdout=said, stderr=said)
    try:
        wait_for("the job's output", lambda: process.poll() is not None or sum(log.latest("out").values()) == RECORDS)
        url = (tmp_path / "run.log").read_text().split()[1]  # coordinator URL
        assert completed([sluice, "drain", "toy", "--coordinator", url]).returncode == 0
        assert process.wait(WAIT_SECONDS) == 0, (tmp_path / "run.log").read_text()
        assert re.search(r"^run toy-\S+ is drained: the next run starts where it ended$", (tmp_path / "run.log").read_text(), re.MULTILINE)
    finally:
        kill_whole(process)
        print(*(f"--- {file}\n{file.read_text(errors='replace')[-3000:]}" for file in (home / "logs").rglob("*.log")), sep="\n")
    values = sorted((row[3] or b"").decode() for rows in log.read("out", 0, 0, RECORDS) for row in rows)
    assert values == sorted(f'["helped", "{n}"]' for n in range(RECORDS))
