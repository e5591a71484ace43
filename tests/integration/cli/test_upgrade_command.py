"""`sluice upgrade` against a coordinator process; the test reports in place of containers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.streams.log import Log
from tests.support.coordinators import running
from tests.support.upgrades import JOB, NEW, Command, World, world

pytestmark = pytest.mark.slow


@pytest.fixture
def there(tmp_path: Path) -> Iterator[World]:
    """The old version runs in container c1, and has reported that a flush would empty it."""
    Log(tmp_path / "home" / "log").create("numbers", 2)
    with running(tmp_path / "home") as coordinator, world(coordinator, tmp_path) as made:
        made.works(made.run_id, "c1")
        yield made


@pytest.fixture
def new(there: World) -> Path:
    return there.file("new.py", NEW)


def drained(there: World, command: Command) -> None:
    """Take the old version through its drain."""
    command.until("is being drained")
    there.drains(there.run_id, "c1")


def deployed(command: Command) -> str:
    """The next run that the command names."""
    found = re.search(r"^run (\S+)$", command.until("run copy-", within=60))
    return found[1] if found else deployed(command)


def upgraded(there: World, file: Path, *words: str) -> tuple[Command, str]:
    """An upgrade that has deployed the new run, which has no container yet."""
    command = there.upgrade(file, *words)
    drained(there, command)
    return command, deployed(command)


# --- upgrades that succeed ---


def test_a_job_is_drained_and_its_new_version_continues_at_the_drained_offsets(there: World, new: Path) -> None:
    command, run_id = upgraded(there, new)
    needs = command.until("its containers need")
    assert f"SLUICE_RUN_ID={run_id}" in needs
    assert f"SLUICE_COORDINATOR_URL={there.url}" in needs
    there.works(run_id, "c2")
    assert there.starts == {0: 70, 1: 71}
    assert command.ends() == (0, f"run {run_id} of the new version is healthy")
    made = there.run(run_id)
    assert made["config"]["kept"] == "1"
    assert there.run()["state"] == "DRAINED"


def test_a_new_version_continues_with_the_state_that_was_kept(there: World, new: Path) -> None:
    refused = there.upgrade(new, "--keep-state", "--no-rollback").ends()
    assert refused[0] == 1
    assert "the state cannot be kept: c1: their release empties the state in every drain" in refused[1]
    there.exits("c1")
    there.come(there.run_id, "c2", ("DEFAULT", "KEEP_STATE"))
    code, reported = there.upgrade(new, "--keep-state").ends()
    assert code == 1
    assert "is not backed up" in reported
    command = there.upgrade(new, "--keep-state", "--no-rollback")
    command.until("is being drained")
    there.step("stopped", there.run_id)
    there.step("flushed", there.run_id, operators=["dropDuplicates by id string"])
    there.step("committed", there.run_id)
    there.exits("c2")
    run_id = deployed(command)
    there.come(run_id, "c3", ("DEFAULT", "KEEP_STATE"))
    assert there.starts == {0: 70, 1: 71}
    command.until("stages have not committed 2 batches")
    for batch in (8, 9):
        for task in (0, 1):
            there.commit(run_id, batch, task)
    assert command.ends() == (0, f"run {run_id} of the new version is healthy")
    other = there.upgrade(new, "--keep-state", "--allow-leftover-state").ends()
    assert other[0] == 1
    assert "leave out --allow-leftover-state" in other[1]


def test_with_json_an_upgrade_prints_one_document(there: World, new: Path) -> None:
    command = there.upgrade(new, "--json", "--containers", "1", "--config", "more=2")
    drained(there, command)
    found = re.search(r"deployed as run (\S+);", command.until("its containers need"))
    assert found
    there.works(found[1], "c2")
    code, _ = command.ends()
    reply = json.loads("\n".join(command.said[command.said.index("{") :]))
    assert (code, reply["outcome"], reply["formerRun"], reply["run"], reply["rollbackRun"]) == (0, "upgraded", there.run_id, found[1], None)
    assert there.run(found[1])["config"]["more"] == "2"


def test_a_dry_run_prints_the_steps_and_changes_nothing(there: World, new: Path) -> None:
    command = there.upgrade(new, "--dry-run")
    code, last = command.ends()
    assert code == 0
    assert command.said[0] == f"job copy, run {there.run_id} (RUNNING): an upgrade to {new} would"
    assert command.said[1] == f"1. drain run {there.run_id}: refused if a flush would leave rows in state"
    assert last.startswith("6. if it fails: stop it, and deploy the old version")
    assert (there.runs, there.run()["state"]) == ([there.run_id], "RUNNING")


# --- refused before anything is changed ---


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x = 1\n", "must define exactly one Job"),
        ("def broken(:\n", "cannot be imported: SyntaxError"),
        (JOB.replace('"copy"', '"another"'), "no job 'another'; the jobs are: copy"),
        (JOB.replace('"numbers"', '"nowhere"'), "nowhere"),
        (JOB.replace('job = Job("copy")', 'job = Job("copy", grouper="some:Where")'), "some:Where"),
        (JOB.replace("writes=out", "writes=numbers"), "new.py"),
    ],
)
def test_an_impossible_upgrade_is_refused_before_anything_is_changed(there: World, text: str, expected: str) -> None:
    command = there.upgrade(there.file("new.py", text))
    code, last = command.ends()
    assert code == 1
    assert expected in last
    assert (there.runs, there.run()["state"], there.run()["drain"]) == ([there.run_id], "RUNNING", None)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--containers", "0"], "at least one container"),
        (["--config", "novalue"], "--config takes key=value"),
        (["--bind", "lost=log"], "--bind takes NAME=SYSTEM"),
    ],
)
def test_an_invalid_command_line_is_refused(there: World, new: Path, words: list[str], expected: str) -> None:
    code, last = there.upgrade(new, *words).ends()
    assert code == 1
    assert expected in last
    assert there.run()["state"] == "RUNNING"


def test_rows_that_a_flush_would_leave_are_refused_unless_they_may_be_left(there: World, new: Path) -> None:
    there.commit(there.run_id, 1, 0, unflushable=["Aggregate without a watermark"])
    code, last = there.upgrade(new).ends()
    assert code == 1
    assert "stage copy: Aggregate without a watermark" in last
    assert "--allow-leftover-state" in last
    command = there.upgrade(new, "--dry-run")
    code, _ = command.ends()
    assert code == 2
    assert "Aggregate without a watermark" in command.said[0]
    assert there.run()["state"] == "RUNNING"
    command = there.upgrade(new, "--allow-leftover-state")
    command.until("is being drained")
    there.drains(there.run_id, "c1", leftoverRows=20, leftoverOperators=["Aggregate"])
    assert command.until("40 rows in state") == "sluice: the flush left 40 rows in state (of copy)"
    there.works(deployed(command), "c2")
    assert command.ends()[0] == 0


def test_a_stopped_run_is_not_taken_for_a_drained_one(there: World, new: Path) -> None:
    there.post(f"/runs/{there.run_id}/stop", {})
    there.exits("c1")
    code, last = there.upgrade(new).ends()
    assert code == 1
    assert "has ended as STOPPED without a drain" in last
    assert there.runs == [there.run_id]


def test_an_unreachable_coordinator_is_reported(there: World, new: Path) -> None:
    there.coordinator.process.terminate()
    there.coordinator.process.wait()
    code, last = there.upgrade(new).ends()
    assert code == 1
    assert there.url in last


# --- drains that are cancelled, fail or leave rows ---


def test_a_cancelled_drain_leaves_the_old_version_running(there: World, new: Path) -> None:
    command = there.upgrade(new)
    command.until("is being drained")
    there.http.delete(f"/drain/{there.uuid}").raise_for_status()
    code, last = command.ends()
    assert (code, last) == (2, f"the drain of run {there.run_id} was cancelled (cancelled); the run continues as before")
    assert (there.runs, there.run()["state"]) == ([there.run_id], "RUNNING")


def test_the_error_about_a_drain_that_fails_after_its_flush_began_names_the_next_command(there: World, new: Path) -> None:
    command = there.upgrade(new, "--timeout", "5")
    command.until("is being drained")
    there.step("stopped", there.run_id)
    code, last = command.ends()
    assert code == 2
    assert "its tasks are back at their pinned checkpoints: deploy the old version again" in last
    there.exits("c1")
    code, last = there.upgrade(new).ends()
    assert code == 1
    assert "the drain of run" in last
    assert there.runs == [there.run_id]


def test_rows_that_a_flush_leaves_stop_the_upgrade_and_the_same_command_may_continue_without_them(there: World, new: Path) -> None:
    command = there.upgrade(new)
    command.until("is being drained")
    there.drains(there.run_id, "c1", leftoverRows=20, leftoverOperators=["Aggregate"])
    code, last = command.ends()
    assert code == 2
    assert "but the flush left 40 rows in state (of copy): nothing was deployed" in last
    assert there.current == there.run_id
    command = there.upgrade(new, "--allow-leftover-state")
    there.works(deployed(command), "c2")
    assert command.ends()[0] == 0


# --- versions that fail ---

SHORT_WATCH = ("--watch", "5")
"""A command that looks at the new version for the first time after this many seconds does not roll back. A loaded machine needs some."""


def went_back(there: World, command: Command, failed: str) -> None:
    """The old version is deployed at the drained offsets, and the new one has failed."""
    code, last = command.ends()
    assert code == 4
    back = there.current
    assert back not in (there.run_id, failed)
    assert f"the old version was deployed again as run {back} at the drained offsets; the output of the new version is kept" in last
    assert there.run(failed)["state"] == "FAILED"
    assert there.run(failed)["reason"].startswith("the upgrade failed: ")
    there.come(back, "c9")
    assert there.starts == {0: 70, 1: 71}
    assert there.run(back)["config"] == {**there.run()["config"], "upgrade.back": failed}


def test_a_new_version_whose_container_ends_with_an_error_is_rolled_back(there: World, new: Path) -> None:
    command, run_id = upgraded(there, new)
    there.come(run_id, "c2")
    there.commit(run_id, 0, 0)
    there.exits("c2", 1, "copy failed 6 times")
    went_back(there, command, run_id)
    assert any("container c2 ended with exit code 1: copy failed 6 times" in line for line in command.said)


def test_a_new_version_without_containers_is_rolled_back(there: World, new: Path) -> None:
    command, run_id = upgraded(there, new, *SHORT_WATCH)
    went_back(there, command, run_id)
    assert any("not within 5 s: 0 of 1 containers are live; 2 of 2 tasks have no owner" in line for line in command.said)


def test_a_new_version_that_another_client_fails_is_rolled_back(there: World, new: Path) -> None:
    command, run_id = upgraded(there, new)
    there.post(f"/runs/{run_id}/stop", {"reason": "I saw nonsense", "failed": True})
    code, last = command.ends()
    assert code == 4
    assert "the run failed: I saw nonsense" in last
    assert there.run(there.current)["config"]["upgrade.back"] == run_id


def test_a_roll_back_waits_for_the_containers_of_the_new_version(there: World, new: Path) -> None:
    command, run_id = upgraded(there, new, *SHORT_WATCH)
    there.come(run_id, "c2")
    command.until("waiting for the end of run")
    assert there.current == run_id
    there.exits("c2")
    went_back(there, command, run_id)


def test_a_run_that_another_client_deploys_meanwhile_is_not_taken_for_the_roll_back(there: World, new: Path) -> None:
    command, run_id = upgraded(there, new, *SHORT_WATCH)
    there.come(run_id, "c2")
    command.until("waiting for the end of run")
    other = str(there.post("/runs", {**there.get(f"/runs/{run_id}/request"), "start": "drained"})["runId"])
    there.exits("c2")
    code, last = command.ends()
    assert code == 1
    assert f"its current run is {other}" in last
    assert there.current == other


def test_a_failing_version_is_not_rolled_back_if_that_is_switched_off(there: World, new: Path) -> None:
    command, run_id = upgraded(there, new, "--watch", "1", "--no-rollback")
    code, last = command.ends()
    assert code == 3
    assert "`sluice deploy OLDFILE --start drained` to roll back" in last
    assert (there.current, there.run(run_id)["state"]) == (run_id, "CREATED")


def test_a_new_version_that_another_client_drains_is_not_rolled_back(there: World, new: Path) -> None:
    command, run_id = upgraded(there, new)
    there.post("/drain", {"runId": run_id})
    code, last = command.ends()
    assert code == 3
    assert "it was changed to DRAINING by another client" in last
    assert there.current == run_id


def test_a_new_version_that_can_no_longer_be_deployed_after_the_drain_is_rolled_back_at_once(there: World) -> None:
    text = NEW.replace("numbers, out =", 'mid = job.intermediate("mid", partitions=2)\nnumbers, out =')
    text = text.replace("writes=out", "writes=mid") + "\n\n@job.stage(reads=mid, writes=out)\ndef last(task): ...\n"
    command = there.upgrade(there.file("new.py", text))
    command.until("is being drained")
    there.log.create("mid", 5)
    there.drains(there.run_id, "c1")
    code, last = command.ends()
    assert code == 4
    assert "the coordinator refused it" in last
    there.come(there.current, "c9")
    assert there.starts == {0: 70, 1: 71}


# --- the same command again ---


def test_two_concurrent_upgrades_deploy_one_new_version(there: World, new: Path) -> None:
    first, second = there.upgrade(new), there.upgrade(new)
    second.until("is being drained")
    drained(there, first)
    run_id, same = deployed(first), deployed(second)
    assert run_id == same
    there.works(run_id, "c2")
    assert (first.ends()[0], second.ends()[0]) == (0, 0)
    assert sorted(there.runs) == sorted([there.run_id, run_id])


def test_an_upgrade_that_was_interrupted_in_the_drain_continues_with_that_drain(there: World, new: Path) -> None:
    command = there.upgrade(new)
    command.until("STOPPING")
    command.press_ctrl_c()
    assert command.until("continues in the background")
    assert command.ends()[0] != 0
    uuid = there.uuid
    command, run_id = upgraded(there, new)
    assert there.uuid == uuid
    there.works(run_id, "c2")
    assert command.ends()[0] == 0


def test_an_upgrade_of_a_drained_job_continues_from_that_drain(there: World, new: Path) -> None:
    there.post("/drain", {"runId": there.run_id})
    there.drains(there.run_id, "c1")
    command = there.upgrade(new)
    run_id = deployed(command)
    there.works(run_id, "c2")
    assert there.starts == {0: 70, 1: 71}
    assert command.ends()[0] == 0


def test_an_upgrade_that_was_interrupted_while_it_watched_only_watches_again(there: World, new: Path) -> None:
    command, run_id = upgraded(there, new)
    command.until("0 of 2 stages")
    command.press_ctrl_c()
    assert run_id in command.until("is deployed, and its health is not yet known")
    assert command.ends()[0] != 0
    command = there.upgrade(new)
    assert deployed(command) == run_id
    there.works(run_id, "c2")
    assert command.ends() == (0, f"run {run_id} of the new version is healthy")
    assert there.runs == [run_id, there.run_id]


def test_an_upgrade_that_was_interrupted_in_its_roll_back_completes_the_roll_back(there: World, new: Path) -> None:
    command, run_id = upgraded(there, new, *SHORT_WATCH)
    there.come(run_id, "c2")
    command.until("waiting for the end of run")
    command.press_ctrl_c()
    assert command.until("is being rolled back")
    assert command.ends()[0] != 0
    command = there.upgrade(new)
    command.until("waiting for the end of run")
    there.exits("c2")
    went_back(there, command, run_id)


def test_a_corrected_version_replaces_one_that_was_given_up_and_begins_at_the_same_offsets(there: World, new: Path) -> None:
    command, run_id = upgraded(there, new, *SHORT_WATCH)
    there.come(run_id, "c2")
    command.until("waiting for the end of run")
    command.press_ctrl_c()
    command.ends()
    command = there.upgrade(there.file("new.py", NEW + "\n# mended\n"))
    command.until("waiting for the end of run")
    there.exits("c2")
    mended = deployed(command)
    there.works(mended, "c3")
    assert there.starts == {0: 70, 1: 71}
    assert command.ends()[0] == 0
    assert there.run(mended)["config"]["upgrade.former"] == there.run_id


def test_after_a_roll_back_the_next_upgrade_drains_the_old_version_again(there: World, new: Path) -> None:
    command, run_id = upgraded(there, new, *SHORT_WATCH)
    went_back(there, command, run_id)
    back = there.current
    for task in (0, 1):
        there.commit(back, 0, task, unflushable=[])
    command = there.upgrade(new)
    assert f"run {back} is being drained" in command.until("is being drained")
    there.drains(back, "c9")
    again = deployed(command)
    there.works(again, "c10")
    assert command.ends()[0] == 0


def test_a_run_of_the_same_version_is_upgraded_again_only_with_force(there: World, new: Path) -> None:
    command, run_id = upgraded(there, new)
    there.works(run_id, "c2")
    assert command.ends()[0] == 0
    assert there.upgrade(new).ends()[0] == 0
    assert there.current == run_id
    command = there.upgrade(new, "--force")
    command.until("is being drained")
    there.drains(run_id, "c2")
    again = deployed(command)
    there.works(again, "c3")
    assert command.ends()[0] == 0
    assert there.runs == [again, run_id, there.run_id]


def test_a_command_that_starts_too_late_does_not_roll_back_a_bad_version(there: World, new: Path) -> None:
    command, run_id = upgraded(there, new)
    there.works(run_id, "c2")
    assert command.ends()[0] == 0
    there.exits("c2", 1, "later")
    code, last = there.upgrade(new, "--watch", "1").ends()
    assert code == 3
    assert "container c2 ended with exit code 1: later" in last
    assert there.current == run_id


# --- restarts of the coordinator ---


def test_an_upgrade_waits_at_every_step_for_a_coordinator_that_is_started_again(tmp_path: Path) -> None:
    home = tmp_path / "home"
    Log(home / "log").create("numbers", 2)
    with running(home) as first, world(first, tmp_path) as there:
        there.works(there.run_id, "c1")
        command = there.upgrade(there.file("new.py", NEW))
        command.until("STOPPING")
        first.process.terminate()
        first.process.wait()
        command.until("does not answer")
        with running(home, "--port", str(first.port)) as second:
            drained_by = there.run_id
            there.drains(drained_by, "c1")
            run_id = deployed(command)
            command.until("0 of 2 stages")
            second.process.terminate()
            second.process.wait()
            command.until("does not answer")
        with running(home, "--port", str(first.port)):
            there.works(run_id, "c2")
            assert command.ends() == (0, f"run {run_id} of the new version is healthy")
