"""An archive of Spark's classes in the JVM's memory format (class-data sharing, "AppCDS": JEP 310 and JEP 350). With it, a container starts
with a quarter less CPU time, and containers of one machine share its pages.

An archive is valid for one Java and one set of PySpark's jars. The JVM checks both when it starts, and ignores an archive that is not
valid. `sluice class-archive` makes it once, for example in the build of an image:

    DIRECTORY/lock                                locked while an archive is made
    DIRECTORY/classes-<where>-<what>.jar          its class path, a pathing jar; made before the archive
    DIRECTORY/classes-<where>-<what>-<bytes>.jsa  a complete archive: it gets this name last
    DIRECTORY/building-*                          an incomplete archive; garbage if the lock is free, as with jars

`<where>` is a hash of the paths of Java and the jars. `<what>` is a hash of their sizes, their dates and the class path. A new archive
replaces that of a former installation at the same paths. An archive whose jar is missing or damaged is not used. A jar without an archive
is garbage.
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha256
from pathlib import Path

from containers.errors import ClassArchiveUnavailable
from containers.jars import clear_unfinished, jars_directory, java, locked, run_with_lock
from containers.spark.start.pathing_jar import pathing_jar
from sluice.installed_spark import installed_spark, missing

log = logging.getLogger(__name__)

CLASS_PATH = "spark.driver.extraClassPath"
TRAINING = "containers.spark.start.cds_training"
_TIMEOUT = timedelta(minutes=10)
_LAST_LINES = 12

QUIET = "-Xlog:cds*=off"
"""Without it, the JVM writes to standard output which parts of an archive it cannot use, and which classes it cannot archive."""


@dataclass(frozen=True, slots=True)
class ClassArchive:
    """`class_path`: the class path of the JVM must start with it. Spark's own is `jars/*`, which the JVM reads in the order of the file
    system: an archive made on one machine would not be valid for a copy of the same image on another."""

    file: Path
    class_path: str

    @property
    def use(self) -> str:
        """JVM options to start with the archive, if it is valid."""
        return f'"-XX:SharedArchiveFile={self.file}" {QUIET}'

    @property
    def make(self) -> str:
        """JVM options to write the archive at an orderly exit."""
        return f'"-XX:ArchiveClassesAtExit={self.file}" {QUIET}'


Train = Callable[[ClassArchive, int], tuple[int, str]]
"""Runs a typical job in another process, whose JVM writes the archive. The process inherits the given file descriptor. Returns its exit
code and its output."""


@dataclass(frozen=True, slots=True)
class Installation:
    """A Java and PySpark's jars: hashes of their paths and of their contents. `directory` has its links resolved. `pathing`: the contents
    of the pathing jar; None if the class path must name each jar."""

    directory: Path
    where: str
    what: str
    jars: tuple[Path, ...]
    pathing: bytes | None

    @property
    def jar(self) -> Path:
        return self.directory / f"classes-{self.where}-{self.what}.jar"

    @property
    def class_path(self) -> str:
        return ":".join(map(str, self.jars)) if self.pathing is None else str(self.jar)

    def find(self) -> ClassArchive | None:
        """The archive, if there is one. A truncated archive is not used, since the JVM would crash, and neither is one without its jar,
        since it is valid for no class path."""
        for file in self.directory.glob(f"classes-{self.where}-{self.what}-*.jsa"):
            if file.stem.rsplit("-", 1)[1] != str(file.stat().st_size):
                log.warning("%s is truncated and is not used: remove it, or make it again", file)
            elif problem := self._problem_of_jar():
                log.warning("%s %s, and the archive of classes beside it is not used: make it again", self.jar, problem)
            else:
                return ClassArchive(file, self.class_path)
        return None

    def _problem_of_jar(self) -> str | None:
        if self.pathing is None:
            return None
        try:
            return None if self.jar.read_bytes() == self.pathing else "was changed since it was made"
        except FileNotFoundError:
            return "is missing"


def installation(environment: Mapping[str, str]) -> Installation | None:
    """None without Java or PySpark."""
    program, spark = java(environment), installed_spark(environment)
    jars = sorted((spark.home / "jars").glob("*.jar")) if spark is not None else []
    if program is None or not jars:
        return None
    parts = [Path(program).resolve(), *jars]
    where = _hash([str(part) for part in parts])
    dates = [f"{found.st_size} {int(found.st_mtime)}" for found in (part.stat() for part in parts)]
    directory = Path(os.path.realpath(jars_directory(environment)))
    pathing = pathing_jar(directory, jars)
    what = _hash(dates if pathing is None else [*dates, str(directory), pathing.hex()])
    return Installation(directory, where, what, tuple(jars), pathing)


def find_archive(environment: Mapping[str, str]) -> ClassArchive | None:
    """The archive of this installation, if there is one, and Spark's default settings have no class path."""
    try:
        installed = installation(environment)
        return installed.find() if installed is not None and not _has_class_path(environment) else None
    except OSError as error:
        log.warning("no archive of classes is used: %s", error)
        return None


