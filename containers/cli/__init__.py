"""The commands that start containers or prepare a machine for them: `sluice container`, `run`, `class-archive` and `kafka`, and the part of
`sluice snapshots` that restores as a container does. `sluice/cli/main.py` names them.
"""
