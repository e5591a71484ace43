"""The job file in docs/script-to-job.md can be loaded, and is that of the flights demo."""

from __future__ import annotations

import re
from pathlib import Path

from examples.flights.demo import JOB_FILE
from sluice.job import load_job

PAGE = Path(__file__).parents[2] / "docs" / "script-to-job.md"


def test_the_job_file_of_the_page_has_the_streams_and_stages_of_the_flights_demo(tmp_path: Path) -> None:
    (text,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
    (tmp_path / "job.py").write_text(text)
    page, demo = load_job(tmp_path / "job.py"), load_job(JOB_FILE)
    assert [each.stage for each in page.chain()] == [each.stage for each in demo.chain()]
    assert (page.name, page.intermediates) == (demo.name, demo.intermediates)
