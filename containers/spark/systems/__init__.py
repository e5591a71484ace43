"""The stream systems of a run, as a stage reads and writes them with Spark: `port`, and its implementations `log` and `kafka`.

Imports nothing, because Spark's Python workers import `log_source`.
"""
