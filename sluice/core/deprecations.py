"""The table of deprecated names in the API, the settings, the command line and the metrics.

Release `since` supports both names of an entry, release `removed_in` only the new one. The code that accepts or shows an old name reads
this table:

* routes and headers: `coordinator.api`; fields of bodies: `sluice.wire.body.Renamed`
* settings: `coordinator.settings`, with the variables `SLUICE_…` of the same names
* metrics: `sluice.metrics`
* commands and options: `sluice.cli`
* URLs: `sluice.blobs.locations`

`scripts/deprecated_names.py` writes docs/deprecated-names.md and a section of CHANGELOG.md from the table.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

log = logging.getLogger(__name__)


DEPRECATED_AT = datetime(2026, 11, 23, tzinfo=UTC)
"""For the header `Deprecation` of HTTP answers (RFC 9745)."""


class Kind(StrEnum):
    ROUTE = "route"
    HEADER = "header"
    FIELD = "field"
    SETTING = "setting"
    COMMAND = "command"
    OPTION = "option"
    METRIC = "metric"
    URL = "blob store URL"


@dataclass(frozen=True, slots=True)
class Deprecation:
    """`new`: None if nothing replaces `old`. `where`: for a field the body's name in the OpenAPI document, for an option the command; empty
    for the other kinds. `advice`: what to do instead, if "use NEW" is not enough."""

    kind: Kind
    old: str
    new: str | None
    where: str = ""
    advice: str = ""
    since: str = "0.2.0"
    removed_in: str = "0.3.0"

    @property
    def message(self) -> str:
        """One line for the user of the old name."""
        name = f"{self.where} {self.old}".strip() if self.kind is Kind.OPTION else self.old
        return f"{self.kind} {name} is deprecated and will be removed in {self.removed_in}: {self.advice or f'use {self.new}'}"


def _renamed(kind: Kind, names: dict[str, str], where: str = "") -> tuple[Deprecation, ...]:
    return tuple(Deprecation(kind, old, new, where) for old, new in names.items())


DEPRECATIONS: tuple[Deprecation, ...] = (
    *_renamed(
        Kind.ROUTE,
        {
            "GET /errands/{operation}": "GET /operations/{operation}",
        },
    ),
    *_renamed(Kind.HEADER, {"Sluice-Who": "Sluice-Actor"}),
    # requests
    *_renamed(Kind.FIELD, {"measures": "metrics"}, "ProgressRequest"),
    *_renamed(Kind.FIELD, {"offsetsBehind": "lag"}, "StageMetricsBody"),
    *_renamed(Kind.FIELD, {"rowsLeft": "leftoverRows", "operatorsLeft": "leftoverOperators"}, "DrainStepRequest"),
    # answers
    *_renamed(Kind.FIELD, {"origin": "firstRun"}, "RunSummary"),
    *_renamed(Kind.FIELD, {"toldAt": "serverTime", "givenAway": "failedOverSlots", "heldBack": "crashLoopBackoff"}, "RunDetail"),
    *_renamed(Kind.FIELD, {"behind": "outdated"}, "Adoption"),
    *_renamed(
        Kind.FIELD,
        {"offsetsBehind": "lag", "measures": "metrics", "backedUpAt": "snapshotAt"},
        "StageProgress",
    ),
    *_renamed(Kind.FIELD, {"offsetsBehind": "lag"}, "StageMetricsReply"),
    *_renamed(Kind.FIELD, {"rowsLeft": "leftoverRows", "operatorsLeft": "leftoverOperators"}, "DrainStageReply"),
    *_renamed(Kind.FIELD, {"toldAt": "serverTime", "rowsLeft": "leftoverRows"}, "DrainDetail"),
    *_renamed(Kind.FIELD, {"untold": "unknownTasks"}, "StagePlanReply"),
    *_renamed(Kind.FIELD, {"who": "actor"}, "VersionSummary"),
    *_renamed(Kind.FIELD, {"errand": "operation"}, "OperationReply"),
    # output of commands with --json
    *_renamed(Kind.FIELD, {"tasksHeld": "tasksOwned", "troubles": "problems"}, "RunOverview"),
    *_renamed(Kind.FIELD, {"offsetsBehind": "lag", "backupAgeSeconds": "snapshotAgeSeconds"}, "StageOverview"),
    *_renamed(Kind.FIELD, {"told": "summary", "backRun": "rollbackRun"}, "UpgradeReply"),
    *_renamed(Kind.SETTING, {"hold_back_seconds": "crash_loop_backoff_seconds", "log_keep_seconds": "log_retention_seconds"}),
    *_renamed(
        Kind.METRIC,
        {
            "sluice_job_offsets_behind": "sluice_job_lag_records",
            "sluice_job_containers_behind": "sluice_job_containers_outdated",
            "sluice_job_tasks_held": "sluice_job_tasks_owned",
            "sluice_job_tasks_unheld": "sluice_job_tasks_unowned",
            "sluice_job_slots_given_away": "sluice_job_slots_failed_over",
            "sluice_stream_unseen_seconds": "sluice_stream_count_age_seconds",
            "sluice_checkpoint_age_seconds": "sluice_snapshot_age_seconds",
            "sluice_chore_turns": "sluice_chore_runs",
            "sluice_container_tasks_held": "sluice_container_tasks_owned",
            "sluice_stage_offsets_behind": "sluice_stage_lag_records",
            "sluice_stage_last_heard_timestamp_seconds": "sluice_stage_last_progress_timestamp_seconds",
            "sluice_stage_durable_timestamp_seconds": "sluice_stage_snapshot_timestamp_seconds",
            "sluice_stage_durable_batch": "sluice_stage_snapshot_batch",
            "sluice_stage_replaced_plans": "sluice_stage_replaced_batches",
        },
    ),
    *_renamed(Kind.COMMAND, {"sluice log": "sluice streams", "sluice kafka topics": "sluice streams"}),
    *_renamed(
        Kind.OPTION,
        {"--no-back": "--no-rollback", "--within": "--timeout", "--allow-left": "--allow-leftover-state", "--anew": "--force"},
        "sluice upgrade",
    ),
    Deprecation(
        Kind.OPTION,
        "--local",
        None,
        "sluice upgrade",
        "keep the coordinator up with `sluice coordinator`, and start the containers that the upgrade names with `sluice container`",
    ),
    Deprecation(Kind.OPTION, "--old", None, "sluice upgrade", "it is removed together with --local"),
    *_renamed(Kind.OPTION, {"--anew": "--force"}, "sluice rebuild"),
    Deprecation(Kind.URL, "memory://", "file:///directory"),
)


def of_kind(kind: Kind, where: str = "") -> Iterator[Deprecation]:
    """The entries of a kind; for fields and options those of one body or command."""
    return (each for each in DEPRECATIONS if each.kind is kind and each.where == where)


def find(kind: Kind, old: str, where: str = "") -> Deprecation:
    """Raises KeyError for a name that is not deprecated."""
    for each in of_kind(kind, where):
        if each.old == old:
            return each
    raise KeyError(f"{kind} {where} {old}")


_used: set[Deprecation] = set()

in_request: ContextVar[list[Deprecation] | None] = ContextVar("in_request", default=None)
"""The deprecated names that the HTTP request being served has used. None outside a request."""


def first_use(entry: Deprecation) -> bool:
    """Whether this process uses the name for the first time. The message is only shown then."""
    first = entry not in _used
    _used.add(entry)
    return first


def use(entry: Deprecation) -> None:
    """Record the use of a deprecated name. The first use in this process is logged as a warning. A command line calls `first_use` instead
    and prints the message."""
    if first_use(entry):
        log.warning("%s", entry.message)
    names = in_request.get()
    if names is not None:
        names.append(entry)
