from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from xml.etree import ElementTree as Xml

import pytest

from containers.errors import JarsUnavailable
from containers.jars import (
    BROKER,
    Artefact,
    JarSet,
    JarsNotFound,
    Run,
    connectors,
    connectors_of,
    ensure_jars,
    ensure_one,
    jars_directory,
    java,
)
from coordinator.store.claim import lock_file
from sluice.core.errors import BadSettings

ONE = JarSet("one", (Artefact("org.example", "thing_2.13", "1.0"),))


@pytest.fixture
def environment(tmp_path: Path) -> Mapping[str, str]:
    """The directory for jars does not exist, and Java is never run."""
    program = tmp_path / "jdk" / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.touch(mode=0o755)
    return {"JAVA_HOME": str(tmp_path / "jdk"), "SLUICE_JARS_DIR": str(tmp_path / "cache" / "jars")}


def target(command: Sequence[str]) -> Path:
    """The directory into which Ivy is configured to copy jars."""
    return Path(command[command.index("-retrieve") + 1]).parent


class FakeIvy:
    """Puts jars with these names into Ivy's target directory, or fails with the output `says`."""

    def __init__(self, *names: str, says: str | None = None) -> None:
        self.names = names
        self.says = says
        self.commands: list[Sequence[str]] = []

    def __call__(self, command: Sequence[str], lock: int) -> tuple[int, str]:
        self.commands.append(command)
        for name in self.names:
            (target(command) / name).write_bytes(b"PK")
        return (0, "") if self.says is None else (1, self.says)


GOOD = ("thing_2.13-1.0.jar", "needed-by-thing-7.jar")


# --- what is requested -----------------------------------------------------------------------------------------------


def dependencies(wanted: JarSet) -> dict[str, Xml.Element]:
    root = Xml.fromstring(wanted.ivy_xml())
    assert root.tag == "ivy-module"
    return {each.attrib["name"]: each for each in root.findall("dependencies/dependency")}


@pytest.mark.parametrize(("spark", "revision"), [("4.2.0", "4.2.0"), ("4.3.0", "4.3.0"), ("4.3.1-amzn-0", "4.3.1")])
def test_the_connector_of_the_version_is_requested_with_a_token_provider_that_mirrors_have(spark: str, revision: str) -> None:
    wanted, provider = dependencies(connectors(spark)[0]).values()
    assert wanted.attrib["rev"] == revision
    assert {each.attrib["module"] for each in wanted.findall("exclude")} == {"spark-token-provider-kafka-0-10_2.13", "spark-tags_2.13"}
    assert (provider.attrib["name"], provider.attrib["rev"]) == ("spark-token-provider-kafka-0-10_2.13", "4.0.0")
    assert provider.attrib["transitive"] == "false"


def test_scripts_on_spark_3_get_a_connector_of_its_version_of_scala() -> None:
    assert [(name, each.attrib["rev"]) for name, each in dependencies(connectors("3.5.9", "2.12")[0]).items()] == [
        ("spark-sql-kafka-0-10_2.12", "3.5.9"),
        ("spark-token-provider-kafka-0-10_2.12", "3.5.9"),
    ]


def test_the_connector_is_that_of_the_jars_of_the_session(tmp_path: Path) -> None:
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "spark-core_2.13-4.3.9.jar").touch()
    assert connectors_of({"SPARK_HOME": str(tmp_path)}) == connectors("4.3.9")


def test_each_version_has_a_directory_of_its_own_also_where_an_earlier_connector_takes_the_place() -> None:
    (old,), (new, instead) = connectors("4.2.0"), connectors("4.3.0")
    assert instead.artefacts == old.artefacts
    assert len({each.directory_name for each in (old, new, instead)}) == 3


def test_jars_that_spark_has_are_not_requested() -> None:
    without = {each.attrib["org"] for each in Xml.fromstring(connectors("4.2.0")[0].ivy_xml()).findall("dependencies/exclude")}
    assert {"org.scala-lang", "org.slf4j"} <= without
    assert not {each.organisation for each in connectors("4.2.0")[0].artefacts} & without


def test_a_broker_can_log_why_it_ends() -> None:
    assert set(dependencies(BROKER)) == {"kafka_2.13", "log4j-slf4j-impl"}


def test_another_version_is_another_directory() -> None:
    other = JarSet("one", (Artefact("org.example", "thing_2.13", "1.1"),))
    assert other.directory_name != ONE.directory_name
    assert JarSet("one", ONE.artefacts).directory_name == ONE.directory_name


# --- where jars are stored ------------------------------------------------------------------------------------------------


