from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from sluice.cli.init import write
from sluice.cli.main import app
from sluice.core.errors import BadSettings
from sluice.job import load_job


def test_the_job_has_the_name_of_the_directory(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["init", str(tmp_path / "my orders")])
    assert done.exit_code == 0
    assert load_job(tmp_path / "my orders" / "job.py").name == "my-orders"
    assert f"sluice run {tmp_path}/my orders/job.py" in done.output


def test_no_file_is_replaced_and_none_is_written_if_one_exists(tmp_path: Path) -> None:
    (tmp_path / "test_job.py").write_text("mine")
    with pytest.raises(BadSettings, match=r"test_job.py: is there already"):
        write(tmp_path, "orders")
    assert [each.name for each in tmp_path.iterdir()] == ["test_job.py"]
    assert (tmp_path / "test_job.py").read_text() == "mine"


@pytest.mark.parametrize("name", ["../x", "a b", "", "é"])
def test_a_name_that_no_job_may_have_is_refused(tmp_path: Path, name: str) -> None:
    done = CliRunner().invoke(app, ["init", str(tmp_path / "orders"), "--job", name or "\0"])
    assert done.exit_code != 0
    assert not (tmp_path / "orders").exists()


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BadSettings, match="file"):
        write(tmp_path / "file" / "orders", "orders")
