"""Refuses requests with text that cannot be stored or encoded (`sluice.core.text`), or with bytes that are not UTF-8, and names the field.

Each `GuardedRoute` checks the URL before it is used, and the body before it is validated. The store refuses such text from any other
source.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from itertools import chain, islice, repeat
from typing import Any
from urllib.parse import parse_qsl, unquote_to_bytes

from fastapi import Request
from fastapi.exceptions import RequestValidationError

from coordinator.api.bodies import MAX_FORM, WITH_BODY
from sluice.core.errors import BodyTooLarge
from sluice.core.text import is_storable

MAX_ERRORS = 10
"""Errors of one request that are described."""

_SUSPICIOUS = re.compile(rb"\\u(?:0000|[dD][89a-fA-F])")
"""How JSON that is valid UTF-8 spells NUL and surrogates; also pairs of these, and a backslash that is followed by such text."""


def check_url(request: Request) -> None:
    """Raises RequestValidationError with "path" or "query"."""
    found = [*_in_url(request)]
    if found:
        raise RequestValidationError(found)


async def check_body(request: Request) -> None:
    """Raises RequestValidationError with the name of the field."""
    found = [*islice(_in_body(await request.body()), MAX_ERRORS)] if request.method in WITH_BODY else []
    if found:
        raise RequestValidationError(found)


async def read_form(request: Request) -> Mapping[str, str]:
    """The fields of a form; the last one of each name. Raises BodyTooLarge, and RequestValidationError if it has text that cannot be
    stored."""
    body = await request.body()
    if len(body) > MAX_FORM:
        raise BodyTooLarge(f"send at most {MAX_FORM} bytes in a form")
    found = [*_of_bytes("body", unquote_to_bytes(body))]
    if found:
        raise RequestValidationError(found)
    return dict(parse_qsl(body.decode()))


def _in_url(request: Request) -> Iterator[dict[str, Any]]:
    for part, raw in (("path", request.scope.get("raw_path") or b""), ("query", request.scope["query_string"])):
        if b"%" in raw or not raw.isascii():
            yield from _of_bytes(part, unquote_to_bytes(raw))


def _in_body(body: bytes) -> Iterator[dict[str, Any]]:
    yield from _of_bytes("body", body)
    if _SUSPICIOUS.search(body):
        try:
            values = json.loads(body)
        except (ValueError, RecursionError):
            return  # a form, or malformed JSON, which the route refuses
        for where in _unprintable(values):
            yield _error(("body", *where), "NUL and lone surrogates are not allowed")


def _of_bytes(part: str, text: bytes) -> Iterator[dict[str, Any]]:
    try:
        if "\0" in text.decode():
            yield _error((part,), "NUL is not allowed")
    except UnicodeDecodeError:
        yield _error((part,), "it is not UTF-8")


def _error(where: tuple[str, ...], message: str) -> dict[str, Any]:
    return {"type": "unprintable_text", "loc": where, "msg": message}


def _unprintable(document: Any) -> Iterator[tuple[str, ...]]:
    """The places in a JSON document where a value or a field name has a NUL or a lone surrogate. Not recursive, since a document may be
    nested as deeply as its parser allows. A place is written only if it is found, because a document may have many values."""
    path: list[str] = []
    left = [_members([document])]
    while left:
        for name, value in left[-1]:
            if isinstance(value, str):
                if not is_storable(value):
                    yield (*path[1:], *([str(name)] if path else []))
            elif isinstance(value, dict | list):
                path.append(str(name))
                left.append(_members(value))
                break
        else:
            left.pop()
            if path:
                path.pop()


def _members(value: dict[str, Any] | list[Any]) -> Iterator[tuple[str | int, Any]]:
    if isinstance(value, list):
        return iter(enumerate(value))
    return chain(zip(repeat("a field's name"), value), value.items())
