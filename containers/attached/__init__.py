"""Commands that were not written for Sluice: `sluice exec --job orders -- spark-submit orders.py`.

The job is of the kind `attached`: one slot, one task, no streams. Only the owner of the task may run the command.

* `agent_process` is the agent: it keeps the lease while its driver runs, and ends the driver when the lease is lost. `drivers` are the
  command that it starts, and the script that has started it with `sluice.attach`. `submit` checks the command.
* `claim` gets the task: it registers as slot 0 when the slot is free, and acquires the task when the former owner can no longer act.
* `port` is what agent and driver call of each other. `driver_link` is the agent's end, and `app` the script's.

All processes are ended with `containers.supervision`.
"""
