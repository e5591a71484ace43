"""Reports the exit of a container, which frees its tasks before the lease ends.

`python -m containers.supervision.exit_report …` takes the place of an agent that may not run any longer, and of a guardian that has ended
one.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from sluice.core.ids import ExecutionContainerId

if TYPE_CHECKING:
    from sluice.client.agents import AgentClient

EXIT_OK, EXIT_FAILED, EXIT_LEASE_LOST = 0, 1, 3
"""Exit codes of a container, see `containers/agent/lifecycle.py`."""

LONGEST_REASON = 10_000
"""In characters. An ending fits into a pipe."""

REPORT_WITHIN = timedelta(seconds=8)
"""How long the report is repeated while the coordinator does not answer."""


async def report(coordinator: AgentClient, container: ExecutionContainerId, exit_code: int, reason: str) -> bool:
    """Report the exit; whether that succeeded. If not, the lease expires anyway. Call it only after the last process has ended, because the
    tasks are free from then on. The report is repeated for a short time, because the coordinator may be restarting."""
    import asyncio

    from sluice.core.errors import CoordinatorUnreachable, SluiceError

    with suppress(SluiceError, TimeoutError):
        async with asyncio.timeout(REPORT_WITHIN.total_seconds()):
            while True:
                try:
                    await coordinator.exited(container, exit_code, reason)
                    return True
                except CoordinatorUnreachable:
                    await asyncio.sleep(1)
    return False


async def report_exit(url: str, container: ExecutionContainerId, exit_code: int, reason: str, token: str) -> None:
    """Like `report`, with a client of its own. `token`: that of the container."""
    from sluice.client.agents import AgentClient

    coordinator = AgentClient(url)
    coordinator.act_as(token)
    try:
        await report(coordinator, container, exit_code, reason)
    finally:
        await coordinator.close()


@dataclass(frozen=True, slots=True)
class Ending:
    """What is left to do for a container whose agent and driver were ended. `home`: where temporary files of containers that have ended are
    deleted; "" for none. `all_ended`: otherwise a process may still act, and the exit is not reported."""

    url: str
    container: ExecutionContainerId
    exit_code: int
    reason: str
    token: str = ""
    home: str = ""
    all_ended: bool = True


def replace_process(ending: Ending) -> NoReturn:
    """Do this in place of the program of this process, whose threads end at once. It then exits with the code. It gets the ending on its
    standard input, because a command line would show the token to everybody."""
    try:
        read_fd, write_fd = os.pipe()
        os.write(write_fd, json.dumps(asdict(replace(ending, reason=ending.reason[:LONGEST_REASON]))).encode())
        os.close(write_fd)
        os.dup2(read_fd, 0)
        os.execv(sys.executable, [sys.executable, "-P", "-m", "containers.supervision.exit_report"])  # noqa: S606
    finally:
        os._exit(ending.exit_code)  # without memory for another program


def end_process(exit_code: int) -> NoReturn:
    """End this process without waiting for its other threads."""
    try:
        for out in (sys.stderr, sys.stdout):
            with suppress(Exception):  # it is closed, or nobody reads it
                out.flush()
    finally:
        os._exit(exit_code)


def main() -> NoReturn:
    import asyncio
    import logging

    from containers.supervision import scratch
    from sluice import logconfig

    ending, failed = Ending(**json.loads(sys.stdin.read())), ""
    try:
        if ending.all_ended:
            asyncio.run(report_exit(ending.url, ending.container, ending.exit_code, ending.reason, ending.token))
        if ending.home:
            scratch.clear(Path(ending.home))
    except Exception as error:  # such as a certificate that was replaced by one that cannot be read
        failed = f"; the exit was not reported: {error}"
    left = "" if ending.all_ended else "; processes of its driver cannot be killed"
    try:
        logconfig.configure(logconfig.read_log_settings())  # last: a log that is not read would block
        logging.getLogger("sluice").error("%s: %s%s%s", ending.container, ending.reason, left, failed)
    finally:
        end_process(ending.exit_code)


if __name__ == "__main__":
    main()
