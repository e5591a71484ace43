from __future__ import annotations

import asyncio
import logging
from datetime import timedelta

import pytest

from containers.state.meters import Transfers
from containers.state.transfer import log_progress
from tests.support.engines import soon


async def test_a_long_transfer_is_logged_and_counts_only_its_own_bytes(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    transfers = Transfers(planned_files=5, planned_bytes=5_000_000, done_files=5, done_bytes=5_000_000)
    reported = asyncio.Event()
    caplog.handler.addFilter(lambda _: reported.set() or True)  # type: ignore[func-returns-value]
    async with log_progress("x is restored", transfers, every=timedelta(milliseconds=1)):
        transfers.planned(4, 8_000_000)
        transfers.done(1, 2_000_000)
        await soon(reported.wait())
    assert caplog.messages[-1] == "x is restored: 25 %, 1 files, 2.0 of 8.0 MB"


async def test_a_short_transfer_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with log_progress("x is restored", Transfers()):
        pass
    assert caplog.messages == []
