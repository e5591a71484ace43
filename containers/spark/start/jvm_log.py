"""Where the JVM of a container writes its log (Spark's log4j).

With `SLUICE_JVM_LOG` it is a file of its own, so that the container's log has only what Sluice and the job say. A JVM whose logging is
configured by the user keeps that configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from containers.spark.start.java_properties import property_text

_CONFIGURATION = """\
status = error
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
appender.file.type = RollingFile
appender.file.name = file
appender.file.fileName = {file}
appender.file.filePattern = {pattern}.%i
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{yyyy-MM-dd'T'HH:mm:ss.SSS}}{{UTC}}Z %p %c: %m%n%ex
appender.file.policies.type = Policies
appender.file.policies.size.type = SizeBasedTriggeringPolicy
appender.file.policies.size.size = 16MB
appender.file.strategy.type = DefaultRolloverStrategy
appender.file.strategy.max = 3
"""

CONFIGURED_BY = ("spark.driver.defaultJavaOptions", "spark.driver.extraJavaOptions")


def is_configured(settings: Mapping[str, str], environment: Mapping[str, str]) -> bool:
    """Whether the user has configured the logging of the JVM: by an option, or by a file in Spark's directory of configurations."""
    if any("log4j" in settings.get(name, "") for name in CONFIGURED_BY):
        return True
    home = environment.get("SPARK_HOME")
    directory = environment.get("SPARK_CONF_DIR") or (f"{home}/conf" if home else "")
    return bool(directory) and any(each.suffix != ".template" for each in Path(directory).glob("log4j2.*"))


def configuration(file: Path) -> str:
    """A configuration of log4j 2 that writes to `file`, and keeps three older ones of 16 MB beside it. Format:
    https://logging.apache.org/log4j/2.x/manual/configuration.html."""
    escaped = str(file).replace("$", "$$")
    return _CONFIGURATION.format(file=property_text(escaped), pattern=property_text(escaped.replace("%", "%%")))
