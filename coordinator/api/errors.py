"""Converts errors to answers of type `application/problem+json` (RFC 9457). Only this module does so."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from math import ceil
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from coordinator.api.text import MAX_ERRORS
from sluice.core.errors import (
    Bug,
    InvalidRequest,
    MethodNotAllowed,
    NotAuthenticated,
    RetryAfter,
    SluiceError,
    UnknownPath,
    UnreadableBody,
)
from sluice.core.remedies import plain, remedy_of_error
from sluice.wire import body as wire_body

log = logging.getLogger(__name__)

MEDIA_TYPE = "application/problem+json"


OF_STATUS: Mapping[int, type[SluiceError]] = {400: UnreadableBody, 404: UnknownPath, 405: MethodNotAllowed}
"""The errors that the web framework raises."""


def problem_of(error: SluiceError, instance: str | None = None, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """The answer. `headers`: instead of those that the class of the error requires."""
    if headers is None and isinstance(error, RetryAfter):
        headers = {"Retry-After": str(ceil(error.retry_after))}
    elif headers is None and isinstance(error, NotAuthenticated):
        headers = {"WWW-Authenticate": "Bearer"}
    body = wire_body.Problem(
        type=f"urn:sluice:{error.slug}",
        title=error.title(),
        status=error.status,
        detail=str(error).encode(errors="backslashreplace").decode(),  # an error of user code may have text that cannot be encoded
        instance=instance,
        remedy=plain(remedy_of_error(error)),
    )
    return JSONResponse(body.model_dump(exclude_none=True), error.status, media_type=MEDIA_TYPE, headers=dict(headers or {}))


NOT_READ_AS_JSON = "body: send the header Content-Type: application/json"
NOT_JSON = "body: it is not valid JSON, is nested too deeply, or has a number with too many digits"


def _described(error: Mapping[str, Any], body: Any) -> str:
    """What is wrong with which field. `body`: what was validated; bytes if it was not read as JSON."""
    if error["loc"][0] == "body" and isinstance(body, bytes):
        return NOT_READ_AS_JSON
    if error["type"] == "json_invalid":
        return f"body: it is not valid JSON at character {error['loc'][1]}: {error['ctx']['error']}"
    return f"{'.'.join(map(str, _place(error['loc'], body)))}: {error['msg']}"


def _place(loc: Sequence[str | int], body: Any) -> Iterator[str | int]:
    """The parts of a field's place that the request has, too. Pydantic adds the name of the member to the place of a union."""
    yield loc[0]
    inside = body
    for part in loc[1:]:
        if loc[0] == "body" and body is not None and isinstance(part, str) and part != "[key]" and _names_member(part, inside):
            continue
        yield part
        inside = _value_at(part, inside)


_MISSING = object()
"""What a place that the request does not have contains. A field that was given under its old name is such a place, too."""


def _names_member(part: str, inside: Any) -> bool:
    if isinstance(inside, Mapping):
        return part not in inside and part.endswith("]")
    return inside is not _MISSING


def _value_at(part: str | int, inside: Any) -> Any:
    match inside:
        case Mapping() if part in inside:
            return inside[part]
        case list() if isinstance(part, int) and part < len(inside):
            return inside[part]
    return _MISSING


async def _sluice_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, SluiceError)
    if isinstance(error, Bug):
        log.error("internal error: %s", error, exc_info=error)
    return problem_of(error, request.scope["path"])


async def _invalid(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    texts = dict.fromkeys(_described(each, error.body) for each in error.errors()[:MAX_ERRORS])
    return problem_of(InvalidRequest("; ".join(texts)[:2000]), request.scope["path"])


async def _http_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    kind, path = OF_STATUS.get(error.status_code), request.scope["path"]
    if kind is None:
        return await _unexpected(request, error)
    # without the path: a URL may contain a secret, and clients print this text
    detail = NOT_JSON if kind is UnreadableBody else f"there is no request {request.method} at this path"
    return problem_of(kind(detail), path, error.headers)


async def _incomplete(request: Request, error: Exception) -> JSONResponse:
    """The connection ended before the whole body had arrived, so no client reads this answer. It is no error of the coordinator."""
    return problem_of(UnreadableBody("the connection ended before the whole body had arrived"), request.scope["path"])


async def _unexpected(request: Request, error: Exception) -> JSONResponse:
    log.error("unexpected error at %s", request.scope["path"], exc_info=error)
    return problem_of(Bug(type(error).__name__), request.scope["path"])


def install(app: FastAPI) -> None:
    app.add_exception_handler(SluiceError, _sluice_error)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(ClientDisconnect, _incomplete)
    app.add_exception_handler(Exception, _unexpected)
