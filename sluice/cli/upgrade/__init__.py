"""`sluice upgrade`: drain a job, deploy its new version from the drained offsets, watch it, and roll back if it fails.

`decide` chooses the next step from the job's current run and its drains. `run` takes the steps. A command that was interrupted continues
where it stopped. `watch` checks the first batches of the new version. `command` has the options.
"""
