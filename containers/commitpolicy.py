"""When a stage's state is backed up."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True, slots=True)
class CommitPolicy:
    """Every `interval`, or after `max_replay` batches if that is sooner; with an interval of zero after every batch, before the next
    begins. A commit that is `max_delay` late holds batches back, and one that is later than that by `timeout` ends the container."""

    interval: timedelta
    max_replay: int
    max_delay: timedelta
    timeout: timedelta
