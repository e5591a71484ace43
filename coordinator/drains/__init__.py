"""Drains: a run finishes everything in flight, commits and ends.

`drains` takes requests and the reports of the stages, and moves a drain from phase to phase; the rules are in `sluice.core.drain`.
`deadlines` names the stages that hold up a drain, and fails the drain at its hard deadline. `inspect` finds stateful operators that a
flush could not empty.
"""
