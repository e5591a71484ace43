"""The command line for operators and scripts.

`main` is the `sluice` command and has the list of all commands. Each other module is one command or one group of commands, from its
options to its output. `runner` has the shared code: common options, calls to a coordinator, and output as text or JSON. Commands that start
a process of Sluice are in `coordinator.cli` and `containers.cli`.
"""
