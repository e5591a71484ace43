"""The weather demo, a month of it: two containers, of which one starts late, six queries, a join of two routed streams that is exact to the
row."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from examples.weather.data import JOINED, PARTITIONS
from sluice.streams.log import Log
from tests.support.processes import WAIT_SECONDS, kill_whole

pytestmark = [pytest.mark.spark, pytest.mark.slow]

DEPARTURES, HOURS = 27_004, 2_226
"""Of January 2013. 52 of the departures have no weather, and their hours are closed at the end of the month."""


LATE_SECONDS = 15
"""By then the first container has read as much of the month as it may."""


@pytest.mark.long
def test_a_month_of_departures_is_joined_exactly_with_its_weather_when_one_container_starts_late(tmp_path: Path) -> None:
    home = tmp_path / "demo"
    arguments = ["--month-limit", "1", "--seconds-per-month", "0", "--late", str(LATE_SECONDS), "--home", str(home), "--keep"]
    process = subprocess.Popen(
        [sys.executable, "-m", "examples.weather.demo", *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        output, _ = process.communicate(timeout=WAIT_SECONDS)
    finally:
        kill_whole(process)
    assert process.returncode == 0, output
    assert f"{DEPARTURES:,} of {DEPARTURES:,} departures, {HOURS:,} of {HOURS:,} hours of weather routed" in output
    assert "26,952 departures with weather, 52 without, 0 still waiting, 0 differences" in output
    written = Log(home / "log").latest(JOINED)
    assert sum(written.values()) == DEPARTURES
    assert len([p for p, count in written.items() if count]) == PARTITIONS
