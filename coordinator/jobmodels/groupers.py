"""Groupers by their names: Sluice's own, and the classes of users that this coordinator's operator allows.

Whoever names a class makes the coordinator import it, which runs its module's code here. Hence only what the setting `groupers` lists is
imported, `module:Class` or `module:*`, and that is nothing by default.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import threading
from collections.abc import Callable, Collection
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import TypeVar, cast

from sluice.core.errors import BadGrouping
from sluice.core.grouping import CheckedGrouper, Grouper, GrouperName, grouper_named

_Result = TypeVar("_Result")


PLAN_WITHIN = timedelta(seconds=30)
"""How long the making of a job model may take, its grouper included."""


class Groupers:
    """`allowed`: what may be imported; `plan_within` bounds what is asked of a grouper."""

    def __init__(self, allowed: Collection[str] = (), plan_within: timedelta = PLAN_WITHIN) -> None:
        self._allowed = frozenset(allowed)
        self._plan_within = plan_within

    async def apply(self, name: str, max_tasks: int | None, work: Callable[[Grouper], _Result]) -> _Result:
        """What `work` makes of the grouper of that name. Beside the event loop: ten thousand tasks take a while, and a grouper may be
        anybody's code. Raises BadGrouping, also when it takes too long, and what `work` raises."""
        try:
            return await run_in_thread(lambda: work(self.named(name, max_tasks)), self._plan_within)
        except TimeoutError as error:
            raise BadGrouping(f"the grouper {name} has not answered within {self._plan_within.total_seconds():g} s") from error

    def named(self, name: str, max_tasks: int | None) -> Grouper:
        """The grouper of that name. A class is made anew for every answer: with `max_tasks=N` if the run asks for it, else without
        arguments. Its module is imported once, so that a change of its code needs a new coordinator.

        Raises BadGrouping for one that does not exist, is not allowed, cannot be imported, or does not take what it would be given.
        """
        if ":" not in name:
            return grouper_named(name, max_tasks)
        parsed = GrouperName.parse(name)
        if not {str(parsed), f"{parsed.module}:*"} & self._allowed:
            raise BadGrouping(
                f"this coordinator does not load the grouper {parsed}: its operator must allow it, as in SLUICE_GROUPERS="
                f"'{json.dumps([str(parsed)])}' (its code runs in the coordinator)"
            )
        found = self._class(parsed)
        given = {} if max_tasks is None else {"max_tasks": _at_least_one(max_tasks)}
        try:
            inspect.signature(found).bind(**given)
        except TypeError as error:
            how = "without arguments" if max_tasks is None else "with max_tasks, which the run asks for"
            raise BadGrouping(f"the grouper {parsed} cannot be made {how}: {error}") from error
        return CheckedGrouper(str(parsed), partial(found, **given))

    def _class(self, name: GrouperName) -> Callable[..., Grouper]:
        try:
            module = importlib.import_module(name.module)
        except (Exception, SystemExit) as error:
            raise BadGrouping(
                f"the grouper {name} cannot be imported: {type(error).__name__}: {error}; the coordinator must have its module on its path"
            ) from error
        found = getattr(module, name.of_class, None)
        if not inspect.isclass(found) or not callable(getattr(found, "group", None)):
            what = "there is no such name" if found is None else "it is no class with a method group(previous, ssps)"
            raise BadGrouping(f"the grouper {name} cannot be used: {what}")
        if str(name) not in self._allowed and found.__module__ != name.module:
            raise BadGrouping(
                f"{name.module}:* allows the classes that are written in {name.module}; {name.of_class} is {found.__module__}'s"
            )
        return cast("Callable[..., Grouper]", found)


def _at_least_one(max_tasks: int) -> int:
    if max_tasks < 1:
        raise BadGrouping(f"maxTasks is {max_tasks}: it must be at least 1")
    return max_tasks


async def run_in_thread(work: Callable[[], _Result], within: timedelta) -> _Result:
    """Run `work` beside the event loop, which heartbeats need. Raises what it raises, and TimeoutError when it takes too long.

    It has a thread of its own and none of a pool: one that never returns does not keep the coordinator from ending.
    """
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[_Result] = loop.create_future()

    def settle(result: _Result | None, error: BaseException | None) -> None:
        if outcome.done():
            return
        if error is not None:
            outcome.set_exception(error)
        else:
            outcome.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result, failure = None, None
        try:
            result = work()
        except BaseException as error:
            failure = error
        with suppress(RuntimeError):  # the loop is over
            loop.call_soon_threadsafe(settle, result, failure)

    threading.Thread(target=run, name="grouper", daemon=True).start()
    async with asyncio.timeout(within.total_seconds()):
        return await outcome
