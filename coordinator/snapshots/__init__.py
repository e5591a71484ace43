"""Snapshots: the catalog of the state backups in the blob stores.

`reports` is the commit point: a snapshot counts once its report is stored. `catalog` lists, pins and chooses snapshots. `cleanup` works off
what follows a report: it removes TTLs and retires superseded snapshots. `gc` finds and deletes garbage. `audit` compares the catalog with
the blob stores. `rebuild` makes the catalog again from the blob stores alone. `inventory` reads what a blob store holds and checks that
this coordinator's database owns it. `operations` runs what takes long.
"""
