"""The coordinator's database: SQLite (default) or PostgreSQL. SQL is only here.

`port` is the contract. `sql` implements it, with `snapshots`, `drains` and `jobmodels` for their rows; `tables` has the schema and
`migrate` brings a database to the newest one. `claim` makes sure that one coordinator at a time uses a database. `groupcommit` lets
requests that arrive together share a transaction.
"""
