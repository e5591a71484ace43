"""The whole system in one process and in virtual time, deterministic from a seed.

    loop.py       an event loop whose time is virtual, whose threads are greenlets, and whose processes can be killed and frozen
    database.py   SQLite without a thread
    network.py    the network: delays, cuts, lost requests and lost answers
    postgresql.py sessions and the claim of PostgreSQL, over SQLite
    kafka.py      a model of Kafka: transactions, markers, fencing
    engine.py     an engine that keeps state and starts batches as Spark does
    world.py      coordinator, containers and their supervisor, disks, streams, blob store, and what operators do
    impostors.py  requests in the name of a container by those who may not act for it
    fault_injection.py   the faults, and when each happens
    runs.py       one seed: faults, then a time without faults, then the checks
    removed_fixes.py   whether the simulation detects that a fix was removed; the diffs are in faults/
    year.py       a year of three jobs in minutes
    coverage_report.py   which share of the coordinator and the agent the seeds run
    __main__.py   `python -m tests.simulation`; see `make simulate`

The coordinator, the agents, the client, the backups and the embedded log are the real ones. Spark, its JVM, sockets and process tables are
not simulated; the tests in tests/spark and tests/processes run them.
"""
