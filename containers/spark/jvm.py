"""Access to objects of Spark and Scala in the JVM by name, and classes that are compiled there. Each call is a round trip."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from containers.engine import JvmUsage
from sluice.installed_spark import release_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RUNTIME = "org.apache.spark.sql.execution.streaming.runtime"
READ_LIMIT = "org.apache.spark.sql.connector.read.streaming.ReadLimit"

MICRO_BATCH = "MicroBatchExecution"
SERIALIZED_OFFSET = "SerializedOffset"
STREAM_PROGRESS = "StreamProgress"
TERMINATED = "TERMINATED$"
TRIGGER = "ProcessingTimeTrigger"
WRAPPER = "StreamingQueryWrapper"
"""Classes of Spark's runtime for streaming; `runtime_class` adds the package."""

EVERY_BATCH = 2**62
"""A number that is higher than that of any batch."""


def java(spark: SparkSession, name: str) -> Any:
    """The Java class with this name."""
    return getattr(spark._jvm, name)  # one call: each part of a dotted path would be another call


def version(spark: SparkSession) -> tuple[int, int]:
    """The major and minor version of the Spark that runs: (4, 2)."""
    return release_of(str(spark.version))


def runtime_class(spark: SparkSession, name: str) -> str:
    """The full name of a class of Spark's runtime for streaming, which got a package of its own in Spark 4.1."""
    return f"{RUNTIME}.{name}" if version(spark) >= (4, 1) else f"{RUNTIME.removesuffix('.runtime')}.{name}"


def scala_object(spark: SparkSession, name: str) -> Any:
    """A Scala object, which is the only instance of its class."""
    return getattr(java(spark, name), "MODULE$")


class JvmBeans:
    """The management beans of the JVM's heap and garbage collectors. They are looked up once; each `usage` needs a few calls."""

    def __init__(self, spark: SparkSession) -> None:
        factory = java(spark, "java.lang.management.ManagementFactory")
        self._memory = factory.getMemoryMXBean()
        self._collectors = {str(each.getName()): each for each in factory.getGarbageCollectorMXBeans()}

    def usage(self) -> JvmUsage:
        heap = self._memory.getHeapMemoryUsage()
        limit = int(heap.getMax())
        collections = {name: (int(each.getCollectionCount()), each.getCollectionTime() / 1000) for name, each in self._collectors.items()}
        return JvmUsage(int(heap.getUsed()), limit if limit > 0 else None, collections)


def field(spark: SparkSession, class_: str, name: str) -> Any:
    """A private field of a class, made accessible."""
    found = java(spark, "java.lang.Class").forName(class_).getDeclaredField(name)
    found.setAccessible(True)
    return found


def private(spark: SparkSession, class_: str, name: str, thing: Any) -> Any:
    """The value of a private field."""
    return field(spark, class_, name).get(thing)


_compiled: WeakKeyDictionary[Any, dict[str, Any]] = WeakKeyDictionary()
"""Compiled classes, by the connection to the JVM and by name. Py4J keeps methods by the name of their class, so a JVM must have only one
class of a name."""


def compiled(spark: SparkSession, name: str) -> Any:
    """The class `name` of `containers/spark/java`, compiled by Janino, the compiler of Spark's own generated code: no jar is needed.
    Raises Py4JError, PySparkException."""
    classes = _compiled.setdefault(spark.sparkContext._gateway, {})
    if name not in classes:
        package, _, class_ = name.rpartition(".")
        source = files("containers.spark").joinpath("java", package, f"{class_}.java")
        compiler = java(spark, "org.codehaus.janino.SimpleCompiler")()
        compiler.setParentClassLoader(java(spark, "java.lang.Thread").currentThread().getContextClassLoader())
        compiler.cook(source.read_text("utf-8"))
        classes[name] = compiler.getClassLoader().loadClass(name)
    return classes[name]


def set_member(thing: Any, member: str, value: Any) -> None:
    """Set a variable of a Scala object."""
    getattr(thing, f"{member}_$eq")(value)


def each_of(iterator: Any) -> Iterator[Any]:
    """The elements of a Scala iterator."""
    while iterator.hasNext():
        yield iterator.next()


def watermark_propagator(spark: SparkSession, execution: Any) -> Any:
    """The object that computes the watermarks of a query's operators. If there was nothing to read, it has already computed them for a
    batch without data, and fails if the watermark changes. After `purge(EVERY_BATCH)` it computes them again, as after a restart. Call
    `purge` on the query's thread, or while the query waits in a gate."""
    return private(spark, runtime_class(spark, MICRO_BATCH), "watermarkPropagator", execution)
