"""`app.checkpoint`: the checkpoints of an attached script, which are backed up while it runs, and restored where it starts next.

* `directories` is the driver's side: where a checkpoint is on this machine, and what is done before its query starts.
* `adoption` copies an existing checkpoint, which a query has used without Sluice.
* `backups` runs in the process that keeps the lease, because only that one has the container's token: it restores a checkpoint before the
  driver uses it, and backs it up while a query runs on it. Each checkpoint is a stage of the job's one task, so that its snapshots are
  retained, pinned, listed and collected as those of job files are.
* `recovery` is the rule where a checkpoint continues.
* `plans` keeps what a batch reads in the blob stores before the batch writes, for sinks that recognize a batch which runs again.

A snapshot is of the last committed batch. After a lost disk the batches since run again. Without their plans they may read other records
than before, so the query gets another id: a sink that remembers (id, batch) writes them, and does not skip them.
"""
