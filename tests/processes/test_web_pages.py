"""The web pages in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, Page, expect

from sluice.core.jobmodels.spec import ATTACHED_TASK
from tests.support.browsers import JOB, PAGES, SCRIPT, Staged, chromium
from tests.support.coordinators import Running, running

LONG_LEASE = ("--lease-seconds", "3600", "--grace-seconds", "60")
"""The containers send no heartbeats."""
HOSTILE = "<script>document.title='owned'</script>\u202egnorw" + "x" * 150


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("pages") / "home", *LONG_LEASE) as found:
        yield found


@pytest.fixture(scope="module")
def staged(coordinator: Running) -> Staged:
    """All tests share it. Each leaves a job that runs."""
    return Staged(coordinator.http, coordinator.log.with_name("home"))


@contextmanager
def browsing(browser: Browser, coordinator: Running) -> Iterator[BrowserContext]:
    """Fails at the end if a page reported an error, or anything was loaded from another site."""
    made = browser.new_context(base_url=f"http://127.0.0.1:{coordinator.port}")
    errors: list[str] = []
    foreign: list[str] = []
    made.on("weberror", lambda each: errors.append(str(each.error)))
    made.on("console", lambda each: errors.append(each.text) if each.type == "error" else None)
    made.on("request", lambda each: foreign.append(each.url) if not each.url.startswith(f"http://127.0.0.1:{coordinator.port}/") else None)
    yield made
    made.close()
    assert not errors
    assert not foreign


@pytest.fixture
def context(browser: Browser, coordinator: Running) -> Iterator[BrowserContext]:
    with browsing(browser, coordinator) as made:
        yield made


def opened(context: BrowserContext, path: str) -> Page:
    page = context.new_page()
    page.goto(f"/ui/{path}")
    expect(page.locator("#connection")).to_have_text("live")
    return page


def test_a_page_shows_changes_without_being_reloaded(browser: Browser, tmp_path: Path) -> None:
    with running(tmp_path / "home", *LONG_LEASE) as coordinator, browsing(browser, coordinator) as context:
        page = opened(context, "")
        expect(page.get_by_text("There is no job yet")).to_be_visible()
        staged = Staged(coordinator.http, tmp_path / "home")
        page.get_by_role("link", name=JOB, exact=True).click()
        expect(page.get_by_role("heading", name=JOB)).to_be_visible()
        expect(page.locator("#task-Partition_200")).to_contain_text("batch 0")
        staged.commit("Partition 0", "c0", batch=7)
        expect(page.locator("#task-Partition_200")).to_contain_text("batch 7")
        coordinator.http.post("/containers/c0/exit", json={"exitCode": 0, "reason": "stopped"})
        expect(page.locator("#timeline")).to_contain_text("container c0 exited with code 0")


def test_text_of_users_is_shown_as_text_and_does_not_widen_the_page(browser: Browser, tmp_path: Path) -> None:
    with running(tmp_path / "home", *LONG_LEASE) as coordinator, browsing(browser, coordinator) as context:
        Staged(coordinator.http, tmp_path / "home", error=HOSTILE)
        page = opened(context, f"jobs/{JOB}")
        expect(page.locator("#problems")).to_contain_text("<script>document.title")
        expect(page).to_have_title(f"{JOB} – Sluice")
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), "long text makes the page wider than the window"


def test_a_drain_is_watched_and_cancelled(context: BrowserContext, staged: Staged) -> None:
    page = opened(context, f"drains/{staged.drain()}")
    expect(page.get_by_role("heading", name="Blocked by")).to_be_visible()
    page.get_by_role("button", name="Cancel…").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel the drain").click()
    expect(page.get_by_role("dialog")).to_contain_text("was cancelled")
    expect(page.locator("#drain")).to_contain_text("CANCELLED")


def test_the_page_of_a_script_shows_its_queries_and_stops_it(context: BrowserContext, staged: Staged) -> None:
    page = opened(context, "")
    page.get_by_role("link", name=SCRIPT, exact=True).click()
    expect(page.get_by_role("heading", name=SCRIPT)).to_be_visible()
    for text in ("counts", "batch 412", "480", "orders.py, line 12: KeyError"):
        expect(page.locator("main")).to_contain_text(text)
    page.get_by_role("button", name="Stop…").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text(f"sluice stop {SCRIPT}")
    dialog.get_by_role("button", name=f"Stop {SCRIPT}").click()
    expect(dialog).to_contain_text("stops after the current batches")
    page.keyboard.press("Escape")
    expect(page.locator("#timeline")).to_contain_text("stop")
    [run] = staged.http.get("/runs", params={"job": SCRIPT}).json()["runs"]
    assert run["stopRequestedAt"] is not None


def test_a_drain_of_a_script_is_begun_and_watched_on_its_page(browser: Browser, tmp_path: Path) -> None:
    with running(tmp_path / "home", *LONG_LEASE) as coordinator, browsing(browser, coordinator) as context:
        staged = Staged(coordinator.http, tmp_path / "home")
        page = opened(context, f"jobs/{SCRIPT}")
        page.get_by_role("button", name="Drain…").click()
        dialog = page.get_by_role("dialog")
        expect(dialog).to_contain_text("counts")
        expect(dialog).to_contain_text(f"sluice drain {SCRIPT}")
        dialog.get_by_role("button", name=f"Drain {SCRIPT}").click()
        expect(dialog).to_contain_text("The drain has begun")
        dialog.get_by_role("link").click()
        expect(page.locator("#drain")).to_contain_text("STOPPING")
        expect(page.locator("#tasks")).to_contain_text("counts")
        [run] = staged.http.get("/runs", params={"job": SCRIPT}).json()["runs"]
        body = {"generation": 1, "uuid": page.url.rpartition("/")[2], "batchId": 413, "offsets": []}
        for step in ("stopped", "flushed", "committed"):
            staged.post(f"/runs/{run['runId']}/tasks/{ATTACHED_TASK}/stages/counts/drain", {**body, "step": step})
        expect(page.locator("#drain")).to_contain_text("DRAINED")


@pytest.mark.long
def test_ten_tabs_stay_live_over_one_connection(context: BrowserContext, staged: Staged) -> None:
    streams: list[str] = []
    context.on("request", lambda each: streams.append(each.url) if "/ui/events" in each.url else None)
    pages = [opened(context, path) for path in ["", f"jobs/{JOB}", "fleet", "garbage", f"jobs/{JOB}/state"] * 2]
    staged.commit("Partition 0", "c0", batch=17)
    for page in (pages[1], pages[6]):
        expect(page.locator("#task-Partition_200")).to_contain_text("batch 17")
    pages[0].close()  # its connection was the one that all tabs share
    staged.commit("Partition 0", "c0", batch=18)
    for page in (pages[1], pages[6]):
        expect(page.locator("#task-Partition_200")).to_contain_text("batch 18")


REACHABLE = """() => [...document.querySelectorAll('a[href], button, input, select, summary, [tabindex="0"]')]
    .filter(each => each.checkVisibility()).map(DESCRIBE)"""
FOCUSED = """() => {
    const each = document.activeElement, style = getComputedStyle(each);
    return [DESCRIBE(each), style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 2];
}"""
DESCRIBE = """(each => [each.tagName, each.name, each.getAttribute('href'), each.dataset.action, each.getAttribute('aria-label'),
    each.parentElement?.id, each.tagName === 'SUMMARY' ? '' : each.textContent.slice(0, 20)].join('|'))"""


@pytest.mark.long
def test_the_tab_key_reaches_every_control_and_the_focus_is_visible(context: BrowserContext, staged: Staged) -> None:
    drain = staged.drain()
    page = context.new_page()
    for name, path in PAGES.items():
        page.goto(f"/ui/{path.format(drain=drain)}")
        expect(page.locator("#connection")).to_have_text("live")
        wanted = page.evaluate(REACHABLE.replace("DESCRIBE", DESCRIBE))
        reached, invisible = list[str](), list[str]()
        for _ in wanted:
            page.keyboard.press("Tab")
            described, visible = page.evaluate(FOCUSED.replace("DESCRIBE", DESCRIBE))
            reached.append(described)
            if not visible:
                invisible.append(described)
        assert sorted(reached) == sorted(wanted), name
        assert not invisible, name
    staged.cancel(drain)


def test_an_update_of_the_page_does_not_move_the_focus(context: BrowserContext, staged: Staged) -> None:
    page = opened(context, f"jobs/{JOB}")
    parts = page.locator("#task-Partition_200 summary").first
    parts.focus()
    staged.commit("Partition 0", "c0", batch=19)
    expect(page.locator("#task-Partition_200")).to_contain_text("batch 19")
    expect(page.locator("#task-Partition_200 summary").first).to_be_focused()


def test_an_action_can_be_performed_with_the_keyboard_alone(context: BrowserContext, staged: Staged) -> None:
    page = opened(context, f"jobs/{JOB}")
    page.get_by_role("button", name="Scale…").focus()
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_role("heading", name=f"Scale {JOB}")).to_be_focused()
    page.keyboard.press("Tab")
    expect(dialog.get_by_label("Containers")).to_be_focused()
    page.keyboard.press("Control+A")
    page.keyboard.type("4")
    page.keyboard.press("Enter")
    expect(dialog).to_contain_text("The run has 4 slots")  # the plan for the new number comes first
    expect(dialog).to_contain_text(f"sluice scale {JOB} 4")
    assert staged.http.get(f"/runs/{staged.run_id}").json()["containers"] == 3
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(dialog.get_by_role("heading", name="Done")).to_be_focused()
    assert staged.http.get(f"/runs/{staged.run_id}").json()["containers"] == 4
    expect(page.locator("#timeline")).to_contain_text("scaled on the page")  # the page has changed behind the dialog
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    expect(page.get_by_role("button", name="Scale…")).to_be_focused()


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.long)])
def test_axe_finds_nothing_serious(browser: Browser, coordinator: Running, staged: Staged, scheme: str) -> None:
    drain = staged.drain()
    made = browser.new_context(color_scheme=scheme, bypass_csp=True, base_url=f"http://127.0.0.1:{coordinator.port}")  # type: ignore[arg-type]
    page = made.new_page()
    for name, path in PAGES.items():
        page.goto(f"/ui/{path.format(drain=drain)}")
        found = Axe().run(page).response["violations"]
        serious = [(each["id"], each["nodes"][0]["html"]) for each in found if each["impact"] in ("serious", "critical")]
        assert not serious, name
    made.close()
    staged.cancel(drain)
