"""Parsing of the offsets that sources report."""

from __future__ import annotations

import pytest

from containers.state.offsets.offsetlog import positions_of
from sluice.core.ids import Ssp, StreamId

FLIGHTS, CARRIERS = StreamId("log", "flights"), StreamId("kafka", "by.carrier")


def test_offsets_of_every_source_of_a_stage_are_read() -> None:
    spelled = ['{"flights": {"0": 7, "11": 0}}', '{"by.carrier": {"3": 9}}']
    assert positions_of(spelled, [FLIGHTS, CARRIERS]) == {
        Ssp("log", "flights", 0): 7,
        Ssp("log", "flights", 11): 0,
        Ssp("kafka", "by.carrier", 3): 9,
    }


@pytest.mark.parametrize("spelled", ["-", "42", "null", "[1]", '{"logOffset": 3}', '{"flights": 5}', '{"others": {"0": 7}}'])
def test_offsets_of_sources_of_other_kinds_are_left_out(spelled: str) -> None:
    assert positions_of([spelled, '{"flights": {"0": 7}}'], [FLIGHTS]) == {Ssp("log", "flights", 0): 7}
