"""What can go wrong. Each fault begins at once, and its temporary effect is ended by a separate task."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from math import inf

from sluice.core.errors import SluiceError
from tests.simulation.impostors import impostor
from tests.simulation.world import BLOB_STORES, Container, World
from tests.support.faults import Fault


def _running(world: World) -> list[Container]:
    return [slot.container for _, slot in sorted(world.slots.items()) if slot.container is not None and slot.container.running]


async def kill_container(world: World) -> None:
    if running := _running(world):
        world.kill(world.dice.choice(running), "by a fault")


async def crash_loop(world: World) -> None:
    """The containers of a slot are killed shortly after their start, one after another."""
    slot = world.slots[world.dice.choice(sorted(world.slots))]
    world.say(f"the containers of slot {slot.name} are killed again and again")
    for _ in range(5):
        if slot.container is not None and slot.container.running:
            world.kill(slot.container, "by a fault")
        await asyncio.sleep(8)


async def kill_container_in_a_step(world: World) -> None:
    """Between two steps of a batch, a commit, a drain or a restore."""
    engines = [engine for container in _running(world) for engine in container.engines]
    if engines:
        world.dice.choice(engines).kill_after = world.dice.randrange(1, 30)


async def freeze_container(world: World) -> None:
    if running := _running(world):
        container = world.dice.choice(running)
        world.say(f"{container.name} is frozen")
        seconds = world.dice.choice((1, 10, 50, 90))
        world.disturb(seconds, container.machine)
        world.loop.freeze(container.process)
        world.later(seconds, lambda: world.loop.thaw(container.process))


async def suspend_machine(world: World) -> None:
    """Suspend a container and its watchdog. The clock of leases continues; events that were due meanwhile happen immediately afterwards."""
    if running := _running(world):
        container = world.dice.choice(running)
        seconds = world.dice.choice((10, 60, 300))
        world.say(f"the machine of {container.name} is suspended for {seconds} s")
        world.disturb(seconds, container.machine)
        world.loop.freeze(container.process)
        container.suspended = True
        world.later(seconds, lambda: _resume(world, container))


def _resume(world: World, container: Container) -> None:
    container.suspended = False
    world.loop.thaw(container.process)


async def stop_container(world: World) -> None:
    """SIGTERM, and after a while SIGKILL."""
    if running := _running(world):
        container = world.dice.choice(running)
        world.say(f"{container.name} gets SIGTERM")
        container.process.context().run(world.loop.call_soon, container.agent.stop_requested)
        world.later(60, lambda: world.kill(container, "because it does not stop"))


async def cut_container_off(world: World) -> None:
    _cut_off(world, world.slots[world.dice.choice(sorted(world.slots))].machine, world.dice.choice((2, 15, 60)))


def _cut_off(world: World, machine: str, seconds: float) -> None:
    world.say(f"machine {machine} is cut off for {seconds} s")
    world.disturb(seconds, machine)
    world.network.cut.add(machine)
    world.later(seconds, lambda: world.network.cut.discard(machine))


async def replace_container(world: World) -> None:
    """A node does not answer, and a container of its slot is started on another node while the former one continues."""
    running = _running(world)
    if running:
        former = world.dice.choice(running)
        cut = world.dice.choice((0, 0, 30, 120))
        world.say(f"{former.name} is replaced while it runs")
        if cut:
            _cut_off(world, former.machine, cut)
        world.replace_container(former.slot)


async def shorten_leases(world: World) -> None:
    """A container gets a long lease and is cut off; then the coordinator is started with a shorter one, and the container is replaced."""
    await _restart_with_lease(world, 200)
    await asyncio.sleep(15)
    if running := _running(world):
        former = world.dice.choice(running)
        _cut_off(world, former.machine, 150)
        await _restart_with_lease(world, 40)
        if world.slots.get(former.slot) is not None and world.slots[former.slot].container is former:
            world.replace_container(former.slot)


async def scale_after_a_lost_machine(world: World) -> None:
    """A slot is cut off until its tasks were reassigned to another one, and operators scale down."""
    await world.scale(2)
    await asyncio.sleep(45)
    slot = world.slots[world.dice.choice(sorted(world.slots))]
    _cut_off(world, slot.machine, 200)
    await asyncio.sleep(110)
    await world.scale(1)


async def lose_packets(world: World) -> None:
    world.network.lossy = world.dice.choice((0.05, 0.3))
    seconds = world.dice.choice((5, 20))
    world.disturb(seconds)
    world.later(seconds, lambda: setattr(world.network, "lossy", 0.0))


async def lose_answers(world: World) -> None:
    """A partition in one direction: the requests of a machine arrive, and it gets no answers."""
    machine, seconds = world.slots[world.dice.choice(sorted(world.slots))].machine, world.dice.choice((2, 15, 60))
    world.say(f"machine {machine} gets no answers for {seconds} s")
    world.disturb(seconds, machine)
    world.network.deaf.add(machine)
    world.later(seconds, lambda: world.network.deaf.discard(machine))


async def repeat_requests(world: World) -> None:
    """Requests of containers arrive a second time, up to five seconds later."""
    world.network.repeating = world.dice.choice((0.1, 0.5))
    world.later(world.dice.choice((10, 60)), lambda: setattr(world.network, "repeating", 0.0))


async def slow_network(world: World) -> None:
    world.network.slow = world.dice.choice((0.5, 3))
    seconds = world.dice.choice((10, 30))
    world.disturb(seconds)
    world.later(seconds, lambda: setattr(world.network, "slow", 0.01))


async def restart_coordinator(world: World) -> None:
    """Killed, and started again after up to 20 s."""
    await _restart(world, world.dice.choice((0.5, 5, 18)))


async def long_coordinator_outage(world: World) -> None:
    await _restart(world, world.dice.choice((35, 60, 120)))


async def restart_coordinator_with_another_lease(world: World) -> None:
    await _restart_with_lease(world, world.dice.choice((40, 90, 200)))


async def _restart_with_lease(world: World, lease_seconds: float) -> None:
    world.coordinator_settings["lease_seconds"] = lease_seconds
    await _restart(world, world.dice.choice((0.5, 5)))


async def _restart(world: World, seconds: float) -> None:
    absence = world.disturb(inf)
    world.kill_coordinator()
    await asyncio.sleep(seconds)
    await world.start_coordinator()
    absence.end = world.loop.time()


async def freeze_coordinator(world: World) -> None:
    await _freeze_coordinator(world, world.dice.choice((1, 10, 19, 60)))


async def suspend_coordinator(world: World) -> None:
    """Suspend the coordinator's machine for so long that all leases that it has granted may have ended when it continues."""
    await _freeze_coordinator(world, world.dice.choice((90, 300)))


