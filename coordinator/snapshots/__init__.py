"""Snapshots: the catalog of the state backups in the blob stores.

`reports` is the commit point: a snapshot counts once its report is stored. `catalog` lists, pins and chooses snapshots. `cleanup` processes
the queue of tasks after a report: it removes TTLs and retires superseded snapshots. `gc` finds and deletes garbage. `audit` compares the
catalog with the blob stores. `rebuild` restores the catalog from the blob stores alone. `inventory` reads what a blob store contains and
checks that this coordinator's database owns it. `operations` runs long-running operations. `concurrent` does work at the same time.
"""
