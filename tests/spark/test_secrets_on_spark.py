"""A secret reaches Spark's settings and is not in a list of processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import ROOT

pytestmark = [pytest.mark.spark, pytest.mark.slow]

CANARY = "hunter2 \\=:#é\U0001f99c'\"$(x)"

SESSION = """
import os
import sys
from pathlib import Path

import psutil

from containers.spark.session import start_session

name, canary, home = "spark.hadoop.fs.s3a.secret.key", os.environ.pop("CANARY"), Path(sys.argv[1])
spark = start_session("secret", "local[1]", home, {name: canary, "spark.sql.shuffle.partitions": "3"}, secret=[name])
java = psutil.Process(spark.sparkContext._gateway.proc.pid)
assert java.name() == "java"
assert not any(canary[:7] in each for process in psutil.process_iter(["cmdline"]) for each in process.info["cmdline"] or ())
assert any("--properties-file" in each for each in java.cmdline())
assert spark.sparkContext._jsc.hadoopConfiguration().get("fs.s3a.secret.key") == canary
assert spark.conf.get("spark.sql.shuffle.partitions") == "3"
assert spark.conf.get("spark.sql.ansi.enabled") == "false", "conf/spark-defaults.conf was not read"
assert not list(home.glob("secret-*"))
assert canary[:7] not in spark.sparkContext._conf.toDebugString()
spark.stop()
"""


def test_a_secret_of_the_config_is_not_an_argument_of_a_process(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "spark-defaults.conf").write_text("spark.sql.ansi.enabled false\n")
    environment = {**os.environ, "CANARY": CANARY, "SPARK_CONF_DIR": str(tmp_path / "conf")}
    done = subprocess.run(
        [sys.executable, "-c", SESSION, str(tmp_path / "spark")],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert CANARY[:7] not in done.stdout + done.stderr
