"""The rules of Sluice and their types. Standard library only: no clock, no I/O, no logging.

Everything here is a pure function or a frozen dataclass. Times, ids and listings are arguments, so tests choose them freely. The
coordinator, the agent and the command line share these rules.

* `jobmodels`: which container processes which partitions
* `leases`: which containers may act, and the checks of their reports
* `snapshots`: how a checkpoint is stored in blob stores, and which snapshots are retained
* `access`: which requests are accepted
* `lifecycle`, `drain`, `watermarks`, `pruning`: the states of a run, its drain, the watermarks of its streams, and its history
* shared vocabulary: `ids`, `errors`, `waits`
"""
