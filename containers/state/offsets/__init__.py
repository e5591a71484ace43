"""Offset-log entries: what each batch reads. `offsetlog` is Spark's format. `wal` puts the entry of a batch into the blob stores before the
batch writes output, and `batch_waits` is how batches wait for that.
"""
