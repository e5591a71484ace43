"""Rules about backups that are not as they should be.

`degraded` says in what a run is not backed up as it asked, `lost` what a blob store has lost of the retained snapshots.
"""
