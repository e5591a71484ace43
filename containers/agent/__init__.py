"""The agent: the part of a container that talks to the coordinator. It registers, keeps the lease, and runs the tasks of its slot.

`agent` is the whole life of a container, from registration to exit code. It runs `slot`, which runs one `task` for each task of the slot,
which starts its stages through `queries`; a `stage` is one streaming query, kept running. Beside them: `heartbeat` (the lease), `drain`
(the container's part in a drain), `alignment` (waiting for slower tasks), `progress` (reports to the coordinator), `metrics` (for
Prometheus), `liveness` (whether Spark still answers) and `lifecycle` (background work, and the first reason to exit). Nothing here imports
PySpark: Spark is behind `containers.engine`.
"""
