"""The routes of the pages. A page, a dialog or an error is HTML; the event stream is `text/event-stream`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse, StreamingResponse

from coordinator.api.access import COOKIE, AccessDep, GuardedRoute, RequestGuard, RequestGuardDep, attempt_of, session_of
from coordinator.api.deps import Actor
from coordinator.api.text import read_form
from coordinator.identity.logins import CALLBACK, LOGIN_LASTS, Logins
from coordinator.identity.sessions import SESSION_LASTS
from coordinator.ui import compression
from coordinator.ui.actions import Actions
from coordinator.ui.live import MAX_PAGES_OF_A_READER, LivePages, Render
from coordinator.ui.render import environment, page
from coordinator.ui.views import Page, Pages
from sluice.core.access.providers import RefusedToken
from sluice.core.errors import ClientError, Forbidden, NotAuthenticated, SluiceError

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "frame-ancestors 'none'; base-uri 'none'"
)
HEADERS: Mapping[str, str] = {"Content-Security-Policy": POLICY, "Cache-Control": "no-store"}

TYPES = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


LOGIN = "POST /ui/login"


class PageRoute(GuardedRoute):
    """A guarded route that answers errors with a page; without a valid token, with the login form."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        answer = super().get_route_handler()

        async def answered(request: Request) -> Response:
            try:
                return await answer(request)
            except SluiceError as error:
                return _failed_page(request, error)

        return answered


router = APIRouter(include_in_schema=False, route_class=PageRoute)


@dataclass(frozen=True, slots=True)
class Ui:
    """The objects that the routes use. Built once, by `coordinator.app`."""

    pages: Pages
    live: LivePages
    actions: Actions
    logins: Logins


def _ui(request: Request) -> Ui:
    found: Ui = request.app.state.ui
    return found


# --- pages without authentication ---------------------------------------------------------------------------------------------


@router.get("/ui")
async def redirect_to_root() -> Response:
    return RedirectResponse("ui/", 308)


@router.get("/ui/static/{file}")
async def get_static(file: str, request: Request) -> Response:
    found = _static().get(file)
    if found is None:
        return Response("there is no such file", 404, media_type="text/plain")
    headers = {"Content-Security-Policy": POLICY, "Cache-Control": "max-age=3600", "Vary": "Accept-Encoding"}
    if not compression.accepted(request.headers.getlist("accept-encoding")):
        return Response(found[0], media_type=TYPES[file.rsplit(".", 1)[-1]], headers=headers)
    return Response(found[1], media_type=TYPES[file.rsplit(".", 1)[-1]], headers={**headers, "Content-Encoding": "gzip"})


@cache
def _static() -> Mapping[str, tuple[bytes, bytes]]:
    """Each file by name, as it is and compressed."""
    read = {each.name: each.read_bytes() for each in (files("coordinator.ui") / "static").iterdir()}
    return {name: (content, compression.whole(content, level=9)) for name, content in read.items()}


@router.post("/ui/login")
async def log_in(request: Request, access: AccessDep) -> Response:
    """Begin a session with the token of a form. Its id is kept in a cookie that scripts cannot read and other sites cannot make the
    browser send. The attempt is recorded in the audit log."""
    token = (await read_form(request)).get("token", "").strip()
    if not token:
        raise ClientError("paste a token into the form")
    answer = RedirectResponse(".", 303, headers=dict(HEADERS))
    if not access.authentication.required:
        return answer
    address = request.client.host if request.client else ""
    try:
        principal = request.state.principal = await access.authentication.identify(token, address)
    except NotAuthenticated as error:
        await access.audit_log.login_failed(attempt_of(request, LOGIN), error.status, error.slug)
        raise
    if principal.token_id is None:
        raise ClientError("this token is of an identity provider: follow the link to its login instead")
    attempt = attempt_of(request, LOGIN)
    began = await access.audit_log.begin(attempt, {})
    session_id = await access.authentication.sessions.begin(principal.token_id)
    await access.audit_log.end(began, answer.status_code, "")
    # Without a path, the cookie is valid for the directory of the form's URL, also behind a proxy that adds a prefix.
    seconds, secure = int(SESSION_LASTS.total_seconds()), request.scope.get("scheme") == "https"
    answer.set_cookie(COOKIE, session_id, max_age=seconds, path=None, httponly=True, samesite="strict", secure=secure)
    return answer


