"""A Python process that Spark has started: `python -I -S fork_client.py SOCKET PYTHON ARG… -m MODULE ARG…`.

It asks the fork server at the socket to run the module, and stays as long as that process: it forwards signals, and ends as the process
does. If the server does not accept the connection, or refuses, it becomes PYTHON with these arguments.

It starts in 10 ms, because it imports neither `site` nor a module written in Python except `os`. So it uses the C modules `_socket` and
`_signal`.
"""

import _signal  # type: ignore[import-not-found]
import _socket
import array
import os
import resource
import select
import sys

ACCEPTED_SECONDS = 2.0
"""How long to wait until the server accepts the connection. While it imports modules, it does so after each of them. Spark waits 10 s until
a process connects."""

FORWARDED = (_signal.SIGTERM, _signal.SIGHUP, _signal.SIGINT)


def request(words: list[str]) -> bytes:
    """What the server needs, except the file descriptors: see `containers.spark.start.fork_server.parsed`."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    ignores_interrupts = _signal.getsignal(_signal.SIGINT) == _signal.SIG_IGN
    try:
        directory = os.getcwd()  # noqa: PTH109 - pathlib takes 15 ms
    except OSError:  # it was deleted
        directory = ""
    head = [str(soft), str(int(ignores_interrupts)), str(len(words)), directory]
    environment = [name + b"=" + value for name, value in os.environb.items()]
    body = b"\0".join([*map(os.fsencode, [*head, *words]), *environment])
    return len(body).to_bytes(4, "big") + body


def line(connection: _socket.socket) -> list[bytes]:
    """The words of a line of the server. Empty at the end of the connection."""
    found = b""
    while not found.endswith(b"\n"):
        data = connection.recv(1)
        if not data:
            return []
        found += data
    return found.split()


def accepted(address: str, seconds: float) -> _socket.socket | None:
    """A connection to the server. None if it has ended, or does not accept the connection within this time."""
    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    connection.settimeout(seconds)
    try:
        connection.connect(address)
        greeted = line(connection) == [b"accepted"]
    except OSError:
        greeted = False
    if not greeted:
        connection.close()
        return None
    connection.settimeout(None)
    return connection


def started(connection: _socket.socket, words: list[str]) -> int | None:
    """The id of the process. None if the server did not get the whole request, or refused it. If its answer is lost this process must fail,
    because another one may already be connected to the JVM in its place."""
    data = request(words)
    descriptors = array.array("i", [0, 1, 2])
    try:
        sent = connection.sendmsg([data], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, descriptors.tobytes())])
        while sent < len(data):
            sent += connection.send(data[sent:])
    except OSError:
        return None
    answer = line(connection)
    if not answer:
        sys.exit("the fork server ended while it started a process")
    return int(answer[1]) if answer[0] == b"started" else None


def handle(process: int) -> int | None:
    """A file descriptor that is readable when the process has ended. None where the system has none."""
    try:
        return os.pidfd_open(process)
    except (AttributeError, OSError):
        return None


def wait(connection: _socket.socket, signals: int, process: int, descriptor: int | None) -> list[bytes]:
    """Forward signals until the server says how the process has ended. Empty if the server has ended: Spark takes the end of this process
    for the end of that one, so this one waits for it. Without a descriptor it kills that one, and Spark starts another."""
    awaited = [signals, connection.fileno()]
    while True:
        ready, _, _ = select.select(awaited, [], [])
        if signals in ready:
            for number in os.read(signals, 64):
                signal_to(process, number)
        if connection.fileno() in ready:
            ended = line(connection)
            if ended:
                return ended
            if descriptor is None:
                signal_to(process, _signal.SIGKILL)
                return []
            awaited = [signals, descriptor]
        if descriptor in ready:
            return []


def signal_to(process: int, number: int) -> None:
    try:  # noqa: SIM105 - contextlib takes too long
        os.kill(process, number)
    except ProcessLookupError:
        pass  # it has ended, and the server is about to say how


def ignored(_number: int, _frame: object) -> None:
    """The signal is in the pipe."""


def main(address: str, command: list[str]) -> None:
    connection = accepted(address, ACCEPTED_SECONDS)
    process = None if connection is None else started(connection, command[command.index("-m") + 1 :])
    if connection is None or process is None:
        os.execv(command[0], command)  # noqa: S606 - as Spark would have started it

    signals, written = os.pipe()
    os.set_blocking(written, False)
    _signal.set_wakeup_fd(written)  # a handler in Python would not run for a signal that arrives just before a system call that blocks
    for each in FORWARDED:
        if _signal.getsignal(each) != _signal.SIG_IGN:
            _signal.signal(each, ignored)
    ended = wait(connection, signals, process, handle(process))
    code = int(ended[1]) if ended else 1
    if code < 0:
        if -code in FORWARDED:
            _signal.signal(-code, _signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
