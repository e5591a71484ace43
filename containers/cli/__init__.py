"""The commands that start containers or prepare a machine for them: `sluice container`, `run`, `deploy`, `class-archive` and `kafka`."""
