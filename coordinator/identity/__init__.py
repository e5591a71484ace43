"""Who sends a request: tokens, and the principals that they stand for.

A **principal** is a person or a program with a name, roles, and the jobs that these roles are for. A request shows its principal by a
token, in the header `Authorization: Bearer TOKEN`. Which role may send which request is the table in `coordinator.api.access`; the form of
tokens is in `sluice.core.access.tokens`. Begin with `authentication.Authentication`.
"""
