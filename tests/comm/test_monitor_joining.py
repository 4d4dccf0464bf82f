"""Who gets into the monitor of a job, how rank 0 is found, and what ranks say to each other."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import selectors
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from builders.strange_bytes import say_in_pieces, strange_bytes
from file_mailbox import communicator
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcai500.comm import liveness
from hpcai500.comm.liveness import (
    COMPUTING,
    LONGEST_LINE,
    MONITOR_MESSAGES,
    Beat,
    Beating,
    Failed,
    Gate,
    Lost,
    Monitor,
    MonitorMessage,
    Offer,
    Peer,
    Watch,
    candidates,
    join,
    own_addresses,
    proof,
    shortened,
)
from hpcai500.errors import EnvironmentLacksError, RunError
from hpcai500.messages import Connection, MessageError, Reception


@pytest.fixture(scope="module")
def lasting() -> Iterator[Gate]:
    """A gate that strangers may say anything to, one after the other."""
    with opened() as found:
        yield found


@pytest.fixture
def gate() -> Iterator[Gate]:
    with opened() as found:
        yield found


@contextlib.contextmanager
def opened() -> Iterator[Gate]:
    found = Gate("here", 3)
    yield found
    for connection in found.close().values():
        connection.close()


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, Peer]]:
    """The ends of a connection between ranks that have joined: a socket, and what reads it."""
    theirs, ours = socket.socketpair()
    receiver = peer(ours)
    yield theirs, receiver
    theirs.close()
    receiver.close()


def peer(stream: socket.socket) -> Peer:
    return Connection(stream, MONITOR_MESSAGES, LONGEST_LINE)


def knock(gate: Gate) -> socket.socket:
    return socket.create_connection(("127.0.0.1", gate.offer.port), timeout=60)


def line(stream: socket.socket) -> dict[str, str]:
    found: dict[str, str] = json.loads(stream.makefile().readline())
    return found


def is_hung_up(stream: socket.socket) -> bool:
    with contextlib.suppress(ConnectionResetError):
        while stream.recv(4096):
            pass
    return True


def heard(connection: Peer) -> list[MonitorMessage]:
    """The next messages, once there are some."""
    with selectors.DefaultSelector() as selector:
        selector.register(connection, selectors.EVENT_READ)
        assert selector.select(60), "nothing was said"
    return connection.receive()


# ----------------------------------------------------------------------------------------------------
# Who gets in.


def test_a_rank_that_knows_the_secret_joins_and_one_that_knocks_again_is_taken_by_its_last_word(gate: Gate) -> None:
    first, second = join(gate.offer, 2, "here"), join(gate.offer, 2, "here")
    assert list(gate.close()) == [2]
    beat = Beating(progress=1, phase=COMPUTING, allowance=0.0)
    second.send(beat)
    assert heard(gate.close()[2]) == [beat]
    first.close()
    second.close()


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\nHost: here\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(256)) + b"\n",
        b"[" * 100_000 + b"\n",
        b"x" * 70_000,
        b'{"kind": "hello"}\n',
        b'{"kind": "hello", "rank": 1, "number": "1", "proof": "11"}\n',
        b'{"kind": "hello", "rank": 1, "number": "1", "proof": "\\ud800"}\n',
        b'{"kind": "hello", "rank": 1, "number": "\\ud800", "proof": ""}\n',
        b'{"kind": "hello", "rank": 1' + b"0" * 900 + b', "number": "1", "proof": "11"}\n',
        b'{"kind": "hello", "rank": true, "number": "1", "proof": "\xc3\xa9"}\n',
        b'{"kind": "hello", "rank": 3, "number": "1", "proof": ""}\n',
        b"null\n",
        b"\n",
    ],
    ids=lambda garbage: garbage[:60].decode("latin-1").strip(),
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


def test_the_gate_of_another_job_is_passed_by(gate: Gate) -> None:
    with opened() as other, pytest.raises(OSError, match=r"connection closed.*port \d+"):
        join(replace(gate.offer, port=other.offer.port), 1, "here")


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
    with server, pytest.raises(OSError, match="the monitor of another job"):
        join(Offer("here", ("127.0.0.1",), server.getsockname()[1], gate.offer.token), 1, "here")


@pytest.mark.parametrize("count", [2, 40])
def test_silent_strangers_keep_nobody_out(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Of more than may wait, those that were silent for longest go, also where they say something in that moment."""
    monkeypatch.setattr("hpcai500.messages._MOST_UNKNOWN", 25)
    strangers = []
    with opened() as gate, contextlib.ExitStack() as stack:
        for _ in range(count):
            strangers.append(stack.enter_context(knock(gate)))
            for old in strangers[-30:] if count > 2 else ():
                with contextlib.suppress(OSError):
                    old.send(b"{")
        connection = join(gate.offer, 1, "here")
        assert list(gate.close()) == [1]
        connection.close()


