from __future__ import annotations

import pytest
from pydantic import ValidationError

from sluice.core.errors import BadName
from sluice.core.ids import Ssp, StreamId, checked_name, checked_stream
from sluice.wire.body import SspOffset


@pytest.mark.parametrize("name", ["a", "0", "page-views", "ads.clicks", "a..b", "A_b-c.9", "x" * 249])
def test_a_name_that_is_safe_everywhere_is_accepted(name: str) -> None:
    assert checked_name("job", name) == checked_stream(name) == name


@pytest.mark.parametrize("name", ["_x", "-rf", ".hidden", "...", "..x", "_", "-", "._", "__consumer_offsets"])
def test_a_stream_has_any_name_that_kafka_accepts(name: str) -> None:
    assert checked_stream(name) == SspOffset(system="kafka", stream=name, partition=0, offset=0).stream == name


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", "a\\b", "a b", "a\n", "a\x00", "é", "a;b", "x" * 250, "\ud800"])
def test_a_stream_has_no_other_name(name: str) -> None:
    with pytest.raises(BadName, match="other than"):
        checked_stream(name)
    with pytest.raises(ValidationError):
        SspOffset(system="kafka", stream=name, partition=0, offset=0)


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "../x", "a/b", "a\\b", "-rf", "_x", ".hidden", "a b", "a\n", "a\x00", "é", "a;b", "x" * 250, "\ud800"],
)
def test_a_name_that_is_unsafe_in_a_path_or_on_a_command_line_is_refused(name: str) -> None:
    with pytest.raises(BadName):
        checked_name("job", name)


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
