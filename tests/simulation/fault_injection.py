"""What can go wrong. Each fault begins at once, and its temporary effect is ended by a separate task. A fault that finds nothing to act on
returns False, and is not counted."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import timedelta
from math import inf

from sluice.core.errors import SluiceError
from tests.simulation.engine import INTERRUPTED, INTERRUPTIONS, SimulatedEngine
from tests.simulation.impostors import impostor
from tests.simulation.world import BLOB_STORES, ENDS_WITHIN, HARD_DEADLINE, Container, World
from tests.support.faults import Fault

RECORDS_AFTERWARDS = 100
"""How many records a batch reads at most when all faults are over."""

SLOW_SECONDS = 60


def _running(world: World) -> list[Container]:
    return [slot.container for _, slot in sorted(world.slots.items()) if slot.container is not None and slot.container.running]


async def kill_container(world: World) -> bool:
    running = _running(world)
    if running:
        world.kill_part(world.dice.choice(running), "by a fault", world.dice)
    return bool(running)


async def crash_loop(world: World) -> None:
    """The containers of a slot are killed shortly after their start, one after another."""
    slot = world.slots[world.dice.choice(sorted(world.slots))]
    world.say(f"the containers of slot {slot.name} are killed again and again")
    for _ in range(5):
        if slot.container is not None and slot.container.running:
            world.kill(slot.container, "by a fault")
        await asyncio.sleep(8)


async def kill_container_in_a_step(world: World) -> bool:
    """Between two steps of a batch, a commit, a drain or a restore."""
    engines = [engine for container in _running(world) for engine in container.engines]
    if engines:
        world.dice.choice(engines).kill_after = world.dice.randrange(1, 30)
    return bool(engines)


async def slow_batches(world: World) -> bool:
    """The batches of the containers that run are interrupted for so long that other things happen while one runs."""
    engines = [engine for container in _running(world) for engine in container.engines]
    for engine in engines:
        engine.interrupted, engine.interruptions = 0.2, (3.0, 10.0, 30.0)
    world.disturb(SLOW_SECONDS, heartbeats=False)
    world.later(SLOW_SECONDS, lambda: _end_slowness(engines))
    return bool(engines)


def _end_slowness(engines: Iterable[SimulatedEngine]) -> None:
    for engine in engines:
        engine.interrupted, engine.interruptions = INTERRUPTED, INTERRUPTIONS


async def freeze_container(world: World) -> bool:
    running = _running(world)
    if running:
        container = world.dice.choice(running)
        parts = world.dice.choice(((container.process, container.driver), (container.process,), (container.driver,)))
        world.say(f"{' and '.join(each.name for each in parts)} {'are' if len(parts) > 1 else 'is'} frozen")
        seconds = world.dice.choice((1, 10, 50, 90))
        world.disturb(seconds, container.machine)
        for each in parts:
            world.loop.freeze(each)
        world.later(seconds, lambda: _resume(world, container))
    return bool(running)


async def suspend_machine(world: World) -> bool:
    """Suspend a container and its guardian. The clock of leases continues; events that were due meanwhile happen immediately afterwards."""
    running = _running(world)
    if running:
        container = world.dice.choice(running)
        seconds = world.dice.choice((10, 60, 300))
        world.say(f"the machine of {container.name} is suspended for {seconds} s")
        world.disturb(seconds, container.machine)
        world.loop.freeze(container.process)
        world.loop.freeze(container.driver)
        container.suspended = True
        world.later(seconds, lambda: _resume(world, container))
    return bool(running)


def _resume(world: World, container: Container) -> None:
    container.suspended, container.thawed_at = False, world.loop.time()
    for each in (container.process, container.driver):
        world.loop.thaw(each)


async def stop_container(world: World) -> bool:
    """SIGTERM, and after a while SIGKILL."""
    running = _running(world)
    if running:
        container = world.dice.choice(running)
        world.say(f"{container.name} gets SIGTERM")
        container.process.context().run(world.loop.call_soon, container.agent.stop_requested)
        world.later(60, lambda: world.kill(container, "because it does not stop"))
    return bool(running)


async def cut_container_off(world: World) -> None:
    _cut_off(world, world.slots[world.dice.choice(sorted(world.slots))].machine, world.dice.choice((2, 15, 60)))


def _cut_off(world: World, machine: str, seconds: float) -> None:
    world.say(f"machine {machine} is cut off for {seconds} s")
    world.disturb(seconds, machine)
    world.network.cut.add(machine)
    world.later(seconds, lambda: world.network.cut.discard(machine))


async def replace_container(world: World) -> bool:
    """A node does not answer, and a container of its slot is started on another node while the former one continues."""
    running = _running(world)
    if running:
        former = world.dice.choice(running)
        cut = world.dice.choice((0, 0, 30, 120))
        world.say(f"{former.name} is replaced while it runs")
        if cut:
            _cut_off(world, former.machine, cut)
        world.replace_container(former.slot)
    return bool(running)


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


async def all_away_for_months(world: World) -> None:
    """All machines are switched off, two times in three for longer than the time to live of uploads. In half of the cases the run was
    stopped before, while the coordinator could not reach a blob store, so that it has not yet removed the time to live of the snapshots."""
    stopped = world.dice.random() < 0.5
    if stopped:
        await blob_store_of_coordinator_fails(world)
        await asyncio.sleep(world.dice.uniform(0, 30))
        await _stop(world)
        for _ in range(60):
            if (await world.until_answered(lambda: world.operator().run(world.run_id))).state.ended:
                break
            await asyncio.sleep(0.5)
        await asyncio.sleep(world.dice.uniform(0, 2))
    absence = world.disturb(inf)
    world.kill_coordinator()
    for container in _running(world):
        world.kill(container, "by a fault")
    days = world.dice.choice((2, 45, 100))
    world.say(f"everything is off for {days} days")
    world.loop.jump(days * 86_400)
    await world.start_coordinator()
    absence.end = world.loop.time()
    if stopped:
        await asyncio.sleep(world.dice.uniform(0, 200))
        await world.deploy(world.dice.choice((1, 2)))


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
    """Another coordinator is started on the same database, in half of the cases while the first is frozen. On PostgreSQL it would then take
    the claim over after ten seconds; see `take_claim_over`."""
    process, frozen = world.coordinator, world.dice.random() < 0.5 and world.postgresql is None
    assert process is not None
    if frozen:
        world.disturb(10)
        world.loop.freeze(process)
    await asyncio.sleep(world.dice.uniform(0, 9))
    await world.start_second_coordinator()
    if frozen:
        world.loop.thaw(process)


async def restore_older_database(world: World) -> bool:
    """An operator restores a copy of the database while containers run. They do so only if no operator has changed anything since the
    copy was made, because the restored database would lack that change. The run may have ended meanwhile, in a drain whose request was not
    answered; it is active in the copy, and its containers are started again."""
    copy, acts = world.copy_database(), world.acts
    await asyncio.sleep(world.dice.choice((1, 10, 40)))
    if copy is None or world.acts != acts or not (world.draining is None or world.draining.done()):
        return False
    absence = world.disturb(inf)
    world.kill_coordinator()
    await asyncio.sleep(world.dice.choice((0.5, 5)))
    world.restore_database(copy)
    await world.start_coordinator()
    absence.end = world.loop.time()
    await world.use_slots_of_run()
    await world.start_ended_slots()
    return True


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


async def blob_store_of_coordinator_fails(world: World) -> None:
    """The same for operations of the coordinator. One that starts meanwhile may have to wait."""
    world.coordinator_blobs_fail = world.dice.choice((Fault.FAIL, Fault.LOST, Fault.PART, Fault.HANG)), world.dice.choice((0.2, 1.0))
    seconds = world.dice.choice((5, 30, 70))
    world.say(f"the blob store fails for the coordinator: {world.coordinator_blobs_fail}")
    world.disturb(seconds, heartbeats=False)
    world.later(seconds, lambda: setattr(world, "coordinator_blobs_fail", None))


async def one_blob_store_fails(world: World) -> bool:
    """The run is backed up to two blob stores, and one of them fails for everybody, in half of the cases while all machines are lost."""
    if world.moving or world.failing_store:
        return False
    await world.set_backup(BLOB_STORES)
    await asyncio.sleep(world.dice.choice((1, 10, 30)))
    seconds, fails = world.dice.choice((10, 60, 180)), (world.dice.choice((Fault.FAIL, Fault.LOST, Fault.HANG)), 1.0)
    world.failing_store = world.dice.choice(BLOB_STORES)
    world.blobs_fail = world.coordinator_blobs_fail = fails
    world.say(f"blob store {world.failing_store} fails: {fails}")
    world.disturb(seconds, heartbeats=False)
    world.later(seconds, lambda: _end_failure(world))
    if world.dice.random() < 0.5:
        for container in _running(world):
            world.slots[container.slot].loses_disk = True
            world.kill(container, "with its machine")
    return True


def _end_failure(world: World) -> None:
    world.blobs_fail, world.coordinator_blobs_fail, world.failing_store = None, None, ""


async def database_away(world: World) -> None:
    seconds = world.dice.choice((1, 10, 19, 150))
    world.say(f"the database is away for {seconds} s")
    world.disturb(seconds)
    world.database.away = True
    world.later(seconds, lambda: setattr(world.database, "away", False))


async def commit_without_answer(world: World) -> None:
    world.database.lose_commits = world.dice.choice((1, 1, 3, 10))


async def change_without_answer(world: World) -> None:
    """An operator's change is committed, and the database reports an error. The first commit of a change is its entry in the audit log."""
    act = world.dice.choice((scale, deploy, grow_by_hand))
    world.database.lose_commits, world.database.spare_commits = 1, world.dice.choice((0, 1, 1))
    await act(world)


