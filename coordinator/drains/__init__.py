"""Drains: a run processes all data in flight, commits and ends.

`drains` handles requests and the reports of stages, and moves a drain from phase to phase; the rules are in `sluice.core.drain`.
`deadlines` reports the stages that delay a drain, and fails the drain at its hard deadline. `inspect` finds stateful operators that a flush
cannot empty.
"""
