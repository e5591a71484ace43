"""Commands that were not written for Sluice: `sluice exec --job orders -- spark-submit orders.py`.

The job is of the kind `attached`: one slot, one task, no streams. Only the owner of the task may run the command.

* `claim` gets the task: it registers as slot 0 when the slot is free, and acquires the task when the former owner can no longer act.
* `supervisor` starts the command, keeps the lease while its driver runs, passes signals on, and ends all processes when the lease is lost.
* `guardian` is a second process. It ends all processes if the supervisor itself is killed or stopped.
* `processes` reads the process table and ends processes; `submit` checks the command.

The command and all its descendants are ended, also those that left its session or whose parent has ended. They are found in three ways: the
supervisor is the subreaper of its descendants (prctl(2)), so that a process whose parent ends becomes its child; the guardian records the
descendants that it finds, by pid and start time; and all of them inherit an environment variable with the id of the container.
"""