def drip(stream: socket.socket) -> None:
    for _ in range(500):
        stream.send(b" ")
        time.sleep(0.1)


def test_a_stranger_has_one_deadline_however_slowly_it_speaks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hpcai500.messages._HELLO_SECONDS", 0.5)
    with opened() as gate, knock(gate) as stranger:
        assert line(stranger)["number"]
        with pytest.raises(OSError, match=r"reset|Broken pipe"):
            drip(stranger)


def test_a_gate_whose_thread_ends_says_so_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def serve(self: Reception[Any], seconds: float) -> None:
        raise ValueError("what nobody thought of")

    monkeypatch.setattr(Reception, "serve", serve)
    with pytest.raises(RunError, match=r"thread monitor-gate .* with ValueError: what nobody thought of \(test_mon"):
        Gate("here", 3).close()


KINDS = ("challenge", "hello", "welcome", "beat", "alive", "failed", "lost", "goodbye")
FIELDS = ("rank", "number", "proof", "progress", "phase", "allowance", "reason", "host", "seconds")
CUTS = st.lists(st.integers(0, 3000), max_size=4)


@settings(max_examples=100)
@given(said=strange_bytes(*FIELDS, kinds=KINDS), cuts=CUTS)
def test_whatever_a_stranger_says_the_next_rank_joins(lasting: Gate, said: bytes, cuts: list[int]) -> None:
    with knock(lasting) as stranger:
        say_in_pieces(stranger, said, cuts)
        join(lasting.offer, 1, "here").close()


@settings(max_examples=100)
@given(said=strange_bytes(*FIELDS, kinds=KINDS), cuts=CUTS)
def test_whatever_a_joined_rank_says_the_others_are_watched(said: bytes, cuts: list[int]) -> None:
    """Whoever does not make itself understood is lost; else the next that fails is."""
    pairs = [socket.socketpair() for _ in range(2)]
    found: queue.SimpleQueue[Lost] = queue.SimpleQueue()
    state = Beat(1, COMPUTING, 0.0)
    peers = {rank: peer(mine) for rank, (mine, _) in enumerate(pairs, 1)}
    watch = Watch(0, ["n0", "n1", "n2"], 100.0, peers, lambda: state, found.put)
    say_in_pieces(pairs[1][1], said, cuts)
    peer(pairs[0][1]).send(Failed(reason="a disk is gone"))
    lost = found.get(timeout=60)
    assert "hpcai500, which watches" not in lost.message
    assert (lost.rank, lost.reason) == (1, "a disk is gone") or lost.rank == 2 or b'"lost"' in said
    for _, theirs in pairs:
        theirs.close()
    watch.close()


# ----------------------------------------------------------------------------------------------------
# How rank 0 is found.


