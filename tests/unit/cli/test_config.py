from __future__ import annotations

import re
from pathlib import Path

import pytest

from sluice.cli.config import Program, Setting, settings_of, unknown_variables
from sluice.core.errors import BadSettings


def shown(program: Program, **environment: str) -> dict[str, Setting]:
    return {each.variable: each for each in settings_of(program, environment)}


def test_a_setting_is_shown_with_its_default_and_what_it_is_for() -> None:
    lease = shown(Program.COORDINATOR)["SLUICE_LEASE_SECONDS"]
    assert (lease.value, lease.source) == ("40", "default")
    assert "lease duration" in lease.description
    assert shown(Program.CONTAINER)["SLUICE_RUN_ID"].value is None


def test_a_variable_wins_over_the_file_and_the_file_over_the_default(tmp_path: Path) -> None:
    file = tmp_path / "sluice.toml"
    file.write_text('lease_seconds = 50\nport = 9000\nallowed_hosts = ["a"]\n')
    found = shown(Program.COORDINATOR, SLUICE_CONFIG=str(file), SLUICE_PORT="9001")
    assert [(found[f"SLUICE_{name}"].value, found[f"SLUICE_{name}"].source) for name in ("LEASE_SECONDS", "PORT", "ALLOWED_HOSTS")] == [
        ("50", str(file)),
        ("9001", "SLUICE_PORT"),
        ('["a"]', str(file)),
    ]


def test_every_program_has_a_description_for_each_of_its_settings() -> None:
    for program in Program:
        for each in shown(program).values():
            assert each.description, each.variable


def test_secrets_are_hidden() -> None:
    found = shown(
        Program.COORDINATOR,
        SLUICE_DATABASE_URL="postgresql+asyncpg://sluice:hunter2/@db/sluice",
        SLUICE_BLOB_STORES='{"s3": "s3://key:hunter2@bucket/x?secret=hunter2"}',
    ) | shown(Program.CLIENT, SLUICE_TOKEN="hunter2hunter2")
    spark = shown(Program.CONTAINER, SLUICE_SPARK_CONF='{"spark.hadoop.fs.s3a.secret.key": "hunter2", "spark.executor.memory": "2g"}')
    found |= spark
    assert not [each.variable for each in found.values() if "hunter2" in (each.value or "")]
    assert '"spark.executor.memory": "2g"' in (spark["SLUICE_SPARK_CONF"].value or "")
    assert found["SLUICE_TOKEN"].value == "***"


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadSettings, match=r"SLUICE_CONFIG: .*lost.toml cannot be read"):
        shown(Program.COORDINATOR, SLUICE_CONFIG=str(tmp_path / "lost.toml"))


def test_a_variable_that_no_program_reads_is_named_with_the_likely_one() -> None:
    known = {"SLUICE_LEASE_SECONDS": "1", "sluice_max_rows": "1", "SLUICE_CONFIG": "x", "SLUICE_JARS_DIR": "x", "PATH": "x"}
    of_kubernetes = {"SLUICE_SERVICE_HOST": "10.0.0.1", "SLUICE_PORT_8180_TCP_ADDR": "10.0.0.1", "SLUICE_SERVICE_PORT": "8180"}
    assert unknown_variables(known | of_kubernetes) == []
    assert unknown_variables({"SLUICE_LEASE_SECOND": "40", "SLUICE_XYZZY": ""}) == [
        "no program reads SLUICE_LEASE_SECOND: did you mean SLUICE_LEASE_SECONDS?",
        "no program reads SLUICE_XYZZY",
    ]


def test_every_variable_in_the_code_is_known() -> None:
    root = Path(__file__).parents[3]
    files = [each for package in ("sluice", "coordinator", "containers") for each in (root / package).rglob("*.py")]
    named = {name for each in files for name in re.findall(r"\"(SLUICE_[A-Z_]+[A-Z])\"", each.read_text())}
    named -= {"SLUICE_EXECUTION_ENV", "SLUICE_SLUICE"}  # parts of messages
    assert unknown_variables(dict.fromkeys(named, "")) == []
