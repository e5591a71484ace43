from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from containers.local.run import coordinator_command, coordinator_environment, run_options
from coordinator.jobmodels.groupers import Groupers, run_in_thread
from coordinator.settings import read_settings
from sluice.core.errors import BadGrouping, BadSettings
from sluice.core.ids import Ssp
from sluice.core.jobmodels.grouping import GroupByPartition, PreviousAssignment

GROUPER = """
class Mine:
    def group(self, previous, ssps):
        return {"mine": ssps}

class Sub(Mine): ...

from collections import OrderedDict
nothing = 7
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """`grouping_of_mine` and `broken_grouping` are on the path, but not yet imported."""
    (tmp_path / "grouping_of_mine.py").write_text(GROUPER)
    (tmp_path / "broken_grouping.py").write_text("raise RuntimeError('half written')")
    (tmp_path / "leaving_grouping.py").write_text("raise SystemExit(2)")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("grouping_of_mine", None)


def refusal(name: str, *allowed: str, max_tasks: int | None = None) -> str:
    with pytest.raises(BadGrouping) as caught:
        Groupers(allowed).named(name, max_tasks)
    return str(caught.value)


def tasks(name: str, *allowed: str, max_tasks: int | None = None) -> set[str]:
    ssps = frozenset(Ssp("log", "s", p) for p in range(9))
    return set(Groupers(allowed).named(name, max_tasks).group(PreviousAssignment(), ssps))


def test_sluices_own_groupers_need_no_allowance() -> None:
    assert Groupers().named("GroupByPartition", 3) == GroupByPartition(3)


def test_nothing_else_is_imported_unless_it_is_allowed() -> None:
    output = refusal("grouping_of_mine:Mine")
    assert "SLUICE_GROUPERS='[\"grouping_of_mine:Mine\"]'" in output
    assert "does not load the grouper grouping_of_mine:Mine" in output
    assert "grouping_of_mine" not in sys.modules


@pytest.mark.parametrize("allowed", ["grouping_of_mine:Mine", "grouping_of_mine:*"])
def test_an_allowed_class_groups(allowed: str) -> None:
    assert tasks("grouping_of_mine:Mine", "elsewhere:Other", allowed) == {"mine"}


def test_an_allowed_class_does_not_allow_another_of_its_module() -> None:
    assert "does not load" in refusal("grouping_of_mine:Sub", "grouping_of_mine:Mine")


def test_a_star_allows_classes_defined_in_the_module_and_not_those_it_imports() -> None:
    output = refusal("tests.support.custom_groupers:TaskName", "tests.support.custom_groupers:*")
    assert "it is not a class with a method group" in output
    (Path(sys.path[0]) / "importing_grouping.py").write_text("from grouping_of_mine import Mine\n")
    output = refusal("importing_grouping:Mine", "importing_grouping:*")
    assert "allows classes that are defined in importing_grouping; Mine is defined in grouping_of_mine" in output
    assert tasks("importing_grouping:Mine", "importing_grouping:Mine") == {"mine"}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("lost_grouping:Mine", "cannot be imported: ModuleNotFoundError: No module named 'lost_grouping'"),
        ("broken_grouping:Mine", "cannot be imported: RuntimeError: half written"),
        ("leaving_grouping:Mine", "cannot be imported: SystemExit: 2"),
        ("grouping_of_mine:Lost", "there is no such name"),
        ("grouping_of_mine:nothing", "it is not a class with a method group"),
        ("grouping_of_mine:OrderedDict", "it is not a class with a method group"),
        ("tests.support.custom_groupers:a_function", "it is not a class with a method group"),
        (
            "tests.support.custom_groupers:NeedsArguments",
            "cannot be instantiated without arguments: missing a required argument: 'modulus'",
        ),
        ("grouping_of_mine:Mine()", "as module:Class"),
    ],
)
def test_the_error_about_a_grouper_that_cannot_be_loaded_has_the_cause(name: str, expected: str) -> None:
    assert expected in refusal(name, name)


def test_a_class_that_takes_max_tasks_is_given_it() -> None:
    blocks = "tests.support.custom_groupers:InBlocks"
    assert tasks(blocks, blocks) == {f"block {n}" for n in range(4)}
    assert tasks(blocks, blocks, max_tasks=2) == {"block 0", "block 1"}


def test_a_class_that_does_not_take_max_tasks_is_refused_it() -> None:
    parity = "tests.support.custom_groupers:ByParity"
    assert "cannot be instantiated with max_tasks, which the run sets" in refusal(parity, parity, max_tasks=2)
    assert "must be at least 1" in refusal("tests.support.custom_groupers:InBlocks", "tests.support.custom_groupers:*", max_tasks=0)


# --- the setting ---


def test_nothing_is_allowed_by_default(tmp_path: Path) -> None:
    assert read_settings(home=tmp_path).groupers == ()


def test_the_setting_is_a_list_in_json_or_toml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sluice.toml").write_text('groupers = ["a.b:C", "d:*"]\n')
    monkeypatch.setenv("SLUICE_CONFIG", str(tmp_path / "sluice.toml"))
    assert read_settings().groupers == ("a.b:C", "d:*")
    monkeypatch.setenv("SLUICE_GROUPERS", '["e:F"]')
    assert read_settings().groupers == ("e:F",)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("a:B", "a JSON list is needed"),
        ('["a"]', "'a' is not a grouper: write module:Class"),
        ('["*"]', "'*' is not a grouper"),
        ("7", "groupers"),
    ],
)
def test_a_setting_that_allows_nothing_is_refused(monkeypatch: pytest.MonkeyPatch, value: str, expected: str) -> None:
    monkeypatch.setenv("SLUICE_GROUPERS", value)
    with pytest.raises(BadSettings, match="groupers") as caught:
        read_settings()
    assert expected in str(caught.value)


JOB = """
from sluice import Job

