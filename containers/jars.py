"""Jars that PySpark does not bring: Spark's Kafka connector for jobs, and a Kafka broker for development and tests.

Ivy fetches them, which PySpark does bring, from where Ivy's settings say. Each set has a directory of its own, named by a hash of what is
asked for, so that another version is another directory:

    DIRECTORY/lock               held while a set is fetched; Ivy's process holds it too, so that one whose parent was killed is waited for
    DIRECTORY/ivy/               Ivy's own cache, so that a fetch goes on where a former one was cut off; removed when a set is complete
    DIRECTORY/building-*         a set that is not complete; one that nobody holds the lock for is garbage, removed by the next fetch
    DIRECTORY/connector-<hash>/  a complete set: it got this name only then
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
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from xml.etree import ElementTree as Xml

from containers.errors import JarsUnavailable
from sluice.core.errors import BadSettings

log = logging.getLogger(__name__)

_PATIENCE = timedelta(minutes=15)
_LAST_LINES = 12
_MISSING = re.compile(r"^\s*:: ([^\s#:]+#[^\s:]+)")
"""How Ivy's summary names what it could not get: `:: organisation#module;revision: not found`."""


@dataclass(frozen=True, slots=True)
class Artefact:
    """`without`: modules of the same organisation that are not to come with it; `alone`: nothing is."""

    organisation: str
    module: str
    revision: str
    without: tuple[str, ...] = ()
    alone: bool = False

    def __str__(self) -> str:
        return f"{self.organisation}:{self.module}:{self.revision}"


@dataclass(frozen=True, slots=True)
class JarSet:
    """What is asked for together. `excluded`: organisations of which nothing is wanted."""

    name: str
    artefacts: tuple[Artefact, ...]
    excluded: tuple[str, ...] = ()

    def ivy_xml(self) -> str:
        """The file that tells Ivy what to get (its format: "Ivy Files" in Ivy's reference)."""
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


CONNECTOR = JarSet(
    "connector",
    (
        # Mirrors may lack the token provider of this version; that of 4.0.0 has what the connector calls.
        Artefact(
            "org.apache.spark",
            "spark-sql-kafka-0-10_2.13",
            "4.2.0",
            without=("spark-token-provider-kafka-0-10_2.13", "spark-tags_2.13"),
        ),
        Artefact("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0", alone=True),
    ),
    # Spark has these among its own jars, in these versions; a second copy on the class path is one too many.
    ("org.scala-lang", "org.scala-lang.modules", "org.slf4j", "at.yawk.lz4", "org.lz4", "org.xerial.snappy", "com.google.code.findbugs"),
)

BROKER = JarSet(
    "broker",
    (
        Artefact("org.apache.kafka", "kafka_2.13", "4.1.0"),
        Artefact("org.apache.logging.log4j", "log4j-slf4j-impl", "2.24.3"),  # without it a broker says nothing, not even why it ends
    ),
)

Run = Callable[[Sequence[str], int], tuple[int, str]]
"""Runs a command that holds the given file descriptor too; its exit code and what it said."""


def connector_jars() -> Sequence[Path]:
    """What a Spark session needs to read and write Kafka, fetched if need be. Raises JarsUnavailable, BadSettings."""
    return fetched(CONNECTOR, os.environ)


def broker_jars() -> Sequence[Path]:
    """The class path of a Kafka broker, fetched if need be. Raises JarsUnavailable, BadSettings."""
    return fetched(BROKER, os.environ)


def jars_directory(environment: Mapping[str, str]) -> Path:
    """SLUICE_JARS_DIR, else sluice/jars in the user's cache."""
    if told := environment.get("SLUICE_JARS_DIR"):
        return Path(told).absolute()
    cache = environment.get("XDG_CACHE_HOME") or ""  # the XDG specification: a relative one is to be ignored
    return (Path(cache) if Path(cache).is_absolute() else Path.home() / ".cache") / "sluice" / "jars"


def java(environment: Mapping[str, str], program: str = "java") -> str | None:
    """A program of the Java that Spark would use: JAVA_HOME's, else the one on the path."""
    home = environment.get("JAVA_HOME")
    return shutil.which(f"{home}/bin/{program}") if home else shutil.which(program, path=environment.get("PATH"))


