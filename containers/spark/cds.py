"""An archive of Spark's classes as the JVM has them in memory (class-data sharing, "AppCDS": JEP 310 and JEP 350). A container whose JVM
begins with it starts with a quarter less CPU, and containers of one machine share its pages.

It belongs to one installation: to this Java and to these jars of PySpark's. The JVM looks at both when it begins, and does without an
archive that does not fit. It is made once, by `sluice class-archive`, which an image's build runs:

    DIRECTORY/lock                                held while one is made
    DIRECTORY/classes-<where>-<what>.jar          its class path, a pathing jar; made before it
    DIRECTORY/classes-<where>-<what>-<bytes>.jsa  whole: it got this name only then
    DIRECTORY/building-*                          one that is being made; one that nobody holds the lock for is garbage, as with jars

`<where>` is a hash of the paths of Java and the jars, `<what>` of their sizes and dates and of the class path: one for what was installed
there before goes when a new one is made. An archive whose jar is missing or damaged is not used. A jar without an archive is garbage.
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
from importlib.util import find_spec
from pathlib import Path

from containers.errors import ClassArchiveNotMade
from containers.jars import clear_unfinished, jars_directory, java, locked, run_holding
from containers.spark.pathing_jar import pathing_jar

log = logging.getLogger(__name__)

CLASS_PATH = "spark.driver.extraClassPath"
TRAINING = "containers.spark.cds_training"
_PATIENCE = timedelta(minutes=10)
_LAST_LINES = 12

QUIET = "-Xlog:cds*=off"
"""The JVM writes to its standard output what of an archive it cannot use, and every class that it cannot put into one."""


@dataclass(frozen=True, slots=True)
class ClassArchive:
    """`class_path`: what a JVM's class path must begin with. Spark's own is `jars/*`, which the JVM reads in whatever order a file system
    lists them, so that an archive made on one machine would not fit another's copy of the same image."""

    file: Path
    class_path: str

    @property
    def use(self) -> str:
        """Options of a JVM that begins with it, where it fits."""
        return f'"-XX:SharedArchiveFile={self.file}" {QUIET}'

    @property
    def make(self) -> str:
        """Options of a JVM that writes it when it ends in order."""
        return f'"-XX:ArchiveClassesAtExit={self.file}" {QUIET}'


Train = Callable[[ClassArchive, int], tuple[int, str]]
"""Runs a typical job in a process of its own, whose JVM writes the archive, and which holds the given file descriptor too; its exit code
and what it said."""


@dataclass(frozen=True, slots=True)
class Installation:
    """A Java and PySpark's jars: where they are and what they are, as hashes. `directory` has its links resolved; `pathing` is what the
    pathing jar contains, None where the class path has to name the jars one by one."""

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

    def whole(self) -> ClassArchive | None:
        """Its archive, if it was made. One that has lost its end is none: a JVM that begins with it crashes. One without its jar is none:
        it fits no class path."""
        for file in self.directory.glob(f"classes-{self.where}-{self.what}-*.jsa"):
            if file.stem.rsplit("-", 1)[1] != str(file.stat().st_size):
                log.warning("%s is not as long as when it was made, and is not used: remove it, or make it again", file)
            elif trouble := self._trouble_with_jar():
                log.warning("%s %s, and the archive of classes beside it is not used: make it again", self.jar, trouble)
            else:
                return ClassArchive(file, self.class_path)
        return None

    def _trouble_with_jar(self) -> str | None:
        if self.pathing is None:
            return None
        try:
            return None if self.jar.read_bytes() == self.pathing else "is not as it was made"
        except FileNotFoundError:
            return "is missing"


def installation(environment: Mapping[str, str]) -> Installation | None:
    """None without Java or PySpark."""
    program, jars = java(environment), sorted(jar for home in _spark_homes(environment) for jar in (home / "jars").glob("*.jar"))
    if program is None or not jars:
        return None
    parts = [Path(program).resolve(), *jars]
    where = _hash([str(part) for part in parts])
    dates = [f"{found.st_size} {int(found.st_mtime)}" for found in (part.stat() for part in parts)]
    directory = Path(os.path.realpath(jars_directory(environment)))
    pathing = pathing_jar(directory, jars)
    what = _hash(dates if pathing is None else [*dates, str(directory), pathing.hex()])
    return Installation(directory, where, what, tuple(jars), pathing)