async def _freeze_coordinator(world: World, seconds: float) -> None:
    process = world.coordinator
    assert process is not None
    world.say(f"{process.name} is frozen for {seconds} s")
    world.disturb(seconds)
    world.loop.freeze(process)
    await asyncio.sleep(seconds)
    world.loop.thaw(process)


async def second_coordinator(world: World) -> None:
    """Another coordinator is started on the same database, in half of the cases while the first is frozen."""
    process, frozen = world.coordinator, world.dice.random() < 0.5
    assert process is not None
    if frozen:
        world.disturb(10)
        world.loop.freeze(process)
    await asyncio.sleep(world.dice.uniform(0, 9))
    await world.start_second_coordinator()
    if frozen:
        world.loop.thaw(process)


async def restore_older_database(world: World) -> None:
    """An operator restores a copy of the database while containers run. They do so only if no operator has changed anything since the
    copy was made, because the restored database would lack that change."""
    copy, acts = world.copy_database(), world.acts
    await asyncio.sleep(world.dice.choice((1, 10, 40)))
    if copy is None or world.acts != acts or not (world.draining is None or world.draining.done()):
        return
    absence = world.disturb(inf)
    world.kill_coordinator()
    await asyncio.sleep(world.dice.choice((0.5, 5)))
    world.restore_database(copy)
    await world.start_coordinator()
    absence.end = world.loop.time()
    await world.use_slots_of_model()


async def jump_clock(world: World) -> None:
    """The time of day of a machine jumps. The clock of leases does not."""
    name = world.dice.choice(["coordinator", *sorted(world.clocks)])
    clock = world.clock if name == "coordinator" else world.clocks[name]
    clock.ahead = timedelta(seconds=world.dice.choice((-3600, -60, 0, 60, 3600)))
    world.say(f"the clock of {name} is off by {clock.ahead}")


async def put_clock_ahead(world: World) -> None:
    """The coordinator's clock is an hour ahead, and is corrected after a while."""
    world.clock.ahead = timedelta(hours=1)
    world.later(world.dice.choice((10, 60)), lambda: setattr(world.clock, "ahead", timedelta(0)))


async def blob_store_fails(world: World) -> None:
    """Operations of containers fail, hang, or succeed without an answer."""
    world.blobs_fail = world.dice.choice((Fault.FAIL, Fault.LOST, Fault.PART, Fault.HANG)), world.dice.choice((0.2, 1.0))
    world.say(f"the blob store fails: {world.blobs_fail}")
    world.later(world.dice.choice((5, 30, 70)), lambda: setattr(world, "blobs_fail", None))


async def database_away(world: World) -> None:
    world.database.away = True
    world.later(world.dice.choice((1, 10, 19)), lambda: setattr(world.database, "away", False))


async def commit_without_answer(world: World) -> None:
    world.database.lose_commits = world.dice.choice((1, 1, 3, 10))


