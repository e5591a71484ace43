"""`python -m sluice`: the `sluice` command, for processes that start others with the same Python."""

from sluice.cli.main import main

main()
