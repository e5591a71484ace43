"""Job models: which container runs which task, and which task reads which partition. Each change is a new version.

`versions` proposes a version and puts it in force. `partition_monitor` creates versions when inputs grow, `failover` when a slot has no
container. `rollout` has the history of versions, their adoption by containers, and rollback. `standby` determines which slot keeps a warm
copy of which task's state. `groupers` loads user-defined groupers. `cache` has the current models as served.
"""
