from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress

import pytest

from containers.errors import ClassArchiveUnavailable
from containers.spark.start.cds import ensure_archive

SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For JVMs that run for a minute: half of the CPU time of Spark's start is spent on optimizing code that is hardly used again."""


@pytest.fixture(scope="package", autouse=True)
def drivers_start_quickly() -> Iterator[None]:
    """The class archive is in the user's cache, as in an installation."""
    with suppress(ClassArchiveUnavailable):  # tests/spark/test_own_session.py reports a missing archive; here tests are only slower
        ensure_archive(os.environ)
    before = os.environ.get("SLUICE_SPARK_CONF")
    os.environ["SLUICE_SPARK_CONF"] = json.dumps({"spark.driver.extraJavaOptions": SHORT_LIVED})
    yield
    if before is None:
        del os.environ["SLUICE_SPARK_CONF"]
    else:
        os.environ["SLUICE_SPARK_CONF"] = before
