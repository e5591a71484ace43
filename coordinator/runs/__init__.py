"""Runs: a run is one deployment of a job.

`deploy` plans and makes a run, with the help of `streams`. `runs` lists, describes and stops runs. `tasks` hands tasks to containers and
records their progress. `alignment` tells tasks whether to wait for slower ones. `lag` looks up periodically how every job is doing; `trim`
deletes records of intermediate streams that every reader has passed.
"""
