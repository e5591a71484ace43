"""The coordinator's database: SQLite (default) or PostgreSQL. No other package contains SQL.

`sql.Store` opens transactions, which give access to rows by aggregate: `tx.runs`, `tx.fleet`, `tx.jobmodels`, `tx.drains`,
`tx.snapshots`, `tx.cleanup` and `tx.promises`. Each aggregate is a file with its row types, their columns and its SQL; `tables` has the
schema. A new column changes these two files and needs a migration.

* `Store.begin()` opens one transaction. All its writes become durable when the block ends, or none if the block raises. Write transactions
  are serial: data that one has read does not change before it ends. `Store.read()` opens a read-only transaction.
* `put…` writes a whole row and replaces an older row with the same key, so it is idempotent. Rows are values.
* Lists are ordered by their keys unless stated otherwise.
* If the database is unreachable, full or read-only, StoreUnavailable is raised and the transaction is rolled back.
* After `claim()` was called, nothing is written unless the claim is held (StoreUnavailable).

`tests/contracts/store` tests these rules on both databases. `claim` ensures that only one coordinator at a time uses a database. `migrate`
upgrades it to the newest schema. `groupcommit` lets concurrent requests share a transaction.
"""
