"""Jars that PySpark does not include: Spark's Kafka connector for jobs, and a Kafka broker for development and tests.

They are fetched by Ivy, which Spark includes, from the repositories in Ivy's settings. Each set has its own directory, named by a hash of
the requested artefacts, so that another version is another directory:

    DIRECTORY/lock               locked while a set is fetched; Ivy's process inherits the lock, so it is held also if the parent is killed
    DIRECTORY/ivy/               Ivy's cache: an interrupted fetch continues from it; removed when a set is complete
    DIRECTORY/building-*         an incomplete set; garbage if the lock is free, and removed by the next fetch
    DIRECTORY/connector-<hash>/  a complete set: it gets this name last
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha256
from pathlib import Path
from xml.etree import ElementTree as Xml

from containers.errors import JarsUnavailable, JavaMissing
from sluice.core.errors import BadSettings
from sluice.installed_spark import installed_spark, missing, release_of

log = logging.getLogger(__name__)

_TIMEOUT = timedelta(minutes=15)
_LAST_LINES = 12
_MISSING = re.compile(r"^\s*:: ([^\s#:]+#[^\s:]+)", re.M)
"""A missing artefact in Ivy's summary: `:: organisation#module;revision: not found`."""


_UNREACHABLE = re.compile(r"Server access error|Connection|UnknownHost|timed out", re.I)
"""In Ivy's output if a repository did not answer, in which case it may have what is missing."""


@dataclass(frozen=True, slots=True)
class Artefact:
    """`without`: dependencies of the same organisation to leave out; `alone`: leave out all dependencies."""

    organisation: str
    module: str
    revision: str
    without: tuple[str, ...] = ()
    alone: bool = False

    def __str__(self) -> str:
        return f"{self.organisation}:{self.module}:{self.revision}"


@dataclass(frozen=True, slots=True)
class JarSet:
    """Artefacts that are fetched together. `excluded`: organisations whose modules are left out."""

    name: str
    artefacts: tuple[Artefact, ...]
    excluded: tuple[str, ...] = ()

    def ivy_xml(self) -> str:
        """The Ivy file (format: "Ivy Files" in Ivy's reference)."""
        root = Xml.Element("ivy-module", version="2.0")
        Xml.SubElement(root, "info", organisation="sluice", module=self.name)
        Xml.SubElement(Xml.SubElement(root, "configurations"), "conf", name="default")
        wanted = Xml.SubElement(root, "dependencies")
        for each in self.artefacts:
            transitive = "false" if each.alone else "true"
            named = {"org": each.organisation, "name": each.module, "rev": each.revision}
            dependency = Xml.SubElement(wanted, "dependency", {**named, "conf": "default->default(runtime)", "transitive": transitive})
            for module in each.without:
                Xml.SubElement(dependency, "exclude", org=each.organisation, module=module)
        for organisation in self.excluded:
            Xml.SubElement(wanted, "exclude", org=organisation)
        Xml.indent(root)
        return Xml.tostring(root, encoding="unicode") + "\n"

    @property
    def directory_name(self) -> str:
        return f"{self.name}-{sha256(self.ivy_xml().encode()).hexdigest()[:12]}"


EARLIER_CONNECTOR = {(3, 5): "3.5.7", (4, 0): "4.0.4", (4, 1): "4.1.3", (4, 3): "4.2.0"}
"""By version of Spark: the earlier connector that also works with it (`make matrix`), for mirrors that lack the one of the same version."""


def connectors(version: str, scala: str = "2.13") -> Sequence[JarSet]:
    """Spark's Kafka connector for this version of Spark, then those that may take its place. The part after the three numbers, which a
    vendor adds, is left out."""
    found = re.match(r"\d+\.\d+\.\d+", version)
    revision = found[0] if found else version
    earlier = EARLIER_CONNECTOR.get(release_of(version))
    exact = _connector("connector", revision, scala)
    # Under a name of its own, so that it is used only where the other one was not found.
    return (exact,) if earlier in (None, revision) else (exact, _connector(f"connector-for-{revision}", earlier, scala))


def _connector(name: str, revision: str, scala: str) -> JarSet:
    token_provider = f"spark-token-provider-kafka-0-10_{scala}"
    return JarSet(
        name,
        (
            Artefact("org.apache.spark", f"spark-sql-kafka-0-10_{scala}", revision, without=(token_provider, f"spark-tags_{scala}")),
            # Mirrors may lack the token provider of a later version; that of 4.0.0 has what the connector of 4.x calls.
            Artefact("org.apache.spark", token_provider, "4.0.0" if release_of(revision) >= (4, 0) else revision, alone=True),
        ),
        # These are among Spark's own jars, in the same versions; a second copy must not be on the class path.
        (
            "org.scala-lang",
            "org.scala-lang.modules",
            "org.slf4j",
            "at.yawk.lz4",
            "org.lz4",
            "org.xerial.snappy",
            "com.google.code.findbugs",
        ),
    )


