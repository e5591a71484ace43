"""Groupers that users write: how they are named, and how far their answers are believed.

A custom grouper is a class `module:Class` with `group(previous, ssps)`, as `core.grouping.Grouper` says: it maps every partition to
exactly one task, by the task's name. `previous` is what was stored for a stateful job, and cannot be changed; `ssps` are the partitions
that are not broadcast. Equal arguments must give equal answers, in every process: no chance, no time, and no `hash()` of a string, which
Python salts per process. For a stateful job the stored assignment has the last word over it, as over every grouper.

It is asked twice, each time a new object and with the set in another order, and what it answers is checked; nothing is changed when it
fails.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from coordinator.core.errors import BadGrouping
from coordinator.core.grouping import Grouper, Groups, Previous
from coordinator.core.ids import Ssp, TaskName

_DOTTED = r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*"
_CLASS = re.compile(rf"({_DOTTED}):([A-Za-z_][A-Za-z0-9_]*)")
_ALLOWED = re.compile(rf"{_DOTTED}:(?:[A-Za-z_][A-Za-z0-9_]*|\*)")

_TASK_NAME = re.compile(r"(?![. ])[ -.0-~]{1,200}(?<! )")
"""Printable ASCII without a slash: a task's name is a part of URLs."""


@dataclass(frozen=True, slots=True)
class GrouperName:
    """`module:Class`."""

    module: str
    of_class: str

    @staticmethod
    def parse(name: str) -> GrouperName:
        """Raises BadGrouping."""
        found = _CLASS.fullmatch(name)
        if found is None:
            raise BadGrouping(f"{name[:200]!r} names no grouper: a class of your own is named module:Class")
        return GrouperName(*found.groups())

    def __str__(self) -> str:
        return f"{self.module}:{self.of_class}"


def is_allowance(text: str) -> bool:
    """Whether the text is `module:Class`, or `module:*` for all classes that are written in a module."""
    return _ALLOWED.fullmatch(text) is not None


class _Forwards(frozenset[Ssp]):
    """A set that comes in order."""

    def __iter__(self) -> Iterator[Ssp]:
        return iter(sorted(super().__iter__()))


class _Backwards(frozenset[Ssp]):
    """The same set the other way round: whoever counts along a set gets other numbers in every process."""

    def __iter__(self) -> Iterator[Ssp]:
        return iter(sorted(super().__iter__(), reverse=True))


@dataclass(frozen=True, slots=True)
class CheckedGrouper:
    """The grouper that `make` makes, asked twice and checked. Raises BadGrouping for whatever is wrong with it, naming it."""

    name: str
    make: Callable[[], Grouper]

    def group(self, previous: Previous, ssps: frozenset[Ssp]) -> Groups:
        kept = Previous(MappingProxyType(dict(previous.tasks)), MappingProxyType(dict(previous.baselines)), previous.grouping)
        groups = self._answer(kept, _Forwards(ssps))
        if self._answer(kept, _Backwards(ssps)) != groups:
            raise BadGrouping(f"{self.name} answers the same question in two ways: equal arguments must give equal tasks")
        return groups

    def _answer(self, previous: Previous, ssps: frozenset[Ssp]) -> Groups:
        try:
            return self._checked(self.make().group(previous, ssps), ssps)
        except BadGrouping:
            raise
        except (Exception, SystemExit) as error:
            raise BadGrouping(f"{self.name} failed: {type(error).__name__}: {error}") from error

    def _checked(self, answer: object, ssps: frozenset[Ssp]) -> Groups:
        if not isinstance(answer, Mapping):
            raise BadGrouping(f"{self.name} must answer a mapping of task names to partitions, not a {type(answer).__name__}")
        owners: dict[Ssp, TaskName] = {}
        groups = {self._name(name): self._partitions(name, members) for name, members in answer.items()}
        for name, members in groups.items():
            for ssp in members:
                if ssp not in ssps:
                    raise BadGrouping(f"{self.name} gives task {name!r} {ssp}, which it was not given")
                if ssp in owners:
                    raise BadGrouping(f"{self.name} gives {ssp} twice, to task {owners[ssp]!r} and to task {name!r}")
                owners[ssp] = name
        if len(owners) < len(ssps):
            left = sorted(ssps - owners.keys())
            raise BadGrouping(f"{self.name} gives {len(left)} of {len(ssps)} partitions to no task: {', '.join(map(str, left[:5]))}")
        return {name: frozenset(groups[name]) for name in sorted(groups)}

    def _name(self, name: object) -> TaskName:
        if not isinstance(name, str) or not _TASK_NAME.fullmatch(name):
            raise BadGrouping(
                f"{self.name} names a task {str(name)[:80]!r}: use a string of 1 to 200 printable ASCII characters without a slash, "
                "that neither begins with a dot nor begins or ends with a space"
            )
        return TaskName(str(name))

    def _partitions(self, name: object, members: object) -> list[Ssp]:
        found = list(members) if isinstance(members, Iterable) else None
        if found is None or not all(isinstance(each, Ssp) for each in found):
            raise BadGrouping(f"{self.name} must give task {name!r} a collection of Ssp, not {str(members)[:80]!r}")
        if not found:
            raise BadGrouping(f"{self.name} gives task {name!r} no partition")
        return found
