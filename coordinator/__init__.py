"""The coordinator: the web service that decides which container processes which partitions, and until when.

A request passes these packages, from the outside in:

* `api`: the routes. Each reads a request, makes one call and returns its answer.
* `runs`: deployments, tasks, progress and lag.
* `drains`, `jobmodels`, `snapshots`: drains; versions of the job model and growth; the catalog of snapshots, clean-up and garbage
collection.
* `fleet`: containers, their leases and the notices sent to them.
* `store`: the database. SQL is only there.

`app` builds the service from its settings. `server` runs it. `chores` runs what is done periodically. `transitions` has the changes of
state that several packages make inside their own transactions.
"""

from sluice.moved import refuse_old_imports

refuse_old_imports()
