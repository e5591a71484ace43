from __future__ import annotations

import os
import socket
from datetime import timedelta
from pathlib import Path

import pytest

from containers.settings import ContainerSettings, read_container_settings
from sluice.core.errors import BadSettings


@pytest.fixture(autouse=True)
def _nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("SLUICE_", "EXECUTION_ENV_")):
            monkeypatch.delenv(name)


@pytest.fixture
def given(_nothing_set: None, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setenv("SLUICE_RUN_ID", "r1")
    return monkeypatch


def refusal() -> str:
    with pytest.raises(BadSettings) as caught:
        read_container_settings()
    return str(caught.value)


def test_a_container_needs_a_run_id() -> None:
    assert refusal() == "SLUICE_RUN_ID: set it to the id that `sluice deploy job.py` prints"


def test_a_run_id_is_the_only_required_setting(given: pytest.MonkeyPatch) -> None:
    settings = read_container_settings()
    assert (settings.run, settings.processor, settings.coordinator_url) == ("r1", "0", "http://127.0.0.1:8180")
    assert settings.host == socket.gethostname()
    assert settings.state_directory == Path(".sluice/state").absolute()
    assert settings.stop_timeout == timedelta(seconds=120)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("SLUICE_RUN_ID", ""),
        ("SLUICE_PROCESSOR_ID", ""),
        ("EXECUTION_ENV_CONTAINER_ID", ""),
        ("EXECUTION_ENV_CONTAINER_ID", "two words"),
        ("EXECUTION_ENV_CONTAINER_ID", "c" * 301),
        ("SLUICE_COORDINATOR_URL", "ftp://coordinator"),
        ("SLUICE_COORDINATOR_URL", "http://me:hunter2@[::1"),
        ("SLUICE_MAX_ROWS", "0"),
        ("SLUICE_MAX_ROWS", "many"),
        ("SLUICE_TRIGGER_SECONDS", "-1"),
        ("SLUICE_CONNECT_TIMEOUT_SECONDS", "nan"),
        ("SLUICE_STOP_TIMEOUT_SECONDS", "inf"),
        ("SLUICE_MAX_RESTARTS", "-1"),
        ("SLUICE_REPORT_SECONDS", "0"),
        ("SLUICE_SPARK_CONF", "spark.ui.enabled=true"),
        ("SLUICE_SPARK_CONF", "[1]"),
        ("SLUICE_SPARK_CONF", '{"spark.ui.enabled": {}}'),
    ],
)
def test_a_bad_value_is_one_line_that_begins_with_its_variable(given: pytest.MonkeyPatch, variable: str, value: str) -> None:
    given.setenv(variable, value)
    output = refusal()
    assert output.startswith(f"{variable}: ")
    assert "\n" not in output
    assert "SLUICE_SLUICE" not in output
    assert "hunter2" not in output


def test_all_invalid_settings_are_reported_at_once(given: pytest.MonkeyPatch) -> None:
    given.setenv("SLUICE_MAX_ROWS", "0")
    given.setenv("SLUICE_REPORT_SECONDS", "soon")
    assert "SLUICE_MAX_ROWS: " in refusal()
    assert "; SLUICE_REPORT_SECONDS: " in refusal()


def test_the_container_has_the_id_that_its_launcher_gave_it(given: pytest.MonkeyPatch) -> None:
    given.setenv("EXECUTION_ENV_CONTAINER_ID", "pod-7")
    assert read_container_settings().id == "pod-7"


def test_a_container_without_an_id_takes_a_unique_one(given: pytest.MonkeyPatch) -> None:
    assert len({read_container_settings().id for _ in range(100)}) == 100


def test_host_and_master_have_variables_of_their_own(given: pytest.MonkeyPatch) -> None:
    given.setenv("SLUICE_CONTAINER_HOST", "node-3")
    given.setenv("SLUICE_SPARK_MASTER", "local[4]")
    settings = read_container_settings()
    assert (settings.host, settings.master) == ("node-3", "local[4]")


def test_the_host_of_the_coordinator_is_not_used_for_the_container(given: pytest.MonkeyPatch) -> None:
    given.setenv("SLUICE_HOST", "0.0.0.0")
    assert read_container_settings().host == socket.gethostname()


def test_spark_settings_are_a_json_object(given: pytest.MonkeyPatch) -> None:
    given.setenv("SLUICE_SPARK_CONF", '{"spark.ui.enabled": "true"}')
    assert read_container_settings().spark_conf == {"spark.ui.enabled": "true"}


def test_state_is_kept_in_the_configured_directory_or_under_home(given: pytest.MonkeyPatch) -> None:
    given.setenv("SLUICE_HOME", "/data")
    assert read_container_settings().state_directory == Path("/data/state")
    given.setenv("SLUICE_STATE_DIR", "/ssd")
    assert read_container_settings().state_directory == Path("/ssd")


def test_settings_do_not_change_after_they_were_read(given: pytest.MonkeyPatch) -> None:
    settings: ContainerSettings = read_container_settings()
    with pytest.raises(ValueError, match="frozen"):
        settings.max_rows = 7  # type: ignore[misc]


def test_a_commit_must_be_shorter_than_the_coordinator_leaves_garbage_alone(given: pytest.MonkeyPatch) -> None:
    given.setenv("SLUICE_COMMIT_MAX_DELAY_SECONDS", "10")
    given.setenv("SLUICE_COMMIT_TIMEOUT_SECONDS", "20")
    policy = read_container_settings().commit_policy
    policy.check(timedelta(seconds=62))
    with pytest.raises(BadSettings, match="increase the coordinator's gc_grace_seconds"):
        policy.check(timedelta(seconds=61))