async def change_without_answer(world: World) -> None:
    """An operator's change is committed, and the database reports an error. The first commit of a change is its entry in the audit log."""
    act = world.dice.choice((scale, deploy, grow_by_hand))
    world.database.lose_commits, world.database.spare_commits = 1, world.dice.choice((0, 1, 1))
    await act(world)


async def lose_index(world: World) -> None:
    """In half of the cases all machines are lost at that moment, so that the index is needed."""
    world.lose_index()
    if world.dice.random() < 0.5:
        for container in _running(world):
            world.slots[container.slot].loses_disk = True
            world.kill(container, "with its machine")


async def pin(world: World) -> None:
    await world.pin()


async def unpin(world: World) -> None:
    await world.unpin()


async def grow_input(world: World) -> None:
    world.grow()


async def grow_by_hand(world: World) -> None:
    world.grow()
    await world.check_inputs()


async def roll_back(world: World) -> None:
    await world.roll_back()


async def look(world: World) -> None:
    await world.look()


async def collect(world: World) -> None:
    await world.collect(world.dice.choice(("plan", "run", "audit")))


async def move_blob_stores(world: World) -> None:
    """The next runs back up to another blob store, and restore from either."""
    world.coordinator_settings["backup_stores"] = world.dice.choice((BLOB_STORES[:1], BLOB_STORES[1:], BLOB_STORES))
    await _restart(world, world.dice.choice((0.5, 5)))
    await world.deploy(world.dice.choice((1, 2)))


async def scale(world: World) -> None:
    await world.scale(world.dice.choice((1, 2, 3)))


async def deploy(world: World) -> None:
    await world.deploy(world.dice.choice((1, 2)))


async def drain(world: World) -> None:
    await _drain(world, "DEFAULT")


async def drain_and_keep_state(world: World) -> None:
    await _drain(world, "KEEP_STATE")


async def cancel_drain(world: World) -> None:
    if world.drain_id:
        try:
            await world.operator().cancel_drain(world.drain_id)
        except SluiceError as error:
            world.say(f"not cancelled: {error}")


async def stop_run(world: World) -> None:
    """An operator stops the job, and deploys it again."""
    world.acts += 1
    try:
        await world.operator().stop_run(world.run_id, "by hand")
    except SluiceError as error:
        world.say(f"not stopped: {error}")
    await asyncio.sleep(world.dice.uniform(1, 30))
    await world.deploy(world.dice.choice((1, 2)))


async def drain_and_restore(world: World) -> None:
    await _drain(world, "KEEP_STATE", restore=True)


async def _drain(world: World, mode: str, restore: bool = False) -> None:
    """Upgrade the job in the background, so that other faults may happen meanwhile."""
    if world.draining is None or world.draining.done():
        world.draining = asyncio.ensure_future(_drain_and_deploy(world, mode, restore))


async def _drain_and_deploy(world: World, mode: str, restore: bool) -> None:
    run = world.run_id
    phase = await world.drain(mode)
    if phase == "DRAINED" and world.run_id == run:
        if restore:
            await world.restore()
        await world.deploy(world.dice.choice((1, 2)))


FAULTS: Mapping[str, Callable[[World], Awaitable[None]]] = {
    each.__name__: each
    for each in (
        kill_container,
        crash_loop,
        kill_container_in_a_step,
        freeze_container,
        suspend_machine,
        stop_container,
        cut_container_off,
        replace_container,
        shorten_leases,
        scale_after_a_lost_machine,
        lose_packets,
        lose_answers,
        repeat_requests,
        slow_network,
        restart_coordinator,
        restart_coordinator_with_another_lease,
        long_coordinator_outage,
        freeze_coordinator,
        suspend_coordinator,
        second_coordinator,
        restore_older_database,
        jump_clock,
        put_clock_ahead,
        blob_store_fails,
        database_away,
        commit_without_answer,
        change_without_answer,
        lose_index,
        pin,
        unpin,
        grow_input,
        grow_by_hand,
        roll_back,
        look,
        collect,
        move_blob_stores,
        scale,
        deploy,
        drain,
        drain_and_keep_state,
        drain_and_restore,
        cancel_drain,
        stop_run,
        impostor,
    )
}


async def heal(world: World) -> None:
    """End all faults."""
    for container in world.containers:
        for engine in container.engines:
            engine.kill_after = None
        if container.process.frozen:
            _resume(world, container)
    world.blobs_fail, world.database.away = None, False
    world.database.lose_commits = world.database.spare_commits = 0
    world.network.cut.clear()
    world.network.deaf.clear()
    world.network.lossy, world.network.slow, world.network.repeating = 0.0, 0.01, 0.0
    for clock in (world.clock, *world.clocks.values()):
        clock.ahead = timedelta(0)
    if world.draining is not None:
        await world.draining
