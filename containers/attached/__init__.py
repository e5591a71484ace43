"""Commands that were not written for Sluice: `sluice exec --job orders -- spark-submit orders.py`.

The job is of the kind `attached`: one slot, one task, no streams. Only the owner of the task may run the command.

* `claim` gets the task: it registers as slot 0 when the slot is free, and acquires the task when the former owner can no longer act.
* `supervisor` starts the command, keeps the lease while its driver runs, passes signals on, and ends all processes when the lease is lost.
* `attendant` does the same for a driver that `sluice.attach` was called in. `submit` checks the command.

Both end all processes with `containers.supervision`.
"""