def ensure_archive(environment: Mapping[str, str], train: Train | None = None) -> ClassArchive:
    """The archive of this installation, made if necessary, which takes half a minute. Processes may call it concurrently.

    Raises ClassArchiveUnavailable, PySparkMissing."""
    if installed_spark(environment) is None:
        raise missing(environment)
    try:
        installed = installation(environment)
        if installed is None:
            raise ClassArchiveUnavailable(
                "an archive of Spark's classes needs Java and Spark's jars: install Java 17 or 21, or set JAVA_HOME"
            )
        if found := installed.find():  # without the lock: the directory may be read-only in an image
            return found
        installed.directory.mkdir(parents=True, exist_ok=True)
        with locked(installed.directory / "lock") as lock:
            return installed.find() or _make(installed, lock, train or _train)
    except OSError as error:
        directory, why = jars_directory(environment), error.strerror or error
        raise ClassArchiveUnavailable(
            f"{directory} cannot be used for an archive of classes ({why}): set SLUICE_JARS_DIR to another directory"
        ) from error


def _make(installed: Installation, lock: int, train: Train) -> ClassArchive:
    """Make the archive in a new directory, because a JVM whose training was interrupted may still write its archive later."""
    clear_unfinished(installed.directory)
    _clear(installed)
    log.info("making an archive of Spark's classes in %s from a short job, once", installed.directory)
    building = Path(tempfile.mkdtemp(prefix="building-", dir=installed.directory))
    try:
        if installed.pathing is not None:
            _write_jar(installed.pathing, building / "classes.jar", installed.jar)
        part = building / "classes.jsa"
        code, output = train(ClassArchive(part, installed.class_path), lock)
        if code != 0 or not part.is_file():
            last = "\n  ".join(output.splitlines()[-_LAST_LINES:])
            raise ClassArchiveUnavailable(f"the job that loads Spark's classes failed (exit code {code}). Its output:\n  {last}")
        archive = ClassArchive(
            installed.directory / f"classes-{installed.where}-{installed.what}-{part.stat().st_size}.jsa", installed.class_path
        )
        _publish(part, archive.file)
    except BaseException:
        _clear(installed)
        raise
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return archive


def _clear(installed: Installation) -> None:
    """Remove the archives of this installation and of former ones; running JVMs are not affected. Archives are removed first, so that a
    crash leaves none without its jar."""
    for left in sorted(installed.directory.glob(f"classes-{installed.where}-*"), key=lambda left: left.suffix != ".jsa"):
        left.unlink()


def _write_jar(contents: bytes, part: Path, jar: Path) -> None:
    """Write the jar before the archive, which records the jar's path, size and date. A JVM compares them when it starts, except a date of
    0. So the archive is also valid where the dates of files were not preserved."""
    part.write_bytes(contents)
    os.utime(part, (0, 0))
    _publish(part, jar)


def _publish(part: Path, file: Path) -> None:
    part.chmod(0o644)  # containers of other users read it in an image
    with part.open("rb+") as opened:
        os.fsync(opened.fileno())
    part.rename(file)


def _train(archive: ClassArchive, lock: int) -> tuple[int, str]:
    return run_with_lock([sys.executable, "-P", "-m", TRAINING, str(archive.file), archive.class_path], lock, _TIMEOUT)


def _has_class_path(environment: Mapping[str, str]) -> bool:
    """Whether Spark's default settings have a class path, which that of the archive would replace."""
    given = environment.get("SPARK_CONF_DIR")
    spark = installed_spark(environment)
    places = [Path(given)] if given else [spark.home / "conf"] if spark is not None else []
    files = [file for place in places if (file := place / "spark-defaults.conf").is_file()]
    return any(line.lstrip().startswith(CLASS_PATH) for file in files for line in file.read_text(errors="replace").splitlines())


def _hash(parts: Sequence[str]) -> str:
    return sha256("\n".join(parts).encode(errors="surrogateescape")).hexdigest()[:12]
