"""How the JVM of a container starts, with an archive of Spark's classes, with secrets in a file, and with a log of its own; and how the
Python processes of Spark start.

`cds` finds and makes the archive. `cds_training` is the process whose classes it has, with the class path of `pathing_jar`. `small_job` is
the job that this process runs, and with which a spare container prepares its JVM. `java_properties` writes files that the JVM reads.
`jvm_log` configures its log. `fork_server` forks Python processes, and `fork_client` is what Spark starts in their place.
`containers.spark.session` uses them.
"""
