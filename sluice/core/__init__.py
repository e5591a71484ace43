"""The rules of Sluice, and the types they work on. Standard library only: no clock, no I/O, no logging.

Everything here is a pure function or a frozen dataclass. The time, ids and listings that a rule needs are its arguments, so that a test
can call it with any of them. The coordinator, the agent and the command line share these rules.

* who may act: `lease`, `ownership`, `failover`, `lifecycle`
* who processes what: `graph`, `grouping`, `placement`, `model`, `expansion`, `alignment`
* drains: `drain`
* snapshots: `snapshot`, `indexjson`, `retention`
* shared vocabulary: `ids`, `errors`, `backoff`, `histogram`
"""