BROKER = JarSet(
    "broker",
    (
        Artefact("org.apache.kafka", "kafka_2.13", "4.1.0"),
        Artefact("org.apache.logging.log4j", "log4j-slf4j-impl", "2.24.3"),  # without it a broker does not log, not even why it exits
    ),
)


class JarsNotFound(JarsUnavailable):
    """The repositories do not have a required jar."""


Run = Callable[[Sequence[str], int], tuple[int, str]]
"""Runs a command that inherits the given file descriptor; its exit code and its output."""


def connector_jars() -> Sequence[Path]:
    """The jars that a Spark session needs for Kafka, fetched if necessary. Raises JarsUnavailable, BadSettings, PySparkMissing."""
    return ensure_one(connectors_of(os.environ), os.environ)


def connectors_of(environment: Mapping[str, str]) -> Sequence[JarSet]:
    """`connectors` for the Spark of this machine. Raises PySparkMissing."""
    spark = installed_spark(environment)
    if spark is None:
        raise missing(environment)
    return connectors(spark.version, spark.scala)


def broker_jars() -> Sequence[Path]:
    """The class path of a Kafka broker, fetched if necessary. Raises JarsUnavailable, BadSettings, PySparkMissing."""
    return ensure_jars(BROKER, os.environ)


def jars_directory(environment: Mapping[str, str]) -> Path:
    """SLUICE_JARS_DIR, else sluice/jars in the user's cache. Raises BadSettings if this user has no home."""
    if given := environment.get("SLUICE_JARS_DIR"):
        return Path(given).absolute()
    cache = environment.get("XDG_CACHE_HOME") or ""  # the XDG specification: ignore a relative path
    try:
        return (Path(cache) if Path(cache).is_absolute() else Path.home() / ".cache") / "sluice" / "jars"
    except RuntimeError as error:
        raise BadSettings(f"there is no directory for jars, because user {os.getuid()} has no home: set SLUICE_JARS_DIR or HOME") from error


def java(environment: Mapping[str, str], program: str = "java") -> str | None:
    """A program of the Java that Spark uses: in JAVA_HOME, else on the path."""
    home = environment.get("JAVA_HOME")
    return shutil.which(f"{home}/bin/{program}") if home else shutil.which(program, path=environment.get("PATH"))


def check_java(environment: Mapping[str, str], program: str = "java") -> str:
    """The path of a program of the Java that Spark uses. Raises JavaMissing."""
    found = java(environment, program)
    if found is None:
        where = f"in JAVA_HOME ({environment['JAVA_HOME']})" if environment.get("JAVA_HOME") else "on the PATH"
        raise JavaMissing(f"There is no program {program!r} {where}: install Java 17 or 21, or set JAVA_HOME to its directory")
    return found


def complete_set(sets: Sequence[JarSet], environment: Mapping[str, str]) -> JarSet | None:
    """The first set that was fetched already."""
    directory = jars_directory(environment)
    return next((each for each in sets if (directory / each.directory_name).is_dir()), None)


def ensure_one(sets: Sequence[JarSet], environment: Mapping[str, str], run: Run | None = None) -> Sequence[Path]:
    """The jars of the first set that was fetched already, else of the first one that the repositories have. Raises as `ensure_jars`."""
    if (there := complete_set(sets, environment)) is not None:
        return ensure_jars(there, environment, run)
    wanted, *others = sets
    try:
        return ensure_jars(wanted, environment, run)
    except JarsNotFound:
        for each in others:
            with suppress(JarsUnavailable):
                found = ensure_jars(each, environment, run)
                log.warning("the repositories do not have %s: %s is used, which works with it", wanted.artefacts[0], each.artefacts[0])
                return found
        raise


def ensure_jars(wanted: JarSet, environment: Mapping[str, str], run: Run | None = None) -> Sequence[Path]:
    """The jars of a set, sorted by name. Processes may call it concurrently. Raises JarsUnavailable, BadSettings, PySparkMissing."""
    directory = jars_directory(environment)
    complete = directory / wanted.directory_name
    if not complete.is_dir():  # without the lock: the directory may be read-only in an image
        try:
            directory.mkdir(parents=True, exist_ok=True)
            with locked(directory / "lock") as lock:
                if not complete.is_dir():
                    _fetch(wanted, complete, environment, lock, run or run_with_lock)
        except OSError as error:
            raise JarsUnavailable(
                f"{directory} cannot be used for jars ({error.strerror or error}): set SLUICE_JARS_DIR to another directory"
            ) from error
    if lacking := _missing_artefacts(wanted, complete):
        raise JarsUnavailable(f"{complete} lacks {lacking}: remove the directory, so that it is fetched again")
    return sorted(complete.glob("*.jar"))


