"""Commits: a stage's checkpoint becomes a snapshot in the blob stores. `commit` does it from top to bottom:

freeze    `freeze`: a consistent copy of the live directory, as hard links
repair    `repair`: blobs that a blob store was found to have lost are replaced
upload    `packing`, `upload`: what changed since the last snapshot goes to the blob stores
report    the coordinator records the snapshot
clean up  the frozen copy is removed; the coordinator cleans up in the blob stores (`coordinator.snapshots.cleanup`)
"""
