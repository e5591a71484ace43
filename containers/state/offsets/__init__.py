"""Offset-log entries, which record what each batch reads. `offsetlog` is Spark's format. `wal` puts the entry of a batch into the blob
stores before the batch writes output. `batch_waits` makes batches wait for that.
"""
