"""The walks of a heartbeat and so on, as they are executed."""

from __future__ import annotations

import pytest

from tests.simulation.walks import walks


@pytest.mark.long
def test_the_walks_pass_through_both_sides_and_the_driver() -> None:
    found = walks()
    assert {"containers/agent/heartbeat.py", "coordinator/api/fastpath.py", "sluice/core/leases/lease.py"} <= set(found["heartbeat"])
    assert {"containers/agent/drain.py", "containers/rpc/engine_server.py", "coordinator/drains/drains.py"} <= set(found["drain"])
    assert all(found.values())
