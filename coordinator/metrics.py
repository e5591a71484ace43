"""The coordinator's metrics, collected when they are scraped. Nothing here waits for the database. Heartbeats are counted with plain
integers, which is faster. docs/operating.md lists the metrics.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, SummaryMetricFamily
from prometheus_client.metrics_core import Metric

from coordinator.api.exposition import PER_STEP
from coordinator.api.middleware import Traffic
from coordinator.chores import ChoreScheduler
from coordinator.connections import Connections
from coordinator.disks import MeasureDisks
from coordinator.drains.deadlines import DrainDeadlines
from coordinator.fleet.issued import IssuedNumbers
from coordinator.fleet.leases import Leases
from coordinator.fleet.notices import Notices
from coordinator.fleet.report_checks import ReportChecks
from coordinator.fleet.script_queries import ScriptQueries
from coordinator.identity.authentication import Authentication
from coordinator.jobmodels.cache import JobModels
from coordinator.jobmodels.partition_monitor import PartitionMonitor
from coordinator.runs.lag import LagMonitor
from coordinator.runs.transactions import AbortTransactions
from coordinator.runs.trim import TrimStreams
from coordinator.runs.watermarks import WatermarkCoordinator
from coordinator.snapshots.cleanup import CleanUp
from coordinator.snapshots.degraded import BackupMonitor
from coordinator.snapshots.gc import GarbageCollector
from coordinator.snapshots.lost import FindLostBlobs
from coordinator.snapshots.reports import Snapshots
from coordinator.store.fleet import ContainerState
from coordinator.waits import DeletionHold, EventLoopLag
from sluice.blobs.counted import Requests
from sluice.clock import Clock
from sluice.core.drain import Mode, Phase, Step
from sluice.core.jobmodels.expansion import Verdict
from sluice.core.leases.ownership import FALSE
from sluice.core.lifecycle import RunState
from sluice.core.snapshots.degraded import Degradation
from sluice.core.waits import age
from sluice.metrics import build_info


def of_leases(leases: Leases) -> Iterable[Metric]:
    beats = CounterMetricFamily(
        "sluice_heartbeats", "Heartbeats by answer; invalid ones are answered with alive: false.", labels=["answer"]
    )
    beats.add_metric(["alive"], leases.answered_alive)
    beats.add_metric(["invalid"], leases.answered_invalid)
    yield beats
    terms = leases.terms
    yield GaugeMetricFamily("sluice_valid_containers", "Containers with a valid lease.", len(leases))
    yield GaugeMetricFamily(
        "sluice_ending_containers",
        "Containers that are no longer valid, but may still run until their lease and grace period have passed.",
        leases.ending,
    )
    yield GaugeMetricFamily(
        "sluice_unacknowledged_containers",
        "Valid containers that have not acknowledged this coordinator, while a former one may renew their leases.",
        leases.unacknowledged,
    )
    yield GaugeMetricFamily("sluice_lease_seconds", "Lease duration granted now.", terms.lease.total_seconds())
    yield GaugeMetricFamily("sluice_heartbeat_interval_seconds", "Heartbeat interval granted now.", terms.interval.total_seconds())
    yield GaugeMetricFamily(
        "sluice_lease_overlap_seconds",
        "Longest time that two incarnations of a slot can run at once, by the settings.",
        leases.policy.overlap(terms).total_seconds(),
    )


def of_jobs(lag: LagMonitor) -> Iterable[Metric]:
    """Jobs with their current runs. Empty if the database has not answered for a minute."""
    state = GaugeMetricFamily(
        "sluice_job_state", "1 for the state of the job's current run, 0 for the others.", labels=["sluice_job", "state"]
    )
    slots = GaugeMetricFamily(
        "sluice_job_slots",
        "Slots of the job's run; 0 while a script is idle, which is after its command has ended with exit code 0.",
        labels=["sluice_job"],
    )
    containers = GaugeMetricFamily(
        "sluice_job_containers", "Incarnations of the job's run, present and past, by state.", labels=["sluice_job", "state"]
    )
    held = GaugeMetricFamily("sluice_job_tasks_owned", "Tasks that a container owns.", labels=["sluice_job"])
    unheld = GaugeMetricFamily(
        "sluice_job_tasks_unowned",
        "Tasks that no container owns, without those of slots with a live bare container.",
        labels=["sluice_job"],
    )
    behind = GaugeMetricFamily(
        "sluice_job_lag_records",
        "Records that a stage has not read yet, over all its tasks, owned or not.",
        labels=["sluice_job", "stage"],
    )
    failing = GaugeMetricFamily(
        "sluice_job_tasks_failing", "Tasks in which a stage has failed and not made progress since.", labels=["sluice_job", "stage"]
    )
    late = CounterMetricFamily(
        "sluice_job_late_rows",
        "Rows that a stage has dropped as late. cause=given-up: after the coordinator did not wait for a task any more "
        "(idle_feeder_seconds).",
        labels=["sluice_job", "stage", "cause"],
    )
    for job in lag.jobs:
        for each in RunState:
            state.add_metric([job.job, each.value], float(job.state is each))
        if job.state.ended:
            continue
        slots.add_metric([job.job], job.slots)
        for kind in ContainerState:
            containers.add_metric([job.job, kind.value], job.counts.containers.get(kind, 0))
        held.add_metric([job.job], job.counts.owned)
        unheld.add_metric([job.job], job.unowned)
        for stage, count in sorted(job.lag.items()):
            behind.add_metric([job.job, stage], count)
        for stage, count in sorted(job.failing.items()):
            failing.add_metric([job.job, stage], count)
        for stage, (rows, given_up) in sorted(job.late.items()):
            late.add_metric([job.job, stage, "late"], rows)
            late.add_metric([job.job, stage, "given-up"], given_up)
    yield from (state, slots, containers, held, unheld, behind, failing, late)


def of_scripts(scripts: ScriptQueries) -> Iterable[Metric]:
    """What scripts write to Kafka with `app.kafka_writer`, as last reported. Containers of jobs show the same themselves."""
    labels = ["sluice_job", "stage", "topic"]
    took = SummaryMetricFamily(
        "sluice_script_transaction_commit_seconds",
        "How long commits of Kafka transactions of a script took, from the last record to the answer.",
        labels=labels,
    )
    aborted = CounterMetricFamily(
        "sluice_script_transactions_aborted", "Transactions of a script that failed. Their batches run again.", labels=labels
    )
    fenced = CounterMetricFamily(
        "sluice_script_transactions_fenced", "How often another producer of the script's query began.", labels=labels
    )
    markers = CounterMetricFamily("sluice_script_markers_renewed", "Markers of a script written without a batch.", labels=labels)
    repeated = CounterMetricFamily(
        "sluice_script_batches_not_repeated", "Batches of a script that ran again and were not sent again.", labels=labels
    )
    for job, query in scripts.all():
        for each in query.writes:
            key = [job, query.stage, each.topic]
            took.add_metric(key, each.commits, each.commit_seconds)
            for family, count in ((aborted, each.aborted), (fenced, each.fenced), (markers, each.markers), (repeated, each.repeated)):
                family.add_metric(key, count)
    yield from (took, aborted, fenced, markers, repeated)


def of_reports(reports: ReportChecks, lag: LagMonitor) -> Iterable[Metric]:
    refused = CounterMetricFamily(
        "sluice_reports_refused",
        "Reports of tasks' owners that cannot be true and were rejected, by reason.",
        labels=["sluice_job", "reason"],
    )
    none = {(job.job, reason): 0 for job in lag.jobs for reason in FALSE}  # so that the first refused report is an increase
    for (name, reason), count in sorted({**none, **reports.refused}.items()):
        refused.add_metric([name, reason], count)
    yield refused
    unconfirmed = GaugeMetricFamily(
        "sluice_job_offsets_unconfirmed",
        "Reported offsets beyond the ends of their partitions. They trim nothing until an end confirms them.",
        labels=["sluice_job"],
    )
    for job in lag.jobs:
        if not job.state.ended:
            unconfirmed.add_metric([job.job], job.unconfirmed)
    yield unconfirmed


def of_chores(maintenance: ChoreScheduler) -> Iterable[Metric]:
    turns = CounterMetricFamily("sluice_chore_runs", "Runs of each background chore.", labels=["chore"])
    for name, count in sorted(maintenance.turns.items()):
        turns.add_metric([name], count)
    yield turns
    seconds = CounterMetricFamily("sluice_chore_seconds", "Total duration of these runs.", labels=["chore"])
    for name, total in sorted(maintenance.seconds.items()):
        seconds.add_metric([name], total)
    yield seconds
    items = CounterMetricFamily("sluice_chore_items", "Items that the chores have processed, by chore and kind.", labels=["chore", "kind"])
    for (chore, kind), count in sorted(maintenance.done.items()):
        items.add_metric([chore, kind], count)
    yield items
    intervals = GaugeMetricFamily("sluice_chore_interval_seconds", "The pause between two runs of each chore.", labels=["chore"])
    for name, interval in sorted(maintenance.intervals.items()):
        intervals.add_metric([name], interval)
    yield intervals
    idle = GaugeMetricFamily("sluice_chore_idle_seconds", "Time since the last run of each chore ended.", labels=["chore"])
    for name, since in sorted(maintenance.since_last_run.items()):
        idle.add_metric([name], since)
    yield idle
    failures = GaugeMetricFamily("sluice_chore_failures", "Failures of each chore since it last succeeded.", labels=["chore"])
    for name in sorted(maintenance.intervals):
        failures.add_metric([name], maintenance.failures[name])
    yield failures


def of_traffic(traffic: Traffic, models: JobModels, notices: Notices) -> Iterable[Metric]:
    yield from traffic.requests.collect()
    yield from traffic.durations.collect()
    yield CounterMetricFamily(
        "sluice_models_unchanged", "Requests for a job model that the client had already (304).", models.answered_unchanged
    )
    yield GaugeMetricFamily("sluice_notice_polls", "Long polls for notices that are waiting: one for each container.", notices.polls)


def of_database(failures: Callable[[], int], claimed: Callable[[], bool]) -> Iterable[Metric]:
    yield CounterMetricFamily("sluice_database_errors", "Database operations that failed.", failures())
    yield GaugeMetricFamily("sluice_claim_held", "1 while this coordinator holds the claim on its database, else 0.", int(claimed()))


_STREAM = ["sluice_job", "system", "stream"]


def of_streams(watch: PartitionMonitor, clock: Clock) -> Iterable[Metric]:
    """The inputs of live runs, as of the last check by the partition monitor."""
    seen = GaugeMetricFamily("sluice_stream_partitions", "Partitions of an input.", labels=_STREAM)
    known = GaugeMetricFamily("sluice_stream_partitions_known", "Partitions of an input that the job reads.", labels=_STREAM)
    refused = GaugeMetricFamily("sluice_stream_growth_refused", "1 if a job cannot follow a change of its input.", labels=_STREAM)
    unseen = GaugeMetricFamily(
        "sluice_stream_count_age_seconds", "For how long the partition count of an input could not be read; 0 if it can.", labels=_STREAM
    )
    now = clock.now()
    for rows in watch.watched.values():
        for row in rows:
            labels = [row.job, row.system, row.stream]
            if row.seen is not None:
                seen.add_metric(labels, row.seen)
            known.add_metric(labels, row.known)
            refused.add_metric(labels, float(row.verdict is Verdict.REFUSED))
            unseen.add_metric(labels, 0.0 if row.seen is not None else age(row.since, now).total_seconds())
    yield from (seen, known, refused, unseen)


def of_trimmed_streams(trim: TrimStreams) -> Iterable[Metric]:
    """The intermediate streams of live runs, as of the last trim."""
    kept = GaugeMetricFamily(
        "sluice_stream_kept_records",
        "Records of an intermediate stream that every reader has passed and that are older than log_retention_seconds, but are kept "
        "because a retained or pinned snapshot of a reader needs them.",
        labels=_STREAM,
    )
    for (job, stream), count in sorted(trim.kept.items()):
        kept.add_metric([job, stream.system, stream.stream], count)
    yield kept


def of_watermarks(watermarks: WatermarkCoordinator, lag_monitor: LagMonitor) -> Iterable[Metric]:
    """The watermarks behind intermediate streams, of live runs whose containers have reported since the coordinator started."""
    labels = ["sluice_job", "stream", "holder"]
    lag = GaugeMetricFamily(
        "sluice_watermark_lag_seconds",
        "By how much event time the readers of an intermediate stream are kept behind the newest of its writers. `holder`: the stage of a "
        "task that they wait for, empty if there is none.",
        labels=labels,
    )
    held = GaugeMetricFamily(
        "sluice_watermark_held_seconds",
        "For how long the progress of that stage of a task has not risen; 0 if there is none.",
        labels=labels,
    )
    live = {each.job for each in lag_monitor.jobs if not each.state.ended}
    for job, run_id in watermarks.newest_runs().items():
        if job not in live:
            continue
        for each in watermarks.streams(run_id):
            series = [job, str(each.stream), str(each.held_by[0].feeder) if each.held_by else ""]
            if each.lag is not None:
                lag.add_metric(series, each.lag.total_seconds())
            held.add_metric(series, each.held_for.total_seconds())
    yield from (lag, held)


def of_transactions(transactions: AbortTransactions) -> Iterable[Metric]:
    """Streams that live runs write, or runs that ended lately have written."""
    held = GaugeMetricFamily(
        "sluice_stream_held_back_seconds",
        "For how long readers of a stream stand still before an open transaction; of its partitions the longest. transactional_id: empty "
        "if it is not known.",
        labels=["system", "stream", "transactional_id"],
    )
    longest: dict[tuple[str, str, str], float] = {}
    for each in transactions.standing:
        key = (each.stream.system, each.stream.stream, each.writer)
        longest[key] = max(longest.get(key, 0.0), each.held_for.total_seconds())
    for key, seconds in sorted(longest.items()):
        held.add_metric(key, seconds)
    yield held


def of_versions(lag: LagMonitor) -> Iterable[Metric]:
    """Jobs with a live run. Empty if the database has not answered for a minute."""
    version = GaugeMetricFamily("sluice_job_model_version", "Version of the job model in force.", labels=["sluice_job"])
    behind = GaugeMetricFamily(
        "sluice_job_containers_outdated", "Live containers that have not adopted that version.", labels=["sluice_job"]
    )
    away = GaugeMetricFamily("sluice_job_slots_failed_over", "Slots whose tasks a fail-over has reassigned.", labels=["sluice_job"])
    for job in lag.jobs:
        if job.state.ended:
            continue
        version.add_metric([job.job], job.version)
        behind.add_metric([job.job], sum(count for adopted, count in job.counts.versions.items() if adopted < job.version))
        away.add_metric([job.job], job.reassigned_slots)
    yield from (version, behind, away)


def of_drains(watch: DrainDeadlines) -> Iterable[Metric]:
    """Drains in progress, as of a second ago, and the number of finished ones by outcome."""
    seconds = GaugeMetricFamily("sluice_drain_phase_seconds", "Time that a drain has spent in its phase.", labels=["sluice_job", "phase"])
    stages = GaugeMetricFamily(
        "sluice_drain_stages", "Stages of tasks by the last step that they have taken.", labels=["sluice_job", "step"]
    )
    late = GaugeMetricFamily("sluice_drain_late", "1 if a drain is past its soft deadline or its phase's budget.", labels=["sluice_job"])
    keeps = GaugeMetricFamily("sluice_drain_keeps_state", "1 if a drain keeps the state, 0 if it empties it.", labels=["sluice_job"])
    for each in watch.active:
        job = each.drain.job
        keeps.add_metric([job], float(each.drain.mode is Mode.KEEP_STATE))
        seconds.add_metric([job, each.drain.phase.value], each.in_phase.total_seconds())
        for step in Step:
            stages.add_metric([job, step.name.lower()], each.steps.get(step, 0))
        late.add_metric([job], float(each.late))
    ended = CounterMetricFamily("sluice_drains", "Finished drains by outcome.", labels=["phase"])
    for phase in (each for each in Phase if each.over):
        ended.add_metric([phase.value], watch.outcomes.get(phase, 0))
    yield from (seconds, stages, late, keeps, ended)


def of_build() -> Iterable[Metric]:
    yield build_info()


def of_event_loop(lag: EventLoopLag) -> Iterable[Metric]:
    yield GaugeMetricFamily(
        "sluice_event_loop_lag_seconds",
        "By how much the event loop was late at most within the last half minute: heartbeats are answered late by as much.",
        lag.longest(),
    )


def of_connections(connections: Connections) -> Iterable[Metric]:
    yield GaugeMetricFamily("sluice_connections_open", "Open HTTP connections.", connections.open)
    yield GaugeMetricFamily("sluice_connections_limit", "Maximum number of HTTP connections.", connections.limit)
    refused = CounterMetricFamily(
        "sluice_connections_refused",
        "Connections that were closed, or requests that were refused: head-too-large, timeout, idle (closed for a new one), limit.",
        labels=["reason"],
    )
    for refusal, count in connections.refused.items():
        refused.add_metric([refusal.value], count)
    yield refused


def of_authentication(authentication: Authentication) -> Iterable[Metric]:
    failed = CounterMetricFamily(
        "sluice_authentication_failures",
        "Requests without a valid token: missing, wrong, too-many (wrong ones of the same address or token).",
        labels=["reason"],
    )
    for reason, count in authentication.failed.items():
        failed.add_metric([reason], count)
    yield failed


def of_clock(hold: DeletionHold) -> Iterable[Metric]:
    yield GaugeMetricFamily(
        "sluice_clock_jump_seconds",
        "By how much the clock has jumped ahead, while nothing is deleted because of that; otherwise 0.",
        hold.jump.total_seconds(),
    )


def of_issued(issued: IssuedNumbers) -> Iterable[Metric]:
    yield GaugeMetricFamily(
        "sluice_database_restored",
        "1 while a restored database is completed, or containers that it does not know may act; otherwise 0.",
        int(issued.restored),
    )
    yield GaugeMetricFamily(
        "sluice_grants_held", "1 while no task is granted and nothing is deleted, because the catalog may be incomplete.", int(issued.holds)
    )
    unread = GaugeMetricFamily(
        "sluice_ledger_unread", "1 if the ledger of the blob store was not read since the start.", labels=["blob_store"]
    )
    for name in issued.blob_stores:
        unread.add_metric([name], int(name in issued.unread))
    yield unread


def of_disks(disks: MeasureDisks) -> Iterable[Metric]:
    free = GaugeMetricFamily("sluice_disk_free_bytes", "Free space of a disk that the coordinator writes to.", labels=["disk"])
    low = GaugeMetricFamily("sluice_disk_low_bytes", "The setting disk_low_bytes, for each disk.", labels=["disk"])
    for name, space in disks.found.items():
        free.add_metric([name], space.free)
        low.add_metric([name], disks.thresholds.low)
    return free, low


def of_snapshots(snapshots: Snapshots, lag: LagMonitor) -> Iterable[Metric | None]:
    """The age of each task's newest snapshot, the maximum over its stages: the work lost with a disk. Only jobs with a live run."""
    ages = GaugeMetricFamily(
        "sluice_snapshot_age_seconds", "Age of a task's newest snapshot; of its stages the oldest.", labels=["sluice_job", "task"]
    )
    live = {each.job for each in lag.jobs if not each.state.ended}
    oldest: defaultdict[str, dict[str, float]] = defaultdict(dict)
    for number, key in enumerate(tuple(snapshots.newest)):
        if number % PER_STEP == 0:
            yield None
        if key.job in live and key in snapshots.newest:  # it may have been removed since the last step
            seconds, of_job = snapshots.age(key).total_seconds(), oldest[key.job]
            of_job[key.task] = max(seconds, of_job.get(key.task, seconds))
    for job, of_job in sorted(oldest.items()):
        for number, task in enumerate(sorted(of_job)):
            if number % PER_STEP == 0:
                yield None
            ages.add_metric([job, task], of_job[task])
    yield ages


