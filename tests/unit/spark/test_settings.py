from __future__ import annotations

import re
from pathlib import Path

import pytest

from containers.spark.session import DEFAULT_JAVA_OPTIONS, LONGEST_SOCKETS_PATH, session_settings
from containers.spark.start.cds import CLASS_PATH, ClassArchive
from containers.spark.start.jvm_log import configuration, is_configured

SOCKETS = Path("/tmp/sluice-abc")
ARCHIVE = ClassArchive(Path("/cache/a b.jsa"), "/cache/a b.jar")
ENABLED, DIRECTORY = "spark.python.unix.domain.socket.enabled", "spark.python.unix.domain.socket.dir"


def settings_of(
    master: str = "local[2]", submitted: dict[str, str] | None = None, sockets: Path | None = SOCKETS, **settings: str
) -> dict[str, str]:
    dotted = {name.replace("_", "."): value for name, value in settings.items()}
    return dict(session_settings(master, submitted or {}, dotted, sockets))


def test_a_job_s_settings_win_over_those_of_spark_submit_and_both_over_sluice_s() -> None:
    assert settings_of()["spark.ui.enabled"] == "false"
    assert settings_of(submitted={"spark.ui.enabled": "true"})["spark.ui.enabled"] == "true"
    assert settings_of(submitted={"spark.ui.enabled": "true"}, spark_ui_enabled="maybe")["spark.ui.enabled"] == "maybe"


def test_python_workers_of_a_local_session_meet_the_jvm_in_its_directory_of_sockets() -> None:
    found = settings_of()
    assert (found[ENABLED], found[DIRECTORY]) == ("true", str(SOCKETS))
    assert settings_of(spark_python_unix_domain_socket_enabled="false")[ENABLED] == "false"


@pytest.mark.parametrize("sockets", [None, Path("/" + "x" * LONGEST_SOCKETS_PATH), Path("/" + "ü" * 30)])
def test_without_a_directory_whose_path_is_short_enough_they_meet_at_ports(sockets: Path | None) -> None:
    assert not {ENABLED, DIRECTORY} & settings_of(sockets=sockets).keys()


@pytest.mark.parametrize(
    "master", ["spark://10.0.0.7:7077", "spark://127.0.0.1:7077", "yarn", "local-cluster[2,1,1024]", "k8s://https://h"]
)
def test_executors_on_other_machines_do_not_get_a_directory_of_this_one(master: str) -> None:
    assert not {ENABLED, DIRECTORY} & settings_of(master).keys()


def test_a_jvm_without_memory_ends_whatever_defaults_the_job_has() -> None:
    assert "ExitOnOutOfMemoryError" in settings_of()[DEFAULT_JAVA_OPTIONS]
    options = settings_of(spark_driver_defaultJavaOptions="-Xss4m")[DEFAULT_JAVA_OPTIONS]
    assert "ExitOnOutOfMemoryError" in options
    assert options.endswith(" -Xss4m")


def with_archive(submitted: dict[str, str] | None = None, **settings: str) -> dict[str, str]:
    dotted = {name.replace("_", "."): value for name, value in settings.items()}
    return dict(session_settings("local[2]", submitted or {}, dotted, None, ARCHIVE))


def test_a_jvm_begins_with_the_archive_and_with_the_class_path_that_it_was_made_with() -> None:
    found = with_archive(spark_driver_defaultJavaOptions="-Xss4m")
    assert '"-XX:SharedArchiveFile=/cache/a b.jsa"' in found[DEFAULT_JAVA_OPTIONS]
    assert "ExitOnOutOfMemoryError" in found[DEFAULT_JAVA_OPTIONS]
    assert found[DEFAULT_JAVA_OPTIONS].endswith(" -Xss4m")
    assert found[CLASS_PATH] == "/cache/a b.jar"


def test_where_the_job_has_a_class_path_of_its_own_or_spark_submit_has_started_the_jvm_there_is_no_archive() -> None:
    own = with_archive(spark_driver_extraClassPath="/mine.jar")
    assert (own[CLASS_PATH], "SharedArchive" in own[DEFAULT_JAVA_OPTIONS]) == ("/mine.jar", False)
    submitted = with_archive({"spark.master": "local[2]"})
    assert (CLASS_PATH in submitted, "SharedArchive" in submitted[DEFAULT_JAVA_OPTIONS]) == (False, False)


def test_the_jvm_s_temporary_files_are_in_the_directory_that_is_deleted_with_the_container() -> None:
    settings = session_settings("local[2]", {}, {"spark.driver.extraJavaOptions": "-Djava.io.tmpdir=/mine"}, None, None, Path('/a "b"/tmp'))
    assert settings[DEFAULT_JAVA_OPTIONS].endswith('"-Djava.io.tmpdir=/a \\"b\\"/tmp"')
    assert settings["spark.driver.extraJavaOptions"] == "-Djava.io.tmpdir=/mine"


def test_a_jvm_that_spark_submit_has_started_has_its_own_directory_for_temporary_files() -> None:
    assert "tmpdir" not in session_settings("local[2]", {"spark.master": "local[2]"}, {}, None, None, Path("/t"))[DEFAULT_JAVA_OPTIONS]


def test_the_jvm_logs_to_a_file_if_one_is_named() -> None:
    settings = session_settings("local[2]", {}, {}, None, None, None, Path("/a b/log4j2.properties"))
    assert settings[DEFAULT_JAVA_OPTIONS].endswith('"-Dlog4j2.configurationFile=file:///a%20b/log4j2.properties"')
    assert "log4j" not in session_settings("local[2]", {"spark.master": "local[2]"}, {}, None, None, None, Path("/l"))[DEFAULT_JAVA_OPTIONS]


def test_a_logging_that_the_user_has_configured_is_not_replaced(tmp_path: Path) -> None:
    assert not is_configured({}, {})
    assert is_configured({"spark.driver.extraJavaOptions": "-Dlog4j2.configurationFile=mine.xml"}, {})
    assert not is_configured({}, {"SPARK_CONF_DIR": str(tmp_path)})
    (tmp_path / "log4j2.properties.template").touch()
    assert not is_configured({}, {"SPARK_CONF_DIR": str(tmp_path)})
    (tmp_path / "log4j2.properties").touch()
    assert is_configured({}, {"SPARK_CONF_DIR": str(tmp_path)})
    (tmp_path / "conf").mkdir()
    assert not is_configured({}, {"SPARK_HOME": str(tmp_path)})
    (tmp_path / "conf" / "log4j2.xml").touch()
    assert is_configured({}, {"SPARK_HOME": str(tmp_path)})


def test_the_path_of_the_log_is_not_interpreted_by_log4j() -> None:
    lines = dict(line.split(" = ", 1) for line in configuration(Path("/a ${env:HOME}/50%i.log")).splitlines() if " = " in line)
    plain = {name: re.sub(r"\\u(....)", lambda found: chr(int(found[1], 16)), value) for name, value in lines.items()}
    assert plain["appender.file.fileName"] == "/a $${env:HOME}/50%i.log"
    assert plain["appender.file.filePattern"] == "/a $${env:HOME}/50%%i.log.%i"
