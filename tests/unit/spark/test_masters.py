from __future__ import annotations

import pytest

from containers.spark.masters import executors_requested, is_local, is_loopback
from sluice.core.errors import BadSettings

DYNAMIC = {"spark.dynamicAllocation.enabled": "true"}


@pytest.mark.parametrize("master", ["local", "local[2]", "local[*]", "local[2,3]"])
def test_a_local_master_has_its_executor_in_the_driver(master: str) -> None:
    assert is_local(master)
    assert is_loopback(master)


@pytest.mark.parametrize("master", ["local-cluster[2,1,1024]", "spark://127.0.0.1:7077", "yarn", "k8s://https://127.0.0.1:6443"])
def test_any_other_has_executors_elsewhere(master: str) -> None:
    assert not is_local(master)


@pytest.mark.parametrize("master", ["local-cluster[2,1,1024]", "spark://127.0.0.1:7077", "spark://localhost:7077", "spark://[::1]:7077"])
def test_a_master_at_a_loopback_address_is_recognised(master: str) -> None:
    assert is_loopback(master)


@pytest.mark.parametrize(
    "master", ["spark://10.0.0.1:7077", "spark://127.0.0.1:7077,b.example:7077", "spark://", "yarn", "k8s://https://127.0.0.1:6443"]
)
def test_elsewhere_executors_call_the_driver_at_an_address_that_they_can_reach(master: str) -> None:
    assert not is_loopback(master)


@pytest.mark.parametrize(
    ("master", "conf", "asked"),
    [
        ("spark://a:7077", {}, 1),
        ("spark://a:7077", {"spark.cores.max": "8"}, 1),
        ("spark://a:7077", {"spark.executor.cores": "2"}, 1),
        ("spark://a:7077", {"spark.cores.max": "8", "spark.executor.cores": "2"}, 4),
        ("spark://a:7077", {"spark.cores.max": "1", "spark.executor.cores": "2"}, 1),
        ("local-cluster[3,1,1024]", {}, 3),
        ("yarn", {}, 2),
        ("yarn", {"spark.executor.instances": "5"}, 5),
        ("k8s://https://a", {"spark.executor.instances": " 3 "}, 3),
        ("k8s://https://a", {"spark.executor.instances": "0"}, 1),
        ("k8s://https://a", DYNAMIC, 1),
        ("yarn", DYNAMIC | {"spark.executor.instances": "9", "spark.dynamicAllocation.minExecutors": "2"}, 2),
        ("yarn", DYNAMIC | {"spark.dynamicAllocation.initialExecutors": "4"}, 4),
        ("yarn", {"spark.dynamicAllocation.enabled": "false", "spark.executor.instances": "9"}, 9),
    ],
)
def test_a_session_requests_executors(master: str, conf: dict[str, str], asked: int) -> None:
    assert executors_requested(master, conf) == asked


def test_an_invalid_number_of_executors_is_named() -> None:
    with pytest.raises(BadSettings, match=r"spark\.executor\.instances must be a whole number, not 'many'"):
        executors_requested("yarn", {"spark.executor.instances": "many"})