def of_degraded_backups(monitor: BackupMonitor) -> Iterable[Metric]:
    """Metrics of jobs with a live run."""
    degraded = GaugeMetricFamily(
        "sluice_job_backup_degraded",
        "Stages of tasks that are not backed up to a blob store as the job requests, by reason; 1 if the reason is about the blob store.",
        labels=["sluice_job", "blob_store", "reason"],
    )
    problems = {(job, each.blob_store, each.reason): each for job, found in monitor.of_jobs.items() for each in found}
    for job, names in sorted(monitor.requested.items()):
        for name in names:
            for reason in Degradation:
                found = problems.get((job, name, reason))
                degraded.add_metric([job, name, reason.value], 0 if found is None else max(1, len(found.stages)))
    yield degraded


def of_lost_blobs(lost_blobs: FindLostBlobs, monitor: BackupMonitor) -> Iterable[Metric]:
    """Metrics of the last comparison; 0 for a job that began after it."""
    labels = ["sluice_job", "blob_store"]
    lost = GaugeMetricFamily("sluice_job_blobs_lost", "Blobs that retained snapshots need and that are gone.", labels=labels)
    costs = GaugeMetricFamily("sluice_job_snapshots_lost", "Retained snapshots that cannot be restored from a blob store.", labels=labels)
    totals: defaultdict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
    totals |= {(job, name): [0, 0] for job, names in monitor.requested.items() for name in names}
    for (name, key), each in lost_blobs.found.items():
        total = totals[key.job, name]
        if each is not None:
            total[0] += each.blobs
            total[1] += len(each.snapshots)
    for (job, where), (blobs, snapshots) in sorted(totals.items()):
        lost.add_metric([job, where], blobs)
        costs.add_metric([job, where], snapshots)
    yield from (lost, costs)


