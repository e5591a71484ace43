from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.servers import NotInstalled, kafka

LONGEST_FIRST = ("processes", "spark", "integration", "unit")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes minutes begins first, so that no tester is alone with it at the end."""
    here = Path(__file__).parent
    items.sort(key=lambda item: LONGEST_FIRST.index(item.path.relative_to(here).parts[0]))


@contextmanager
def skipping() -> Iterator[None]:
    """A test whose server is not installed is skipped; with REQUIRE_SERVERS=1, as in CI, it fails."""
    try:
        yield
    except NotInstalled as error:
        if os.environ.get("REQUIRE_SERVERS") == "1":
            pytest.fail(f"{error}, and REQUIRE_SERVERS=1", pytrace=False)
        pytest.skip(str(error))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Generator[None, Any, Any]:
    with skipping():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, Any, Any]:
    with skipping():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Generator[None, Any, Any]:
    """A tester sends its reports as UTF-8 and ends at a text that has none, so a lone surrogate goes as its escape."""
    return sendable((yield))


def sendable(told: Any) -> Any:
    match told:
        case str():
            return told.encode("utf-8", "backslashreplace").decode()
        case dict():
            return {sendable(key): sendable(value) for key, value in told.items()}
        case list() | tuple():
            return type(told)(map(sendable, told))
        case _:
            return told


@pytest.fixture(scope="session")
def kafka_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The bootstrap server of one Kafka broker for the whole run: tests choose names of their own for topics."""
    with kafka(tmp_path_factory.mktemp("kafka")) as bootstrap:
        yield bootstrap
