from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.caller import Caller, calling
from tests.fakes import FakeClock
from tests.support.s3servers import S3_CREDENTIALS, S3Server, versitygw
from tests.support.servers import Postgres, postgres


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Postgres]:
    """A server for all tests that leave it running; each has a database of its own."""
    with postgres() as server:
        yield server


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """One for the whole run: tests have buckets of their own."""
    with versitygw(tmp_path_factory.mktemp("versitygw")) as server:
        yield server


@pytest.fixture
def s3(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """The server, and its credentials in the environment."""
    for name, value in S3_CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    return s3_server


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
async def caller(home: Path, clock: FakeClock) -> AsyncIterator[Caller]:
    """A coordinator whose log has the stream `flights` of two partitions."""
    async with calling(home, clock) as made:
        made.log.create("flights", 2)
        yield made
