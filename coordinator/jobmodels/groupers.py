"""Groupers by name: the built-in ones, and user-defined classes that the operator of this coordinator allows.

A deploy request that names a class makes the coordinator import it, which runs the code of its module in this process. Therefore only
classes listed in the setting `groupers`, as `module:Class` or `module:*`, are imported; by default there are none.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import threading
from collections.abc import Callable, Collection
from concurrent.futures import Executor, Future
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar, cast

from sluice.core.errors import BadGrouping
from sluice.core.jobmodels.grouping import CheckedGrouper, Grouper, GrouperName, grouper_named

_Result = TypeVar("_Result")


PLAN_WITHIN = timedelta(seconds=30)
"""The time limit for planning a job model, including its grouper."""


class Groupers:
    """`allowed`: the classes and modules that may be imported. `plan_within`: the time limit for a call of a grouper."""

    def __init__(self, allowed: Collection[str] = (), plan_within: timedelta = PLAN_WITHIN) -> None:
        self._allowed = frozenset(allowed)
        self._plan_within = plan_within

    async def apply(self, name: str, max_tasks: int | None, work: Callable[[Grouper], _Result]) -> _Result:
        """Call `work` with the grouper of that name, and return its result. It runs in a thread, because ten thousand tasks are slow to
        plan and the grouper may be user code. Raises BadGrouping, also on a timeout, and the errors of `work`."""
        try:
            return await run_in_thread(lambda: work(self.named(name, max_tasks)), self._plan_within)
        except TimeoutError as error:
            raise BadGrouping(f"the grouper {name} did not return within {self._plan_within.total_seconds():g} s") from error

    def named(self, name: str, max_tasks: int | None) -> Grouper:
        """The grouper of that name. A user-defined class is instantiated for every call: with `max_tasks=N` if the run sets it,
        otherwise without arguments. Its module is imported once, so that changed code needs a restart of the coordinator.

        Raises BadGrouping if it does not exist, is not allowed, cannot be imported, or does not accept the argument.
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
            how = "without arguments" if max_tasks is None else "with max_tasks, which the run sets"
            raise BadGrouping(f"the grouper {parsed} cannot be instantiated {how}: {error}") from error
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
            what = "there is no such name" if found is None else "it is not a class with a method group(previous, ssps)"
            raise BadGrouping(f"the grouper {name} cannot be used: {what}")
        if str(name) not in self._allowed and found.__module__ != name.module:
            raise BadGrouping(
                f"{name.module}:* allows classes that are defined in {name.module}; {name.of_class} is defined in {found.__module__}"
            )
        return cast("Callable[..., Grouper]", found)


def _at_least_one(max_tasks: int) -> int:
    if max_tasks < 1:
        raise BadGrouping(f"maxTasks is {max_tasks}: it must be at least 1")
    return max_tasks


async def run_in_thread(work: Callable[[], _Result], within: timedelta) -> _Result:
    """Run `work` in a thread, so that the event loop stays free for heartbeats. Raises the errors of `work`, and TimeoutError."""
    async with asyncio.timeout(within.total_seconds()):
        return await asyncio.get_running_loop().run_in_executor(_OwnThread(), work)


class _OwnThread(Executor):
    """Runs each function in a new daemon thread, so that work that never returns does not prevent the coordinator from exiting."""

    def submit(self, work: Callable[..., _Result], /, *arguments: Any, **named: Any) -> Future[_Result]:
        outcome: Future[_Result] = Future()
        outcome.set_running_or_notify_cancel()

        def run() -> None:
            try:
                result = work(*arguments, **named)
            except BaseException as error:
                outcome.set_exception(error)
            else:
                outcome.set_result(result)

        threading.Thread(target=run, name="grouper", daemon=True).start()
        return outcome
