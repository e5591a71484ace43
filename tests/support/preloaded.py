"""`python -m sluice` without its imports: processes are forks of one process that has imported the commands.

The imports take most of the CPU time of a short command, and of the start of a coordinator; tests start hundreds of both. A fork gets the
arguments, environment, working directory, signals and outputs of a new process. Its command line in /proc is that of the first process.

The protocol: a pair of sockets of type SOCK_SEQPACKET. A request is JSON with the file descriptors of both outputs. Answers are JSON: the
process id of a fork, and later its wait status.
"""

from __future__ import annotations

import gc
import io
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

COMMANDS = (
    "coordinator.server",
    "coordinator.cli.serve",
    "coordinator.cli.db",
    "containers.cli.container",
    "containers.cli.exec",
    "containers.cli.run",
    "sluice.cli.deploy",
    "sluice.cli.drain",
    "sluice.cli.jobs",
    "sluice.cli.snapshots",
    "sluice.cli.status",
    "sluice.cli.upgrade",
    "fastapi.telemetry",
    "uvicorn.protocols.http.auto",
    "uvloop",
)
"""Modules that `python -m sluice` imports for a command. They start no threads, which a fork would not have."""
ROOT = Path(__file__).parents[2]
LARGEST = 1 << 20
"""Bytes of a request, which has the whole environment."""
LOOK_SECONDS = 0.01


def _is_for_python(name: str) -> bool:
    return name.startswith(("PYTHON", "LC_", "LANG")) and name != "PYTHONUNBUFFERED"


class Forked(subprocess.Popen[bytes]):
    """A fork of the preloaded process. It is not a child of this process, so its exit code comes from the preloaded one."""

    def __init__(self, preloaded: Preloaded, args: Sequence[str], pid: int) -> None:  # Popen's own would start a process
        self._child_created = False
        self._preloaded = preloaded
        self.args = list(args)
        self.pid = pid
        self.stdin = self.stdout = self.stderr = None
        self.returncode: Any = None

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self._preloaded.exit_code(self.pid)
        return self.returncode  # type: ignore[no-any-return]

    def wait(self, timeout: float | None = None) -> int:
        until = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if until is not None and time.monotonic() > until:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            time.sleep(LOOK_SECONDS)
        return code

    def send_signal(self, sig: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, sig)


class Preloaded:
    """The process that forks, started when it is needed. It ends with this process, or when it is closed; its forks go on."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._lock = threading.Lock()
        self._codes: dict[int, int] = {}
        self._environment = {name: value for name, value in os.environ.items() if _is_for_python(name)}
        self._process: subprocess.Popen[bytes] | None = None
        self._socket, self._its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, LARGEST)

    def close(self) -> None:
        self._socket.close()
        self._its.close()
        if self._process:
            self._process.wait()

    def _opened(self) -> socket.socket:
        """The socket to the process that forks, which is started for the first command."""
        if self._process is None:
            command = [sys.executable, "-m", "tests.support.preloaded", str(self._its.fileno())]
            with self._log.open("wb") as out:
                self._process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, pass_fds=[self._its.fileno()], cwd=ROOT
                )
            self._its.close()
        return self._socket

    def can_start(self, command: Sequence[str], environment: Mapping[str, str]) -> bool:
        """Whether a fork would be as a new process: it cannot have other settings of Python itself."""
        own = {name: value for name, value in environment.items() if _is_for_python(name)}
        return list(command[:3]) == [sys.executable, "-m", "sluice"] and own == self._environment

    def start(self, command: Sequence[str], out: int, err: int, cwd: Path, environment: Mapping[str, str], new_session: bool) -> Forked:
        """Start `python -m sluice …` with nothing as its input."""
        request = {"words": list(command[3:]), "cwd": str(cwd), "environment": dict(environment), "newSession": new_session}
        with self._lock:
            socket.send_fds(self._opened(), [json.dumps(request).encode()], [out, err])
            while True:
                answer = json.loads(self._received())
                if "started" in answer:
                    self._codes.pop(answer["started"], None)  # of an earlier fork, if the system uses its number again
                    return Forked(self, command, answer["started"])
                self._codes[answer["ended"]] = answer["code"]

    def exit_code(self, pid: int) -> int | None:
        """The exit code of a fork, negative if a signal has ended it, or None if it has not ended."""
        with self._lock:
            while pid not in self._codes and select.select([self._socket], [], [], 0)[0]:
                answer = json.loads(self._received())
                self._codes[answer["ended"]] = answer["code"]
            return self._codes.get(pid)

    def _received(self) -> bytes:
        found = self._socket.recv(LARGEST)
        if not found:
            raise ChildProcessError("the process that forks has ended")
        return found


def _forks(control: socket.socket) -> dict[str, Any] | None:
    """Fork for each request. Returns None when the other side has ended, and, in a fork, its request."""
    wakes, wake = os.pipe()
    os.set_blocking(wakes, False)
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C at the terminal of the tests is for the tests
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    watched: list[int] = [control.fileno(), wakes]
    while True:
        ready, _, _ = select.select(watched, [], [])
        if wakes in ready:
            with suppress(BlockingIOError):
                os.read(wakes, LARGEST)
            with suppress(ChildProcessError):
                while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                    control.send(json.dumps({"ended": ended[0], "code": os.waitstatus_to_exitcode(ended[1])}).encode())
        if control.fileno() in ready:
            text, fds, _, _ = socket.recv_fds(control, LARGEST, 2)
            if not text:
                return None
            pid = os.fork()
            if not pid:
                signal.set_wakeup_fd(-1)
                for each in (wakes, wake):
                    os.close(each)
                control.close()
                return {**json.loads(text), "outputs": fds}
            for each in fds:
                os.close(each)
            control.send(json.dumps({"started": pid}).encode())


def _become(request: Mapping[str, Any]) -> None:
    """Make this fork what `python -m sluice` is when it begins."""
    if request["newSession"]:
        os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, fd in enumerate(request["outputs"], 1):
        os.dup2(fd, number)
        os.close(fd)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    if os.environ.get("PYTHONUNBUFFERED") and isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(write_through=True, line_buffering=True)
    sys.argv = [str(ROOT / "sluice" / "__main__.py"), *request["words"]]
    sys.path[0] = request["cwd"]


def main() -> None:
    for each in COMMANDS:
        import_module(each)
    gc.collect()
    gc.freeze()
    if len(list(Path("/proc/self/task").iterdir())) != 1:
        raise RuntimeError("an import has started a thread, which forks would not have")
    with socket.socket(fileno=int(sys.argv[1])) as control:
        request = _forks(control)
    if request is not None:
        _become(request)
        from sluice.__main__ import main as sluice

        sluice()


if __name__ == "__main__":
    main()
