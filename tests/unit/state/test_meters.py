from __future__ import annotations

from containers.state.meters import Histogram


def test_a_value_equal_to_a_bound_is_in_its_bucket_and_buckets_are_cumulative() -> None:
    made = Histogram((0.5, 1.0, 10.0))
    for each in (0.1, 0.5, 0.6, 1.0, 9.0, 11.0, 1000.0):
        made.add(each)
    assert made.buckets() == [("0.5", 2), ("1.0", 4), ("10.0", 5), ("+Inf", 7)]
    assert made.total == 0.1 + 0.5 + 0.6 + 1.0 + 9.0 + 11.0 + 1000.0


def test_an_empty_histogram_has_all_buckets() -> None:
    assert Histogram((1.0,)).buckets() == [("1.0", 0), ("+Inf", 0)]
