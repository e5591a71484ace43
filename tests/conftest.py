from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.servers import kafka


@pytest.fixture(scope="session")
def kafka_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The bootstrap server of one Kafka broker for the whole run: tests choose names of their own for topics."""
    with kafka(tmp_path_factory.mktemp("kafka")) as bootstrap:
        yield bootstrap
