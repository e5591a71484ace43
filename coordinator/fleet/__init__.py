"""The fleet: the containers of all runs, and whether each may act.

`registration` registers containers and ends them. `leases` holds the lease of each in memory, so that a heartbeat writes nothing to the
database. `expiry` releases the tasks of containers whose lease has expired. `notices` answers the long polls with which containers wait
for drains, new job models and stops. `stage_metrics` keeps the metrics that containers last reported for their stages.
"""
