"""The agent: the part of a container that talks to the coordinator. It registers, keeps the lease, and runs the tasks of its slot.

`agent` runs a container from registration to exit code. `slot` runs one `task` for each task of the slot. `task` runs its stages through
`queries`. A `stage` is one streaming query with its backup and metrics. The other files: `async_engine` (the engine's blocking calls and
callbacks, for the event loop), `heartbeat` (the lease), `drain` (the container's part in drains), `watermarks` (how far a stage's watermark
may rise), `progress` (reports to the coordinator), `metrics` (for Prometheus), `liveness` (a probe of Spark's JVM) and `lifecycle`
(background work, and the first reason to exit). This package does not import PySpark; it reaches Spark through `containers.engine`.
"""
