"""The page `/docs`, which shows the API and can send requests, and the OpenAPI document. The coordinator serves all scripts itself: Swagger
UI comes from the package fastapi-offline. So the page works without the Internet and runs no script of another site.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files

from fastapi import APIRouter, FastAPI, HTTPException, Request, Response
from fastapi.responses import HTMLResponse

from coordinator.api.access import GuardedRoute

router = APIRouter(include_in_schema=False, route_class=GuardedRoute)

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; frame-ancestors 'none'; "
    "base-uri 'none'; form-action 'none'"
)
HEADERS: Mapping[str, str] = {"Content-Security-Policy": POLICY}

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>Sluice coordinator</title>
<link rel="stylesheet" href="/docs/swagger-ui.css">
</head>
<body>
<div id="api"></div>
<script src="/docs/swagger-ui-bundle.js"></script>
<script src="/docs/start.js"></script>
</body>
</html>
"""

START = b'SwaggerUIBundle({url: "/openapi.json", dom_id: "#api", deepLinking: true, validatorUrl: null});\n'

TYPES = {"swagger-ui.css": "text/css", "swagger-ui-bundle.js": "text/javascript", "start.js": "text/javascript"}


@router.get("/docs")
async def get_docs() -> HTMLResponse:
    return HTMLResponse(PAGE, headers=dict(HEADERS))


@router.get("/docs/{file}")
async def get_docs_file(file: str) -> Response:
    if file not in TYPES:
        raise HTTPException(404)
    return Response(_read(file), media_type=TYPES[file], headers={**HEADERS, "Cache-Control": "max-age=3600"})


@router.get("/openapi.json")
async def get_openapi(request: Request) -> Response:
    """In a thread, because to make the document takes about a second, and heartbeats must be answered meanwhile."""
    return Response(await asyncio.to_thread(_document, request.app), media_type="application/json")


_made: list[bytes] = []
"""The document, once it has been made. It is the same for all applications of a process."""


def _document(api: FastAPI) -> bytes:
    if not _made:
        _made.append(json.dumps(api.openapi()).encode())
    return _made[0]


@cache
def _read(file: str) -> bytes:
    return START if file == "start.js" else (files("fastapi_offline") / "static" / file).read_bytes()
