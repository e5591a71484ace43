"""Refuses requests with text that cannot be stored or encoded (`sluice.core.text`), or with bytes that are not UTF-8, and names the field.

Each `GuardedRoute` checks the URL before it is used, and the body before it is validated. The store refuses such text from any other
source.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import parse_qsl, unquote_to_bytes

from fastapi import Request
from fastapi.exceptions import RequestValidationError

from sluice.core.text import is_storable

_WITH_BODY = frozenset({"POST", "PUT", "PATCH", "DELETE"})


def check_url(request: Request) -> None:
    """Raises RequestValidationError with "path" or "query"."""
    found = [*_in_url(request)]
    if found:
        raise RequestValidationError(found)


async def check_body(request: Request) -> None:
    """Raises RequestValidationError with the name of the field."""
    found = [*_in_body(await request.body())] if request.method in _WITH_BODY else []
    if found:
        raise RequestValidationError(found)


async def read_form(request: Request) -> Mapping[str, str]:
    """The fields of a form; the last one of each name. Raises RequestValidationError if it has text that cannot be stored."""
    body = await request.body()
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
    if b"\\u" in body:  # in UTF-8, only an escape can spell such text
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
    nested as deeply as its parser allows."""
    left: list[tuple[tuple[str, ...], Any]] = [((), document)]
    while left:
        where, value = left.pop()
        match value:
            case str():
                if not is_storable(value):
                    yield where
            case Mapping():
                left += [((*where, "a field's name"), name) for name in value]
                left += [((*where, name), each) for name, each in value.items()]
            case list():
                left += [((*where, str(number)), each) for number, each in enumerate(value)]
