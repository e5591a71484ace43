"""When a stage's state is backed up."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from sluice.core.errors import BadSettings


@dataclass(frozen=True, slots=True)
class CommitPolicy:
    """Every `interval`, or after `max_replay` batches if that is sooner; with an interval of zero after every batch, before the next
    begins where that can be made to wait. A commit that is `max_delay` late holds batches back, and one that is later than that by
    `timeout` ends the container."""

    interval: timedelta
    max_replay: int
    max_delay: timedelta
    timeout: timedelta

    @property
    def longest(self) -> timedelta:
        """From the first blob of a snapshot to its report: a commit that is given up at its report, and the next one at once, which begins
        with that."""
        return 2 * (self.max_delay + self.timeout)

    def check(self, grace: timedelta) -> None:
        """Raises BadSettings unless what a commit has uploaded is left alone, for `grace`, until it is reported."""
        if self.longest >= grace:
            raise BadSettings(
                f"a commit may take {self.longest} (twice SLUICE_COMMIT_MAX_DELAY_SECONDS and SLUICE_COMMIT_TIMEOUT_SECONDS), and after "
                f"{grace} the coordinator deletes what no snapshot refers to: make one of these shorter, or the coordinator's "
                "gc_grace_seconds longer"
            )
