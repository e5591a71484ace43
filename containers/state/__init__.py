"""The state of a container's tasks: checkpoints on this disk, their backup and their restore.

Every stage of a task has a checkpoint directory of Spark (`checkpoint`). `commit` makes its state durable, from top to bottom:

    freeze    `freeze`: a consistent copy of the live directory, as hard links
    upload    `diff`, `packing`, `upload`: what changed since the last snapshot goes to the blob stores
    report    the coordinator records that the snapshot counts
    clean up  the frozen copy is removed; the coordinator cleans up in the blob stores (`coordinator.snapshots.cleanup`)

`backup` decides when. `wal` makes the offset-log entry of each batch durable before the batch writes output, so that a lost batch can run
again exactly; `batch_waits` is how batches wait for that. When a container acquires a task, `recovery` decides whether to resume, restore
or start fresh, and `prepare` does it, with `restore_plan` and `restore`. `standby` and `copies` keep warm copies of other slots' tasks.
`context` has what the stages share.

Words: a *batch* is planned when its entry is in Spark's offset log, and committed when Spark has written its commit file; it is *durable*
when a snapshot that was reported has it. The *lineage* is Spark's query id: batches of one lineage run in one way only.
"""
