"""The identity of the sender of a request: tokens and principals.

A **principal** is a person or a program with a name, roles, and the jobs that these roles are for. A request carries the principal's token
in the header `Authorization: Bearer TOKEN`. The table in `coordinator.api.access` defines which role may send which request. The format of
tokens is in `sluice.core.access.tokens`. Begin with `authentication.Authentication`.
"""