LOGIN_COOKIE = "sluice_login"


@router.get("/ui/login/{provider}")
async def begin_login(provider: str, request: Request) -> Response:
    """Redirect to the login page of an identity provider."""
    logins = _ui(request).logins
    url, browser = await logins.begin(provider, request.headers.get("host", ""), str(request.scope.get("scheme")))
    answer = RedirectResponse(url, 303, headers=dict(HEADERS))
    seconds, secure = int(LOGIN_LASTS.total_seconds()), request.scope.get("scheme") == "https"
    # Lax, because the provider's page sends the browser back. The path is that of this answer, also behind a proxy that adds a prefix.
    answer.set_cookie(LOGIN_COOKIE, browser, max_age=seconds, path=None, httponly=True, samesite="lax", secure=secure)
    return answer


@router.get(CALLBACK)
async def end_login(provider: str, request: Request, access: AccessDep) -> Response:
    """Where the identity provider sends the browser back to: begins a session. The attempt is recorded in the audit log."""
    logins, address = _ui(request).logins, request.client.host if request.client else ""
    try:
        identity, path = await logins.end(provider, request.query_params, request.cookies.get(LOGIN_COOKIE, ""))
    except RefusedToken as refused:
        error = access.authentication.refusal("", address, str(refused))
        await access.audit_log.login_failed(attempt_of(request, f"GET {CALLBACK}"), error.status, error.slug)
        raise error from refused
    principal = request.state.principal = access.authentication.of_identity(identity)
    attempt = attempt_of(request, f"GET {CALLBACK}")
    if not principal.rights.grants:
        refusal = Forbidden(f"{principal.name} has no role: the table of the provider {provider} has none for its groups")
        await access.audit_log.refused(attempt, refusal.status, str(refusal))
        raise refusal
    began = await access.audit_log.begin(attempt, {})
    session_id = await access.authentication.sessions.begin_with(identity)
    await access.audit_log.end(began, 200, "")
    # A page, not a redirect: a browser sends no strict cookie with a redirect that began at another site.
    answer = _html("logged_in", root="../../")
    seconds, secure = int(SESSION_LASTS.total_seconds()), request.scope.get("scheme") == "https"
    answer.set_cookie(COOKIE, session_id, max_age=seconds, path=path, httponly=True, samesite="strict", secure=secure)
    return answer


@router.post("/ui/logout")
async def log_out(request: Request, access: AccessDep) -> Response:
    """End the session of the browser, and its event stream."""
    await access.authentication.sessions.end(session_of(request))
    answer = RedirectResponse(".", 303, headers=dict(HEADERS))
    answer.set_cookie(COOKIE, "", max_age=0, path=None, httponly=True, samesite="strict")
    return answer


# --- events ---------------------------------------------------------------------------------------------------------------


@router.get("/ui/events")
async def get_events(
    request: Request,
    guard: RequestGuardDep,
    pages: Annotated[list[str] | None, Query(alias="page", description="a page's URL below /ui/")] = None,
    versions: Annotated[list[int] | None, Query(alias="version", description="the version that the browser has of each page")] = None,
    epoch: str = "",
) -> Response:
    """The changes of the pages that a browser shows. With versions of another process (`epoch`), everything is sent."""
    ui, found, known, keys = _ui(request), dict[str, Render](), dict[str, int](), dict[str, str]()
    for each, version in zip((pages or [])[:MAX_PAGES_OF_A_READER], [*(versions or []), *[0] * len(pages or [])], strict=False):
        path, _, query = each.partition("?")
        try:
            target = ui.pages.find(path, query, guard.jobs)
            await _check(target, guard)
        except SluiceError:  # the page shows the error when it is loaded again
            continue
        found[target.rendering], keys[target.rendering] = target.render, target.key
        known[target.rendering] = version if epoch == ui.live.epoch else 0
    stream = ui.live.events(found, known, keys, guard.valid)
    first = await anext(stream)  # raises what refuses the stream before the answer begins
    headers = {**HEADERS, "X-Accel-Buffering": "no", "Vary": "Accept-Encoding"}

    async def body() -> AsyncIterator[bytes]:
        yield first.plain
        async for each in stream:
            yield each.plain

    async def compressed_body() -> AsyncIterator[bytes]:
        trailer = compression.Trailer()
        trailer.sent(first.plain)
        yield compression.HEADER + first.compressed
        async for each in stream:
            trailer.sent(each.plain)
            yield each.compressed
        yield trailer.end()

    if compression.accepted(request.headers.getlist("accept-encoding")):
        return StreamingResponse(compressed_body(), media_type="text/event-stream", headers={**headers, "Content-Encoding": "gzip"})
    return StreamingResponse(body(), media_type="text/event-stream", headers=headers)


