"""The rules of Sluice and their types. Standard library only: no clock, no I/O, no logging.

Everything here is a pure function or a frozen dataclass. Times, ids and listings are arguments, so tests choose them freely. The
coordinator, the agent and the command line share these rules.

* who may act: `lease`, `ownership`, `failover`, `lifecycle`
* who processes what: `graph`, `grouping`, `placement`, `model`, `expansion`, `watermarks`
* drains: `drain`
* snapshots: `snapshot`, `indexjson`, `retention`
* shared vocabulary: `ids`, `errors`, `backoff`, `histogram`
"""