job = Job("delays", grouper=GROUPER)
flights, out = job.input("flights"), job.output("out")

@job.stage(reads=flights, writes=out)
def only(task): ...
"""


def test_sluice_run_allows_its_coordinator_the_jobs_own_grouper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICE_GROUPERS", '["other:Grouper"]')
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    for grouper, allowed, looked_for in [
        ("GroupByPartition", '["other:Grouper"]', False),
        ("grouping_of_mine:Mine", '["grouping_of_mine:Mine"]', True),
    ]:
        (tmp_path / "job.py").write_text(JOB.replace("GROUPER", repr(grouper)))
        options = run_options(tmp_path / "job.py", 1, tmp_path / "home", 8180, "checkpoint", "log", [])
        environment = coordinator_environment(options)
        assert (environment["SLUICE_GROUPERS"], environment["PYTHONPATH"]) == (allowed, "/elsewhere")
        assert (str(tmp_path) in coordinator_command(options)) == looked_for


# --- isolation ---


async def test_work_in_another_process_does_not_block_the_event_loop() -> None:
    go_on = threading.Event()
    work = asyncio.create_task(run_in_thread(go_on.wait, timedelta(seconds=30)))
    await asyncio.sleep(0)
    assert not work.done()
    go_on.set()
    assert await work


async def test_work_that_takes_too_long_is_abandoned() -> None:
    go_on = threading.Event()
    with pytest.raises(TimeoutError):
        await run_in_thread(go_on.wait, timedelta(seconds=0.01))
    go_on.set()


@pytest.mark.parametrize("error", [ZeroDivisionError("x"), BadGrouping("y")])
async def test_an_error_in_the_other_process_is_raised_here(error: Exception) -> None:
    def fail() -> None:
        raise error

    with pytest.raises(type(error)) as caught:
        await run_in_thread(fail, timedelta(seconds=30))
    assert caught.value is error