def _missing_artefacts(wanted: JarSet, directory: Path) -> str:
    """Requested artefacts that are not in the directory. Their dependencies are known only to Ivy."""
    return ", ".join(str(each) for each in wanted.artefacts if not (directory / f"{each.module}-{each.revision}.jar").exists())


@contextmanager
def locked(file: Path) -> Iterator[int]:
    with file.open("wb") as opened:
        fcntl.flock(opened, fcntl.LOCK_EX)
        yield opened.fileno()


def clear_unfinished(directory: Path) -> None:
    """Remove what a killed process has left unfinished. The caller holds the lock."""
    for left in directory.glob("building-*"):
        shutil.rmtree(left, ignore_errors=True)


def _fetch(wanted: JarSet, complete: Path, environment: Mapping[str, str], lock: int, run: Run) -> None:
    directory = complete.parent
    clear_unfinished(directory)
    building = Path(tempfile.mkdtemp(prefix="building-", dir=directory))
    try:
        ivy_file = building / "ivy.xml"
        ivy_file.write_text(wanted.ivy_xml())
        log.info("fetching %s into %s, once", ", ".join(map(str, wanted.artefacts)), complete)
        code, output = run(_ivy(ivy_file, directory / "ivy", environment), lock)
        if code != 0 or _missing_artefacts(wanted, building):
            kind = JarsNotFound if _MISSING.search(output) and not _UNREACHABLE.search(output) else JarsUnavailable
            raise kind(_error_message(wanted, complete, output))
        building.chmod(0o755)  # containers of other users read it in an image
        building.rename(complete)
    finally:
        shutil.rmtree(building, ignore_errors=True)
    shutil.rmtree(directory / "ivy", ignore_errors=True)


def _ivy(ivy_file: Path, cache: Path, environment: Mapping[str, str]) -> list[str]:
    """The command that fetches the artefacts of an Ivy file into the file's directory. `cache`: Ivy's, instead of one in the user's
    home."""
    program = java(environment)
    if program is None:
        raise JarsUnavailable("Java is needed to fetch jars, and was not found: install Java 17 or 21, or set JAVA_HOME")
    spark = installed_spark(environment)
    if spark is None:
        raise missing(environment)
    found = sorted((spark.home / "jars").glob("ivy-*.jar"))
    if not found:
        raise JarsUnavailable(
            f"Ivy, which fetches jars, is not among the jars of Spark in {spark.home}: install PySpark, or unset SPARK_HOME"
        )
    command = [program, f"-Divy.default.ivy.user.dir={cache}", "-cp", str(found[-1]), "org.apache.ivy.Main", "-cache", str(cache / "cache")]
    if given := environment.get("SLUICE_IVY_SETTINGS"):
        settings = Path(given).absolute()
        if not settings.is_file():
            raise BadSettings(f"SLUICE_IVY_SETTINGS: there is no file {settings}")
        command += ["-settings", str(settings)]
    return [
        *command,
        "-ivy",
        str(ivy_file),
        "-retrieve",
        f"{ivy_file.parent}/[artifact]-[revision].[ext]",
        "-types",
        "jar",
        "bundle",
        "-warn",
    ]


def run_with_lock(command: Sequence[str], lock: int, timeout: timedelta = _TIMEOUT) -> tuple[int, str]:
    """A `Run` with a time limit."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
            pass_fds=[lock],
            timeout=timeout.total_seconds(),
        )
    except subprocess.TimeoutExpired:
        return 1, f"stopped after {timeout}"
    return done.returncode, done.stdout


def _error_message(wanted: JarSet, complete: Path, output: str) -> str:
    lines = [line.strip() for line in output.splitlines()]
    lines = [line for line in lines if line.strip(":.") and not line.startswith("..")]  # without rulers and progress dots
    missing = list(dict.fromkeys(found[1] for line in lines if (found := _MISSING.match(line))))
    what = ", ".join(map(str, wanted.artefacts)) + (f" (of them: {', '.join(missing)})" if missing else "")
    ways = f"set SLUICE_IVY_SETTINGS to an Ivy settings file with a Maven mirror, or copy the jars into {complete}"
    return "\n  ".join([f"Ivy could not fetch {what}: {ways}. Its output:", *lines[-_LAST_LINES:]])
