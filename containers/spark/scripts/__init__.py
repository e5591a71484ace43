"""Queries that a script has started without Sluice.

`active_queries` finds the queries of a JVM, reads their progress and stops them between batches. `starts` is called when a query starts,
before it reads its checkpoint. `checkpoint` reads and writes files of a checkpoint on any file system that Spark uses, and locks a
checkpoint on which no query may start again. `file_sinks` finds sinks that would skip batches of a restored query. `drain` empties the
state of a query that is paused, and says which queries it cannot empty.
"""