def present(environment: Mapping[str, str]) -> ClassArchive | None:
    """The archive of this installation, if it was made, and the installation's settings leave the class path to us."""
    try:
        ours = installation(environment)
        return ours.whole() if ours is not None and not _has_class_path(environment) else None
    except OSError as error:
        log.warning("no archive of classes is used: %s", error)
        return None


def made(environment: Mapping[str, str], train: Train | None = None) -> ClassArchive:
    """The archive of this installation, made if need be, which takes half a minute. May be called by many processes at once.

    Raises ClassArchiveNotMade."""
    try:
        ours = installation(environment)
        if ours is None:
            raise ClassArchiveNotMade("an archive of Spark's classes needs Java and PySpark: install Java 17 or 21, or set JAVA_HOME")
        if found := ours.whole():  # looked at without the lock: an image's directory may be read-only
            return found
        ours.directory.mkdir(parents=True, exist_ok=True)
        with locked(ours.directory / "lock") as lock:
            return ours.whole() or _make(ours, lock, train or _train)
    except OSError as error:
        directory, why = jars_directory(environment), error.strerror or error
        raise ClassArchiveNotMade(
            f"{directory} cannot be used for an archive of classes ({why}): name another by SLUICE_JARS_DIR"
        ) from error


def _make(ours: Installation, lock: int, train: Train) -> ClassArchive:
    """In a directory of its own: a JVM whose training was interrupted may write its archive later, and has no place for it any more."""
    clear_unfinished(ours.directory)
    _clear(ours)
    log.info("making an archive of Spark's classes in %s from a short job, once", ours.directory)
    building = Path(tempfile.mkdtemp(prefix="building-", dir=ours.directory))
    try:
        if ours.pathing is not None:
            _write_jar(ours.pathing, building / "classes.jar", ours.jar)
        part = building / "classes.jsa"
        code, said = train(ClassArchive(part, ours.class_path), lock)
        if code != 0 or not part.is_file():
            last = "\n  ".join(said.splitlines()[-_LAST_LINES:])
            raise ClassArchiveNotMade(f"the job that Spark's classes were to be had from failed (exit code {code}). It said:\n  {last}")
        archive = ClassArchive(ours.directory / f"classes-{ours.where}-{ours.what}-{part.stat().st_size}.jsa", ours.class_path)
        _keep(part, archive.file)
    except BaseException:
        _clear(ours)
        raise
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return archive


def _clear(ours: Installation) -> None:
    """Remove what was made for this installation, and for what was here before; a JVM that has it keeps it. Archives go first, so that a
    crash leaves none without its jar."""
    for left in sorted(ours.directory.glob(f"classes-{ours.where}-*"), key=lambda left: left.suffix != ".jsa"):
        left.unlink()


def _write_jar(contents: bytes, part: Path, jar: Path) -> None:
    """Before the archive is made: it records the jar's path, size and date, which a JVM compares when it begins. A date of 0 it does not
    compare, so that the archive fits also where the dates of files were not kept."""
    part.write_bytes(contents)
    os.utime(part, (0, 0))
    _keep(part, jar)


def _keep(part: Path, file: Path) -> None:
    part.chmod(0o644)  # other users' containers read an image's
    with part.open("rb+") as opened:
        os.fsync(opened.fileno())
    part.rename(file)


def _train(archive: ClassArchive, lock: int) -> tuple[int, str]:
    return run_holding([sys.executable, "-P", "-m", TRAINING, str(archive.file), archive.class_path], lock, _PATIENCE)


def _has_class_path(environment: Mapping[str, str]) -> bool:
    """Whether Spark's file of defaults puts something on the class path, which what we say would replace."""
    told = environment.get("SPARK_CONF_DIR")
    places = [Path(told)] if told else [home / "conf" for home in _spark_homes(environment)]
    files = [file for place in places if (file := place / "spark-defaults.conf").is_file()]
    return any(line.lstrip().startswith(CLASS_PATH) for file in files for line in file.read_text(errors="replace").splitlines())


def _spark_homes(environment: Mapping[str, str]) -> Sequence[Path]:
    """Whose jars PySpark's JVM is given: SPARK_HOME's, else its own."""
    if home := environment.get("SPARK_HOME"):
        return [Path(home).absolute()]
    spark = find_spec("pyspark")
    return [Path(each) for each in (spark.submodule_search_locations or ())] if spark else []


def _hash(parts: Sequence[str]) -> str:
    return sha256("\n".join(parts).encode(errors="surrogateescape")).hexdigest()[:12]
