"""The methods of both ends with their types, from the definitions of `Engine` and `Callbacks`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from inspect import signature
from typing import Any, get_args, get_type_hints

from containers import engine as port
from containers.engine import Callbacks, Engine
from containers.rpc.connection import Interface, Signature
from sluice.core.watermarks import FeederProgress
from sluice.job import JobDescription

AGENT_FD = "SLUICE_AGENT_FD"
"""The variable with the file descriptor of the driver's end of the socket."""

TOLD = frozenset({"limit_watermark", "interrupt_batches", "on_batch", "on_end", "on_lease_lost", "on_idle"})
"""Methods that do not block and return nothing."""

OF_ITS_OWN = frozenset({"open", "start", "progress"})
"""Methods of the port that the socket has in another form: `open` with the run, and without the callbacks, which are the methods of the
agent's end; `start` with the progress after the start, so that `progress` needs no request."""


@cache
def driver_methods() -> Interface:
    """What the agent calls."""
    names = [name for name, found in vars(Engine).items() if callable(found) and not name.startswith("_") and name not in OF_ITS_OWN]
    own = {
        "describe": Signature.of((), JobDescription),
        "open": Signature.of((port.RunOfJob,), None),
        "start": Signature.of((port.StageStart,), tuple[str, FeederProgress | None]),
        "took_slot": Signature.of((str,), None, told=True),
        "end": Signature.of((int,), None, told=True),
    }
    return own | {name: _method(name) for name in names}


def _method(name: str) -> Signature:
    method = getattr(Engine, name)
    hints = get_type_hints(method)
    parameters = tuple(hints[each] for each in signature(method).parameters if each != "self")
    return Signature.of(parameters, hints["return"], told=name in TOLD)


@cache
def agent_methods() -> Interface:
    """What the driver calls."""
    hints: Mapping[str, Any] = get_type_hints(Callbacks)
    return {each.name: _callback(each.name, hints[each.name]) for each in fields(Callbacks)}


def _callback(name: str, hint: Any) -> Signature:
    parameters, result = get_args(hint)
    return Signature.of(tuple(parameters), result, told=name in TOLD)
