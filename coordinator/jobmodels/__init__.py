"""Job models: which container runs which task, and which task reads which partition. Each change is a new version.

`versions` proposes a version and puts it in force. `partition_monitor` does so when the inputs grow, `failover` when a slot has no
container. `rollout` has the history of versions, their adoption by containers, and the way back. `standby` says which slot keeps a warm
copy of which task's state. `groupers` loads groupers that users wrote. `cache` holds the current models, ready to be served.
"""
