"""`--json`: the documents on standard output have the fields that the reference names, and an error is one JSON object."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sluice.cli.documents import documents_of
from sluice.streams.log import Log
from tests.support.coordinators import Running, running
from tests.support.processes import SLUICE, completed
from tests.support.upgrades import JOB
from tests.unit.cli.test_documents import ALL

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("json") / "home"
    Log(made / "log").create("numbers", 2)
    return made


@pytest.fixture(scope="module")
def coordinator(home: Path) -> Iterator[Running]:
    with running(home) as made:
        yield made


@pytest.fixture(scope="module")
def url(coordinator: Running) -> str:
    return str(coordinator.http.base_url).rstrip("/")


def called(*words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    if not stdin:
        return completed([*SLUICE, *words])
    return subprocess.run([*SLUICE, *words], capture_output=True, text=True, timeout=600, check=False, input=stdin)


def printed(command: str, *words: str, stdin: str = "", code: int = 0) -> Any:
    """The document that a command prints. Its fields are those of one of the bodies that the reference names."""
    done = called(*command.split(), *words, "--json", stdin=stdin)
    assert done.returncode == code, done.stderr
    document = json.loads(done.stdout)
    documents = documents_of(ALL[command].callback)
    assert documents is not None
    assert document.keys() in [
        each.model_json_schema(mode="serialization", by_alias=True)["properties"].keys() for each in documents.replies
    ]
    return document


def test_a_job_is_deployed_shown_stopped_and_started(url: str, tmp_path: Path) -> None:
    at = ("--coordinator", url)
    file = tmp_path / "job.py"
    file.write_text(JOB)
    made = printed("deploy", str(file), *at, "--config", "backup.stores=")
    assert (made["job"], made["state"]) == ("copy", "CREATED")
    for command in ("jobs", "jobs runs", "jobs containers", "jobs tasks", "status", "events", "models ls", "snapshots ls"):
        printed(command, *at)
    assert printed("models show", "copy", "1", *at)["version"] == 1
    printed("plan", "copy", *at)
    assert printed("drain", "copy", "--dry-run", *at, code=2)["stages"]
    assert printed("stop", "copy", "--no-wait", *at)["runId"] == made["runId"]
    assert printed("stop", "copy", *at)["state"] == "STOPPED"
    started = printed("start", "copy", *at)
    assert (started["job"], started["runId"] != made["runId"]) == ("copy", True)
    assert printed("audit-log", *at)["events"]
    printed("stop", "copy", *at)
    assert printed("jobs rm", "copy", "--dry-run", *at)["dryRun"] is True


def test_tokens_pins_and_garbage(url: str) -> None:
    at = ("--coordinator", url)
    token = printed("token create", "ci", "--role", "viewer", *at)
    assert [each["name"] for each in printed("token ls", *at)["tokens"]] == ["ci"]
    assert printed("token revoke", token["tokenId"], *at)["tokenId"] == token["tokenId"]
    for command in ("gc plan", "gc run", "gc audit"):
        assert printed(command, *at)["state"] == "DONE"


def test_streams_of_the_log(tmp_path: Path) -> None:
    at = ("--home", str(tmp_path))
    assert printed("streams create", "lines", "--partitions", "2", *at) == {"stream": "lines", "partitions": 2}
    assert printed("streams grow", "lines", "--partitions", "4", *at) == {"stream": "lines", "partitions": 4}
    assert printed("streams append", "lines", *at, "--key-separator", ":", stdin="k:ü\n") == {"stream": "lines", "records": 1}
    assert printed("streams ls", *at) == {"streams": [{"stream": "lines", "partitions": 4, "records": 1}]}
    record = printed("streams cat", "lines", *at)
    assert (record["key"], record["value"], record["offset"]) == ("k", "ü", 0)


def test_files_settings_and_the_database(tmp_path: Path) -> None:
    made = printed("init", str(tmp_path / "new"))
    assert all(Path(each).exists() for each in made["files"])
    home = ("--home", str(tmp_path / "home"))
    assert "coordinator.db" in printed("db upgrade", *home)["database"]
    copy = printed("db backup", str(tmp_path / "copy"), *home)
    assert copy["bytes"] == (tmp_path / "copy").stat().st_size
    assert printed("db restore", str(tmp_path / "copy"), "--force", *home)["revision"] == copy["revision"]
    assert printed("rebuild", "--dry-run", *home) == {"dryRun": True, "snapshots": 0, "stores": [], "runs": [], "leftOut": {}}
    assert printed("config show", "client")["settings"]
    assert printed("kafka down", *home) == {"stopped": False, "deleted": False}


def test_an_error_is_one_json_object_on_standard_error(url: str) -> None:
    done = called("stop", "no-such-run", "--json", "--coordinator", url)
    assert (done.returncode, done.stdout) == (1, "")
    problem = json.loads(done.stderr)
    assert problem.keys() == {"type", "title", "detail", "remedy"}
    assert problem["type"].startswith("urn:sluice:")
    assert "no-such-run" in problem["detail"]
    assert problem["remedy"]


def test_json_for_the_command_that_exec_runs_is_not_its_own() -> None:
    done = called("exec", "--job", "copy", "--coordinator", "nonsense", "--", "other", "--json")
    assert done.returncode == 1
    assert done.stderr.startswith("sluice: ")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("audit-log", "--json", "--json-lines"), "leave out --json"),
        (("logout", "--json"), "--json needs --user"),
        (("status", "--watch", "--json"), "leave out --json"),
    ],
)
def test_an_option_that_json_contradicts_is_refused(words: tuple[str, ...], why: str) -> None:
    done = called(*words)
    assert done.returncode == 1
    assert why in json.loads(done.stderr)["detail"]
