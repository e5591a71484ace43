"""Everything that uses PySpark: the implementation of the port `containers.engine`.

    engine      SparkEngine: starts, pauses, flushes and stops the queries of a container's stages
    session     the driver's Spark session, its settings, and whether the JVM is alive
    query       one running query; `gate` pauses it between two batches; `listener` receives its progress
    replay      batches that run again before a query starts
    flush       a drain: run the rest of the input, close windows, fire timers; `operators` determines what can be flushed
    task        the `Task` that a stage's function gets; `systems` reads and writes the embedded log and Kafka
    executors   checks that the executors of a cluster see the driver's directories
    start       how the JVM starts: an archive of Spark's classes, files of settings, and its log

This file and `systems/__init__.py` import nothing: Spark's Python workers import `systems.log_source` for every source of every query, and
each import would delay them.
"""
