"""The times of folders at the end of a run of the tests."""

from __future__ import annotations

import pytest

from tests.support.reports import times_of_folders


def report(nodeid: str, when: str, duration: float) -> pytest.TestReport:
    return pytest.TestReport(nodeid, ("", None, ""), {}, "passed", None, when, duration=duration)  # type: ignore[arg-type]


def test_the_seconds_of_a_folder_are_those_of_all_its_tests_with_their_fixtures() -> None:
    tests = {
        "tests/unit/core/test_a.py::test_x[a/b]": 0.5,
        "tests/unit/test_b.py::C::test_y": 1,
        "tests/integration/ui/test_c.py::test_z": 2,
    }
    reports = [report(nodeid, when, seconds) for nodeid, seconds in tests.items() for when in ("setup", "call", "teardown")]
    assert [line.split() for line in times_of_folders(reports)] == [
        ["6", "s", "1", "tests", "tests/integration/ui"],
        ["4", "s", "2", "tests", "tests/unit"],
    ]


def test_a_run_of_one_folder_has_no_times() -> None:
    assert list(times_of_folders([report("tests/unit/test_b.py::test_y", "call", 1)])) == []
