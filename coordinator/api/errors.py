"""Converts errors to answers of type `application/problem+json` (RFC 9457). Only this module does so."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from math import ceil
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from sluice.core.errors import Bug, NotAuthenticated, RetryAfter, SluiceError
from sluice.wire import body as wire_body

log = logging.getLogger(__name__)

MEDIA_TYPE = "application/problem+json"


def problem(
    slug: str, title: str, status: int, detail: str, instance: str | None = None, headers: Mapping[str, str] | None = None
) -> JSONResponse:
    text = detail.encode(errors="backslashreplace").decode()  # an error of user code may have text that cannot be encoded
    body = wire_body.Problem(type=f"urn:sluice:{slug}", title=title, status=status, detail=text, instance=instance)
    return JSONResponse(body.model_dump(exclude_none=True), status, media_type=MEDIA_TYPE, headers=dict(headers or {}))


def problem_of(error: SluiceError, instance: str | None = None) -> JSONResponse:
    headers = None
    if isinstance(error, RetryAfter):
        headers = {"Retry-After": str(ceil(error.retry_after))}
    elif isinstance(error, NotAuthenticated):
        headers = {"WWW-Authenticate": "Bearer"}
    return problem(error.slug, error.title(), error.status, str(error), instance, headers)


def _where(error: Mapping[str, Any]) -> str:
    return ".".join(str(part) for part in error["loc"])


async def _sluice_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, SluiceError)
    if isinstance(error, Bug):
        log.error("internal error: %s", error, exc_info=error)
    return problem_of(error, request.scope["path"])


async def _invalid(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    text = "; ".join(f"{_where(each)}: {each['msg']}" for each in error.errors()[:10])[:2000]
    return problem("invalid-request", "The request does not have the form that the API documents.", 422, text, request.scope["path"])


async def _http_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    return problem(
        f"http-{error.status_code}", str(error.detail), error.status_code, str(error.detail), request.scope["path"], error.headers
    )


async def _incomplete(request: Request, error: Exception) -> JSONResponse:
    """The connection ended before the whole body had arrived, so no client reads this answer. It is no error of the coordinator."""
    return problem("http-400", "Bad Request", 400, "the connection ended before the whole body had arrived", request.scope["path"])


async def _unexpected(request: Request, error: Exception) -> JSONResponse:
    log.error("unexpected error at %s", request.scope["path"], exc_info=error)
    return problem("bug", "Internal error", 500, type(error).__name__, request.scope["path"])


def install(app: FastAPI) -> None:
    app.add_exception_handler(SluiceError, _sluice_error)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(ClientDisconnect, _incomplete)
    app.add_exception_handler(Exception, _unexpected)
