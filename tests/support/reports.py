"""The times of the tests, at the end of the output of pytest."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

import pytest


def times_of_folders(reports: Sequence[pytest.TestReport]) -> Iterator[str]:
    """The seconds of the tests of each folder, summed over all workers, if there are several folders."""
    tests, seconds = Counter[str](), defaultdict[str, float](float)
    for each in reports:
        folder = _folder(each.nodeid)
        tests[folder] += each.when == "setup"
        seconds[folder] += each.duration
    for folder in sorted(seconds) if len(seconds) > 1 else ():
        yield f"{seconds[folder]:7.0f} s {tests[folder]:6} tests  {folder}"


def _folder(nodeid: str) -> str:
    """The folder of `tests`; of its largest one, `integration`, the folder in it."""
    parts = nodeid.partition("::")[0].split("/")[:-1]
    return "/".join(parts[: 3 if parts[1:2] == ["integration"] else 2])
