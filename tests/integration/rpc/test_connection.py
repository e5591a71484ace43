"""The connection of two processes: versions, and messages that cannot be read."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator

import pytest

from containers.rpc.connection import Connection, ConnectionLost, OtherVersion, Signature
from containers.rpc.socket_link import SocketLink

METHODS = {"double": Signature.of((int,), int), "size": Signature.of((str,), int)}


def double(number: int) -> int:
    return 2 * number


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def caller(ours: socket.socket, version: str = "1.0") -> Connection:
    made = Connection(SocketLink(ours), METHODS, {}, {}, own_version=version)
    made.start()
    return made


def server(theirs: socket.socket, version: str = "1.0") -> Connection:
    made = Connection(SocketLink(theirs), {}, METHODS, {"double": double, "size": len}, own_version=version)
    made.start()
    return made


def test_processes_of_different_versions_refuse_each_other_and_name_both(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = caller(pair[0], "1.0"), server(pair[1], "1.1")
    with pytest.raises(OtherVersion, match=r"this process is of version 1\.0, and the other one of 1\.1"):
        ours.call("double", 4)
    ours.close()
    theirs.close()


def test_a_value_of_many_megabytes_is_sent_whole(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = caller(pair[0]), server(pair[1])
    assert ours.call("size", "é" * 20_000_000) == 20_000_000
    ours.close()
    theirs.close()


def test_many_threads_get_their_own_answers(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = caller(pair[0]), server(pair[1])
    answers: dict[int, int] = {}

    def ask(number: int) -> None:
        for each in range(number, number + 50):
            answers[each] = ours.call("double", each)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(0, 1000, 50)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert answers == {number: 2 * number for number in range(1000)}
    ours.close()
    theirs.close()


def test_a_value_of_another_type_is_an_error_of_that_call_only(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = caller(pair[0]), server(pair[1])
    with pytest.raises(Exception, match=r"TypeError: 'four' is not of type int"):
        ours.call("double", "four")
    assert ours.call("double", 4) == 8
    ours.close()
    theirs.close()


@pytest.mark.parametrize(
    "line", [b"not JSON\n", b"[]\n", b'{"call": "double"}\n', b'{"version": "1.0"'], ids=["text", "list", "half", "end"]
)
def test_what_cannot_be_read_ends_the_connection(pair: tuple[socket.socket, socket.socket], line: bytes) -> None:
    lost = threading.Event()
    theirs = Connection(SocketLink(pair[1]), {}, METHODS, {"double": double, "size": len}, lost.set, own_version="1.0")
    theirs.start()
    pair[0].sendall(json.dumps({"version": "1.0"}).encode() + b"\n" + line)
    pair[0].shutdown(socket.SHUT_WR)
    assert lost.wait(600)
    theirs.close()


@pytest.mark.parametrize("first", [b"", b"[]\n", b"{}\n", b"GET / HTTP/1.1\n"], ids=["nothing", "list", "nameless", "HTTP"])
def test_without_a_version_nothing_is_served(pair: tuple[socket.socket, socket.socket], first: bytes) -> None:
    lost = threading.Event()
    theirs = Connection(SocketLink(pair[1]), {}, METHODS, {"double": double, "size": len}, lost.set, own_version="1.0")
    theirs.start()
    pair[0].sendall(first + b'{"call": "double", "id": 1, "with": [4]}\n')
    pair[0].shutdown(socket.SHUT_WR)
    assert lost.wait(600)
    theirs.close()
    assert b"result" not in pair[0].recv(4096)


def test_a_call_after_the_end_is_refused(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = caller(pair[0]), server(pair[1])
    ours.close()
    with pytest.raises(ConnectionLost):
        ours.call("double", 4)
    theirs.close()
