"""`Client`: the calls of operators for programs without an event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Concatenate, ParamSpec, Self, TypeVar

import httpx

from sluice.client.connection import Retries
from sluice.client.operators import PATIENCE, AsyncClient

P = ParamSpec("P")
T = TypeVar("T")


def _blocking(method: Callable[Concatenate[AsyncClient, P], Awaitable[T]]) -> Callable[Concatenate[Client, P], T]:
    """The method of `Client` that returns when that of `AsyncClient` is done."""

    @wraps(method)
    def call(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._until_done(method, *args, **kwargs)

    return call


class Client:
    """`AsyncClient`, whose methods return when they are done. Threads may share a client. Methods raise the same errors.

    Its requests run on an event loop in a thread of its own, so it also works in notebooks and callbacks, where another loop is running.
    `with Client() as client` closes it at the end."""

    def __init__(
        self,
        url: str | None = None,
        *,
        token: str | None = None,
        retries: Retries = PATIENCE,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """The parameters and errors of `AsyncClient`."""
        self._client = AsyncClient(url, token=token, retries=retries, transport=transport)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="sluice-client", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections and end the thread. A closed client may be closed again."""
        if self._loop.is_closed():
            return
        self._until_done(AsyncClient.close)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _until_done(self, method: Callable[Concatenate[AsyncClient, P], Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        async def run() -> T:
            return await method(self._client, *args, **kwargs)

        running = asyncio.run_coroutine_threadsafe(run(), self._loop)
        try:
            return running.result()
        except BaseException:  # of the caller's thread too, such as KeyboardInterrupt
            running.cancel()
            raise

    # --- jobs and runs ---------------------------------------------------------------------------------------------

    live = _blocking(AsyncClient.live)
    jobs = _blocking(AsyncClient.jobs)
    remove_job = _blocking(AsyncClient.remove_job)
    runs = _blocking(AsyncClient.runs)
    run = _blocking(AsyncClient.run)
    request_of = _blocking(AsyncClient.request_of)
    containers = _blocking(AsyncClient.containers)
    notices = _blocking(AsyncClient.notices)
    plan_run = _blocking(AsyncClient.plan_run)
    deploy = _blocking(AsyncClient.deploy)
    stop_run = _blocking(AsyncClient.stop_run)
    set_backup = _blocking(AsyncClient.set_backup)

    # --- drains ----------------------------------------------------------------------------------------------------

    plan_drain = _blocking(AsyncClient.plan_drain)
    request_drain = _blocking(AsyncClient.request_drain)
    drain = _blocking(AsyncClient.drain)
    drains = _blocking(AsyncClient.drains)
    cancel_drain = _blocking(AsyncClient.cancel_drain)

    # --- versions of the job model ---------------------------------------------------------------------------------

    job_model = _blocking(AsyncClient.job_model)
    plan = _blocking(AsyncClient.plan)
    change = _blocking(AsyncClient.change)
    versions = _blocking(AsyncClient.versions)
    version = _blocking(AsyncClient.version)
    difference = _blocking(AsyncClient.difference)
    roll_back = _blocking(AsyncClient.roll_back)

    # --- snapshots -------------------------------------------------------------------------------------------------

    snapshots = _blocking(AsyncClient.snapshots)
    snapshot = _blocking(AsyncClient.snapshot)
    pins = _blocking(AsyncClient.pins)
    pin = _blocking(AsyncClient.pin)
    unpin = _blocking(AsyncClient.unpin)
    choose = _blocking(AsyncClient.choose)
    verify = _blocking(AsyncClient.verify)
    verify_job = _blocking(AsyncClient.verify_job)

    # --- garbage collection, operations ----------------------------------------------------------------------------

    collection = _blocking(AsyncClient.collection)
    explain = _blocking(AsyncClient.explain)
    operation = _blocking(AsyncClient.operation)
    completed = _blocking(AsyncClient.completed)

    # --- tokens ----------------------------------------------------------------------------------------------------

    tokens = _blocking(AsyncClient.tokens)
    create_token = _blocking(AsyncClient.create_token)
    revoke_token = _blocking(AsyncClient.revoke_token)
    end_sessions = _blocking(AsyncClient.end_sessions)
    identity_providers = _blocking(AsyncClient.identity_providers)
    audit_log = _blocking(AsyncClient.audit_log)
    job_events = _blocking(AsyncClient.job_events)