def test_jars_are_in_the_configured_directory(tmp_path: Path) -> None:
    assert jars_directory({"SLUICE_JARS_DIR": str(tmp_path), "XDG_CACHE_HOME": "/elsewhere"}) == tmp_path
    assert jars_directory({"SLUICE_JARS_DIR": "here"}) == Path.cwd() / "here"


def test_jars_are_in_the_users_cache_by_default(tmp_path: Path) -> None:
    assert jars_directory({"XDG_CACHE_HOME": str(tmp_path)}) == tmp_path / "sluice" / "jars"
    for relative_or_none in ({}, {"XDG_CACHE_HOME": ""}, {"XDG_CACHE_HOME": "relative"}):
        assert jars_directory(relative_or_none) == Path.home() / ".cache" / "sluice" / "jars"


def test_nothing_is_written_to_the_ivy_directory_in_the_home(environment: Mapping[str, str]) -> None:
    ivy = FakeIvy(*GOOD)
    ensure_jars(ONE, environment, ivy)
    (command,) = ivy.commands
    ours = environment["SLUICE_JARS_DIR"]
    assert f"-Divy.default.ivy.user.dir={ours}/ivy" in command
    assert command[command.index("-cache") + 1].startswith(ours)


# --- fetching --------------------------------------------------------------------------------------------------------


def test_jars_are_fetched_once(environment: Mapping[str, str]) -> None:
    ivy = FakeIvy(*GOOD)
    first, second = ensure_jars(ONE, environment, ivy), ensure_jars(ONE, environment, ivy)
    assert [jar.name for jar in first] == sorted(GOOD)
    assert second == first
    assert len(ivy.commands) == 1


def test_a_complete_set_needs_neither_java_nor_a_directory_that_can_be_written(environment: Mapping[str, str]) -> None:
    jars = ensure_jars(ONE, environment, FakeIvy(*GOOD))
    (jars[0].parent.parent / "lock").unlink()
    assert ensure_jars(ONE, {"SLUICE_JARS_DIR": environment["SLUICE_JARS_DIR"], "PATH": ""}) == jars
    assert not (jars[0].parent.parent / "lock").exists()


def test_jars_that_were_copied_by_hand_are_used(environment: Mapping[str, str]) -> None:
    by_hand = Path(environment["SLUICE_JARS_DIR"]) / ONE.directory_name
    by_hand.mkdir(parents=True)
    (by_hand / GOOD[0]).touch()
    assert ensure_jars(ONE, environment, FakeIvy(says="no network")) == [by_hand / GOOD[0]]


def test_a_directory_that_lacks_a_requested_jar_is_refused(environment: Mapping[str, str]) -> None:
    by_hand = Path(environment["SLUICE_JARS_DIR"]) / ONE.directory_name
    by_hand.mkdir(parents=True)
    (by_hand / "thing_2.13-0.9.jar").touch()
    with pytest.raises(JarsUnavailable, match=r"lacks org\.example:thing_2\.13:1\.0"):
        ensure_jars(ONE, environment)


SAID = """\
.................. (876kB)
:: problems summary ::
:::: WARNINGS
		module not found: org.example#thing_2.13;1.0
		::::::::::::::::::::::::::::::::::::::::::::::
		:: org.example#thing_2.13;1.0: not found
		::::::::::::::::::::::::::::::::::::::::::::::
:::: ERRORS
	Server access error (java.net.ConnectException: Connection refused)
"""


def test_a_failed_fetch_says_what_is_missing_and_what_to_do(environment: Mapping[str, str]) -> None:
    with pytest.raises(JarsUnavailable) as caught:
        ensure_jars(ONE, environment, FakeIvy(GOOD[1], says=SAID))
    output = str(caught.value)
    assert "org.example:thing_2.13:1.0" in output
    assert "of them: org.example#thing_2.13;1.0" in output
    assert "SLUICE_IVY_SETTINGS" in output
    assert str(Path(environment["SLUICE_JARS_DIR"]) / ONE.directory_name) in output
    assert "Connection refused" in output
    assert "876kB" not in output


class Mirror(FakeIvy):
    """A repository with the connector of Spark 4.2.0 only, which may not answer."""

    def __init__(self, *, answers: bool = True) -> None:
        super().__init__("spark-sql-kafka-0-10_2.13-4.2.0.jar", "spark-token-provider-kafka-0-10_2.13-4.0.0.jar")
        self.answers = answers

    def __call__(self, command: Sequence[str], lock: int) -> tuple[int, str]:
        wanted = Path(command[command.index("-ivy") + 1]).read_text()
        if 'rev="4.2.0"' in wanted and self.answers:
            return super().__call__(command, lock)
        self.commands.append(command)
        return 1, NOT_FOUND if self.answers else SAID


NOT_FOUND = "\t\t:: org.apache.spark#spark-sql-kafka-0-10_2.13;4.3.0: not found\n"


