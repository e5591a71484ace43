"""Runs: a run is one deployment of a job.

`deploy` plans and creates a run; `streams` looks up its streams. `runs` lists, describes and stops runs. `tasks` grants tasks to containers
and records their progress. `watermarks` decides how far watermarks may rise. `lag` periodically computes the lag of every job; `trim`
deletes the records of intermediate streams that every reader has passed. `timeline` lists the events of a job.
"""
