"""The composition root: builds a coordinator from its settings."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

from fastapi import FastAPI

from coordinator import metrics
from coordinator.api import browsers, errors, middleware, new_api
from coordinator.api.access import Access
from coordinator.api.browsers import HostCheck
from coordinator.api.deps import DrainParts, JobModelParts, Parts, SnapshotParts
from coordinator.api.exposition import Exposition
from coordinator.api.fastpath import FastPaths
from coordinator.api.middleware import App, Traffic
from coordinator.blobpool import Backup, BlobStores, OnOpen, OpenBlobStores
from coordinator.chores import ChoreScheduler, KeepClaim
from coordinator.connections import Connections, connection_limit, file_limit
from coordinator.disks import MeasureDisks
from coordinator.drains.deadlines import DrainDeadlines
from coordinator.drains.drains import Drains
from coordinator.fleet.acting import Acting
from coordinator.fleet.blob_credentials import BlobCredentials
from coordinator.fleet.expiry import ExpireLeases, FlushLastSeen, LowerLeaseBounds
from coordinator.fleet.issued import Fences, IssuedNumbers
from coordinator.fleet.leases import Leases
from coordinator.fleet.notices import Notices, TaskWaiters
from coordinator.fleet.registration import Registrations
from coordinator.fleet.report_checks import ReportChecks
from coordinator.fleet.stage_metrics import StageMetrics
from coordinator.fleet.strangers import Strangers
from coordinator.health import Health
from coordinator.identity.audit_lines import AuditLines
from coordinator.identity.audit_log import AuditLog, PruneAuditLog
from coordinator.identity.authentication import Authentication
from coordinator.identity.incarnations import Incarnations
from coordinator.identity.logins import Logins
from coordinator.identity.providers import IdentityProviders, ProviderSettings, RefreshKeys
from coordinator.identity.sessions import Sessions
from coordinator.identity.tokens import PruneTokens, Tokens
from coordinator.jobmodels.cache import JobModels
from coordinator.jobmodels.failover import ReassignTasks
from coordinator.jobmodels.groupers import Groupers
from coordinator.jobmodels.partition_monitor import PartitionMonitor
from coordinator.jobmodels.rollout import Adoptions, ModelHistory
from coordinator.jobmodels.standby import Standbys
from coordinator.jobmodels.versions import ModelVersions
from coordinator.runs.deploy import Deployments
from coordinator.runs.lag import LagMonitor
from coordinator.runs.pruning import PruneHistory
from coordinator.runs.regrouping import Regrouping
from coordinator.runs.removal import Removal
from coordinator.runs.runs import Runs
from coordinator.runs.tasks import Tasks
from coordinator.runs.timeline import Timeline
from coordinator.runs.transactions import AbortTransactions
from coordinator.runs.trim import TrimStreams
from coordinator.runs.watermarks import WatermarkCoordinator
from coordinator.settings import Settings
from coordinator.snapshots.audit import Audits
from coordinator.snapshots.catalog import SnapshotCatalog
from coordinator.snapshots.cleanup import CleanUp, RetireStores, SweepExpired
from coordinator.snapshots.degraded import BackupMonitor
from coordinator.snapshots.gc import GarbageCollector
from coordinator.snapshots.inventory import owns_blob_store
from coordinator.snapshots.lost import FindLostBlobs
from coordinator.snapshots.merge import complete
from coordinator.snapshots.operations import Operations
from coordinator.snapshots.reports import Snapshots
from coordinator.store.migrate import upgrade
from coordinator.store.sql import Store, open_store
from coordinator.ui import routes as ui
from coordinator.ui.actions import Actions
from coordinator.ui.live import LivePages
from coordinator.ui.samples import Samples
from coordinator.ui.views import Pages
from coordinator.waits import DeletionHold, EventLoopLag
from sluice.blobs.counted import Requests
from sluice.blobs.locations import open_blob_store, s3_location, wrapped
from sluice.blobs.port import BlobStore
from sluice.blobs.sts import StoreRole
from sluice.clock import Clock, SystemClock
from sluice.core.access.certificates import CertificateRow
from sluice.core.access.metrics_address import parse_scrape_hosts
from sluice.core.access.networks import parse_open_networks
from sluice.core.access.providers import Provider, RoleRow
from sluice.core.access.tokens import Grant
from sluice.core.drain import DrainId, DrainTimeLimits, Phase
from sluice.core.errors import BadSettings, DatabaseInUse, SluiceError
from sluice.core.ids import JobName, Lineage, RunId
from sluice.core.leases.failover import CrashLoopPolicy
from sluice.core.snapshots.retention import Retention
from sluice.core.snapshots.snapshot import BlobStoreName
from sluice.disks import Thresholds
from sluice.randomness import new_uuid, random_bytes, token_hex
from sluice.streams.kafka import KafkaSystem
from sluice.streams.kafka_properties import KafkaProperties
from sluice.streams.log import LogSystem
from sluice.streams.port import StreamSystem

log = logging.getLogger(__name__)


def new_run_id(job: JobName, at: datetime) -> RunId:
    return RunId(f"{job}-{at:%Y%m%dT%H%M%S}-{token_hex(3)}")


def new_lineage() -> Lineage:
    return Lineage(str(new_uuid()))


def new_drain_id() -> DrainId:
    return DrainId(str(new_uuid()))


def drain_times(settings: Settings) -> DrainTimeLimits:
    seconds = {
        Phase.STOPPING: settings.drain_stopping_seconds,
        Phase.FLUSHING: settings.drain_flushing_seconds,
        Phase.COMMITTING: settings.drain_committing_seconds,
    }
    budgets = {phase: timedelta(seconds=budget) for phase, budget in seconds.items()}
    return DrainTimeLimits(timedelta(seconds=settings.drain_soft_seconds), timedelta(seconds=settings.drain_hard_seconds), budgets)


@dataclass(frozen=True, slots=True)
class Coordinator:
    """The ASGI application and the objects that its server uses."""

    asgi: App
    fast_paths: FastPaths
    api: FastAPI
    notices: Notices
    task_waiters: TaskWaiters
    pages: LivePages
    connections: Connections
    loop_lag: EventLoopLag
    authentication: Authentication
    prepare: Callable[[], Awaitable[None]]


def stream_systems(settings: Settings, clock: Clock) -> dict[str, StreamSystem]:
    """The embedded log, and Kafka if the settings name a cluster. Raises BadSettings."""
    systems: dict[str, StreamSystem] = {"log": LogSystem(settings.log_directory, clock)}
    if settings.kafka_bootstrap:
        properties = KafkaProperties.read(settings.kafka_properties)
        systems["kafka"] = KafkaSystem(settings.kafka_bootstrap, properties, replication=settings.kafka_replication)
    return systems


def certificate_rows(settings: Settings) -> tuple[CertificateRow, ...]:
    return tuple(CertificateRow(each.name, Grant(frozenset(each.roles), each.jobs)) for each in settings.client_certificates)


def identity_providers(settings: Settings) -> Sequence[ProviderSettings]:
    return [
        ProviderSettings(
            Provider(
                each.name,
                each.issuer,
                frozenset({each.audience, each.client_id} - {""}),
                tuple(RoleRow(row.group, row.subject, Grant(frozenset(row.roles), row.jobs)) for row in each.roles),
                each.name_claim,
                each.groups_claim,
                each.kubernetes,
            ),
            each.client_id,
            each.client_secret_file,
            each.scopes,
            each.keys_url,
            each.ca_file,
            each.bearer_token_file,
            timedelta(seconds=each.keys_kept_seconds),
        )
        for each in settings.identity_providers
    ]


def stores_of_blobs(
    settings: Settings,
    clock: Clock,
    requests: dict[str, Requests],
    on_open: OnOpen | None = None,
    open_one: Callable[[str, Clock], BlobStore] = open_blob_store,
) -> BlobStores:
    """The configured blob stores, not opened yet. Raises BadSettings for a URL with an unknown scheme."""
    names = tuple(map(BlobStoreName, settings.blob_places))
    to, back = (
        names if chosen is None else tuple(map(BlobStoreName, chosen)) for chosen in (settings.backup_stores, settings.restore_from)
    )

    def make(name: str, url: str) -> BlobStore:
        return wrapped(open_one(url, clock), requests.setdefault(name, Requests()), clock=clock)

    for name, url in settings.blob_places.items():
        make(name, url)
    return BlobStores(settings.blob_places, make, Backup(to, back or to), on_open, settings.gc_grace)


def store_roles(settings: Settings) -> Mapping[BlobStoreName, StoreRole]:
    """The roles of containers, by blob store. Raises BadSettings."""
    life = timedelta(seconds=settings.blob_credentials_seconds)
    found = {}
    for name, arn in settings.blob_store_roles.items():
        location = s3_location(settings.blob_places[name])
        found[BlobStoreName(name)] = StoreRole(arn, location, settings.sts_endpoint or location.endpoint, life)
    return found


def _ignore(_: DatabaseInUse) -> None:
    """Do nothing. Without a server to stop, only `/readyz` shows the failure."""


def build(
    settings: Settings,
    clock: Clock | None = None,
    on_claim_lost: Callable[[DatabaseInUse], None] = _ignore,
    store: Store | None = None,
    pace: float = 1.0,
    systems: Mapping[str, StreamSystem] | None = None,
    open_one: Callable[[str, Clock], BlobStore] = open_blob_store,
) -> Coordinator:
    """Create and connect all objects. Nothing is opened before the application's lifespan begins. `on_claim_lost` is called when another
    coordinator has taken over the database: this one must stop, because its memory is out of date. `store`, `systems`: by default
    those of the settings. `pace`: what the intervals of chores are multiplied by. `open_one`: opens the blob store at a URL. Raises
    BadSettings."""
    clock = clock or SystemClock()
    connections = Connections(connection_limit(settings.max_connections, file_limit()), settings.max_connections_per_peer, clock)
    store = store or open_store(settings.database)
    leases, task_waiters, loop_lag = Leases(settings.lease_policy, clock), TaskWaiters(), EventLoopLag(clock.elapsed)
    notices = Notices(store)
    models = JobModels(store)
    systems = stream_systems(settings, clock) if systems is None else dict(systems)

    pages = LivePages(clock, token_hex(4))

    def end_waits() -> None:
        notices.notify_all()
        task_waiters.notify_all()
        pages.wake()

    sessions = Sessions(store, clock, random_bytes, pages.wake)
    providers = IdentityProviders(identity_providers(settings), clock)
    tokens = Tokens(store, clock, random_bytes, end_waits)
    authentication = Authentication(tokens, sessions, providers, certificate_rows(settings), clock, required=settings.authenticates)
    stage_metrics, traffic = StageMetrics(), Traffic(clock)
    lag = LagMonitor(store, systems, stage_metrics, clock, models.decoded)
    reports, acting = ReportChecks(models.decoded, lag.ends_after), Acting(leases, clock, models.decoded)
    regrouping = Regrouping(acting, new_lineage, lag.forget)
    requests: dict[str, Requests] = {}
    blob_stores = stores_of_blobs(settings, clock, requests, partial(owns_blob_store, store), open_one)
    blob_credentials = BlobCredentials(blob_stores, store_roles(settings), clock)
    strangers = Strangers(clock.elapsed)
    issued = IssuedNumbers(
        store,
        blob_stores,
        leases,
        clock,
        strangers,
        _fences_of(systems),
        lambda: new_uuid().hex,
        partial(complete, store, blob_stores, clock),
    )
    snapshots = Snapshots(store, blob_stores, notices, clock, new_lineage, reports, strangers)
    backup_monitor = BackupMonitor(store, blob_stores, snapshots, stage_metrics, clock)
    retention = Retention(settings.keep_last, settings.keep_hourly, settings.keep_daily)
    hold = DeletionHold(clock, settings.gc_grace, lambda: strangers.held)
    lost_blobs = FindLostBlobs(store, blob_stores, notices, clock, hold)
    clean_up = CleanUp(store, blob_stores, clock, retention, timedelta(seconds=settings.blob_ttl_seconds), hold)
    disks = MeasureDisks(settings.disks, Thresholds(settings.disk_low_bytes, settings.disk_full_bytes))
    collection = GarbageCollector(
        store,
        blob_stores,
        clock,
        hold,
        grace=settings.gc_grace,
        every=timedelta(seconds=settings.gc_every_seconds),
        deletes_per_second=settings.gc_max_deletes_per_second,
    )
    operations = Operations(clock, lambda: new_uuid().hex)
    drains = Drains(store, systems, blob_stores, stage_metrics, notices, clock, models.decoded, new_drain_id, reports)
    drain_watch = DrainDeadlines(store, drains, clock, lambda: leases.bounds.longest, lambda: strangers.held)
    groupers, crash_loop = Groupers(settings.groupers), CrashLoopPolicy(timedelta(seconds=settings.crash_loop_backoff_seconds))
    deployments = Deployments(store, systems, models, notices, clock, new_run_id, groupers, blob_stores, stage_metrics, strangers)
    runs = Runs(store, models, notices, clock, crash_loop)
    versions = ModelVersions(store, systems, models, notices, clock, groupers, leases.set_model_version, blob_stores)
    partition_watch = PartitionMonitor(store, systems, versions, clock, timedelta(seconds=settings.partition_monitor_seconds))
    samples = Samples(runs, lag, stage_metrics, clock)
    transactions = AbortTransactions(store, systems, clock)
    trim = TrimStreams(
        store,
        systems,
        clock,
        timedelta(seconds=settings.log_retention_seconds),
        models.decoded,
        hold,
        lambda run: bool(blob_stores.backup(run.backup).to),
    )
    maintenance = ChoreScheduler(
        [
            partition_watch,
            ReassignTasks(store, versions, models, blob_stores, clock, settings.fail_over),
            ExpireLeases(store, leases, notices, clock, task_waiters),
            FlushLastSeen(store, leases, clock),
            LowerLeaseBounds(store, leases),
            KeepClaim(store, on_claim_lost, clock, leases.claim_confirmed),
            issued,
            disks,
            drain_watch,
            trim,
            transactions,
            lag,
            samples,
            OpenBlobStores(blob_stores),
            backup_monitor,
            clean_up,
            RetireStores(store, clock, hold, timedelta(seconds=settings.retire_after_seconds), retention),
            SweepExpired(blob_stores, clean_up, clock, hold),
            PruneHistory(store, clock, hold, settings.history_policy),
            RefreshKeys(providers, clock),
            PruneTokens(authentication.tokens, clock, hold, timedelta(seconds=settings.keep_history_seconds)),
            PruneAuditLog(store, clock, hold, timedelta(seconds=settings.keep_history_seconds)),
            collection,
            lost_blobs,
        ],
        clock,
        pace,
    )
    watermarks = WatermarkCoordinator(
        store,
        systems,
        clock,
        models.decoded,
        stage_metrics,
        timedelta(seconds=settings.watermark_unread_seconds),
        None if settings.idle_feeder_seconds is None else timedelta(seconds=settings.idle_feeder_seconds),
    )
    parts = Parts(
        deployments=deployments,
        runs=runs,
        timeline=Timeline(store),
        tasks=Tasks(
            store,
            leases,
            clock,
            models.decoded,
            new_lineage,
            stage_metrics,
            reports,
            blob_stores,
            regrouping,
            acting,
            task_waiters,
            strangers,
        ),
        registrations=Registrations(store, leases, notices, clock, acting, crash_loop, task_waiters),
        watermarks=watermarks,
        models=models,
        leases=leases,
        stage_metrics=stage_metrics,
        lag=lag,
        notices=notices,
        health=Health(store, systems, leases, maintenance, blob_stores, backup_monitor.sentences, disks, issued.sentences),
        exposition=Exposition(
            [
                metrics.of_build,
                partial(metrics.of_leases, leases),
                partial(metrics.of_jobs, lag),
                partial(metrics.of_versions, lag),
                partial(metrics.of_watermarks, watermarks, lag),
                partial(metrics.of_reports, reports, lag),
                partial(metrics.of_scripts, stage_metrics.scripts),
                partial(metrics.of_streams, partition_watch, clock),
                partial(metrics.of_trimmed_streams, trim),
                partial(metrics.of_chores, maintenance),
                partial(metrics.of_traffic, traffic, models, notices),
                partial(metrics.of_connections, connections),
                partial(metrics.of_authentication, authentication),
                partial(metrics.of_database, lambda: store.failures, lambda: store.claimed),
                partial(metrics.of_event_loop, loop_lag),
                partial(metrics.of_drains, drain_watch),
                partial(metrics.of_snapshots, snapshots, lag),
                partial(metrics.of_degraded_backups, backup_monitor),
                partial(metrics.of_lost_blobs, lost_blobs, backup_monitor),
                partial(metrics.of_clock, hold),
                partial(metrics.of_issued, issued),
                partial(metrics.of_disks, disks),
                partial(metrics.of_transactions, transactions),
                partial(metrics.of_clean_up, clean_up, clock),
                partial(metrics.of_collection, collection),
                partial(metrics.of_requests, requests),
            ]
        ),
        systems=systems,
        blob_stores=blob_stores,
        blob_credentials=blob_credentials,
        snapshots=snapshots,
        backup_monitor=backup_monitor,
        lost_blobs=lost_blobs,
        transactions=transactions,
        issued=issued,
        removal=Removal(store, models, snapshots.forget, strangers),
        notices_wait=timedelta(seconds=settings.notices_wait_seconds),
        metrics_hosts=parse_scrape_hosts(settings.metrics_hosts),
        deployer_spark_settings=settings.deployer_spark_settings,
    )

    async def resynchronise() -> None:
        """Replace what is cached in memory by what the database has. Event times and watermarks are in memory only."""
        await models.recover()
        await parts.registrations.resynchronise()
        await snapshots.recover()
        await authentication.tokens.recover()
        await sessions.recover()
        parts.tasks.forget()
        stage_metrics.forget_reports()
        lag.forget_all()
        notices.notify_all()
        task_waiters.notify_all()
        async with store.read() as tx:
            issued.check_lost(await tx.origin.issued())

    async def reload() -> None:
        """The database has got rows that its transactions in this process have not written."""
        await snapshots.reload()
        await resynchronise()

    issued.changed = reload

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        try:
            sent = clock.elapsed()
            await take(settings, store)
            leases.claim_confirmed(sent)
            async with store.keeping_claim():
                await issued.start()
                await models.recover()
                await parts.registrations.recover()
                await snapshots.recover()
                await authentication.tokens.recover()
                await sessions.recover()
            store.resynchronise_with(resynchronise)
            hold.check_start(max(snapshots.newest.values(), default=None))
            async with maintenance:
                yield
            try:
                await parts.registrations.end()
            except SluiceError as error:
                log.warning("cannot record that this coordinator stopped cleanly; the next one will wait for its leases: %s", error)
        finally:
            await operations.close()
            for system in systems.values():
                await system.close()
            await blob_credentials.close()
            await blob_stores.close()
            await store.close()

    api = new_api(lifespan=lifespan)
    api.state.parts = parts
    audit_log = AuditLog(store, clock, AuditLines(settings.audit_file))
    api.state.access = Access(
        authentication, Incarnations(store, leases), audit_log, store, parse_open_networks(settings.samza_networks), models.only_job
    )
    api.state.backups = SnapshotParts(
        snapshots=snapshots,
        blob_stores=blob_stores,
        catalog=SnapshotCatalog(store, clock, retention, lambda: f"pin-{new_uuid().hex[:12]}"),
        audits=Audits(store, blob_stores),
        collection=collection,
        operations=operations,
    )
    api.state.versioning = JobModelParts(
        runs=runs,
        versions=versions,
        history=ModelHistory(store, models, clock, versions.in_force, blob_stores),
        adoptions=Adoptions(store, models, clock, leases.set_adopted, task_waiters.notify_released),
        watch=partition_watch,
        blob_stores=blob_stores,
        standbys=Standbys(store, models, blob_stores, parts.registrations.counts.__getitem__),
        watermarks=watermarks,
    )
    api.state.draining = DrainParts(drains, drain_times(settings))
    state = (api.state.parts, api.state.draining, api.state.backups, api.state.versioning)
    logins = Logins(providers, clock, random_bytes, settings.public_url)
    api.state.ui = ui.Ui(Pages(*state, samples, audit_log), pages, Actions(*state), logins)
    api.include_router(ui.router)
    errors.install(api)
    limited = middleware.limited(api, settings.max_body_bytes)
    hosts = HostCheck(settings.host_names)
    fast_paths = FastPaths(leases, models, hosts, for_all=not settings.authenticates)
    asgi = fast_paths.before(middleware.with_term(traffic.counted(browsers.guarded(middleware.traced(limited), hosts)), leases))
    taken = partial(take, settings, store)
    return Coordinator(asgi, fast_paths, api, notices, task_waiters, pages, connections, loop_lag, authentication, taken)


def _fences_of(systems: Mapping[str, StreamSystem]) -> Fences:
    async def fences() -> Mapping[str, int]:
        found: dict[str, int] = {}
        for system in systems.values():
            if isinstance(system, LogSystem):
                found |= await system.fences()
        return found

    return fences


async def take(settings: Settings, store: Store) -> None:
    """Claim the database for this coordinator, then `prepare` it. Idempotent. Raises DatabaseInUse, and the errors of `prepare`."""
    make_directories(settings)
    await store.claim()
    async with store.keeping_claim():
        await prepare(settings, store)
    await store.claim()  # again, because a new database had no table of claims before


async def prepare(settings: Settings, store: Store) -> None:
    """Create the directories and migrate the database to the newest schema. Raises BadSettings, UnknownSchema, StoreUnavailable."""
    make_directories(settings)
    await upgrade(store)


def make_directories(settings: Settings) -> None:
    """Raises BadSettings with the path and the setting."""
    of_log = "home" if settings.log_dir is None else "log_dir"
    for setting, directory in (("home", settings.home), (of_log, settings.log_directory)):
        try:
            directory.mkdir(mode=0o700 if setting == "home" else 0o777, parents=True, exist_ok=True)
        except OSError as error:
            writable = f"name a writable one with --{setting.replace('_', '-')} or SLUICE_{setting.upper()}"
            raise BadSettings(f"{setting}: cannot create the directory {error.filename}: {error.strerror}; {writable}") from error