async def lose_index(world: World) -> bool:
    """In half of the cases all machines are lost at that moment, so that the index is needed. Not during a drain: one that fails returns to
    its pinned snapshots, and if one of these is lost, only an operator can choose another."""
    if world.moving or (world.draining is not None and not world.draining.done()):
        return False
    lost = world.lose_index()
    if world.dice.random() < 0.5:
        for container in _running(world):
            world.slots[container.slot].loses_disk = True
            world.kill(container, "with its machine")
    return lost


async def pin(world: World) -> None:
    await world.pin()


async def unpin(world: World) -> None:
    await world.unpin()


async def grow_input(world: World) -> bool:
    return world.grow()


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


async def open_spares(world: World) -> None:
    """Spare containers are started. Each takes a slot whose container has ended, until none is left."""
    for _ in range(world.dice.choice((1, 2))):
        world.start_spare()


async def set_backup(world: World) -> None:
    await world.set_backup(world.dice.choice((BLOB_STORES[:1], BLOB_STORES[1:], BLOB_STORES)))


async def move_backup_in_a_batch(world: World) -> bool:
    """An operator moves a running job to one of its blob stores while batches are long, and machines are lost before these end."""
    if world.moving or not await slow_batches(world):
        return False
    store, world.moving = world.dice.choice(BLOB_STORES), True
    await asyncio.sleep(world.dice.uniform(3, 20))
    if await world.move_backup(store):
        await asyncio.sleep(world.dice.uniform(0, 10))
        for container in _running(world):
            world.slots[container.slot].loses_disk = True
            world.kill(container, "with its machine")
        await asyncio.sleep(30)
    await world.set_backup((store,))
    world.moving = False
    return True