def fetched(wanted: JarSet, environment: Mapping[str, str], run: Run | None = None) -> Sequence[Path]:
    """The jars of a set, by name. May be called by many processes at once. Raises JarsUnavailable, BadSettings."""
    directory = jars_directory(environment)
    complete = directory / wanted.directory_name
    if not complete.is_dir():  # looked at without the lock: an image's directory may be read-only
        try:
            directory.mkdir(parents=True, exist_ok=True)
            with locked(directory / "lock") as lock:
                if not complete.is_dir():
                    _fetch(wanted, complete, environment, lock, run or run_holding)
        except OSError as error:
            raise JarsUnavailable(
                f"{directory} cannot be used for jars ({error.strerror or error}): name another by SLUICE_JARS_DIR"
            ) from error
    if lacking := _lacking(wanted, complete):
        raise JarsUnavailable(f"{complete} lacks {lacking}: remove it, and it is fetched anew")
    return sorted(complete.glob("*.jar"))


def _lacking(wanted: JarSet, directory: Path) -> str:
    """What was asked for and is not in the directory; what comes along with it only Ivy knows."""
    return ", ".join(str(each) for each in wanted.artefacts if not (directory / f"{each.module}-{each.revision}.jar").exists())


@contextmanager
def locked(file: Path) -> Iterator[int]:
    with file.open("wb") as opened:
        fcntl.flock(opened, fcntl.LOCK_EX)
        yield opened.fileno()


def clear_unfinished(directory: Path) -> None:
    """What was being made when its maker was killed. Only for who holds the lock."""
    for left in directory.glob("building-*"):
        shutil.rmtree(left, ignore_errors=True)


def _fetch(wanted: JarSet, complete: Path, environment: Mapping[str, str], lock: int, run: Run) -> None:
    directory = complete.parent
    clear_unfinished(directory)
    building = Path(tempfile.mkdtemp(prefix="building-", dir=directory))
    try:
        asked = building / "ivy.xml"
        asked.write_text(wanted.ivy_xml())
        log.info("fetching %s into %s, once", ", ".join(map(str, wanted.artefacts)), complete)
        code, said = run(_ivy(asked, directory / "ivy", environment), lock)
        if code != 0 or _lacking(wanted, building):
            raise JarsUnavailable(_refusal(wanted, complete, said))
        building.chmod(0o755)  # other users' containers read an image's
        building.rename(complete)
    finally:
        shutil.rmtree(building, ignore_errors=True)
    shutil.rmtree(directory / "ivy", ignore_errors=True)


def _ivy(asked: Path, cache: Path, environment: Mapping[str, str]) -> list[str]:
    """The command that fetches what the file asks for into the file's directory. `cache`: Ivy's own, instead of one in the user's home."""
    program = java(environment)
    if program is None:
        raise JarsUnavailable("Java is needed to fetch jars, and is not there: install Java 17 or 21, or set JAVA_HOME")
    spark = find_spec("pyspark")
    jars = [Path(each) / "jars" for each in (spark.submodule_search_locations or ())] if spark else []
    found = sorted(jar for each in jars for jar in each.glob("ivy-*.jar"))
    if not found:
        raise JarsUnavailable("Ivy, which fetches jars, is not among PySpark's jars: install pyspark as Sluice asks for it")
    command = [program, f"-Divy.default.ivy.user.dir={cache}", "-cp", str(found[-1]), "org.apache.ivy.Main", "-cache", str(cache / "cache")]
    if told := environment.get("SLUICE_IVY_SETTINGS"):
        settings = Path(told).absolute()
        if not settings.is_file():
            raise BadSettings(f"SLUICE_IVY_SETTINGS: there is no file {settings}")
        command += ["-settings", str(settings)]
    return [*command, "-ivy", str(asked), "-retrieve", f"{asked.parent}/[artifact]-[revision].[ext]", "-types", "jar", "bundle", "-warn"]


def run_holding(command: Sequence[str], lock: int, patience: timedelta = _PATIENCE) -> tuple[int, str]:
    """A `Run` that is ended when it takes longer."""
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
            timeout=patience.total_seconds(),
        )
    except subprocess.TimeoutExpired:
        return 1, f"given up after {patience}"
    return done.returncode, done.stdout


def _refusal(wanted: JarSet, complete: Path, said: str) -> str:
    lines = [line.strip() for line in said.splitlines()]
    lines = [line for line in lines if line.strip(":.") and not line.startswith("..")]  # rules, and dots that tell of progress
    missing = list(dict.fromkeys(found[1] for line in lines if (found := _MISSING.match(line))))
    what = ", ".join(map(str, wanted.artefacts)) + (f" (of them: {', '.join(missing)})" if missing else "")
    ways = f"name a Maven mirror in an Ivy settings file by SLUICE_IVY_SETTINGS, or put the jars into {complete} by hand"
    return "\n  ".join([f"Ivy could not fetch {what}: {ways}. It said:", *lines[-_LAST_LINES:]])
