"""Stream systems: where records live.

`port.StreamSystem` is what the coordinator needs of a system: partition counts, offsets, creation and trimming. `kafka` implements it for
Apache Kafka and `log` for the embedded log. Reading and writing records is the container's part: see `containers.spark.systems`.
"""
