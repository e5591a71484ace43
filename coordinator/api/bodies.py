"""Refuses JSON bodies with too many values, fields or levels, before they are validated: an error for each of a million values would take
longer than a lease. The limit of bytes (`coordinator.api.middleware.limited`) does not bound these counts well enough."""

from __future__ import annotations

import re
from typing import Any

from fastapi import Request

from sluice.core.errors import InvalidRequest

WITH_BODY = frozenset({"POST", "PUT", "PATCH", "DELETE"})

MAX_VALUES = 150_000
"""Values in a body, such as 30,000 offsets of partitions, which have four fields each."""

MAX_FIELDS = 2_000
"""Fields of one object: each unknown or wrong one costs an error."""

MAX_DEPTH = 50
"""Levels of arrays and objects."""

MAX_FORM = 64 * 1024
"""Bytes of a form. One of 4 MB takes seconds to decode."""

_STRING = re.compile(rb'"[^"]*"?')


async def check_size(request: Request) -> None:
    """Raises InvalidRequest with the limit."""
    if request.method not in WITH_BODY:
        return
    body = await request.body()
    nested = body.count(b"[") + body.count(b"{")
    if nested + body.count(b",") > MAX_VALUES and _values(body) > MAX_VALUES:
        raise InvalidRequest(f"body: send at most {MAX_VALUES:,} values in a request")
    if nested > MAX_DEPTH or body.count(b":") > MAX_FIELDS:
        try:
            document = await request.json()
        except ValueError:
            return  # a form, or malformed JSON, which the route refuses
        except RecursionError:
            raise _too_deep() from None
        _check_levels(document)


def _values(body: bytes) -> int:
    """An upper bound of the number of values in JSON: each follows a comma or a bracket outside strings. Linear in the size of any text:
    a string may be searched for from each quotation mark once only, so escaped ones are removed first."""
    plain = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    strings = plain.count(b'"') // 4  # at least every second one is a value, the others are the names of fields
    if strings > MAX_VALUES:
        return strings
    structure = _STRING.sub(b"", plain)
    return structure.count(b",") + structure.count(b"[") + structure.count(b"{")


def _check_levels(document: Any) -> None:
    level = [document]
    for _ in range(MAX_DEPTH):
        for each in level:
            if isinstance(each, dict) and len(each) > MAX_FIELDS:
                raise InvalidRequest(f"body: send at most {MAX_FIELDS:,} fields in one object")
        level = [
            inner
            for each in level
            if isinstance(each, list | dict)
            for inner in (each.values() if isinstance(each, dict) else each)
            if type(inner) in _CONTAINERS
        ]
        if not level:
            return
    raise _too_deep()


_CONTAINERS = frozenset({list, dict})


def _too_deep() -> InvalidRequest:
    return InvalidRequest(f"body: nest at most {MAX_DEPTH} levels of arrays and objects")
