"""Adoptions: containers tell which version of their run's job model they run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from coordinator.endings import the_run
from coordinator.gathering import Gathering
from coordinator.store.port import ContainerRow, ContainerState, Store, Writing
from sluice.clock import Clock
from sluice.core.errors import LeaseLost, SluiceError, UnknownContainer, UnknownVersion, YourRequest
from sluice.core.ids import Epoch, ExecutionContainerId, RunId


@dataclass(frozen=True, slots=True)
class Told:
    """A container's word, under its epoch."""

    run_id: RunId
    execution_id: ExecutionContainerId
    epoch: Epoch
    version: int


@dataclass(frozen=True, slots=True)
class Adopted:
    """`version`: the newest that the container has told; `current`: the run's; `all_on`: that of all live containers, if it is one."""

    version: int
    current: int
    all_on: int | None


class Adoptions:
    """Those that come at once, as when a fleet adopts a version, share a transaction."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._gathering: Gathering[Told, Adopted] = Gathering(self._tell_all)

    async def tell(self, told: Told) -> Adopted:
        """Keep it. May run twice; an older version than was told before changes nothing.

        Raises UnknownRun, UnknownContainer, UnknownVersion for one that the run has not come to, and LeaseLost for an incarnation that is
        not valid.
        """
        return await self._gathering.ask(told)

    async def _tell_all(self, asked: Sequence[Told]) -> Sequence[Adopted | SluiceError]:
        async with self._store.begin() as tx:
            found = [await self._tell(tx, each) for each in asked]
            all_on = {run_id: version_of_all(await tx.containers(run_id)) for run_id in {each.run_id for each in asked}}
        return [
            replace(answer, all_on=all_on[each.run_id]) if isinstance(answer, Adopted) else answer
            for each, answer in zip(asked, found, strict=True)
        ]

    async def _tell(self, tx: Writing, told: Told) -> Adopted | SluiceError:
        try:
            run = await the_run(tx, told.run_id)
            container = await tx.container(told.execution_id)
            if container is None or container.run_id != told.run_id:
                raise UnknownContainer(f"run {told.run_id} has no container {told.execution_id!r}")
            if container.state is not ContainerState.LIVE or container.epoch != told.epoch:
                raise LeaseLost(f"{told.execution_id} with epoch {told.epoch} is not a valid container of run {told.run_id}")
            if told.version > run.model_version:
                raise UnknownVersion(
                    f"run {told.run_id} is at version {run.model_version} of its job model: there is no {told.version} yet"
                )
        except (YourRequest, LeaseLost) as refusal:
            return refusal
        if told.version > container.model_version:
            container = replace(container, model_version=told.version, adopted_at=self._clock.now())
            await tx.put_container(container)
        return Adopted(container.model_version, run.model_version, None)


def version_of_all(containers: Iterable[ContainerRow]) -> int | None:
    """The version that every live container runs; None while they differ, or when none is alive."""
    versions = {each.model_version for each in containers if each.state is ContainerState.LIVE}
    return versions.pop() if len(versions) == 1 else None
