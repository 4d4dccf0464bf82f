"""Who gets into the monitor of a job, and how rank 0 is found."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from file_mailbox import communicator

from hpcai500.comm import monitor_addresses
from hpcai500.comm.monitor import Monitor
from hpcai500.comm.monitor_addresses import Offer, candidates, own_addresses
from hpcai500.comm.monitor_joining import Gate, join
from hpcai500.comm.monitor_protocol import Connection, NotAMonitorError, proof, shortened
from hpcai500.errors import EnvironmentLacksError


@pytest.fixture
def gate() -> Iterator[Gate]:
    opened = Gate("here", 3)
    yield opened
    for connection in opened.close().values():
        connection.close()


def knock(gate: Gate) -> socket.socket:
    return socket.create_connection(("127.0.0.1", gate.offer.port), timeout=10)


def line(stream: socket.socket) -> dict[str, str]:
    found: dict[str, str] = json.loads(stream.makefile().readline())
    return found


def is_hung_up(stream: socket.socket) -> bool:
    try:
        while stream.recv(4096):
            pass
    except ConnectionResetError:
        pass
    return True


def test_a_rank_that_knows_the_secret_joins(gate: Gate) -> None:
    connection = join(gate.offer, 2, "here")
    assert list(gate.close()) == [2]
    connection.send("beat", progress=1)
    time.sleep(0.05)
    assert gate.close()[2].receive() == [{"kind": "beat", "progress": 1}]
    connection.close()


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\nHost: here\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(256)) + b"\n",
        b"[" * 100_000 + b"\n",
        b"x" * 70_000,
        b'{"kind": "hello"}\n',
        b'{"kind": "hello", "rank": 1, "number": "1", "proof": "11"}\n',
        b'{"kind": "hello", "rank": true, "number": "1", "proof": "\xc3\xa9"}\n',
        b'{"kind": "hello", "rank": 3, "number": "1", "proof": ""}\n',
        b"null\n",
        b"\n",
    ],
)
def test_whatever_else_connects_is_hung_up_on(gate: Gate, garbage: bytes) -> None:
    with knock(gate) as stranger:
        stranger.sendall(garbage)
        assert is_hung_up(stranger)
    assert gate.close() == {}


def test_a_proof_that_was_overheard_does_not_open_a_second_time(gate: Gate) -> None:
    with knock(gate) as first, knock(gate) as second:
        overheard = proof(gate.offer.token, line(first)["number"], 1)
        assert line(second)["number"]
        second.sendall(json.dumps({"kind": "hello", "rank": 1, "number": "1", "proof": overheard}).encode() + b"\n")
        assert is_hung_up(second)


def test_silent_strangers_keep_nobody_out(gate: Gate) -> None:
    with knock(gate), knock(gate):
        connection = join(gate.offer, 1, "here")
        assert list(gate.close()) == [1]
        connection.close()


def test_a_rank_that_knocks_again_is_taken_by_its_last_word(gate: Gate) -> None:
    first, second = join(gate.offer, 1, "here"), join(gate.offer, 1, "here")
    connection = gate.close()[1]
    second.send("beat")
    time.sleep(0.05)
    assert connection.receive() == [{"kind": "beat"}]
    first.close()
    second.close()


def test_the_gate_of_another_job_is_passed_by(gate: Gate) -> None:
    other = Gate("here", 3)
    try:
        with pytest.raises(OSError, match=r"hung up.*port \d+"):
            join(replace(gate.offer, port=other.offer.port), 1, "here")
    finally:
        other.close()


def test_whoever_answers_must_prove_that_it_is_rank_0(gate: Gate) -> None:
    """A server that took the port of rank 0 and repeats what a gate says."""
    server = socket.create_server(("127.0.0.1", 0))

    def pretend() -> None:
        for _ in range(2):
            stream, _ = server.accept()
            with stream:
                stream.sendall(b'{"kind": "challenge", "number": "1"}\n')
                stream.recv(4096)
                stream.sendall(b'{"kind": "welcome", "proof": "1"}\n')

    threading.Thread(target=pretend, daemon=True).start()
    with server, pytest.raises(OSError, match="another job answers"):
        join(Offer("here", ("127.0.0.1",), server.getsockname()[1], gate.offer.token), 1, "here")


def test_all_ranks_are_told_when_one_cannot_reach_rank_0(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # 192.0.2.0/24 is nobody's (RFC 5737): it is unreachable at once or after a while, and the port is closed here.
    monkeypatch.setattr("hpcai500.comm.monitor_joining.own_addresses", lambda: ("192.0.2.1",))
    monkeypatch.setattr("hpcai500.comm.monitor_joining._TRY_SECONDS", (0.2,))
    heard: list[str] = []

    def start(rank: int) -> None:
        with pytest.raises(EnvironmentLacksError) as caught:
            Monitor(communicator(tmp_path, rank, ("n1", "n2")), 2.0)
        heard.append(str(caught.value))

    threads = [threading.Thread(target=start, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert heard[0] == heard[1]
    assert "rank 1 on host n2 cannot reach rank 0 on host n1 at 192.0.2.1 (" in heard[0]
    assert "GLOO_SOCKET_IFNAME" in heard[0]


def test_the_named_interface_comes_first_and_loopback_last(monkeypatch: pytest.MonkeyPatch) -> None:
    by_name = {"lo": "127.0.0.1", "eth0": "10.0.0.1", "ib0": "10.1.0.1"}
    monkeypatch.setattr(monitor_addresses, "interface_addresses", lambda: by_name)
    monkeypatch.setattr(monitor_addresses, "_resolved", lambda name: {"": []}.get(name, ["127.0.1.1", "10.0.0.1"]))
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    assert own_addresses() == ("10.0.0.1", "10.1.0.1", "127.0.1.1", "127.0.0.1")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "ib0")
    assert own_addresses()[0] == "10.1.0.1"


def test_this_machine_has_an_address() -> None:
    assert "127.0.0.1" in own_addresses()
    assert len(own_addresses()) == len(set(own_addresses()))


def test_a_loopback_address_is_tried_on_its_own_host_only() -> None:
    offer = Offer("n1", ("10.0.0.1", "127.0.1.1", "::1"), 1, "")
    assert candidates(offer, "n1") == ["10.0.0.1", "127.0.1.1", "::1"]
    assert candidates(offer, "n2") == ["10.0.0.1"]


def test_messages_arrive_whole_however_the_network_cuts_them() -> None:
    left, right = socket.socketpair()
    receiver = Connection(right)
    content = b'{"kind": "beat", "progress": 1}\n{"kind": "goodbye"}\n'
    found = []
    for index in range(len(content)):
        left.send(content[index : index + 1])
        found += receiver.receive()
    assert [message["kind"] for message in found] == ["beat", "goodbye"]
    left.close()
    assert receiver.receive() == []
    assert not receiver.open
    receiver.close()


def test_a_sender_whose_network_is_full_never_blocks_and_loses_nothing() -> None:
    left, right = socket.socketpair()
    sender, receiver = Connection(left), Connection(right)
    reason = "x" * 4000
    for _ in range(300):
        sender.send("failed", reason=reason)
    assert not sender.flush()
    count = 0
    while count < 300:
        count += len(receiver.receive())
        sender.flush()
    assert sender.flush()
    sender.close()
    receiver.close()


def test_a_reason_of_any_length_fits_into_a_message() -> None:
    left, right = socket.socketpair()
    sender, receiver = Connection(left), Connection(right)
    sender.send("failed", reason=shortened("\u20ac\n" * 100_000))
    (message,) = receiver.receive()
    assert message["reason"].startswith("\u20ac \u20ac")
    sender.close()
    receiver.close()


def test_a_line_that_is_no_message_is_told_from_one(tmp_path: Path) -> None:
    for text in (b"1\n", b'{"kind": 1}\n', b"{\n", os.urandom(64) + b"\n"):
        left, right = socket.socketpair()
        left.send(text)
        connection = Connection(right)
        with pytest.raises(NotAMonitorError):
            connection.receive()
        left.close()
        connection.close()
