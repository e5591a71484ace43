"""The command line: everything that operators and scripts do with a running coordinator.

`main` is the `sluice` command and has the list of all commands. Each further module is one command or one group of commands, from its
options to its output. `runner` has what they share: common options, one call to a coordinator, the output as text or JSON. `client` has
the requests that only operators make. Commands that start a process of Sluice are in `coordinator.cli` and `containers.cli`.
"""
