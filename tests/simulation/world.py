"""One job of two stages on the embedded log, its coordinator, its containers on machines of their own, and its operators."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from math import inf
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import httpx

from containers.agent.agent import Agent, run_of_job
from containers.agent.lifecycle import ExitReason
from containers.cli.snapshots import copied
from containers.engine import Engine, RunOfJob, StageStart
from containers.errors import EXIT_REPEATED_FAILURE
from containers.rpc.engine_server import EngineServer
from containers.rpc.remote_engine import RemoteEngine
from containers.settings import ContainerSettings
from containers.supervision.exit_report import EXIT_LEASE_LOST
from containers.supervision.guardian import ENDS_WITHIN as GUARDIAN_WAITS
from coordinator.app import build, stream_systems
from coordinator.settings import Settings, read_settings
from coordinator.store.copies import backup, database_file, restore
from coordinator.store.sql import Store
from sluice import Job
from sluice.blobs.counted import Requests
from sluice.blobs.locations import open_blob_store, wrapped
from sluice.blobs.port import BlobStore
from sluice.client import OperatorClient, Refused
from sluice.client.agents import AgentClient
from sluice.clock import Clock as ProductClock
from sluice.core.access.roles import Role
from sluice.core.access.tokens import Grant
from sluice.core.errors import CoordinatorUnreachable, DatabaseInUse, SluiceError, StoreUnavailable, UnknownSnapshot
from sluice.core.ids import ExecutionContainerId, Generation, Instant, Lineage, RunId
from sluice.deploy import deploy_request
from sluice.job import JobDescription
from sluice.streams.log import Headers, Log, Record, Writer
from sluice.streams.port import StreamSystem
from sluice.wire import drains as wire_drains
from sluice.wire import snapshots as wire_snapshots
from sluice.wire.body import DRAIN_RECORD_HEADER
from sluice.wire.jobmodels import ChangeRequest, PlanRequest, RollbackRequest
from sluice.wire.runs import RunReply, RunRequest
from sluice.wire.samza import parse_job_model
from sluice.wire.snapshots import BackupRequest, OperationReply, PinRequest, StoreBody, VerifyRequest
from tests.simulation.database import DatabaseFaults, simulated_store
from tests.simulation.engine import GrowingLedger, SimulatedEngine, stored_state
from tests.simulation.kafka import Brokers, KafkaLog, ModelledKafka
from tests.simulation.link import simulated_link
from tests.simulation.loop import Process, SimulatedLoop
from tests.simulation.network import Network, Way
from tests.simulation.network import Server as HttpServer
from tests.simulation.postgresql import Server
from tests.support.agents import two_stages
from tests.support.counting_engine import summed
from tests.support.faults import Fault, FaultyBlobs

T = TypeVar("T")

KEYS = "abcdefg"
MOST_PARTITIONS = 8
HARD_DEADLINE = 600
"""Of a drain, in seconds, from its first container on."""

FIRST_CHORES_WITHIN = 10
"""Seconds after its start in which a coordinator has looked at the drains."""

STAGES_OF_TASKS = 4
KEPT_AT_LEAST = 3
"""Snapshots of each stage."""

RESTORED = 3
"""Retained snapshots that are restored at the end, at most."""

BLOB_STORES = ("local", "remote")

PIN = "kept"
READ = ("/metrics", "/runs", "/jobs", "/readyz", "/prometheus/targets", "/tokens", "/locality", "/openapi.json")
"""What monitoring and other programs read."""

REMOVED_WITHIN = 300
"""Seconds after its run was stopped in which a job can be removed: a lease and its margin."""

SURVIVED = 20
"""The absence of the coordinator, in seconds within the last LEASE seconds, that every container survives."""

GIVEN_UP_WITHIN = 15
"""Seconds after the grace period and `failover_after_seconds`, in which the coordinator has given up a slot."""

ENDS_WITHIN = 20
"""Seconds in which a coordinator ends that has lost its claim."""

A_STEP = 0.001
"""Seconds in which a thread that was frozen may act before the others of its process."""

ADOPTED_WITHIN = 400
"""Seconds after the faults in which all containers run the job model in force: the longest lease and a margin."""

TOKENS = {"containers": Role.AGENT, "stranger": Role.AGENT, "viewer": Role.VIEWER, "operator": Role.ADMIN}
"""Names of principals, each with a token of this role, where the coordinator needs tokens."""

READS_WITHIN = 60
"""Seconds in which the first stage reads everything, if its containers run."""

LEASE = 40
"""The shortest lease of any coordinator, in seconds."""

BEGIN = datetime(2026, 3, 1, 12, tzinfo=UTC)


@dataclass
class Clock:
    """The clock of one machine. Leases are measured on true time. `errors`: the errors of its time of day, and since when, in virtual
    seconds."""

    loop: SimulatedLoop
    errors: list[tuple[float, timedelta]] = field(default_factory=lambda: [(0.0, timedelta(0))])

    @property
    def ahead(self) -> timedelta:
        """The present error."""
        return self.errors[-1][1]

    @ahead.setter
    def ahead(self, error: timedelta) -> None:
        self.errors.append((self.loop.time(), error))

    def now(self) -> datetime:
        return BEGIN + timedelta(seconds=self.loop.time()) + self.ahead

    def elapsed(self) -> Instant:
        return Instant(1000 + self.loop.time())


class Client(AgentClient):
    """That of a container. `incarnation`: the token of its registration."""

    incarnation = ""

    def act_as(self, incarnation_token: str) -> None:
        self.incarnation = incarnation_token
        super().act_as(incarnation_token)


@dataclass
class Container:
    """An incarnation. `process`: that of the agent. `lease_ends`: the time at which its guardian ends it."""

    name: str
    run: RunId
    slot: str
    machine: str
    process: Process
    driver: Process
    agent: Agent
    client: Client
    life: asyncio.Task[ExitReason]
    began: float
    disk: Path
    engines: list[SimulatedEngine] = field(default_factory=list)
    lease_ends: float = float("inf")
    exit_code: int | None = None
    suspended: bool = False
    """Whether its machine is suspended, and with it its guardian."""
    guarded: bool = True
    """Whether its guardian runs."""
    thawed_at: float = -1.0
    """When it last continued after it was frozen or suspended."""

    @property
    def running(self) -> bool:
        return not self.process.dead and not self.life.done()

    @property
    def frozen(self) -> bool:
        return self.process.frozen or self.driver.frozen

    @property
    def acts(self) -> bool:
        """Whether its driver may act."""
        return not self.driver.dead


@dataclass(slots=True)
class Disturbance:
    """Tasks may be without a working container from `begin` to `end`, in virtual seconds. `machine`: that of the slot; None for all.
    `heartbeats`: whether these may fail, too."""

    machine: str | None
    begin: float
    end: float
    heartbeats: bool = True


class _Superseded(Exception):
    """A request of an operator is out of date."""


@dataclass
class Slot:
    """Restarts the containers of a slot, as Kubernetes does, on a machine with a disk that may be lost."""

    name: str
    run: RunId
    version: int
    build: int
    machine: str = ""
    container: Container | None = None
    supervisor: asyncio.Task[None] | None = None
    removed: bool = False
    loses_disk: bool = False
    """Whether the disk is lost when its container is killed."""
    place: str = ""
    """The name of its disk."""
    spare: bool = False
    """Whether its container waits for a slot."""

    def __post_init__(self) -> None:
        self.machine = self.machine or self.name
        self.place = self.place or self.name


class World:
    def __init__(
        self,
        loop: SimulatedLoop,
        chance: Random,
        directory: Path,
        settings: Mapping[str, Any],
        *,
        authentication: bool = False,
        kafka: bool = False,
        postgresql: bool = False,
        pace: float | None = None,
        name: str = "delays",
        beside: World | None = None,
        event_times: bool = False,
    ) -> None:
        """`event_times`: records have event times, and none may be dropped as late. `beside`: a world with another job, whose coordinator,
        clock and streams this one uses."""
        self.job_name = name
        own = "" if beside is None else f"{name}-"
        self.streams = (f"{own}in", f"{own}mid", f"{own}out")
        self.prefix = own
        self.loop = loop
        self.chance = chance
        self.dice = chance
        """The random numbers of the present fault."""
        self.directory = directory
        self.container_settings = settings
        self.trace: list[str] = []
        self.network = Network(loop, chance, on_answer=self._answered)
        self.clock = Clock(loop)
        self.clocks: dict[str, Clock] = {}
        self.coordinator: Process | None = None
        self.store: Store | None = None
        """Of the coordinator that was started last."""
        self.coordinator_starts: list[float] = []
        """When each coordinator was started, in virtual seconds."""
        self.database_url = ""
        self.moving = False
        """Whether snapshots can be restored from one blob store only, which may have but the newest ones."""
        self.acts = 0
        """The number of changes by operators and of lineages that stages have begun."""
        blobs = {name: f"file://{directory / 'home' / name}" for name in BLOB_STORES}
        self.coordinator_settings: dict[str, Any] = {
            "lease_seconds": LEASE,
            "failover_after_seconds": chance.choice((20, 300)),
            "log_retention_seconds": chance.choice((5, 3600)),
            "keep_last": chance.choice((KEPT_AT_LEAST, 10)),
            "blob_stores": blobs,
            "backup_stores": BLOB_STORES[:1],
        }
        if authentication:
            first = directory / "first.token"
            self.coordinator_settings |= {"authentication": True, "first_token_file": first}
        self.authentication, self.event_times = authentication, event_times
        self.tokens: dict[str, str] = {}
        """The token of each principal; none where the coordinator needs none."""
        drawn = chance.choice((0.3, 1.0, 3.0, 3.0))
        self.pace = drawn if pace is None else pace
        self.config: dict[str, str] = {}
        """Of deployments."""
        """The factor for the intervals of the coordinator's chores, because chores take time even when they have nothing to do."""
        self.disturbances: list[Disturbance] = []
        self.brokers = Brokers(loop, chance, lambda: int(self.clock.now().timestamp() * 1e6)) if kafka else None
        self.log = Log(directory / "home" / "log") if self.brokers is None else KafkaLog(self.brokers)
        self.opened: dict[str, sqlite3.Connection] = {}
        """Connections to streams of the embedded log that are kept open, by stream."""
        self.pinned: dict[str, frozenset[tuple[str, str, str]]] = {}
        """The task, stage and id of the snapshots of each pin."""
        self.postgresql = Server(loop.time) if postgresql else None
        self.ledger = GrowingLedger(self.log, self.streams[1], split=False)
        self.blobs_fail: tuple[Fault, float] | None = None
        """How operations of containers on the blob store fail, and with which probability."""
        self.coordinator_blobs_fail: tuple[Fault, float] | None = None
        """The same, of coordinators."""
        self.failing_store = ""
        """The only blob store that fails; empty: all."""
        self.database = DatabaseFaults(chance)
        self.producer = Writer(Lineage("producer"), "producer", Generation(1))
        self.produced = 0
        self.containers: list[Container] = []
        self.slots: dict[str, Slot] = {}
        self.started = self.machines = self.spares = 0
        self.taken = 0
        """The number of slots that spare containers have taken."""
        self.disks: Counter[str] = Counter()
        self.failed_drains: set[str] = set()
        self.version = self.deployed_version = 0
        self.build = 0
        self.run_id = RunId("")
        self.broken: list[str] = []
        self.checked_drains = 0
        self.drained_of_input: Mapping[int, int] = {}
        self.before_growth: Mapping[int, int] = {}
        """The ends of the input when it grew last."""
        self.empties = False
        """Whether a drain that empties the state was requested, and its end was not seen yet."""
        self.drain_id = ""
        self.drained_again = False
        self.drains_without_answer: dict[str, tuple[float, timedelta]] = {}
        """Of a run whose drain was requested without an answer: when first, and by how much the clock was ahead then."""
        """Whether the last request to drain was answered with an earlier drain."""
        self.lost: set[str] = set()
        """Names of blobs that the blob store has lost."""
        self.lost_of: set[tuple[str, ...]] = set()
        """The tasks and stages to which these blobs belong."""
        self.former: set[str] = set()
        """Names of the indexes of histories that drains have ended, and of those from before drains that failed in their flush."""
        self.draining: asyncio.Future[None] | None = None
        self.records: int | None = None
        """How many records a batch reads at most, in containers that are started; None: some."""
        if beside is not None:
            self.network, self.clock, self.log = beside.network, beside.clock, beside.log
            self.ledger = GrowingLedger(self.log, self.streams[1], split=False)

    def keep_streams_open(self) -> None:
        """Keep a connection to each stream of the embedded log, as there is on real machines. SQLite works for milliseconds when the last
        one is closed."""
        if self.brokers is None:
            for stream in sorted({*self.log.streams()} - self.opened.keys()):
                connection = self.opened[stream] = sqlite3.connect(self.directory / "home" / "log" / f"{stream}.db")
                connection.execute("SELECT count(*) FROM partitions").fetchone()

    def close(self) -> None:
        for each in self.opened.values():
            each.close()

    def say(self, what: str) -> None:
        """Add a line to the trace, without the directory of this run: the same seed gives the same trace in every process."""
        what = what.replace(str(self.directory), "")
        self.trace.append(f"{self.loop.time():10.3f} {what}")

    def _answered(self, what: str) -> None:
        self.say(what)
        if what.endswith("/lineage: 200"):
            self.acts += 1
            _, _, path = what.partition("/tasks/")
            task, _, stage, *_ = path.replace("%20", "_").split("/")
            self.ledger.repeats |= (task, stage) in self.lost_of

    def later(self, seconds: float, act: Callable[[], object]) -> None:
        self.loop.call_later(seconds, act)

    # --- coordinator -----------------------------------------------------------------------------------------------

    async def start_coordinator(self) -> None:
        """Start a coordinator, and return when it answers."""
        self.coordinator_starts.append(self.loop.time())
        process = Process(f"coordinator {len(self.coordinator_starts)}")
        self.coordinator = process
        ready = asyncio.Event()
        settings = self._coordinator_settings()
        self.database_url = settings.database
        self.say(f"{process.name} starts")

        def lost(error: DatabaseInUse) -> None:
            self.say(f"{process.name} ends: {error}")
            self.loop.kill(process)

        async def run() -> None:
            store = self.store = simulated_store(settings.database, process, self.database, self.postgresql)
            coordinator = build(settings, self.clock, lost, store, self.pace, self._systems(settings), self._open_blobs)
            async with coordinator.api.router.lifespan_context(coordinator.api):
                if self.authentication and not self.tokens:
                    for name, role in TOKENS.items():
                        grant = Grant(frozenset({role}))
                        self.tokens[name] = (await coordinator.authentication.tokens.create(name, grant, None, "simulation")).token
                self.network.server = HttpServer(process, httpx.ASGITransport(coordinator.asgi))
                ready.set()
                await asyncio.Event().wait()

        task = self.loop.create_task(run(), context=process.context(), name=process.name)
        waits = asyncio.ensure_future(ready.wait())
        await asyncio.wait({waits, task}, return_when=asyncio.FIRST_COMPLETED)
        if task.done() and isinstance(task.exception(), StoreUnavailable):
            self.say(f"{process.name} does not start: {task.exception()}")
            self.loop.kill(process)
            await asyncio.sleep(2)
            await self.start_coordinator()
        elif task.done():
            task.result()

    def _systems(self, settings: Settings) -> Mapping[str, StreamSystem]:
        systems = stream_systems(settings, self.clock)
        return systems if self.brokers is None else {**systems, "kafka": ModelledKafka(self.brokers)}

    def _coordinator_settings(self) -> Settings:
        return read_settings(home=self.directory / "home", allowed_hosts=("c",), **self.coordinator_settings)

    async def start_second_coordinator(self) -> None:
        """Start another coordinator on the same database. It must be refused, unless the first one does not hold its claim at that moment,
        as on PostgreSQL after the end of its session. Then the first must end."""
        process, took_claim = Process("another coordinator"), False
        settings = self._coordinator_settings()

        async def run() -> None:
            store = simulated_store(settings.database, process, self.database, self.postgresql)
            coordinator = build(settings, self.clock, store=store, pace=self.pace, systems=self._systems(settings))
            async with coordinator.api.router.lifespan_context(coordinator.api):
                nonlocal took_claim
                assert self.store is not None
                if self.store.claimed:
                    self.broken.append("two coordinators have one database")
                took_claim = True

        try:
            await self.loop.create_task(run(), context=process.context(), name=process.name)
        except DatabaseInUse as error:
            self.say(f"{process.name} is refused: {str(error).partition(' is ')[2]}")
        except StoreUnavailable as error:
            self.say(f"{process.name} does not start: {error}")
        finally:
            self.loop.kill(process)
        if took_claim:
            await self._replace_coordinator()

    async def _replace_coordinator(self) -> None:
        """Wait for the end of a coordinator that has lost its claim to another one, and start it again."""
        former = self.coordinator
        assert former is not None
        self.say(f"{former.name} has lost its claim")
        absence = self.disturb(inf)
        for _ in range(ENDS_WITHIN):
            if former.dead:
                await self.start_coordinator()
                absence.end = self.loop.time()
                return
            await asyncio.sleep(1)
        self.broken.append(f"{former.name} has lost its claim {ENDS_WITHIN} s ago and still runs")

    def copy_database(self) -> Path | None:
        """As `sluice db backup`. Returns None unless every stage has a snapshot: after a restore, a stage without one begins again."""
        copy = self.directory / "copy.db"
        backup(database_file(self.database_url), copy, force=True)
        with closing(sqlite3.connect(copy)) as connection:
            (number,) = connection.execute("SELECT count(*) FROM stores WHERE head IS NOT NULL AND NOT chosen").fetchone()
        return copy if number == STAGES_OF_TASKS else None

    def restore_database(self, copy: Path) -> None:
        """As `sluice db restore`, while no coordinator runs."""
        self.say("an older database is restored")
        self.pinned.clear()
        restore(copy, database_file(self.database_url), force=True)

    def database_has(self, container: str) -> bool:
        """Whether the database knows a container of this id, which has then registered."""
        with closing(sqlite3.connect(database_file(self.database_url))) as connection:
            (number,) = connection.execute("SELECT count(*) FROM containers WHERE execution_id = ?", (container,)).fetchone()
        return bool(number)

    def kill_coordinator(self) -> None:
        assert self.coordinator is not None
        self.say(f"{self.coordinator.name} is killed")
        self.loop.kill(self.coordinator)

    async def use_slots_of_run(self) -> None:
        """Adopt the slots that the run has, if it is the job's current one, after a request without an answer or a restore of the
        database."""
        with suppress(Refused):
            versions = (await self.until_answered(lambda: self.operator().versions(self.job_name, None, 20))).models
            current = next((each.version for each in versions if each.current and each.run_id == self.run_id), None)
            if current is not None:
                self._use_slots(await self._slots_of_run())

    async def start_ended_slots(self) -> None:
        """Start the containers of the run again where they have ended with it, if a restored database has it as active."""
        run = await self.until_answered(lambda: self.operator().run(self.run_id))
        for slot in [] if run.state.ended else self.slots.values():
            if slot.run == self.run_id and slot.supervisor is not None and slot.supervisor.done():
                self.say(f"slot {slot.name} is started again, because its run is active in the restored database")
                self._begin_supervision(slot)

    # --- containers ------------------------------------------------------------------------------------------------

    def job(self, version: int, build: int) -> Job:
        job = two_stages(self.job_name, streams=self.streams)
        job.code = f"version {version}, build {build}"
        return job

    def disk(self, slot: str) -> Path:
        return self.directory / f"{self.prefix}disk {slot} {self.disks[slot]}"

    def start_container(self, slot: Slot) -> Container:
        name = f"{self.prefix}c{self.started}"
        self.started += 1
        process, driver = Process(name), Process(f"driver of {name}")
        clock = self.clocks.setdefault(slot.machine, Clock(self.loop))
        if any(each.suspended and each.acts and each.disk == self.disk(slot.place) for each in self.containers):
            self.disks[slot.place] += 1  # nothing starts on a suspended machine, so this one starts on another
        root = self.disk(slot.place)
        settings = ContainerSettings(
            **{
                "run_id": slot.run,
                "processor_id": "0" if slot.spare else slot.name,
                "spare": slot.spare,
                "host": slot.machine,
                "standby_seconds": 2,
                "disk_low_bytes": 0,  # how much the machine of the test has free does not matter
                "EXECUTION_ENV_CONTAINER_ID": name,
                "home": self.directory / "home",
                "state_dir": root,
                **self.container_settings,
            }
        )
        made: list[Container] = []

        def make_engine(run: RunOfJob) -> SimulatedEngine:
            made[0].engines.append(self._new_engine(made[0], f"version {slot.version}", clock))
            return made[0].engines[-1]

        def renewed(until: Instant) -> None:
            made[0].lease_ends = until

        def lease_lost(reason: str) -> None:
            made[0].exit_code = 3
            if "lease expired" in reason:
                self._check_long_absence(made[0])
            self.kill(made[0], f"lease lost: {reason}")

        description = self.job(slot.version, slot.build).description()
        remote = self._start_driver(process, driver, description, make_engine)
        driver.on_death.append(lambda: self._on_driver_end(made[0]))
        client = Client("http://c", Way(self.network, slot.machine), token=lambda: self.tokens.get("containers", ""))
        agent = Agent(
            description,
            settings,
            client,
            clock,
            lambda run: remote.of_run(run_of_job(run)),
            renewed,
            lease_lost,
            lambda url: wrapped(
                FaultyBlobs(open_blob_store(url, clock), lambda operation: self._blob_fault(url, self.blobs_fail)), Requests(), clock=clock
            ),
            on_slot=lambda name: self._spare_takes(slot, made[0], name),
            not_now=lambda: "its driver is stopped" if driver.frozen else None,
            end_driver=partial(self._end_driver, remote, driver),
        )
        life = process.context().run(lambda: self.loop.create_task(agent.run(), name=name))
        container = Container(name, slot.run, slot.name, slot.machine, process, driver, agent, client, life, self.loop.time(), root)
        made.append(container)
        self.containers.append(container)
        self.loop.create_task(self._guardian(container), name=f"guardian {name}")
        self.say(f"{name} starts in slot {slot.name} of {slot.run}")
        return container

    def _start_driver(
        self, agent: Process, driver: Process, description: JobDescription, make_engine: Callable[[RunOfJob], Engine]
    ) -> RemoteEngine:
        """The engine of a driver, which ends when its agent has ended."""
        near, far = simulated_link(self.loop, self.chance, agent, driver)

        def end(code: int = 1) -> None:
            self.loop.kill(driver)

        driver.context().run(EngineServer, far, lambda: description, make_engine, end, lambda slot: None, end).run()
        return agent.context().run(RemoteEngine, near)

    async def _end_driver(self, remote: RemoteEngine, driver: Process, code: int) -> bool:
        """As `AgentProcess`."""
        if code != EXIT_LEASE_LOST:
            remote.end(code)
            for _ in range(50):
                if not driver.dead:
                    await asyncio.sleep(0.1)
        self.loop.kill(driver)
        return True

    def _on_driver_end(self, container: Container) -> None:
        context = container.process.context()
        context.run(self.loop.call_later, 0.01, container.agent.driver_ended, "its driver was killed by SIGKILL")

    def _new_engine(self, container: Container, version: str, clock: Clock) -> SimulatedEngine:
        return SimulatedEngine(
            root=container.disk,
            job=self.job_name,
            ledger=self.ledger,
            version=version,
            can_pause=self.chance.random() < 0.7,
            operators=(f"sums of {version}",),
            loop=self.loop,
            process=container.driver,
            chance=self.chance,
            brokers=self.brokers,
            clock=clock,
            event_times=self.event_times,
            on_kill=lambda: self.kill_part(container, "between two steps", self.chance),
            on_works=lambda start: self._check_only_holder(container, start),
            lease_expired=lambda: self._unaware(container),
            records=self.records,
        )

    def start_spare(self) -> None:
        """Start a container that waits for a slot."""
        self.spares += 1
        name = f"spare {self.spares}"
        slot = Slot(name, self.run_id, self.version, self.build, spare=True)
        self._begin_supervision(slot)

    def _spare_takes(self, spare: Slot, container: Container, name: str) -> None:
        """The slot is now that of the spare, and its former container is not started again. If it has just been started, it replaces
        the spare."""
        self.say(f"{container.name} takes slot {name}")
        self.taken += 1
        spare.name, spare.spare, container.slot = name, False, name
        former = self.slots.get(name)
        if former is None or former.run != spare.run:
            spare.removed = True  # the slot was removed meanwhile
            return
        former.removed = True
        self.slots[name] = spare

    def _open_blobs(self, url: str, clock: ProductClock) -> BlobStore:
        return FaultyBlobs(open_blob_store(url, clock), lambda operation: self._blob_fault(url, self.coordinator_blobs_fail))

    def _blob_fault(self, url: str, failing: tuple[Fault, float] | None) -> Fault | None:
        if failing is None or (self.failing_store and not url.endswith(f"/{self.failing_store}")):
            return None
        fault, share = failing
        return fault if self.chance.random() < share else None

    async def _guardian(self, container: Container) -> None:
        """Ends the driver when the agent was killed, and both at the end of the lease, also frozen ones."""
        while container.acts or container.running:
            await asyncio.sleep(0.2)
            if container.suspended or not container.guarded:
                continue
            if container.process.dead:
                self.loop.kill(container.driver)
            elif self.now >= container.lease_ends:
                if container.acts:
                    self.say(f"the driver of {container.name} is killed by its guardian")
                    self.loop.kill(container.driver)
                if self.now >= container.lease_ends + GUARDIAN_WAITS and container.running:
                    container.exit_code = 3
                    self._check_long_absence(container)
                    self.kill(container, "by its guardian")

    @property
    def now(self) -> float:
        """True time, on the clock of leases."""
        return 1000 + self.loop.time()

    def disturb(self, seconds: float, machine: str | None = None, *, heartbeats: bool = True) -> Disturbance:
        """Tasks may be without a working container for this time from now on. `heartbeats`: whether these may fail, too."""
        self.disturbances.append(Disturbance(machine, self.loop.time(), self.loop.time() + seconds, heartbeats))
        return self.disturbances[-1]

    def _check_long_absence(self, container: Container) -> None:
        """Check that a container that lost its lease was disturbed for long enough. A restored database may not know it: then its requests
        are refused, and it must end."""
        if not self.database_has(container.name):
            return
        end = self.loop.time()
        parts = [each for each in self.disturbances if each.heartbeats and each.machine in (None, container.machine)]
        lasted, counted = 0.0, end - LEASE
        for each in sorted(parts, key=lambda each: each.begin):  # several may last at the same time
            lasted += max(0.0, min(each.end, end) - max(each.begin, counted))
            counted = max(counted, min(each.end, end))
        if lasted <= SURVIVED:
            self.broken.append(f"{container.name} has lost its lease after {lasted:.1f} s of disturbance")

    def _unaware(self, container: Container) -> bool:
        """Whether the lease of a container has ended on true time, and it does not know that yet. A thread that was frozen may take a step
        at the moment of the thaw, before any other can see that the lease has ended; sinks refuse what it writes."""
        return self.now >= container.lease_ends and self.loop.time() - container.thawed_at < A_STEP

    def _check_only_holder(self, container: Container, start: StageStart) -> None:
        """Check that no other container whose lease has not ended runs the same stage of the same task."""
        if self._unaware(container):
            return
        for other in self.containers:
            if other is container or not other.acts or self.now >= other.lease_ends:
                continue
            queries = [query for engine in other.engines for query in engine.queries if not query.stopped]
            if any(query.start.query == start.query for query in queries):
                left = other.lease_ends - self.now
                self.broken.append(f"{container.name} runs {start.query}, which {other.name} may run for {left:.1f} s more")

    def kill(self, container: Container, why: str) -> None:
        if container.running:
            self.say(f"{container.name} is killed {why}")
            container.exit_code = container.exit_code or 137
            self.loop.kill(container.process)
        self.loop.kill(container.driver)

    def kill_part(self, container: Container, why: str, chance: Random) -> None:
        """Kill all processes of the container at once, its agent or its driver."""
        part = chance.choice(("container", "agent", "driver"))
        if part == "container" or not container.running:
            self.kill(container, why)
            return
        self.say(f"the {part} of {container.name} is killed {why}")
        if part == "agent":
            container.exit_code = container.exit_code or 137
            container.guarded = chance.random() < 0.8  # or its guardian is killed at the same time
            self.loop.kill(container.process)
        else:
            self.loop.kill(container.driver)

    def _begin_supervision(self, slot: Slot) -> None:
        def ended(task: asyncio.Task[None]) -> None:
            if not task.cancelled() and task.exception() is not None:
                self.broken.append(f"the supervisor of slot {slot.name} has failed: {task.exception()!r}")

        slot.supervisor = self.loop.create_task(self.supervise(slot), name=f"supervisor {slot.name}")
        slot.supervisor.add_done_callback(ended)

    async def supervise(self, slot: Slot) -> None:
        """Start its containers again, until one ends in order because the run has ended."""
        while True:
            container = slot.container = self.start_container(slot)
            while container.running:
                await asyncio.sleep(0.2)
            if container.process.dead:
                code, reason = container.exit_code or 137, "killed"
            else:
                ended = container.life.result()
                code, reason = ended.exit_code, ended.reason
            self.say(f"{container.name} ended: {code} {reason}")
            if code == EXIT_REPEATED_FAILURE:
                self.broken.append(f"{container.name} ended with exit code 4: {reason}")
            reports = container.process.dead and self.chance.random() < 0.7
            while container.acts and reports:
                await asyncio.sleep(0.2)
            if reports:
                await self._report_exit(container, code)
            loses_disk = self.chance.random() < 0.3 or slot.loses_disk
            slot.loses_disk = False
            if loses_disk and container.process.dead and not slot.removed:
                self.say(f"slot {slot.name} loses its disk")
                self.disks[slot.place] += 1  # it stays for a container of the slot in a former run, which may still run
            if slot.removed or (code == 0 and reason != "stop requested"):
                return  # or the run has ended
            await asyncio.sleep(self.chance.uniform(0.5, 10))

    async def _report_exit(self, container: Container, code: int) -> None:
        client = AgentClient("http://c", Way(self.network, container.machine), token=lambda: self.tokens.get("containers", ""))
        client.act_as(container.client.incarnation)
        with suppress(SluiceError):  # its lease will end
            await client.exited(ExecutionContainerId(container.name), code, "killed")

    # --- operators -------------------------------------------------------------------------------------------------

    def operator(self) -> OperatorClient:
        return OperatorClient("http://c", Way(self.network, "operator"), token=lambda: self.tokens.get("operator", ""))

    async def until_answered(self, request: Callable[[], Awaitable[T]]) -> T:
        """Repeat the request until the coordinator answers, as operators do. Raises Refused."""
        for _ in range(200):
            try:
                return await request()
            except CoordinatorUnreachable as error:
                self.say(f"operator: {error}")
                await asyncio.sleep(3)
        raise AssertionError("the coordinator does not answer")

    async def deploy(self, containers: int) -> None:
        """Deploy the next run. If the present one is draining, this is refused and changes nothing."""
        version, build = self.version, self.build
        former = self.run_id, version, build
        system = "log" if self.brokers is None else "kafka"
        request = deploy_request(self.job(version, build), containers, system, "checkpoint", self.config)
        try:
            reply = await self.until_answered(lambda: self._deploy(request, former))
        except (Refused, _Superseded) as error:
            self.say(f"deployment refused: {error}")
            return
        if version != self.deployed_version:
            # Its tasks follow from the present count of partitions, and records that no run has read may be in those of an earlier count.
            self.ledger.split = any(self.drained_of_input.get(each, 0) < end for each, end in self.before_growth.items())
            self.former |= self._indexes()
        elif self.empties:  # it has ended, or this deployment would have been refused
            self.ledger.split = self.ledger.split or bool(self.before_growth)
        self.acts += 1
        self.run_id, self.deployed_version = RunId(reply.run_id), version
        self.version, self.build = version, build  # a drain may have ended meanwhile
        self.say(f"deployed {self.run_id}, version {version}.{build}, with {containers} containers")
        self.slots = {name: Slot(name, self.run_id, self.version, self.build) for name in map(str, range(containers))}
        for slot in self.slots.values():
            self._begin_supervision(slot)
        self.keep_streams_open()

    async def _deploy(self, request: RunRequest, former: tuple[RunId, int, int]) -> RunReply:
        """A deployment is not repeated after another one, nor after a drain whose state only the next version reads."""
        if former != (self.run_id, self.version, self.build):
            raise _Superseded("another run or version was deployed meanwhile")
        return await self.operator().deploy(request)

    async def scale(self, containers: int) -> None:
        """Scale the run. A container of a removed slot may still run; it ends by itself."""
        alive = {name for name, slot in self.slots.items() if self._answers(slot, for_seconds=30)}
        gone = {name for name, slot in self.slots.items() if slot.container is not None and self._is_given_up(slot.container)}
        self.acts += 1
        try:
            await self.operator().change(self.run_id, ChangeRequest(containers=containers), None)
            names = await self._slots_of_run()
        except CoordinatorUnreachable as error:
            self.say(f"scaled perhaps: {error}")
            await self.use_slots_of_run()
            return
        except Refused as error:
            self.say(f"not scaled: {error}")
            return
        self.say(f"scaled to {', '.join(names)}")
        if alive and gone.issuperset(names):
            self.broken.append(f"scaled to slots without container, {', '.join(names)}, although {', '.join(sorted(alive))} have one")
        self._use_slots(names)

    def _use_slots(self, names: Sequence[str]) -> None:
        for name in names:
            if name not in self.slots:
                slot = self.slots[name] = Slot(name, self.run_id, self.version, self.build)
                self._begin_supervision(slot)
        for name in [name for name in self.slots if name not in names]:
            self.slots.pop(name).removed = True

    def replace_container(self, name: str) -> Container:
        """Start a container on another machine while the former one runs on, as is done for a node that does not answer."""
        former = self.slots[name]
        former.removed = True
        self.disks[name] += 1
        self.machines += 1
        slot = self.slots[name] = Slot(name, former.run, former.version, former.build, f"{name} on machine {self.machines}")
        self._begin_supervision(slot)
        assert former.container is not None
        return former.container

    async def _slots_of_run(self) -> Sequence[str]:
        """Also those whose tasks another slot has after a fail-over, which the job model does not have. Repeat the request until it is
        answered, because the run has already changed. Raises Refused."""
        run = await self.until_answered(lambda: self.operator().basic_run(self.run_id))
        return sorted(run.processors, key=int)

    def _answers(self, slot: Slot, for_seconds: float) -> bool:
        """Whether its container runs, and has reached the coordinator for this time."""
        container = slot.container
        if container is None or not container.running or container.frozen or slot.machine in self.network.cut | self.network.deaf:
            return False
        begin = self.loop.time() - for_seconds
        disturbed = any(each.end > begin and each.machine in (None, slot.machine) for each in self.disturbances)
        return container.began < begin and not disturbed

    def _is_given_up(self, container: Container) -> bool:
        """Whether its lease ended so long ago that its tasks were reassigned."""
        after: float = self.coordinator_settings["failover_after_seconds"]
        return self.now - container.lease_ends > 5 + after + GIVEN_UP_WITHIN

    def grow(self) -> bool:
        """Double the number of partitions of the input."""
        partitions = self.log.partitions(self.streams[0])
        if partitions < MOST_PARTITIONS:
            self.before_growth = self.log.latest(self.streams[0])
            self.log.grow(self.streams[0], 2 * partitions)
            self.say(f"in has {2 * partitions} partitions")
        return partitions < MOST_PARTITIONS

    async def check_inputs(self) -> None:
        """Request the adoption of new partitions now."""
        try:
            await self.operator().change(self.run_id, ChangeRequest(grow=True), None)
        except SluiceError as error:
            self.say(f"not grown: {error}")

    def _has_lasted(self, began: float, ahead: timedelta) -> bool:
        """Whether a drain may have reached its hard deadline. If the clock went ahead, and the coordinator was restarted, it has a minute
        from the end of the leases on. `ahead`: by how much the clock was ahead when the drain began."""
        now = self.loop.time()
        jumps = [at for at, error in self.clock.errors if at > began and error > ahead]
        misled = [start for start in self.coordinator_starts if start > began and any(at < start + FIRST_CHORES_WITHIN for at in jumps)]
        least = self.coordinator_settings["lease_seconds"] + 60
        return now - began >= HARD_DEADLINE or (bool(misled) and now - misled[-1] >= least)

    async def drain(self, mode: str = "DEFAULT") -> str:
        """Drain, and return the last phase. Checks the sums after a drain that has emptied the state."""
        request = wire_drains.DrainRequest(run_id=self.run_id, drain_mode=mode)
        began, ahead = self.loop.time(), self.clock.ahead
        try:
            uuid = (await self.operator().request_drain(request)).uuid
        except (Refused, CoordinatorUnreachable) as error:
            self.say(f"drain refused: {error}")
            if isinstance(error, CoordinatorUnreachable):
                self.drains_without_answer.setdefault(request.run_id, (began, ahead))
            return "REFUSED"
        self.acts += 1
        repeated = uuid == self.drain_id  # a run whose flush has failed is not drained again
        self.drained_again = repeated or request.run_id in self.drains_without_answer
        began, ahead = self.drains_without_answer.get(request.run_id, (began, ahead))
        self.drain_id = uuid
        self.say(f"drain {uuid} of {self.run_id} ({mode})")
        self.empties = mode == "DEFAULT"
        detail = await self._end_of_drain(uuid)
        self.empties = False
        flushed = any(each.phase.value == "FLUSHING" for each in detail.phases) and mode == "DEFAULT"
        self.say(f"drain {uuid}: {detail.phase.value}{' after FLUSHING' if flushed else ''}")
        if "hard deadline" in detail.reason and not repeated and not self._has_lasted(began, ahead):
            self.broken.append(f"drain {uuid} has failed after {self.loop.time() - began:.0f} s: {detail.reason}")
        if detail.phase.value == "FAILED" and flushed:
            self.failed_drains.add(uuid)
            self.former |= self._indexes()  # if one to which the drain returns is lost, only an operator can choose another
        deployed_since = self.run_id != request.run_id
        if detail.phase.value == "DRAINED" and mode == "DEFAULT":
            if not deployed_since:  # otherwise the next run has written, too
                await self.readers_see_everything()
                self.check({(each.stream, each.partition): each.offset for each in detail.drained})
                self.version += 1
        elif detail.phase.value == "DRAINED" and not deployed_since:
            self.build += 1
        return detail.phase.value

    async def _end_of_drain(self, uuid: str) -> wire_drains.DrainDetail:
        """Look at it every second until it has ended."""
        while True:
            await asyncio.sleep(1)
            with suppress(SluiceError):
                detail = await self.operator().drain(uuid)
                if detail.phase.value in ("DRAINED", "FAILED", "CANCELLED"):
                    return detail

    async def restore(self) -> None:
        """Choose the newest snapshot of a stage for a restore. After a drain that kept the state it contains all of the state."""
        self.acts += 1
        try:
            heads = [each for each in (await self.operator().snapshots(self.job_name, None, None, None, 200)).snapshots if each.head]
            if heads:
                chosen = self.dice.choice(heads)
                await self.operator().choose(self.job_name, chosen.checkpoint_id, StoreBody(task=chosen.task, stage=chosen.stage))
                self.say(f"{chosen.task}/{chosen.stage} is to be restored from {chosen.checkpoint_id}")
        except SluiceError as error:
            self.say(f"not restored: {error}")

    async def roll_back(self) -> None:
        """Roll back to an earlier version of the job model, and start its slots."""
        self.acts += 1
        try:
            versions = (await self.operator().versions(self.job_name, None, 20)).models
            earlier = [each.version for each in versions if each.run_id == self.run_id and not each.current]
            if not earlier:
                return
            reply = await self.operator().roll_back(self.job_name, self.dice.choice(earlier), RollbackRequest(), None)
            names = await self._slots_of_run()
        except CoordinatorUnreachable as error:
            self.say(f"rolled back perhaps: {error}")
            await self.use_slots_of_run()
            return
        except SluiceError as error:
            self.say(f"not rolled back: {error}")
            return
        self.say(f"rolled back to version {reply.version}, slots {', '.join(names)}")
        self._use_slots(names)

    async def look(self) -> None:
        """Read everything that an operator may read."""
        operator, job = self.operator(), self.job_name
        with suppress(SluiceError):
            await operator.plan(PlanRequest(job=job, containers=2))
            await operator.plan_drain(self.run_id)
            await operator.drains(job)
            await operator.job_events(job)
            await operator.audit_log(None, 50)
            versions = (await operator.versions(job, None, 20)).models
            await operator.difference(job, versions[-1].version, versions[0].version)
            for each in (await operator.snapshots(job, None, None, None, 3)).snapshots:
                await operator.explain(f"jobs/{job}/{each.task.replace(' ', '_')}/{each.stage}/snapshots/{each.checkpoint_id}")
                begun = await operator.verify(job, each.checkpoint_id, StoreBody(task=each.task, stage=each.stage))
                await operator.completed(begun, lambda _: None)
        for path in (*READ, f"/jobs/{job}/?processorId=0", f"/runs/{self.run_id}/containers", f"/runs/{self.run_id}/request"):
            await self._get(path)

    async def _get(self, path: str) -> None:
        token = self.tokens.get("operator", "")
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        async with httpx.AsyncClient(transport=Way(self.network, "operator"), base_url="http://c", headers=headers) as http:
            with suppress(httpx.TransportError):
                await http.get(path)

    async def move_backup(self, store: str) -> bool:
        """Move the backups of the present run to this blob store, as docs/operating.md says. Returns whether it is used alone."""
        await self.set_backup(BLOB_STORES)
        since = self.loop.time()
        for _ in range(60):
            await asyncio.sleep(1)
            with suppress(SluiceError):
                tasks = (await self.operator().run(self.run_id)).tasks
                if not all(each.holder for each in tasks) or self._running_queries() < 2 * len(tasks):
                    since = self.loop.time()
                found = (await self.operator().snapshots(self.job_name, None, None, None, 200)).snapshots
                if self.loop.time() - since > 10 and all(store in each.markers for each in found if each.head):
                    await self.set_backup((store,), restore_from=(store,))
                    return True
        return False

    def _running_queries(self) -> int:
        """Those of containers that learn of a change of the blob stores."""
        away = self.network.cut | self.network.deaf
        running = [each for each in self.containers if each.running and not each.frozen and each.machine not in away]
        return sum(not query.stopped for each in running for engine in each.engines for query in engine.queries)

    async def set_backup(self, stores: Sequence[str], restore_from: Sequence[str] = BLOB_STORES) -> None:
        """Back the present run up to these blob stores from now on, and restore it from any of `restore_from`."""
        self.acts += 1
        try:
            await self.operator().set_backup(self.run_id, BackupRequest(stores=tuple(stores), restore_from=tuple(restore_from)))
            self.say(f"{self.run_id} is backed up to {', '.join(stores)}")
        except SluiceError as error:
            self.say(f"backup not changed: {error}")

    async def remove_job(self) -> None:
        """Stop the run and remove the job, when all else is done. Its containers must have ended."""
        operator = self.operator()
        with suppress(Refused):
            await self.until_answered(lambda: operator.stop_run(self.run_id, "the job is not needed any more"))
        for _ in range(REMOVED_WITHIN):
            try:
                await self.until_answered(lambda: operator.remove_job(self.job_name, dry_run=False))
            except Refused as error:
                refused = str(error)
                await asyncio.sleep(1)
            else:
                self.say("the job is removed")
                return
        self.broken.append(f"the job is not removed after {REMOVED_WITHIN} s: {refused}")

    async def collect(self, what: str) -> None:
        """Request garbage collection or its audit."""
        with suppress(SluiceError):
            ended = await self.operator().completed(await self.operator().collection(what), lambda _: None)
            self.say(f"collection, {what}: {ended.state}")

    async def pin(self) -> None:
        """Pin the newest snapshots."""
        try:
            made = await self.operator().pin(self.job_name, PinRequest(pin_id=PIN))
        except SluiceError as error:
            self.say(f"not pinned: {error}")
            self.pinned.pop(PIN, None)  # the former pin may have been replaced
        else:
            self.pinned[PIN] = frozenset((each.task, each.stage, each.checkpoint_id) for each in made.snapshots)

    async def unpin(self) -> None:
        """Delete a pin. Deleting the pin of an active drain must be refused."""
        try:
            pins = (await self.operator().pins(self.job_name)).pins
            if pins:
                pin = self.dice.choice(pins).pin_id
                self.pinned.pop(pin, None)
                await self.operator().unpin(self.job_name, pin)
                drain = await self.operator().drain(self.drain_id) if self.drain_id and self.drain_id in pin else None
                if drain is not None and not drain.phase.over:
                    self.broken.append(f"pin {pin} of an active drain was deleted")
        except SluiceError as error:
            self.say(f"not unpinned: {error}")

    def lose_index(self) -> bool:
        """Delete the newest index of a stage from the blob store: once per stage, and only if the stage has others, because without an
        index no state can be restored."""
        present = {
            stage: [file for file in stage.iterdir() if file.name not in self.former]
            for stage in self._stages_in_blob_stores()
            if stage.parts[-3:-1] not in self.lost_of
        }
        found = [stage for stage, files in present.items() if len(files) >= KEPT_AT_LEAST]
        if found:
            stage = self.dice.choice(found)
            newest = max(present[stage])
            self.say(f"the blob store loses {newest.relative_to(self.directory)}")
            newest.unlink()
            self.lost.add(newest.name)
            self.lost_of.add(stage.parts[-3:-1])
        return bool(found)

    def _indexes(self) -> set[str]:
        return {file.name for stage in self._stages_in_blob_stores() for file in stage.iterdir()}

    def _stages_in_blob_stores(self) -> Sequence[Path]:
        """The directories of the indexes of all stages."""
        home = self.directory / "home"
        return [each for name in BLOB_STORES for each in sorted((home / name).glob(f"blobs/jobs/{self.job_name}/*/*/snapshots"))]

    async def check_adopted(self) -> None:
        """Check that all containers run the job model in force within a time limit."""
        began = self.loop.time()
        while True:
            detail = await self.until_answered(lambda: self.operator().run(self.run_id))
            adoption = detail.adoption
            if adoption is None or adoption.all_on == adoption.version or detail.state.value != "RUNNING":
                return
            if self.loop.time() - began > ADOPTED_WITHIN:
                behind = ", ".join(f"{each.execution_container_id} on version {each.version}" for each in adoption.outdated)
                self.broken.append(f"version {adoption.version} is not adopted after {ADOPTED_WITHIN} s: {behind or 'no container'}")
                return
            await asyncio.sleep(5)

    async def check_snapshots(self) -> None:
        """Check that the blob store has all blobs of the retained snapshots, except for those that a fault has lost."""
        operator = self.operator()
        try:
            begun = await self.until_answered(lambda: operator.verify_job(self.job_name, VerifyRequest()))
        except Refused as refused:
            if refused.refused_as != UnknownSnapshot.slug:
                raise
            self.say(f"snapshots: {refused}")
        else:
            self._check_verified(await operator.completed(begun, lambda _: None))
        if self.pinned:
            present = {(each.task, each.stage, each.checkpoint_id) for each in await self._snapshots()}
            for pin, snapshots in self.pinned.items():
                self.broken += [f"the snapshot {each} of pin {pin} was deleted" for each in sorted(snapshots - present)]

    async def _snapshots(self) -> Sequence[wire_snapshots.SnapshotReply]:
        """All pages of the list. There are hundreds if nothing could be deleted, as after a jump of the clock."""
        found, before = list[wire_snapshots.SnapshotReply](), None
        while True:
            page = await self.until_answered(partial(self.operator().snapshots, self.job_name, None, None, before, 200))
            found += page.snapshots
            before = page.next
            if before is None:
                return found

    async def check_restores(self) -> None:
        """Restore some of the retained snapshots as `sluice snapshots restore --into` does, and compare each with the state that the stage
        had after its batch."""
        found = [each for each in await self._snapshots() if each.retained_by]
        for each in self.dice.sample(found, min(len(found), RESTORED)):
            state = self.ledger.states.get((Lineage(each.lineage), -1 if each.batch_id is None else each.batch_id))
            stores = sorted(name for name, marker in each.markers.items() if marker.index.rpartition("/")[2] not in self.lost)
            if state is not None and stores:
                await self._check_restored(each, self.dice.choice(stores), state)

    async def _check_restored(self, snapshot: wire_snapshots.SnapshotReply, store: str, state: Mapping[str, int]) -> None:
        into, batch = self.directory / f"{self.prefix}restored {snapshot.checkpoint_id}", snapshot.batch_id
        what = f"snapshot {snapshot.checkpoint_id} of {snapshot.task}/{snapshot.stage}, restored from {store},"
        assert batch is not None
        try:
            client = self.operator()
            await copied(client, self.job_name, snapshot.task, snapshot.stage, snapshot.checkpoint_id, into, store, quiet=True)
            restored = stored_state(into, batch)
        except (SluiceError, FileNotFoundError) as error:
            self.broken.append(f"{what} cannot be read: {error!r}")
            return
        if restored != state:
            self.broken.append(f"{what} has {restored} after batch {batch}, not {dict(state)}")
        self.say(f"{what} has the state after batch {batch}")

    def _check_verified(self, ended: OperationReply) -> None:
        self.say(f"snapshots: {ended.error or ended.result}".replace(str(self.directory), "DIRECTORY"))  # the directory's name is random
        wrong = {what: why for each in (ended.result or {}).get("wrong", {}).values() for what, why in each.items()}
        self.broken += [f"snapshot of {what}: {why}" for what, why in wrong.items() if what.rpartition("/")[2] not in self.lost]
        if ended.state != "DONE" and "has no snapshot" not in (ended.error or ""):
            self.broken.append(f"the snapshots cannot be verified: {ended.error}")

    # --- data ------------------------------------------------------------------------------------------------------

    def produce(self, number: int) -> None:
        if self.brokers is not None and self.brokers.away:
            return
        records = [Record(str(self.chance.randrange(1, 10)).encode(), self.chance.choice(KEYS).encode()) for _ in range(number)]
        self.log.append(
            self.streams[0], records, writer=self.producer, batch=self.produced, now_micros=int(self.clock.now().timestamp() * 1e6)
        )
        self.produced += 1
        if self.event_times:
            now = int((BEGIN.timestamp() + self.loop.time()) * 1000)
            self.ledger.appended(self.log.latest(self.streams[0]), now, self._partitions_of_model())

    def _partitions_of_model(self) -> Collection[int]:
        """The partitions of the input that the newest job model has."""
        query = "SELECT document FROM job_models WHERE job = ? ORDER BY version DESC LIMIT 1"
        with closing(sqlite3.connect(database_file(self.database_url))) as connection:
            found = connection.execute(query, (self.job_name,)).fetchone()
        model = None if found is None else parse_job_model(json.loads(found[0]))
        ssps = [ssp for task in model.tasks.values() for ssp in task.ssps] if model is not None else []
        return {ssp.partition for ssp in ssps if ssp.stream == self.streams[0]}

    async def read_input(self) -> None:
        """Wait until the first stage has read everything, for a minute at most: its containers may have ended for good."""
        stream = self.streams[0]
        for _ in range(READS_WITHIN):
            latest = self.log.latest(stream)
            if {partition: self.ledger.ends.get((stream, partition), 0) for partition in latest} == latest:
                return
            await asyncio.sleep(1)

    async def readers_see_everything(self) -> None:
        """Wait until no transaction on Kafka is open."""
        if self.brokers is not None:
            while any(self.brokers.readable(stream) != self.brokers.latest(stream) for stream in self.streams[1:]):
                await asyncio.sleep(0.1)

    def check(self, drained: Mapping[tuple[str, int], int]) -> None:
        """Check that all records read from the input are in the output: once, unless a lineage began at an older snapshot."""
        self.checked_drains += 1
        read = self.drained_of_input = {partition: offset for (stream, partition), offset in drained.items() if stream == self.streams[0]}
        went_in = summed(self.log, self.streams[0], {}, read, lambda headers: True)
        out = self.streams[2]
        came = summed(self.log, out, self.log.earliest(out), self.log.latest(out), self._counts)
        if not (came >= went_in if self.ledger.repeats else came == went_in):
            self.broken.append(f"{out} has {dict(came)} of {dict(went_in)}")

    def _counts(self, headers: Headers) -> bool:
        return headers.get(DRAIN_RECORD_HEADER) not in self.failed_drains