async def scale(world: World) -> None:
    await world.scale(world.dice.choice((1, 2, 3)))


async def deploy(world: World) -> None:
    await world.deploy(world.dice.choice((1, 2)))


async def drain(world: World) -> bool:
    return await _drain(world, "DEFAULT")


async def drain_and_keep_state(world: World) -> bool:
    return await _drain(world, "KEEP_STATE")


async def cancel_drain(world: World) -> bool:
    if world.drain_id:
        try:
            await world.operator().cancel_drain(world.drain_id)
        except SluiceError as error:
            world.say(f"not cancelled: {error}")
    return bool(world.drain_id)


async def stop_run(world: World) -> None:
    """An operator stops the job, and deploys it again."""
    await _stop(world)
    await asyncio.sleep(world.dice.uniform(1, 30))
    await world.deploy(world.dice.choice((1, 2)))


async def _stop(world: World) -> None:
    world.acts += 1
    try:
        await world.operator().stop_run(world.run_id, "by hand")
    except SluiceError as error:
        world.say(f"not stopped: {error}")


async def drain_and_restore(world: World) -> bool:
    return await _drain(world, "KEEP_STATE", restore=True)


async def _drain(world: World, mode: str, restore: bool = False) -> bool:
    """Upgrade the job in the background, so that other faults may happen meanwhile."""
    free = world.draining is None or world.draining.done()
    if free:
        world.draining = asyncio.ensure_future(_drain_and_deploy(world, mode, restore))
    return free