async def _check(target: Page, guard: RequestGuard) -> None:
    """Raises Forbidden if the reader may not see the page."""
    if target.roles is not None:
        guard = guard.needing(target.roles)
    if target.job is not None:
        await guard.job(await target.job())
    elif not target.lists_jobs:
        await guard.all_jobs()


# --- actions ----------------------------------------------------------------------------------------------------------------


@router.get("/ui/actions/{name}")
async def get_action(name: str, request: Request, guard: RequestGuardDep) -> Response:
    """The dialog of an action, with its plan."""
    actions, subject = _ui(request).actions, dict(request.query_params)
    try:
        await actions.check(name, subject, guard, perform=False)
        plan = await actions.plan(name, subject)
    except SluiceError as error:
        return _html("failed", error.status, error=error)
    return _html("dialog", plan=plan, name=name, subject=subject)


@router.post("/ui/actions/{name}")
async def post_action(name: str, request: Request, guard: RequestGuardDep, actor: Actor) -> Response:
    """Perform an action. The answer is its result."""
    ui, subject = _ui(request), await read_form(request)
    try:
        await ui.actions.check(name, subject, guard, perform=True)
        done = await ui.actions.perform(name, subject, actor)
    except SluiceError as error:
        return _html("failed", error.status, error=error)
    finally:
        ui.live.expire()
    return _html("done", done=done)


# --- pages ------------------------------------------------------------------------------------------------------------------


@router.get("/ui/{path:path}")
async def get_page(path: str, request: Request, guard: RequestGuardDep) -> Response:
    """The current state of a page."""
    ui, raw = _ui(request), request.scope.get("raw_path", b"").decode("latin-1").partition("?")[0]
    found = ui.pages.find(raw.partition("/ui/")[2] if "/ui/" in raw else quote(path), request.url.query, guard.jobs)
    await _check(found, guard)
    live = await ui.live.page(found.rendering, found.render)
    text = page(found.title, found.crumbs, _root(path), found.key, live.version, ui.live.epoch, live.pieces, guard.name).encode()
    headers = {**HEADERS, "Vary": "Accept-Encoding"}
    if not compression.accepted(request.headers.getlist("accept-encoding")):
        return HTMLResponse(text, headers=headers)
    return HTMLResponse(compression.whole(text), headers={**headers, "Content-Encoding": "gzip"})


def _root(path: str) -> str:
    """The relative URL of `/ui/`. Pages have no other links, so they also work behind a proxy that adds a prefix."""
    return "../" * path.count("/") or "./"


def _failed_page(request: Request, error: SluiceError) -> Response:
    if request.scope["path"].startswith("/ui/actions/"):  # a dialog of a page
        return _html("failed", error.status, error=error)
    root = _root(request.scope["path"].removeprefix("/ui/"))
    if isinstance(error, NotAuthenticated):
        path, providers = request.scope["path"], _ui(request).logins.providers
        tried = request.method == "POST" or path.startswith("/ui/login/")
        return _html("login", error.status, error=error, root=root, tried=tried, providers=providers)
    return _html("error", error.status, error=error, root=root, title="Not found" if error.status == 404 else "Error")


def _html(template: str, status: int = 200, **values: object) -> Response:
    return HTMLResponse(environment().get_template(f"{template}.html").render(**values), status, headers=dict(HEADERS))
