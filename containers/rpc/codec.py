"""Values as JSON, by their type hints: dataclasses, enumerations, times, mappings, sequences, optional values and errors.

A mapping is a list of pairs, because its keys may be dataclasses. A time is text in ISO 8601, a duration a number of microseconds. An error
is the names of its class and of the classes that it derives from, its message, its plain attributes and its trace as text.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, fields, is_dataclass
from datetime import datetime, timedelta
from enum import Enum
from functools import cache
from pathlib import Path
from traceback import format_exception
from typing import Any, NewType, Union, get_args, get_origin, get_type_hints

from sluice.core.errors import SluiceError

MICROSECOND = timedelta(microseconds=1)

PLAIN = (str, int, float, bool, types.NoneType)


class OtherProcessFailed(Exception):
    """An error of the other process that is not one of Sluice's. Its message names the class. A note has the trace."""


@dataclass(frozen=True, slots=True)
class Codec:
    """`dump` makes what `json.dumps` accepts. `load` raises TypeError, ValueError or KeyError for what `dump` has not made."""

    dump: Callable[[Any], Any]
    load: Callable[[Any], Any]


@cache
def codec_of(hint: Any) -> Codec:
    """The codec for values of this type. Raises TypeError for a type that the port does not use."""
    origin, args = get_origin(hint), get_args(hint)
    if isinstance(hint, NewType):
        return codec_of(hint.__supertype__)
    if hint is Any:
        return Codec(_same, _same)
    if hint is None or hint in PLAIN:
        return _plain(types.NoneType if hint is None else hint)
    if origin in (Union, types.UnionType):
        return _optional(args)
    return _class(hint) if origin is None else _collection(hint, origin, args)


def _class(hint: type) -> Codec:
    if issubclass(hint, BaseException):
        return Codec(dump_error, load_error)
    if issubclass(hint, Enum):
        return Codec(lambda value: value.value, hint)
    if issubclass(hint, Path):
        return Codec(str, Path)
    if issubclass(hint, datetime):
        return Codec(lambda value: value.isoformat(), datetime.fromisoformat)
    if issubclass(hint, timedelta):
        return Codec(lambda value: value // MICROSECOND, lambda found: found * MICROSECOND)
    if is_dataclass(hint):
        return _dataclass(hint)
    raise TypeError(f"the port has no values of type {hint}")


def _same(value: Any) -> Any:
    return value


def _plain(kind: type) -> Codec:
    accepted = (int, float) if kind is float else (kind,)

    def load(found: Any) -> Any:
        if not isinstance(found, accepted) or (isinstance(found, bool) and kind is not bool):
            raise TypeError(f"{found!r:.100} is not of type {kind.__name__}")
        return found

    return Codec(_same, load)


def _optional(args: tuple[Any, ...]) -> Codec:
    [hint] = (each for each in args if each is not types.NoneType)
    inner = codec_of(hint)
    return Codec(lambda value: None if value is None else inner.dump(value), lambda found: None if found is None else inner.load(found))


def _collection(hint: Any, origin: type, args: tuple[Any, ...]) -> Codec:
    if issubclass(origin, Mapping):
        key, value = map(codec_of, args)
        return Codec(
            lambda found: [[key.dump(each), value.dump(of)] for each, of in found.items()],
            lambda pairs: {key.load(each): value.load(of) for each, of in pairs},
        )
    if origin is tuple and args[-1] is not Ellipsis:
        parts = [codec_of(each) for each in args]
        return Codec(
            lambda values: [part.dump(each) for part, each in zip(parts, values, strict=True)],
            lambda found: tuple(part.load(each) for part, each in zip(parts, found, strict=True)),
        )
    if issubclass(origin, AbstractSet):
        raise TypeError(f"the port has no values of type {hint}")
    inner = codec_of(args[0])
    return Codec(lambda values: [inner.dump(each) for each in values], lambda found: tuple(inner.load(each) for each in found))


def _dataclass(hint: type) -> Codec:
    hints = get_type_hints(hint)
    parts = {each.name: codec_of(hints[each.name]) for each in fields(hint)}
    return Codec(
        lambda value: {name: part.dump(getattr(value, name)) for name, part in parts.items()},
        lambda found: hint(**{name: part.load(found[name]) for name, part in parts.items()}),
    )


# --- errors ----------------------------------------------------------------------------------------------------------


def dump_error(error: BaseException) -> Any:
    names = [f"{each.__module__}:{each.__qualname__}" for each in type(error).__mro__ if issubclass(each, SluiceError)]
    attributes = {name: value for name, value in vars(error).items() if isinstance(value, PLAIN)}
    message = str(error) if names else f"{type(error).__name__}: {error}"
    return {"names": names, "message": message, "attributes": attributes, "trace": "".join(format_exception(error))}


def load_error(found: Any) -> Exception:
    """An error of the first of its classes that this process has imported. Its trace is a note, so that it is logged with the error."""
    kind = next((known for name in found["names"] if (known := _known(name)) is not None), OtherProcessFailed)
    error = kind.__new__(kind, str(found["message"]))
    vars(error).update(found["attributes"])
    error.add_note(str(found["trace"]))
    return error


def _known(name: str) -> type[Exception] | None:
    module, _, qualified = name.partition(":")
    found = getattr(sys.modules.get(module), qualified, None)
    return found if isinstance(found, type) and issubclass(found, SluiceError) else None
