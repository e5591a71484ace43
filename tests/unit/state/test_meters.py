from __future__ import annotations

from containers.state.meters import Histogram


def test_what_equals_a_bound_is_counted_by_it_and_every_bucket_holds_those_below() -> None:
    made = Histogram((0.5, 1.0, 10.0))
    for each in (0.1, 0.5, 0.6, 1.0, 9.0, 11.0, 1000.0):
        made.add(each)
    assert made.buckets() == [("0.5", 2), ("1.0", 4), ("10.0", 5), ("+Inf", 7)]
    assert made.total == 0.1 + 0.5 + 0.6 + 1.0 + 9.0 + 11.0 + 1000.0


def test_an_empty_one_has_all_its_buckets() -> None:
    assert Histogram((1.0,)).buckets() == [("1.0", 0), ("+Inf", 0)]
