"""Which planned batch of `app.kafka_writer` cannot be in the topic."""

from __future__ import annotations

import pytest

from containers.attached.batch_context import BatchContext
from containers.attached.checkpoints.kafka_opening import Opening


class Files:
    """The files of a checkpoint."""

    def __init__(self) -> None:
        self.content: dict[str, bytes] = {}

    def read(self, name: str) -> bytes | None:
        return self.content.get(name)

    def write(self, name: str, content: bytes) -> None:
        self.content[name] = content

    def delete(self, name: str) -> None:
        self.content.pop(name, None)


@pytest.mark.parametrize(
    ("later", "left"),
    [
        (BatchContext("q", 0, 3), True),  # the script has started the query again
        (BatchContext("q", 0, 4), True),
        (BatchContext("q", 0, 5), False),  # a start in between may have used another sink
        (BatchContext("q", 1, 4), False),
        (BatchContext("another", 0, 4), False),
    ],
)
def test_only_the_batch_in_which_the_former_start_has_failed_to_open_is_not_in_the_topic(later: BatchContext, left: bool) -> None:
    opening = Opening(Files(), "orders")
    opening.begin(BatchContext("q", 0, 3))
    assert opening.left(later) is left


def test_a_batch_that_may_have_been_written_and_a_file_that_was_not_written_completely_do_not_count() -> None:
    files = Files()
    opening = Opening(files, "orders")
    opening.begin(BatchContext("q", 0, 3))
    (name,) = files.content
    files.content[name] = files.content[name][:9]
    assert not opening.left(BatchContext("q", 0, 4))
    opening.begin(BatchContext("q", 0, 3))
    opening.end()
    assert not opening.left(BatchContext("q", 0, 4))
