"""The command line: everything that a person or a script asks of a running coordinator.

`main` is the `sluice` command and finds the others. Each further module is one command or one group of commands, from its options to its
output. `runner` has what they share: common options, one call to a coordinator, the output as text or JSON. `client` has the requests that
only people make. Commands that start a process of Sluice belong to the package of that process: see `coordinator.cli` and `containers.cli`.
"""
