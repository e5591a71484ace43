"""How the JVM of a container starts: with an archive of Spark's classes, with secrets in a file, and with a log of its own.

`cds` finds and makes the archive, for which `cds_training` is the job that loads the classes and `pathing_jar` the class path.
`java_properties` writes files that the JVM reads. `jvm_log` configures its log. `containers.spark.session` uses them.
"""
