"""The state of a task on this disk, and its backup.

Every stage has a checkpoint directory (`checkpoint`), which is Spark's. A commit makes it durable in four steps:

    freeze    `freeze`: a consistent copy of the live directory, as hard links
    upload    `diff`, `packing`, `upload`: what changed since the last snapshot goes to the blob stores
    report    `commit`: the coordinator stores that the snapshot counts
    clean up  the coordinator's part: `coordinator.snapshots.cleanup`

`backup` decides when. `wal` stores Spark's offset-log entry of each batch before the batch writes anything, so that a lost batch can be run
again exactly. When a container acquires a task, `recovery` decides whether to resume, restore or start fresh, and `prepare` does it, with
`restore_plan` and `restore`. `standby` and `copies` keep warm copies of other slots' tasks. `context` has what the stages share.
"""
