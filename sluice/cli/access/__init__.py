"""Who may do what, at a terminal: `login` and `logout`, the `token` commands, and `audit-log`."""
