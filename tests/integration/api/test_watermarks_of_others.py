"""What a container may do for tasks of another one."""

from __future__ import annotations

from pathlib import Path

from sluice.core.access.roles import Role
from sluice.core.access.tokens import Grant
from tests.support.api import Caller, calling, chained_body
from tests.support.fakes import FakeClock


def use(caller: Caller, token: str) -> None:
    caller.http.headers["Authorization"] = f"Bearer {token}"


async def new_token_of(caller: Caller, *roles: Role) -> str:
    return (await caller.coordinator.authentication.tokens.create("agents", Grant(frozenset(roles)), None, "test")).token


async def test_a_container_reports_no_watermark_of_the_task_of_another(tmp_path: Path) -> None:
    clock = FakeClock()
    async with calling(tmp_path, clock, authentication=True) as caller:
        use(caller, await new_token_of(caller, Role.ADMIN))
        agent = await new_token_of(caller, Role.AGENT)
        caller.log.create("flights", 2)
        run_id = (await caller.deploy(chained_body(partitions=2, containers=2, start="earliest")))["runId"]
        use(caller, agent)
        first = (await caller.registered(run_id, "c0", slot="0"))["token"]
        second = (await caller.registered(run_id, "c1", slot="1"))["token"]
        use(caller, first)
        await caller.acquired(run_id, "c0", 1, task="Partition 0")
        use(caller, second)
        generation = (await caller.acquired(run_id, "c1", 1, task="Partition 1"))["generation"]
        use(caller, first)  # c0 reports for the task of c1
        clock.advance(2)
        body = {
            "stages": [
                {
                    "task": "Partition 1",
                    "generation": generation,
                    "stage": "route",
                    "eventTime": "2030-01-01T12:00:00Z",
                    "source": "column",
                }
            ]
        }
        answer = await caller.http.post(f"/runs/{run_id}/watermarks", json=body)
        refused = answer.status_code in (403, 409) or [each["task"] for each in answer.json()["refused"]] == ["Partition 1"]
        assert refused, (answer.status_code, answer.text)
