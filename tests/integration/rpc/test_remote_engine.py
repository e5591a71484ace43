"""An engine behind a socket behaves as the engine itself, and each end notices the death of the other."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from dataclasses import replace
from traceback import format_exception

import pytest

from containers.engine import StageStart
from containers.rpc.codec import OtherProcessFailed
from containers.rpc.connection import ConnectionLost
from containers.rpc.engine_server import EngineServer
from containers.rpc.remote_engine import RemoteEngine
from containers.rpc.socket_link import SocketLink
from tests.contracts.engine import BATCH, PROGRESS, EngineContract, Scene
from tests.support.agents import two_stages
from tests.support.engines import FakeEngine


class TestFakeEngine(EngineContract):
    @pytest.fixture
    async def scene(self) -> Scene:
        fake = FakeEngine()
        made = Scene(fake, fake)
        await made.on_thread(lambda engine: engine.open(made.callbacks()))
        return made


JOB = two_stages()


class Remote(Scene):
    """A fake engine behind a socket, and both ends of it."""

    server: EngineServer
    ours: socket.socket
    theirs: socket.socket
    lost: list[str]


@pytest.fixture
async def remote() -> AsyncIterator[Remote]:
    ours, theirs = socket.socketpair()
    lost: list[str] = []
    fake = FakeEngine()
    made = Remote(RemoteEngine(SocketLink(ours), lambda: lost.append("driver")), fake)
    made.ours, made.theirs, made.lost = ours, theirs, lost
    made.server = EngineServer(SocketLink(theirs), JOB.description, lambda run: fake, lambda: lost.append("agent"))
    made.server.run()
    await made.on_thread(lambda engine: engine.open(made.callbacks()))
    yield made
    await asyncio.to_thread(made.server.close)
    for each in (ours, theirs):
        each.close()


class TestRemoteEngine(EngineContract):
    @pytest.fixture
    def scene(self, remote: Remote) -> Scene:
        return remote

    async def test_the_job_is_described(self, remote: Remote) -> None:
        assert isinstance(remote.engine, RemoteEngine)
        assert await asyncio.to_thread(remote.engine.describe) == JOB.description()

    async def test_a_batch_that_is_reported_before_the_start_has_been_answered_counts(self, remote: Remote) -> None:
        def commits(start: StageStart) -> None:
            assert remote.fake._callbacks is not None
            remote.fake._callbacks.on_batch(BATCH)

        remote.fake.on_start = commits
        remote.fake.progresses[BATCH.query] = replace(PROGRESS, event_time=None)  # as it was read before the batch
        await remote.started()
        assert remote.engine.progress(BATCH.query) == PROGRESS

    async def test_an_error_of_user_code_keeps_its_trace(self, remote: Remote) -> None:
        def fails(start: StageStart) -> None:
            raise ZeroDivisionError("by zero")

        remote.fake.on_start = fails
        with pytest.raises(OtherProcessFailed, match="ZeroDivisionError: by zero") as caught:
            await remote.started()
        text = "".join(format_exception(caught.value))
        assert f'File "{__file__}"' in text
        assert "in fails" in text

    async def test_user_code_that_exits_fails_the_call_and_not_the_process(self, remote: Remote) -> None:
        def exits(start: StageStart) -> None:
            raise SystemExit(3)

        remote.fake.on_start = exits
        with pytest.raises(OtherProcessFailed, match="SystemExit: 3"):
            await remote.started()
        await remote.on_thread(lambda engine: engine.check())

    async def test_calls_are_served_while_others_wait(self, remote: Remote) -> None:
        stops = await remote.stopping(*[(await remote.started())[0] for _ in range(3)])
        await remote.on_thread(lambda engine: engine.check())
        remote.engine.interrupt_batches()
        assert await asyncio.gather(*stops) == [False] * 3

    async def test_when_the_agent_ends_each_batch_that_waits_gets_an_error(self, remote: Remote) -> None:
        _, query = await remote.started()
        remote.ours.shutdown(socket.SHUT_RDWR)
        with pytest.raises(ConnectionLost):
            await asyncio.to_thread(query.before_batch, 0)
        await asyncio.to_thread(remote.server.close)
        assert "agent" in remote.lost

    async def test_when_the_driver_ends_each_call_that_waits_raises(self, remote: Remote) -> None:
        token, _ = await remote.started()
        [stop] = await remote.stopping(token)
        remote.theirs.shutdown(socket.SHUT_RDWR)
        with pytest.raises(ConnectionLost):
            await stop
        with pytest.raises(ConnectionLost):
            await remote.on_thread(lambda engine: engine.check())
        remote.engine.interrupt_batches()  # does nothing
        assert "driver" in remote.lost
        remote.fake.forced.set()
