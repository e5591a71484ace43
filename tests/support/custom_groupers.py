"""User-defined groupers, correct and incorrect ones, for `tests.support.custom_groupers:NAME`."""

from __future__ import annotations

import random
import sys
import threading
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from sluice.core.ids import Ssp, TaskName
from sluice.core.jobmodels.grouping import PreviousAssignment


class ByParity:
    """Even partitions in one task, odd ones in another."""

    def group(self, previous: PreviousAssignment, ssps: frozenset[Ssp]) -> Mapping[TaskName, frozenset[Ssp]]:
        even = frozenset(ssp for ssp in ssps if ssp.partition % 2 == 0)
        return {TaskName(name): group for name, group in (("even", even), ("odd", ssps - even)) if group}


class InBlocks:
    """At most `max_tasks` tasks, returned as plain strings and lists."""

    def __init__(self, max_tasks: int = 4) -> None:
        self.max_tasks = max_tasks

    def group(self, previous: PreviousAssignment, ssps: frozenset[Ssp]) -> dict[str, list[Ssp]]:
        groups: defaultdict[str, list[Ssp]] = defaultdict(list)
        for ssp in ssps:
            groups[f"block {ssp.partition % self.max_tasks}"].append(ssp)
        return groups


class Sticky:
    """Keeps the stored assignment, and assigns all new partitions to one further task."""

    def group(self, previous: PreviousAssignment, ssps: frozenset[Ssp]) -> dict[str, set[Ssp]]:
        groups: defaultdict[str, set[Ssp]] = defaultdict(set)
        for ssp in ssps:
            groups[previous.tasks.get(ssp, "late" if previous.tasks else "early")].add(ssp)
        return groups


class Answers:
    """Returns what `answer` returns."""

    def answer(self, ssps: list[Ssp]) -> Any:
        raise NotImplementedError

    def group(self, previous: PreviousAssignment, ssps: frozenset[Ssp]) -> Any:
        return self.answer(sorted(ssps))


class Drops(Answers):
    def answer(self, ssps: list[Ssp]) -> Any:
        return {"all": ssps[1:]}


class Doubles(Answers):
    def answer(self, ssps: list[Ssp]) -> Any:
        return {"a": ssps, "b": ssps[:1]}


class DoublesInOneTask(Answers):
    def answer(self, ssps: list[Ssp]) -> Any:
        return {"a": [*ssps, ssps[0]]}


class Invents(Answers):
    def answer(self, ssps: list[Ssp]) -> Any:
        return {"a": [*ssps, Ssp("log", "flights", 999)]}


class NoMapping(Answers):
    def answer(self, ssps: list[Ssp]) -> Any:
        return [("a", ssps)]


class NoPartitions(Answers):
    def answer(self, ssps: list[Ssp]) -> Any:
        return {"a": ssps, "b": []}


class Spelled(Answers):
    def answer(self, ssps: list[Ssp]) -> Any:
        return {"a": [str(ssp) for ssp in ssps]}


class OnlyOne(Answers):
    def answer(self, ssps: list[Ssp]) -> Any:
        return {"a": 7}


class Unnamed(Answers):
    def answer(self, ssps: list[Ssp]) -> Any:
        return {None: ssps}


class Raises(Answers):
    def answer(self, ssps: list[Ssp]) -> Any:
        raise ZeroDivisionError("of no use")


class Exits(Answers):
    def answer(self, ssps: list[Ssp]) -> Any:
        sys.exit(3)


class ByChance(Answers):
    def answer(self, ssps: list[Ssp]) -> Any:
        return {f"{random.random()}": ssps}


class Remembers:
    """Its result depends on how often it was called, over all objects."""

    asked = 0

    def group(self, previous: PreviousAssignment, ssps: frozenset[Ssp]) -> Any:
        Remembers.asked += 1
        return {f"task {Remembers.asked}": ssps}


class ByOrder:
    """Depends on the iteration order of a set."""

    def group(self, previous: PreviousAssignment, ssps: frozenset[Ssp]) -> Any:
        return {str(place): [ssp] for place, ssp in enumerate(ssps)}


class ModifiesAssignment:
    """Modifies the stored assignment."""

    def group(self, previous: Any, ssps: frozenset[Ssp]) -> Any:
        previous.tasks[next(iter(ssps))] = "mine"
        return {"a": ssps}


class NeedsArguments(ByParity):
    def __init__(self, modulus: int) -> None:
        self.modulus = modulus


class CannotBeMade(ByParity):
    def __init__(self) -> None:
        raise OSError("no file")


class Endless(ByParity):
    """Does not return until it is `released`."""

    released = threading.Event()

    def group(self, previous: PreviousAssignment, ssps: frozenset[Ssp]) -> Mapping[TaskName, frozenset[Ssp]]:
        self.released.wait()
        return super().group(previous, ssps)


def a_function(previous: PreviousAssignment, ssps: frozenset[Ssp]) -> dict[str, frozenset[Ssp]]:
    return {"a": ssps}
