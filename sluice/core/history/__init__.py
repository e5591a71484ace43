"""Rules about the past of a job: its runs, the versions of its model, its drains and its containers.

`pruning` says what of it may be deleted.
"""
