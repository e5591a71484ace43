"""Requests in the name of a container, by those who may not act for it: all must be refused, whatever the coordinator is going through."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from random import Random

from sluice.client import Refused
from sluice.client.agents import AgentClient, NotValid
from sluice.core.errors import CoordinatorUnreachable, LeaseLost
from sluice.core.ids import Epoch, ExecutionContainerId, Generation, TaskName
from sluice.wire.agents import RegisterRequest, WaitReply
from tests.simulation.network import Way
from tests.simulation.world import Container, World

TASKS = ("Partition 0", "Partition 1")
WITHIN = timedelta(seconds=5)

REQUESTS = 6
"""How many an impostor sends."""

Act = Callable[[AgentClient, Container, Random], Awaitable[object]]


async def heartbeat(client: AgentClient, target: Container, dice: Random) -> object:
    answer = await client.heartbeat(ExecutionContainerId(target.name), Epoch(dice.randrange(1, 9)), WITHIN)
    return None if isinstance(answer, NotValid) else answer


async def acquire(client: AgentClient, target: Container, dice: Random) -> object:
    task = TaskName(dice.choice(TASKS))
    reply = await client.acquire(target.run, task, ExecutionContainerId(target.name), Epoch(dice.randrange(1, 9)))
    return None if isinstance(reply, WaitReply) else reply


async def release(client: AgentClient, target: Container, dice: Random) -> object:
    await client.release(target.run, TaskName(dice.choice(TASKS)), Generation(dice.randrange(1, 30)))
    return "released"


async def exit_of(client: AgentClient, target: Container, dice: Random) -> object:
    await client.exited(ExecutionContainerId(target.name), 0, "forged")
    return "reported"


async def register(client: AgentClient, target: Container, dice: Random) -> object:
    return await client.register(target.run, RegisterRequest(processor_id=target.slot, execution_container_id=target.name))


async def stop_run(client: AgentClient, target: Container, dice: Random) -> object:
    return await client.stop_run(target.run, "forged")


ACTS: Mapping[str, Act] = {each.__name__: each for each in (heartbeat, acquire, release, exit_of, register, stop_run)}


async def impostor(world: World) -> None:
    """Somebody without a token, a viewer, another agent, or a container that was replaced sends requests in a container's name."""
    for _ in range(REQUESTS):
        if not world.containers:
            return
        dice, target = world.dice, world.dice.choice(world.containers[-8:])
        others = [each for each in world.containers if each.client.incarnation and each is not target and not each.running]
        who = dice.choice(["anonymous", "viewer", "stranger", *(["former"] * bool(others))])
        client = AgentClient("http://c", Way(world.network, "impostor"), token=lambda who=who: world.tokens.get(who, ""))  # type: ignore[misc]
        if who == "former":
            client.act_as(dice.choice(others).client.incarnation)
        name = dice.choice(sorted(ACTS))
        if name == register.__name__ and not world.database_has(target.name):
            continue  # a stranger that may start containers may do so under an id that no container has had
        try:
            answer = await ACTS[name](client, target, dice)
        except (Refused, LeaseLost, CoordinatorUnreachable) as error:
            world.say(f"{who} may not {name} for {target.name}: {str(error)[:60]}")
        else:
            if answer is not None:
                world.broken.append(f"{who} was allowed to {name} for {target.name}: {answer}")
