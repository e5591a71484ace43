"""Rules about which containers may act.

* `lease`: until when a container may run without an answer from the coordinator
* `ownership`: which container owns a task, and which of its reports are accepted
* `failover`: when the tasks of a slot without a container are moved
"""
