"""Stream systems: storage for records.

`port` has the interfaces: `StreamSystem` is what the coordinator needs, `StreamAdmin` what `sluice streams` needs in addition. `kafka`
implements them for Apache Kafka, `log` for the embedded log. Containers read and write records through `containers.spark.systems`.
"""
