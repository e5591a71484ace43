"""Which Spark settings a deployer may set in a run's config.

A Spark setting can name code: a class, a jar, an option of the JVM. A principal with the role deployer, and not admin, may set only amounts
and switches, and settings that the job's current run already has.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatchcase

ALLOWED = (
    "spark.cores.max",
    "spark.default.parallelism",
    "spark.driver.cores",
    "spark.driver.maxResultSize",
    "spark.driver.memory",
    "spark.driver.memoryOverhead",
    "spark.dynamicAllocation.*",
    "spark.executor.cores",
    "spark.executor.instances",
    "spark.executor.memory",
    "spark.executor.memoryOverhead",
    "spark.hadoop.fs.s3a.access.key",
    "spark.hadoop.fs.s3a.endpoint",
    "spark.hadoop.fs.s3a.endpoint.region",
    "spark.hadoop.fs.s3a.path.style.access",
    "spark.hadoop.fs.s3a.secret.key",
    "spark.hadoop.fs.s3a.session.token",
    "spark.locality.wait*",
    "spark.memory.*",
    "spark.network.timeout",
    "spark.rpc.message.maxSize",
    "spark.scheduler.mode",
    "spark.shuffle.*",
    "spark.speculation*",
    "spark.sql.adaptive.*",
    "spark.sql.ansi.enabled",
    "spark.sql.autoBroadcastJoinThreshold",
    "spark.sql.execution.arrow.*",
    "spark.sql.files.*",
    "spark.sql.session.timeZone",
    "spark.sql.shuffle.partitions",
    "spark.sql.streaming.*",
    "spark.task.*",
)
"""Patterns of allowed settings. Spark documents them in its pages Configuration and Structured Streaming."""

NAMES_CODE = ("*class*", "*codec*", "*extension*", "*listener*", "*manager*", "*plugin*", "*script*")
"""Settings whose value is a class or a program. Patterns with `*` in `ALLOWED` do not allow them."""


def not_allowed(config: Mapping[str, str], present: Mapping[str, str], allowed: Sequence[str] = ALLOWED) -> Collection[str]:
    """The Spark settings of `config` that a deployer may not set. `present`: the config of the job's current run."""
    return sorted(
        name for name, value in config.items() if name.startswith("spark.") and present.get(name) != value and not _allows(allowed, name)
    )


def _allows(allowed: Sequence[str], name: str) -> bool:
    if name in allowed:
        return True
    names_code = any(fnmatchcase(name.lower(), pattern) for pattern in NAMES_CODE)
    return not names_code and any(fnmatchcase(name, pattern) for pattern in allowed)
