"""A container: an agent and one PySpark driver, which run the tasks of one slot of a job.

* `agent_process` is `sluice container`. It starts `driver`, runs `agent`, and ends the driver when the lease ends.
* `driver` loads the job file, and serves the port `engine` to the agent over a socket (`rpc`).
* `supervision` ends all processes, whatever has happened to the agent.
* `agent` talks to the coordinator: registration, lease, tasks, drains, metrics.
* `spark` is everything that uses PySpark. The agent reaches it through the port `engine`.
* `state` has the checkpoint directories on this disk, their backup and their restore.
* `local` runs a coordinator and containers on one machine. `cli` has the commands.

Job files import `sluice`.
"""