def test_an_earlier_connector_that_works_is_used_where_the_repositories_lack_that_of_the_version(
    environment: Mapping[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    (old,), mirror = connectors("4.2.0"), Mirror()
    ensure_jars(old, environment, mirror)
    first, again = (ensure_one(connectors("4.3.0"), environment, mirror) for _ in range(2))
    assert [jar.name for jar in first] == sorted(mirror.names)
    assert first == again
    assert len(mirror.commands) == 3, "the jars of the other version are not taken without asking for the right ones first"
    assert "do not have org.apache.spark:spark-sql-kafka-0-10_2.13:4.3.0" in caplog.text


def test_no_other_connector_is_used_because_a_repository_does_not_answer(environment: Mapping[str, str]) -> None:
    mirror = Mirror(answers=False)
    with pytest.raises(JarsUnavailable, match="4\\.3\\.0") as caught:
        ensure_one(connectors("4.3.0"), environment, mirror)
    assert not isinstance(caught.value, JarsNotFound)
    assert len(mirror.commands) == 1


@pytest.mark.parametrize("ivy", [FakeIvy(*GOOD, says=SAID), FakeIvy(GOOD[1])], ids=["Ivy fails", "Ivy downloads half and reports success"])
def test_a_failed_fetch_leaves_no_incomplete_jars(environment: Mapping[str, str], ivy: FakeIvy) -> None:
    with pytest.raises(JarsUnavailable):
        ensure_jars(ONE, environment, ivy)
    assert {each.name for each in Path(environment["SLUICE_JARS_DIR"]).iterdir()} <= {"lock", "ivy"}
    assert [jar.name for jar in ensure_jars(ONE, environment, FakeIvy(*GOOD))] == sorted(GOOD)


def test_leftovers_of_a_killed_fetch_are_removed_by_the_next_one(environment: Mapping[str, str]) -> None:
    directory = Path(environment["SLUICE_JARS_DIR"])
    left = directory / "building-left"
    left.mkdir(parents=True)
    (left / GOOD[0]).touch()
    (directory / "ivy").mkdir()
    jars = ensure_jars(ONE, environment, FakeIvy(*GOOD))
    assert len(jars) == 2
    assert {each.name for each in directory.iterdir()} == {"lock", ONE.directory_name}


def locked_by_another(file: Path) -> bool:
    ours = lock_file(file)
    if ours is not None:
        ours.close()
    return ours is None


def meanwhile(look: Callable[[int], None]) -> Run:
    def run(command: Sequence[str], lock: int) -> tuple[int, str]:
        look(lock)
        return FakeIvy(*GOOD)(command, lock)

    return run


def test_while_jars_are_fetched_no_other_fetches(environment: Mapping[str, str]) -> None:
    file = Path(environment["SLUICE_JARS_DIR"]) / "lock"
    seen: list[tuple[bool, bool]] = []
    ensure_jars(ONE, environment, meanwhile(lambda lock: seen.append((locked_by_another(file), lock > 2))))
    assert seen == [(True, True)]
    assert not locked_by_another(file)


# --- missing requirements ---------------------------------------------------------------------------------------------


def test_without_java_the_error_says_so(tmp_path: Path) -> None:
    for environment in ({"PATH": ""}, {"JAVA_HOME": str(tmp_path), "PATH": ""}):
        with pytest.raises(JarsUnavailable, match="Java is needed"):
            ensure_jars(ONE, {**environment, "SLUICE_JARS_DIR": str(tmp_path / "jars")})


def test_the_java_of_java_home_comes_before_that_of_the_path(environment: Mapping[str, str]) -> None:
    assert java({**environment, "PATH": "/elsewhere"}) == f"{environment['JAVA_HOME']}/bin/java"


def test_a_mirror_is_named_by_a_settings_file(environment: Mapping[str, str], tmp_path: Path) -> None:
    settings = tmp_path / "ivysettings.xml"
    with pytest.raises(BadSettings, match=r"SLUICE_IVY_SETTINGS.*ivysettings\.xml"):
        ensure_jars(ONE, {**environment, "SLUICE_IVY_SETTINGS": str(settings)})
    settings.touch()
    ivy = FakeIvy(*GOOD)
    ensure_jars(ONE, {**environment, "SLUICE_IVY_SETTINGS": str(settings)}, ivy)
    assert ["-settings", str(settings)] == list(ivy.commands[0][7:9])


def test_a_directory_that_cannot_be_made_is_named(environment: Mapping[str, str], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(JarsUnavailable, match="set SLUICE_JARS_DIR to another directory"):
        ensure_jars(ONE, {**environment, "SLUICE_JARS_DIR": str(tmp_path / "file" / "jars")})
