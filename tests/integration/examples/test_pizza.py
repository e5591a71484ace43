"""The sales of the pizza example, its replay and its check, without a broker."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

import pytest

from examples.pizza.check import compare, line
from examples.pizza.data import (
    ALL_SALES,
    PARTITIONS,
    PAUSE,
    Rush,
    Sale,
    busiest,
    decode_rush,
    encode,
    load_sales,
    partition_of_sale,
    rushes_of,
)
from examples.pizza.replay import unsent


@pytest.fixture(scope="module")
def sales() -> list[Sale]:
    return load_sales()


def sale(at: int, station: str = "veggie", cents: int = 100) -> Sale:
    return Sale(1, at, "mexicana", "M", station, cents)


def test_all_sales_of_the_year_are_loaded_in_the_order_of_their_times(sales: list[Sale]) -> None:
    assert len(sales) == ALL_SALES
    assert sales == sorted(sales, key=lambda each: each.at)
    assert Counter(each.station for each in sales) == {"classic": 14_888, "supreme": 11_987, "veggie": 11_649, "chicken": 11_050}
    assert sum(each.cents for each in sales) == 81_786_005
    assert len({each.order for each in sales}) == 21_350


def test_only_the_first_days_are_loaded() -> None:
    assert {each.at // 86_400 for each in load_sales(3)} == {16_436, 16_437, 16_438}


def test_a_sale_is_sent_as_json_with_its_time_and_zone() -> None:
    assert json.loads(encode(load_sales(1)[0])) == {
        "order": 1,
        "at": "2015-01-01T11:38:36Z",
        "name": "hawaiian",
        "size": "M",
        "station": "classic",
        "cents": 1325,
    }


def test_every_partition_has_sales_of_every_station(sales: list[Sale]) -> None:
    assert len({(partition_of_sale(each), each.station) for each in sales}) == PARTITIONS * 4


def test_a_rush_lasts_until_a_station_pauses_for_longer_than_the_limit() -> None:
    found = rushes_of([sale(0), sale(PAUSE), sale(PAUSE, "classic", 250), sale(2 * PAUSE + 1), sale(2 * PAUSE + 1)])
    assert found == [
        Rush("veggie", 0, PAUSE, 2, 200),
        Rush("veggie", 2 * PAUSE + 1, 2 * PAUSE + 1, 2, 200),
        Rush("classic", PAUSE, PAUSE, 1, 250),
    ]
    assert busiest(found, 1) == [found[0]]


def test_every_sale_is_in_one_rush(sales: list[Sale]) -> None:
    rushes = rushes_of(sales)
    assert (sum(each.pizzas for each in rushes), sum(each.cents for each in rushes)) == (ALL_SALES, 81_786_005)


def test_a_replay_continues_after_the_records_that_a_partition_has(sales: list[Sale]) -> None:
    some = sales[:100]
    first = [each for each in some if partition_of_sale(each) == 0]
    assert unsent(some, [0, 0]) == some
    assert unsent(some, [len(first), 0]) == [each for each in some if partition_of_sale(each) == 1]
    assert unsent(some, [len(first), 100 - len(first)]) == []


def test_the_check_finds_rushes_that_are_missing_wrong_or_written_twice() -> None:
    one, other = Rush("veggie", 0, 60, 2, 200), Rush("classic", 0, 0, 1, 250)
    assert compare([one, other], [other, one]).exact
    assert compare([one, other], [one]).missing == [other]
    assert compare([one], [one, one]).unexpected == [one]
    wrong = compare([one], [replace(one, pizzas=1)])
    assert (wrong.missing, wrong.unexpected) == ([one], [replace(one, pizzas=1)])


def test_a_rush_is_decoded_and_printed_as_a_line() -> None:
    value = b'{"station":"classic","began":"2015-01-01T11:38:36.000Z","ended":"2015-01-01T12:00:00.000Z","pizzas":12,"cents":15900}'
    rush = decode_rush(value)
    assert rush == Rush("classic", 1_420_112_316, 1_420_113_600, 12, 15_900)
    assert line(rush) == "classic  2015-01-01 11:38 to 12:00:  12 pizzas, 159.00"
    with pytest.raises(ValueError, match="not a rush"):
        decode_rush(None)
