from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers import kafka

LONGEST_FIRST = ("processes", "spark", "integration", "unit")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes minutes begins first, so that no tester is alone with it at the end."""
    here = Path(__file__).parent
    items.sort(key=lambda item: LONGEST_FIRST.index(item.path.relative_to(here).parts[0]))


@pytest.fixture(scope="session")
def kafka_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The bootstrap server of one Kafka broker for the whole run: tests choose names of their own for topics."""
    with kafka(tmp_path_factory.mktemp("kafka")) as bootstrap:
        yield bootstrap
