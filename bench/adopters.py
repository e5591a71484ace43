"""Simulated containers that only adopt new versions of the job model: each holds a long poll for notices, fetches the model after a
notice, and acknowledges it. They run no tasks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from time import perf_counter

import httpx

from bench.harness import BenchFailed
from sluice.client.agents import AgentClient
from sluice.core.ids import Epoch, ExecutionContainerId, JobName, RunId
from sluice.wire import agents as wire_agents
from sluice.wire import runs as wire_runs
from sluice.wire.jobmodels import ChangeReply

POLL = timedelta(seconds=20)
PATIENCE = 120.0


@dataclass(frozen=True, slots=True)
class Adopted:
    """Seconds from the request of the change to its answer, and to the last acknowledgement."""

    answered: float
    everywhere: float


class _Adopter:
    def __init__(self, url: str, run_id: RunId, slot: int) -> None:
        self._coordinator = AgentClient(url)
        self._run_id = run_id
        self._slot = str(slot)
        self._id = ExecutionContainerId(f"adopter-{slot}")
        self._epoch = Epoch(0)

    async def register(self) -> None:
        body = wire_agents.RegisterRequest(processor_id=self._slot, execution_container_id=self._id, host="simulated")
        self._epoch = Epoch((await self._coordinator.register(self._run_id, body)).epoch)

    async def adopt(self, job: JobName, wanted: int, listening: asyncio.Barrier) -> None:
        """Poll until the container has acknowledged version `wanted`."""
        seq = 0
        await listening.wait()
        while True:
            for notice in await self._coordinator.notices(self._run_id, seq, POLL):
                seq = notice.seq
                if notice.kind == "MODEL":
                    served = await self._coordinator.job_model(job)
                    await self._coordinator.adopted(self._run_id, self._id, self._epoch, served.version)
                    if served.version >= wanted:
                        return

    async def close(self) -> None:
        await self._coordinator.close()


async def adopted(url: str, run_id: str, containers: int) -> Adopted:
    """Let that many containers adopt the version made by growth of a stream. The stream must have grown already. Raises BenchFailed."""
    made = [_Adopter(url, RunId(run_id), slot) for slot in range(containers)]
    try:
        async with asyncio.timeout(PATIENCE):
            return await _adopted(url, run_id, made)
    except TimeoutError as error:
        raise BenchFailed(f"{containers} containers did not adopt a version within {PATIENCE:g} s") from error
    finally:
        await asyncio.gather(*(each.close() for each in made))


async def _adopted(url: str, run_id: str, made: Sequence[_Adopter]) -> Adopted:
    for each in made:
        await each.register()
    async with httpx.AsyncClient(base_url=url, timeout=PATIENCE) as http:
        run = wire_runs.RunDetail.model_validate_json((await http.get(f"/runs/{run_id}")).content)
        listening = asyncio.Barrier(len(made) + 1)
        adopting = [asyncio.create_task(each.adopt(JobName(run.job), run.job_model_version + 1, listening)) for each in made]
        await listening.wait()
        await asyncio.sleep(1)  # By now all long polls are open.
        began = perf_counter()
        answer = await http.patch(f"/runs/{run_id}", json={"grow": True})
        answered = perf_counter() - began
        version = ChangeReply.model_validate_json(answer.raise_for_status().content).version
        await asyncio.gather(*adopting)
        everywhere = perf_counter() - began
        now = wire_runs.RunDetail.model_validate_json((await http.get(f"/runs/{run_id}")).content)
    if now.adoption is None or now.adoption.all_on != version:
        raise BenchFailed(f"the coordinator does not report version {version} for all containers: {now.adoption}")
    return Adopted(answered, everywhere)
