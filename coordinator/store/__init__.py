"""The coordinator's database: SQLite (default) or PostgreSQL. SQL is only here.

`sql.Store` opens transactions, which give access to the rows by aggregate: `tx.runs`, `tx.fleet`, `tx.jobmodels`, `tx.drains`,
`tx.snapshots`, `tx.cleanup` and `tx.promises`. Each aggregate is a file with its row types, their columns and its SQL; `tables` has the
schema. A new column changes these two files and needs a migration.

* `Store.begin()` is one transaction: all its writes become durable when the block ends, none if it raises. Transactions that write are
  serial: what one has read does not change before it ends. `Store.read()` is the same without writes.
* `put…` writes a whole row, over an older one with the same key, so it may run twice. Rows are values.
* Lists are in the order of their keys unless stated otherwise.
* If the database cannot be reached, is full or is read-only, StoreUnavailable is raised and nothing of the transaction is kept.
* After `claim()` was called, nothing is written unless the claim is held (StoreUnavailable).

`tests/contracts/store` tests this on both databases. `claim` makes sure that only one coordinator at a time uses a database, `migrate`
upgrades it to the newest schema, and `groupcommit` lets requests that arrive together share a transaction.
"""