def of_clean_up(clean_up: CleanUp, clock: Clock) -> Iterable[Metric]:
    length = GaugeMetricFamily("sluice_cleanup_items", "Pending clean-up items after snapshot reports, by kind.", labels=["kind"])
    failing = GaugeMetricFamily("sluice_cleanup_items_failing", "Those that have failed and will be retried.", labels=["kind"])
    oldest = GaugeMetricFamily("sluice_cleanup_oldest_seconds", "Age of the oldest pending item.", labels=["kind"])
    now = clock.now()
    for each in clean_up.queue:
        length.add_metric([each.kind.value], each.length)
        failing.add_metric([each.kind.value], each.failing)
        oldest.add_metric([each.kind.value], age(each.oldest, now).total_seconds())
    yield from (length, failing, oldest)
    yield GaugeMetricFamily(
        "sluice_cleanup_overdue",
        "1 if the time to live of a blob in use was not removed within a third of it, so that the blob may expire.",
        float(clean_up.overdue(now)),
    )


def of_collection(collection: GarbageCollector) -> Iterable[Metric]:
    families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {
        "condemned": CounterMetricFamily("sluice_blobs_condemned", "Blobs found to be garbage.", labels=["blob_store"]),
        "deleted": CounterMetricFamily("sluice_blobs_deleted", "Blobs deleted as garbage.", labels=["blob_store"]),
        "deleted_bytes": CounterMetricFamily("sluice_blobs_deleted_bytes", "Bytes deleted as garbage.", labels=["blob_store"]),
        "pardoned": CounterMetricFamily(
            "sluice_blobs_pardoned", "Condemned blobs that turned out to be in use or gone.", labels=["blob_store"]
        ),
        "passes": CounterMetricFamily("sluice_collections", "Completed garbage collections.", labels=["blob_store"]),
        "waiting": GaugeMetricFamily("sluice_blobs_waiting", "Condemned blobs whose grace period has not passed.", labels=["blob_store"]),
        "not_judged": GaugeMetricFamily(
            "sluice_collection_not_judged",
            "Prefixes that the last collection skipped because the database knows too little about them.",
            labels=["blob_store"],
        ),
    }
    for name, totals in collection.totals.items():
        for field, family in families.items():
            family.add_metric([name], getattr(totals, field))
    yield from families.values()


def of_requests(requests: Mapping[str, Requests]) -> Iterable[Metric]:
    sent = CounterMetricFamily(
        "sluice_blob_requests", "The coordinator's requests to blob stores.", labels=["blob_store", "operation", "purpose"]
    )
    failed = CounterMetricFamily("sluice_blob_requests_failed", "Those that failed.", labels=["blob_store", "operation", "purpose"])
    for name, counted in sorted(requests.items()):
        for family, counts in ((sent, counted.requests), (failed, counted.failed)):
            for kind, count in sorted(counts.items()):
                family.add_metric([name, kind.operation, kind.purpose.value], count)
    yield from (sent, failed)
