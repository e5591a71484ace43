"""The fleet: the containers of all runs, and whether each may act.

`registration` registers containers and ends them. `leases` holds the lease of each in memory, so that a heartbeat writes nothing to the
database. `expiry` frees the tasks of containers whose lease has run out. `notices` wakes the long polls by which containers learn of
drains, job models and stops. `stage_metrics` keeps what containers last reported of their stages.
"""
