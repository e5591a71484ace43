"""The commands that start containers or prepare a machine for them: `sluice container`, `run`, `class-archive` and `kafka`, and the parts
of `sluice snapshots` and `sluice export` that restore as a container does. `sluice/cli/main.py` names them.
"""
