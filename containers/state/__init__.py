"""The state of a container's tasks: checkpoints on this disk, their backup and their restore.

Every stage of a task has a Spark checkpoint directory (`checkpoint`). `backup` decides when its state is made durable, and `commits` makes
it durable. `offsets` makes the offset-log entry of each batch durable before the batch writes output, so that a lost batch can run again
exactly. When a container acquires a task, `recovery` makes its checkpoints available on this disk. `standby` and `copies` keep warm copies
of other slots' tasks. `context` has what the stages share; `diff`, `files`, `transfer` and `meters` are used by commits and restores alike.

Terms: a *batch* is planned when its entry is in Spark's offset log, committed when Spark has written its commit file, and *durable* when a
reported snapshot contains it. The *lineage* is Spark's query id: all runs of a batch of one lineage read the same records.
"""