def test_all_ranks_are_told_when_one_cannot_reach_rank_0(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # 192.0.2.0/24 is nobody's (RFC 5737): it is unreachable at once or after a while, and the port is closed here.
    monkeypatch.setattr("hpcai500.comm.liveness.own_addresses", lambda: ("192.0.2.1",))
    monkeypatch.setattr("hpcai500.comm.liveness._TRY_SECONDS", (0.2,))
    said: list[str] = []

    def begin(rank: int) -> None:
        with pytest.raises(EnvironmentLacksError) as caught:
            Monitor(communicator(tmp_path, rank, ("n1", "n2")), 2.0)
        said.append(str(caught.value))

    threads = [threading.Thread(target=begin, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert said[0] == said[1]
    assert "rank 1 on host n2 cannot reach rank 0 on host n1 at 192.0.2.1 (" in said[0]
    assert "GLOO_SOCKET_IFNAME" in said[0]


def test_the_named_interface_comes_first_and_loopback_last(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "127.0.0.1" in own_addresses()
    assert len(own_addresses()) == len(set(own_addresses()))
    by_name = {"lo": ("127.0.0.1", "::1"), "eth0": ("10.0.0.1",), "ib0": ("10.1.0.1", "fd00:78::1")}
    monkeypatch.setattr(liveness, "interface_addresses", lambda: by_name)
    monkeypatch.setattr(liveness, "_resolved", lambda name: {"": []}.get(name, ["127.0.1.1", "10.0.0.1"]))
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    assert own_addresses() == ("10.0.0.1", "10.1.0.1", "fd00:78::1", "127.0.1.1", "127.0.0.1", "::1")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "ib0")
    assert own_addresses()[0] == "10.1.0.1"


def test_a_loopback_address_is_tried_on_its_own_host_only() -> None:
    offer = Offer("n1", ("10.0.0.1", "127.0.1.1", "::1"), 1, "")
    assert candidates(offer, "n1") == ["10.0.0.1", "127.0.1.1", "::1"]
    assert candidates(offer, "n2") == ["10.0.0.1"]


# ----------------------------------------------------------------------------------------------------
# What ranks say to each other.


def test_messages_arrive_whole_however_the_network_cuts_them(pair: tuple[socket.socket, Peer]) -> None:
    stream, receiver = pair
    content = b'{"kind": "beat", "progress": 1, "phase": "", "allowance": 0}\n{"kind": "goodbye"}\n'
    found = []
    for index in range(len(content)):
        stream.send(content[index : index + 1])
        found += receiver.receive()
    assert [message.kind for message in found] == ["beat", "goodbye"]
    stream.close()
    assert receiver.receive() == []
    assert not receiver.open


def test_a_sender_whose_network_is_full_never_blocks_and_loses_nothing(pair: tuple[socket.socket, Peer]) -> None:
    sender, receiver = peer(pair[0]), pair[1]
    for _ in range(600):
        sender.send(Failed(reason="x" * 2000))
    assert not sender.flush()
    count = 0
    while count < 600:
        count += len(receiver.receive())
        sender.flush()
    assert sender.flush()


@pytest.mark.parametrize("text", ["\u20ac\n" * 100_000, "\u20ac" * 100_000, "\x07" * 100_000, "\U0001f642" * 100_000])
def test_a_reason_of_any_length_fits_into_a_message(pair: tuple[socket.socket, Peer], text: str) -> None:
    peer(pair[0]).send(Failed(reason=shortened(text)))
    (message,) = pair[1].receive()
    assert isinstance(message, Failed)
    assert message.reason.startswith(" ".join(text[:10].split()))


def test_a_reason_with_the_name_of_a_file_that_is_no_text_arrives(pair: tuple[socket.socket, Peer]) -> None:
    peer(pair[0]).send(Failed(reason=shortened(os.fsdecode(b"caf\xe9: no such file"))))
    assert pair[1].receive() == [Failed(reason="caf\\udce9: no such file")]


@pytest.mark.parametrize(
    "text",
    [
        b"1\n",
        b'{"kind": 1}\n',
        b"{\n",
        bytes(range(0x80, 0xC0)) + b"\n",
        b'{"kind": "beat", "progress": 1, "phase": "", "allowance": 1e999}\n',
        b'{"kind": "beat", "progress": 1, "phase": "", "allowance": NaN}\n',
        b'{"kind": "beat", "progress": 1.0, "phase": "", "allowance": 0}\n',
        b'{"kind": "beat", "progress": 1' + b"0" * 5000 + b', "phase": "", "allowance": 0}\n',
        b'{"kind": "lost", "rank": -1, "host": "", "reason": "", "seconds": 0}\n',
    ],
    ids=lambda text: text[:70].decode("latin-1").strip(),
)
def test_a_line_that_is_no_message_is_told_from_one(pair: tuple[socket.socket, Peer], text: bytes) -> None:
    pair[0].send(text)
    with pytest.raises(MessageError):
        pair[1].receive()
