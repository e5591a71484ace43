"""The methods of both ends with their types, from the definition of a port."""

from __future__ import annotations

from collections.abc import Collection, Mapping
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
    own = {
        "describe": Signature.of((), JobDescription),
        "open": Signature.of((port.RunOfJob,), None),
        "start": Signature.of((port.StageStart,), tuple[str, FeederProgress | None]),
        "took_slot": Signature.of((str,), None, told=True),
        "end": Signature.of((int,), None, told=True),
    }
    return {**own, **methods_of(Engine, TOLD, OF_ITS_OWN)}


def methods_of(port: type, told: Collection[str], without: Collection[str] = ()) -> Interface:
    """The methods of a protocol, without those names. `told`: those that do not block and return nothing."""
    found: dict[str, Signature] = {}
    for name, method in vars(port).items():
        if callable(method) and not name.startswith("_") and name not in without:
            hints = get_type_hints(method)
            parameters = tuple(hints[each] for each in signature(method).parameters if each != "self")
            found[name] = Signature.of(parameters, hints["return"], told=name in told)
    return found


@cache
def agent_methods() -> Interface:
    """What the driver calls."""
    hints: Mapping[str, Any] = get_type_hints(Callbacks)
    return {each.name: _callback(each.name, hints[each.name]) for each in fields(Callbacks)}


def _callback(name: str, hint: Any) -> Signature:
    parameters, result = get_args(hint)
    return Signature.of(tuple(parameters), result, told=name in TOLD)
