"""Lists of runs, and the leases and times in the details of a run."""

from __future__ import annotations

from datetime import datetime

import pytest

from tests.support.api import Caller, Json, problem_slug, run_body
from tests.support.fakes import FakeClock


async def deployed(caller: Caller, clock: FakeClock, number: int, **changes: object) -> list[str]:
    """That many runs, a second apart; the oldest first."""
    made = []
    for _ in range(number):
        made.append((await caller.deploy(run_body(**changes)))["runId"])
        clock.advance(1)
    return made


async def listed(caller: Caller, **query: object) -> list[str]:
    answer = await caller.http.get("/runs", params={name: str(value) for name, value in query.items()})
    assert answer.status_code == 200, answer.text
    return [run["runId"] for run in answer.json()["runs"]]


async def test_runs_are_listed_newest_first(caller: Caller, clock: FakeClock) -> None:
    ours = await deployed(caller, clock, 3)
    other = await deployed(caller, clock, 1, job="other", outputs=[{"name": "delays", "system": "log", "stream": "others"}])
    assert await listed(caller, job="flight-delays") == ours[::-1]
    assert await listed(caller) == other + ours[::-1]


async def test_a_listed_run_shows_its_state_and_not_its_specification(caller: Caller, clock: FakeClock) -> None:
    (run_id,) = await deployed(caller, clock, 1, config={"greeting": "hunter2"})
    await caller.stop(run_id, reason="enough")
    (reply,) = (await caller.http.get("/runs")).json()["runs"]
    assert (reply["runId"], reply["job"], reply["state"], reply["containers"], reply["reason"]) == (
        run_id,
        "flight-delays",
        "STOPPED",
        1,
        "enough",
    )
    assert "hunter2" not in str(reply)


async def test_pages_follow_one_another_to_the_end(caller: Caller, clock: FakeClock) -> None:
    ours = await deployed(caller, clock, 5)
    found, before, pages = [], None, 0
    while before is not None or not pages:
        query = {"job": "flight-delays", "limit": "2"} | ({"before": str(before)} if before else {})
        page = (await caller.http.get("/runs", params=query)).json()
        found += [run["runId"] for run in page["runs"]]
        before, pages = page["next"], pages + 1
    assert (found, pages) == (ours[::-1], 3)


async def test_a_page_that_ends_with_the_oldest_run_is_the_last(caller: Caller, clock: FakeClock) -> None:
    await deployed(caller, clock, 2)
    assert (await caller.http.get("/runs", params={"limit": 2})).json()["next"] is None


@pytest.mark.parametrize(("query", "refusal"), [({"job": "nowhere"}, "unknown-job"), ({"before": "nothing"}, "unknown-run")])
async def test_an_unknown_run_is_not_found(caller: Caller, query: dict[str, str], refusal: str) -> None:
    assert problem_slug(await caller.http.get("/runs", params=query)) == (404, refusal)


@pytest.mark.parametrize("query", [{"limit": "0"}, {"limit": "201"}, {"job": "a b"}, {"before": "\0"}])
async def test_a_query_out_of_bounds_is_refused(caller: Caller, query: dict[str, str]) -> None:
    assert (await caller.http.get("/runs", params=query)).status_code == 422


async def test_the_details_of_a_run_show_the_remaining_time_of_each_lease_and_the_current_time(caller: Caller, clock: FakeClock) -> None:
    run_id = (await caller.deploy(run_body(containers=2)))["runId"]
    await caller.registered(run_id, "c1")
    clock.advance(10)
    await caller.registered(run_id, "c2", "1")
    clock.advance(5.25)
    reply = await caller.run(run_id)
    assert datetime.fromisoformat(reply["serverTime"]) == clock.now()
    assert {each["executionContainerId"]: each["leaseSecondsLeft"] for each in reply["incarnations"]} == {"c1": 14.75, "c2": 24.75}


async def test_an_expired_lease_has_no_time_left_and_a_replaced_container_has_no_lease(caller: Caller, clock: FakeClock) -> None:
    run_id = (await caller.deploy())["runId"]
    await caller.registered(run_id, "c1")
    await caller.registered(run_id, "c2")
    clock.advance(31)
    reply = {each["executionContainerId"]: each["leaseSecondsLeft"] for each in (await caller.run(run_id))["incarnations"]}
    assert reply == {"c1": None, "c2": 0.0}


# --- containers ------------------------------------------------------------------------------------------------------


async def test_a_run_shows_its_newest_containers_and_the_list_has_all_of_them_page_by_page(caller: Caller) -> None:
    run_id = str((await caller.deploy(run_body(containers=2)))["runId"])
    await caller.registered(run_id, "other", "1")
    for number in range(8):
        await caller.registered(run_id, f"c{number}", "0")
    for number in range(1, 8):
        await caller.exited(f"c{number}")
    shown = [each["executionContainerId"] for each in (await caller.run(run_id))["incarnations"]]
    assert shown == ["c0", "c3", "c4", "c5", "c6", "c7", "other"]  # c0 may still act
    found: list[Json] = []
    after: dict[str, str] = {}
    while True:
        page = (await caller.http.get(f"/runs/{run_id}/containers", params={"limit": 4, **after})).json()
        found += page["containers"]
        if page["next"] is None:
            break
        after = {"after": page["next"]}
    assert [each["executionContainerId"] for each in found] == [*(f"c{number}" for number in range(8)), "other"]
    assert found[-1] == (await caller.run(run_id))["incarnations"][-1]


async def test_a_page_after_a_container_that_the_run_does_not_have_is_refused(caller: Caller) -> None:
    run_id = str((await caller.deploy())["runId"])
    answer = await caller.http.get(f"/runs/{run_id}/containers", params={"after": "stranger"})
    assert problem_slug(answer) == (404, "unknown-container")


async def test_all_failures_of_a_slot_are_counted_although_few_are_shown(caller: Caller, clock: FakeClock) -> None:
    run_id = str((await caller.deploy())["runId"])
    for number in range(12):
        await caller.registered(run_id, f"c{number}")
        await caller.exited(f"c{number}", 1)
        clock.advance(301 if number < 11 else 0)
    run = await caller.run(run_id)
    assert (len(run["incarnations"]), run["crashLoopBackoff"][0]["failures"]) == (5, 12)


async def test_jobs_are_listed_page_by_page(caller: Caller) -> None:
    for job in ("b", "a", "c"):
        await caller.deploy(run_body(job=job))
    pages = [(await caller.http.get(f"/jobs{query}")).json() for query in ("", "?limit=2", "?limit=2&after=b")]
    assert [[each["job"] for each in page["jobs"]] for page in pages] == [["a", "b", "c"], ["a", "b"], ["c"]]
    assert [page["next"] for page in pages] == [None, "b", None]
