"""The web pages beside a job on Spark, in a real browser: its growth, a kill, a restore and a drain, as a viewer and as an operator see
them. The steps share their processes, so they run in order."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from sluice.core.ids import Generation, Lineage
from sluice.streams.log import Record, Writer
from tests.processes.stage import Stage, stage
from tests.support.browsers import chromium
from tests.support.processes import wait_for

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

COUNTS = """
from sluice import Job

job = Job("toy")
numbers = job.input("numbers")
out = job.output("out")


@job.stage(reads=numbers, writes=out)
def totals(task):
    counts = task.read(numbers).selectExpr("cast(value as string) k").groupBy("k").count()
    return task.write(counts.selectExpr("k", "count as n"), out, key="k").outputMode("update")
"""

PATIENCE = 240_000
"""Milliseconds until a page must show something."""
FAST: dict[str, Any] = {"SLUICE_TRIGGER_SECONDS": "0.3", "SLUICE_COMMIT_INTERVAL_SECONDS": "1"}


@dataclass(slots=True)
class Scene:
    """A coordinator that needs tokens, the job, and two browsers that watch it."""

    job: Stage
    viewer: Page
    operator: Page
    container: tuple[str, subprocess.Popen[bytes]] | None = None

    def start(self) -> None:
        self.container = self.job.start_container(SLUICE_STATE_DIR=str(self.job.root / "disk"), **FAST)

    def feed(self, batch: int) -> None:
        partitions = self.job.log.partitions("numbers")
        records = [Record(str(number).encode(), partition=number % partitions) for number in range(20)]
        assert self.job.log.append("numbers", records, writer=Writer(Lineage("f"), "f", Generation(1)), batch=batch, now_micros=1)

    def both(self) -> tuple[Page, Page]:
        return self.viewer, self.operator


def logged_in(browser: Browser, job: Stage, role: str) -> Page:
    """A browser that has logged in with a new token of this role, at the page of the jobs."""
    page = browser.new_context(base_url=job.url).new_page()
    page.goto("/ui/")
    page.get_by_label("Token").fill(token(job, role))
    page.get_by_role("button", name="Log in").click()
    expect(page.locator("#connection")).to_have_text("live", timeout=PATIENCE)
    return page


def token(job: Stage, role: str) -> str:
    made = job.http.post("/tokens", json={"name": role, "roles": [role]}).raise_for_status().json()
    return str(made["token"])


def act(page: Page, button: Locator, perform: str) -> Locator:
    """Open the dialog of an action, and perform it. Returns the dialog."""
    button.click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("At a terminal: sluice")
    dialog.get_by_role("button", name=perform).click()
    return dialog


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    root: Path = tmp_path_factory.mktemp("pages")
    with stage(root, COUNTS) as job, chromium() as browser:
        job.environment |= {"SLUICE_AUTHENTICATION": "true", "SLUICE_FIRST_TOKEN_FILE": str(root / "token")}
        job.environment["SLUICE_PARTITION_MONITOR_SECONDS"] = "1"
        job.log.create("numbers", 2)
        job.start_coordinator()
        job.http.headers["Authorization"] = f"Bearer {(root / 'token').read_text().strip()}"
        job.environment["SLUICE_TOKEN"] = token(job, "agent")
        job.deploy()
        yield Scene(job, logged_in(browser, job, "viewer"), logged_in(browser, job, "operator"))


class TestPagesOfASparkJob:
    def test_the_first_batches_appear_on_the_pages(self, scene: Scene) -> None:
        for page in scene.both():
            page.get_by_role("link", name="toy", exact=True).click()
            expect(page.locator("#problems")).to_contain_text("0 of 1 containers are live")
        scene.start()
        scene.feed(1)
        for page in scene.both():
            expect(page.locator("#head")).to_contain_text("RUNNING", timeout=PATIENCE)
            for partition in (0, 1):
                expect(page.locator(f"#task-Partition_20{partition}")).to_contain_text("lag 0", timeout=PATIENCE)
            expect(page.locator("#stages")).to_contain_text("totals")

    def test_the_pages_of_a_version_for_a_grown_input_show_which_tasks_read_the_new_partitions(self, scene: Scene) -> None:
        scene.job.log.grow("numbers", 4)
        for page in scene.both():
            expect(page.locator("#timeline")).to_contain_text("version 2 of the job model came into force", timeout=PATIENCE)
            expect(page.locator("#graph")).to_contain_text("4 partitions", timeout=PATIENCE)
        scene.feed(2)
        scene.viewer.get_by_role("link", name="version 2 of the job model came into force").click()
        expect(scene.viewer.get_by_role("heading", name="Compared with version 1")).to_be_visible()
        expect(scene.viewer.locator("#version")).to_contain_text("log.numbers partition 3 is read by Partition 1")
        scene.viewer.go_back()

    def test_a_killed_container_is_shown_as_a_problem_with_a_remedy(self, scene: Scene) -> None:
        assert scene.container is not None
        scene.job.driver_of(scene.container[1]).kill()
        for page in scene.both():
            expect(page.locator("#timeline")).to_contain_text(f"container {scene.container[0]} exited with code 1", timeout=PATIENCE)
            expect(page.locator("#problems")).to_contain_text("SIGKILL", timeout=PATIENCE)
            expect(page.locator("#problems")).to_contain_text("Read the log of that container")
        assert scene.container[1].wait(120) == 1

    def test_the_viewer_may_not_restore_a_snapshot_and_the_operator_may(self, scene: Scene) -> None:
        for page in scene.both():
            page.get_by_role("link", name="snapshots and pins").click()
            expect(page.get_by_role("heading", name="Retained snapshots")).to_be_visible()
        dialog = act(scene.viewer, scene.viewer.get_by_role("button", name="Restore…").first, "Restore")
        expect(dialog).to_contain_text("The action failed")
        expect(dialog).to_contain_text("one of the roles admin, deployer, operator is needed")
        scene.viewer.keyboard.press("Escape")
        dialog = act(scene.operator, scene.operator.get_by_role("button", name="Restore…").first, "Restore")
        expect(dialog).to_contain_text("The next owner of the task restores this snapshot")
        scene.operator.keyboard.press("Escape")
        expect(scene.operator.locator("#snapshots")).to_contain_text("restored next", timeout=PATIENCE)
        for page in scene.both():
            page.get_by_role("link", name="toy", exact=True).click()
            expect(page.locator("#timeline")).to_contain_text("operator requested a restore, on the page", timeout=PATIENCE)
        scene.start()
        scene.feed(3)
        for partition in range(2):
            expect(scene.viewer.locator(f"#task-Partition_20{partition}")).to_contain_text("lag 0", timeout=PATIENCE)
            expect(scene.viewer.locator(f"#task-Partition_20{partition} code")).to_be_visible(timeout=PATIENCE)
        expect(scene.viewer.locator("#problems")).to_contain_text("There are no problems", timeout=PATIENCE)

    def test_the_viewer_may_not_drain_the_job_and_sees_the_drain_of_the_operator_end(self, scene: Scene) -> None:
        dialog = act(scene.viewer, scene.viewer.get_by_role("button", name="Drain…"), "Drain toy")
        expect(dialog).to_contain_text("one of the roles admin, deployer, operator is needed")
        scene.viewer.keyboard.press("Escape")
        dialog = act(scene.operator, scene.operator.get_by_role("button", name="Drain…"), "Drain toy")
        dialog.get_by_role("link", name="Show the result").click()
        expect(scene.operator.locator("#drain")).to_contain_text("DRAINED", timeout=PATIENCE)
        for phase in ("STOPPING", "FLUSHING", "COMMITTING"):
            expect(scene.operator.locator("#drain")).to_contain_text(phase)
        expect(scene.viewer.locator("#timeline")).to_contain_text("the drain ended as DRAINED", timeout=PATIENCE)
        expect(scene.viewer.locator("#timeline")).to_contain_text("operator requested a drain, on the page", timeout=PATIENCE)
        expect(scene.viewer.get_by_role("button", name="Remove…")).to_be_visible(timeout=PATIENCE)
        assert scene.container is not None
        assert wait_for("the end of the container", lambda: scene.container and scene.container[1].poll() is not None, 120)