async def _drain_and_deploy(world: World, mode: str, restore: bool) -> None:
    run = world.run_id
    phase = await world.drain(mode)
    if phase == "DRAINED" and world.run_id == run:
        if restore:
            await world.restore()
        await world.deploy(world.dice.choice((1, 2)))


async def drain_that_fails(world: World) -> bool:
    """From some moment of a drain on, containers cannot back anything up, until its hard deadline has passed."""
    if world.dice.random() < 0.5:
        await slow_batches(world)
    if not await _drain(world, world.dice.choice(("DEFAULT", "KEEP_STATE")), restore=False):
        return False
    await asyncio.sleep(world.dice.uniform(0, 30))
    world.say("the blob store fails until the drain does")
    world.blobs_fail, absence = (Fault.FAIL, 1.0), world.disturb(inf, heartbeats=False)
    for _ in range(HARD_DEADLINE + 60):
        await asyncio.sleep(1)
        if world.draining is None or world.draining.done():
            break
    world.blobs_fail, absence.end = None, world.loop.time()
    return True


async def kafka_away(world: World) -> bool:
    """No broker answers. `World.grow` and producers wait, too."""
    assert world.brokers is not None
    world.brokers.away = True
    seconds = world.dice.choice((2, 15, 60))
    world.say(f"Kafka is away for {seconds} s")
    world.later(seconds, lambda: setattr(world.brokers, "away", False))
    return True


async def kafka_commit_without_answer(world: World) -> bool:
    """Transactions are committed, and the brokers' answers are lost."""
    assert world.brokers is not None
    world.brokers.lose_commits = world.dice.choice((1, 1, 3))
    return True


async def kill_writer_in_transaction(world: World) -> bool:
    """A container is killed after it has sent records and before it commits. Its transaction holds readers back."""
    assert world.brokers is not None
    world.brokers.kill_a_writer = True
    await asyncio.sleep(world.dice.choice((5, 20)))
    killed, world.brokers.kill_a_writer = not world.brokers.kill_a_writer, False
    return killed


async def lose_markers(world: World) -> bool:
    """Kafka deletes the offsets of all groups without members, in half of the cases while containers are killed between two steps."""
    assert world.brokers is not None
    if world.dice.random() < 0.5:
        await kill_container_in_a_step(world)
        await asyncio.sleep(world.dice.uniform(0, 5))
    lost = bool(world.brokers.groups)
    world.say(f"Kafka loses {len(world.brokers.groups)} markers")
    world.brokers.groups.clear()
    return lost


KAFKA_FAULTS = frozenset(each.__name__ for each in (kafka_away, kafka_commit_without_answer, kill_writer_in_transaction, lose_markers))
"""Those that happen only where streams are in Kafka."""


async def lose_sessions(world: World) -> bool:
    """The database ends sessions, as in a failover, in half of the cases while the answer to a COMMIT is lost."""
    assert world.postgresql is not None
    if world.dice.random() < 0.5:
        world.database.lose_commits = 1
        await asyncio.sleep(world.dice.uniform(0, 2))
    ended = world.postgresql.terminate_all()
    world.say(f"PostgreSQL ends {ended} sessions")
    return ended > 0


