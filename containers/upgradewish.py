"""What `sluice upgrade` is asked for, and what it answers."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from pathlib import Path

from containers.tables import shown
from containers.upgradelocal import LocalWish
from containers.upgraderequest import Settings
from sluice.wire import body as wire_body


class Outcome(StrEnum):
    UPGRADED = "upgraded"
    PLANNED = "planned"
    NOT_DRAINED = "not drained"
    ROWS_LEFT = "rows left"
    NOT_WELL = "not well"
    """The new version is left as it is."""
    WENT_BACK = "went back"


EXIT_CODES = {
    Outcome.UPGRADED: 0,
    Outcome.PLANNED: 0,
    Outcome.NOT_DRAINED: 2,
    Outcome.ROWS_LEFT: 2,
    Outcome.NOT_WELL: 3,
    Outcome.WENT_BACK: 4,
}


@dataclass(frozen=True, slots=True)
class Wish:
    """What the command line asks for."""

    job_file: Path
    settings: Settings
    within: float | None = None
    watch: timedelta = timedelta(seconds=180)
    batches: int = 2
    allow_left: bool = False
    back: bool = True
    anew: bool = False
    dry_run: bool = False
    local: LocalWish | None = None


class UpgradeReply(wire_body.Reply):
    """The body of `sluice upgrade --json`. `run` is of the new version, `backRun` of the old one after going back; `steps` of a dry run."""

    job: str
    outcome: Outcome
    told: str
    former_run: str | None = None
    run: str | None = None
    back_run: str | None = None
    steps: tuple[str, ...] = ()


def say(line: str) -> None:
    print(f"sluice: {shown(line)}", file=sys.stderr, flush=True)
