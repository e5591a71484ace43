"""The contract of the store (`coordinator/store/__init__.py`) as tests, by aggregate. The tests of a database inherit `StoreContract`
and provide the fixture `store`, an empty store.
"""

from __future__ import annotations

from tests.contracts.store.cleanup import CleanupContract
from tests.contracts.store.drains import DrainsContract
from tests.contracts.store.fleet import FleetContract
from tests.contracts.store.history import HistoryContract
from tests.contracts.store.jobmodels import JobModelsContract
from tests.contracts.store.promises import PromisesContract
from tests.contracts.store.runs import RunsContract
from tests.contracts.store.snapshots import SnapshotsContract
from tests.contracts.store.transactions import TransactionsContract


class StoreContract(
    TransactionsContract,
    RunsContract,
    FleetContract,
    JobModelsContract,
    DrainsContract,
    SnapshotsContract,
    CleanupContract,
    PromisesContract,
    HistoryContract,
):
    pass