async def take_claim_over(world: World) -> bool:
    """The coordinator is frozen for so long that another one takes its claim. Some machines still reach the former one when it is thawed,
    until it ends."""
    former, way = world.coordinator, world.network.server
    assert former is not None
    assert way is not None
    world.say(f"{former.name} is frozen, and another coordinator is started")
    absence = world.disturb(inf)
    world.loop.freeze(former)
    await asyncio.sleep(world.dice.uniform(0, 12))
    await world.start_coordinator()
    absence.end = world.loop.time()
    for machine in sorted({slot.machine for slot in world.slots.values()}):
        if world.dice.random() < 0.5:
            world.say(f"machine {machine} still reaches {former.name}")
            world.network.ways[machine] = way
            world.disturb(40, machine)
    await asyncio.sleep(world.dice.choice((0, 2, 10)))
    world.loop.thaw(former)
    await asyncio.sleep(ENDS_WITHIN)
    world.network.ways.clear()
    if not former.dead:
        world.broken.append(f"{former.name} has lost its claim {ENDS_WITHIN} s ago and still runs")
    return True


BESIDE = (
    kill_container,
    kill_container_in_a_step,
    freeze_container,
    suspend_machine,
    stop_container,
    cut_container_off,
    replace_container,
    lose_packets,
    lose_answers,
    jump_clock,
    blob_store_fails,
    lose_index,
    database_away,
    commit_without_answer,
    grow_input,
)
"""Faults that begin while no coordinator answers."""


async def faults_during_an_outage(world: World) -> None:
    """The coordinator is killed or frozen, and other faults begin before it answers again."""
    process, killed = world.coordinator, world.dice.random() < 0.7
    assert process is not None
    seconds, absence = world.dice.choice((5, 18, 60)), world.disturb(inf)
    if killed:
        world.kill_coordinator()
    else:
        world.say(f"{process.name} is frozen")
        world.loop.freeze(process)
    others = world.dice.choices(BESIDE, k=world.dice.choice((1, 2, 3)))
    for other in others:
        await asyncio.sleep(world.dice.uniform(0, seconds / len(others)))
        world.say(f"during the outage: {other.__name__}")
        await other(world)
    if killed:
        await world.start_coordinator()
    else:
        world.loop.thaw(process)
    absence.end = world.loop.time()


POSTGRESQL_FAULTS = frozenset(each.__name__ for each in (lose_sessions, take_claim_over))
"""Those that happen only where the database is PostgreSQL."""

FAULTS: Mapping[str, Callable[[World], Awaitable[bool | None]]] = {
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
        blob_store_of_coordinator_fails,
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
        kafka_away,
        kafka_commit_without_answer,
        kill_writer_in_transaction,
        lose_markers,
        lose_sessions,
        take_claim_over,
        open_spares,
        set_backup,
        all_away_for_months,
        slow_batches,
        move_backup_in_a_batch,
        drain_that_fails,
        faults_during_an_outage,
        one_blob_store_fails,
    )
}


async def heal(world: World) -> None:
    """End all faults. Batches are large from now on, so that everything is soon read."""
    world.records = RECORDS_AFTERWARDS
    for container in world.containers:
        for engine in container.engines:
            engine.kill_after, engine.records = None, RECORDS_AFTERWARDS
        _end_slowness(container.engines)
        if container.frozen:
            _resume(world, container)
    _end_failure(world)
    world.database.away = False
    world.network.ways.clear()
    if world.brokers is not None:
        world.brokers.away, world.brokers.lose_commits = False, 0
    world.database.lose_commits = world.database.spare_commits = 0
    world.network.cut.clear()
    world.network.deaf.clear()
    world.network.lossy, world.network.slow, world.network.repeating = 0.0, 0.01, 0.0
    for clock in (world.clock, *world.clocks.values()):
        clock.ahead = timedelta(0)
    if world.draining is not None:
        await world.draining
