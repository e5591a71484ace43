"""Sluice: leases, job models, drains and state backup for PySpark streaming jobs."""
