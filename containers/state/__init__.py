"""The state of a container's tasks: checkpoints on this disk, their backup and their restore.

Every stage of a task has a checkpoint directory of Spark (`checkpoint`). `backup` decides when its state is made durable, and `commits`
does it. `offsets` makes the offset-log entry of each batch durable before the batch writes output, so that a lost batch can run again
exactly. When a container acquires a task, `recovery` brings its checkpoints to this disk. `standby` and `copies` keep warm copies of other
slots' tasks. `context` has what the stages share; `diff`, `files`, `transfer` and `meters` are used by commits and restores alike.

Words: a *batch* is planned when its entry is in Spark's offset log, and committed when Spark has written its commit file; it is *durable*
when a snapshot that was reported has it. The *lineage* is Spark's query id: batches of one lineage run in one way only.
"""
