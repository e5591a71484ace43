"""The coordinator: the web service that decides which container processes which partitions, and until when.

A request passes through these packages, in this order:

* `api`: the routes. Each reads a request, makes one call and returns its answer.
* `runs`: deployments, tasks, progress and lag.
* `drains`, `jobmodels`, `snapshots`: drains; versions of the job model and growth; the catalog of snapshots, clean-up and garbage
collection.
* `fleet`: containers, their leases and the notices sent to them.
* `store`: the database. No other package contains SQL.

`app` builds the application from its settings. `server` runs it. `chores` runs periodic work. `transitions` has the state changes that
several packages make inside their own transactions.
"""
