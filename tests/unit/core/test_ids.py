from __future__ import annotations

import pytest

from sluice.core.errors import BadName
from sluice.core.ids import Ssp, StreamId, checked_name


@pytest.mark.parametrize("name", ["a", "0", "page-views", "ads.clicks", "a..b", "A_b-c.9", "x" * 249])
def test_a_name_that_kafka_accepts_is_accepted(name: str) -> None:
    assert checked_name("stream", name) == name


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "../x", "a/b", "a\\b", "-rf", "_x", ".hidden", "a b", "a\n", "a\x00", "é", "a;b", "x" * 250, "\ud800"],
)
def test_a_name_that_is_unsafe_in_a_path_or_on_a_command_line_is_refused(name: str) -> None:
    with pytest.raises(BadName):
        checked_name("stream", name)


def test_the_refusal_says_what_is_named_and_which_characters_are_allowed() -> None:
    with pytest.raises(BadName, match=r"invalid stage name '\.\./x': use 1 to 249 letters, digits"):
        checked_name("stage", "../x")


def test_a_very_long_name_is_not_repeated_whole_in_the_refusal() -> None:
    with pytest.raises(BadName) as refused:
        checked_name("job", "é" * 10_000)
    assert len(str(refused.value)) < 300


def test_partitions_of_a_stream_with_dots_keep_its_name_whole() -> None:
    ssp = Ssp("kafka", "ads.clicks", 3)
    assert str(ssp) == "kafka.ads.clicks.3"
    assert ssp.stream_id == StreamId("kafka", "ads.clicks")


def test_partitions_sort_by_number_and_not_by_text() -> None:
    assert sorted([Ssp("s", "x", 10), Ssp("s", "x", 9)]) == [Ssp("s", "x", 9), Ssp("s", "x", 10)]
