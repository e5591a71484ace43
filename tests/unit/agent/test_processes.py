"""The process table: which processes belong to a command, and which of them count as its driver."""

from __future__ import annotations

import os
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from containers.supervision import processes
from containers.supervision.processes import Process, ProcessId


def row(pid: int, parent: int, name: str = "python3", state: str = "S") -> Process:
    return Process(ProcessId(pid, pid), parent, state, name)


def table(*rows: Process) -> dict[int, Process]:
    return {each.id.pid: each for each in rows}


@pytest.mark.parametrize("name", ["java", "a b", "(sd-pam)", "x) S 1 (y"])
def test_a_name_may_contain_spaces_and_parentheses(name: str) -> None:
    fields = ["S", "7", *("0" for _ in range(17)), "1234", "0"]
    assert processes.parse_stat(f"42 ({name}) {' '.join(fields)}") == Process(ProcessId(42, 1234), 7, "S", name)


def test_this_process_is_in_the_table_below_its_parent() -> None:
    found = processes.processes()
    assert found[os.getpid()].parent == os.getppid()
    assert os.getpid() in [each.id.pid for each in processes.descendants(found, [os.getppid()])]


def test_the_table_without_proc_is_the_same() -> None:
    ours, theirs = processes.processes()[os.getpid()], processes.portable_processes()[os.getpid()]
    assert (ours.parent, ours.name, ours.ended) == (theirs.parent, theirs.name, theirs.ended)


@given(st.lists(st.integers(0, 30), min_size=31, max_size=31), st.integers(0, 30))
def test_a_process_is_a_descendant_exactly_if_its_chain_of_parents_has_the_root(parents: list[int], root: int) -> None:
    rows = table(*(row(pid, parent) for pid, parent in enumerate(parents)))

    def below(pid: int) -> bool:
        seen: set[int] = set()
        while pid not in seen:
            seen.add(pid)
            pid = parents[pid]
            if pid == root:
                return True
        return False

    expected = {pid for pid in rows if pid != root and below(pid)}
    assert {each.id.pid for each in processes.descendants(rows, [root])} == expected


def no_arguments(_: int) -> str:
    return ""


@pytest.mark.parametrize("state", ["T", "t"])
@pytest.mark.parametrize("stopped", [10, 11, 12])
def test_a_stopped_command_jvm_or_python_stops_the_driver(stopped: int, state: str) -> None:
    rows = [row(10, 1, "bash"), row(11, 10, "java"), row(12, 11, "python3.11")]
    rows = [row(each.id.pid, each.parent, each.name, state) if each.id.pid == stopped else each for each in rows]
    found = processes.stopped_driver(table(*rows), 10, no_arguments)
    assert found is not None
    assert found.id.pid == stopped


def test_a_stopped_worker_or_tool_does_not_stop_the_driver() -> None:
    rows = table(row(10, 1, "java"), row(11, 10, "python3", "T"), row(12, 10, "tail", "T"))
    assert processes.stopped_driver(rows, 10, {11: "python3 -m pyspark.daemon"}.__getitem__) is None


def test_a_stopped_process_of_another_command_does_not_stop_the_driver() -> None:
    assert processes.stopped_driver(table(row(10, 1), row(20, 1, "java", "T")), 10, no_arguments) is None


def test_a_pid_that_belongs_to_another_process_now_is_not_killed() -> None:
    child = subprocess.Popen(["sleep", "600"])
    try:
        now = processes.process(child.pid)
        assert now is not None
        processes.kill(ProcessId(child.pid, now.id.started - 1))
        processes.kill(ProcessId(child.pid, now.id.started))
        assert child.wait(300) == -9
    finally:
        child.kill()
        child.wait()


def test_processes_are_found_by_what_they_inherited() -> None:
    child = subprocess.Popen(["setsid", "sleep", "600"], env={**os.environ, "SLUICE_TEST_MARK": f"mark-{os.getpid()}"})
    try:
        assert child.pid in [each.id.pid for each in processes.marked(processes.processes(), "SLUICE_TEST_MARK", f"mark-{os.getpid()}")]
        assert processes.marked(processes.processes(), "SLUICE_TEST_MARK", "mark") == []
    finally:
        child.kill()
        child.wait()


def test_processes_that_appear_while_others_are_killed_are_killed_too() -> None:
    children = [subprocess.Popen(["sleep", "600"]) for _ in range(3)]
    found = iter([children[:1], children[1:], children, children])

    def find() -> list[Process]:
        rows = [processes.process(each.pid) for each in next(found, children)]
        return [each for each in rows if each is not None]

    assert processes.end_all(find, lambda _: None)[1]
    assert [each.wait(300) for each in children] == [-9, -9, -9]
