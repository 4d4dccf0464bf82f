"""Copies of one command under real launchers, and what goes wrong between them."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from builders.ranks import free_port, start
from builders.strange_bytes import say_in_pieces, strange_bytes
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hpcai500 import __version__, progress
from hpcai500.errors import RunError, UsageError
from hpcai500.hosts import Placement
from hpcai500.launch import rendezvous
from hpcai500.launch.rendezvous import Job, RendezvousServer, follow, listen_at, meeting_point, receive
from hpcai500.restarts import RankEnd

COPY = Path(__file__).with_name("rendezvous_of_copies.py")


@pytest.mark.parametrize("launcher", ["mpirun", "torchrun"])
def test_every_job_has_all_ranks_and_a_port_of_its_own(launcher: str, tmp_path: Path) -> None:
    ended = start([sys.executable, COPY, tmp_path, "2", "0"], 3, launcher, environment={"PYTHONPATH": str(Path.cwd())})
    assert ended.exit_codes == [0], ended.output
    assert ended.output.count("result [0, 0]") == 1
    jobs = [[json.loads((tmp_path / f"{job}-{rank}").read_text()) for rank in range(3)] for job in (1, 2)]
    for job in jobs:
        assert [(it["rank"], it["size"], it["launcher"]) for it in job] == [(rank, 3, launcher) for rank in range(3)]
        assert job[0]["met"] == [1, 2]
        assert len({it["rendezvous"] for it in job}) == 1
    assert jobs[0][0]["rendezvous"] != jobs[1][0]["rendezvous"]
    here = len(os.sched_getaffinity(0))
    # torchrun binds no rank, so we do; mpirun was told not to, by whoever started it.
    assert {len(it["cores"]) for it in jobs[0]} == {max(1, here // 3) if launcher == "torchrun" else here}


def test_all_copies_end_with_the_exit_code_of_rank_0(tmp_path: Path) -> None:
    # Rank 1 of job 3 fails: its copy waits for what rank 0 makes of that.
    ended = start([sys.executable, COPY, tmp_path, "3", "5"], 2, "processes")
    assert ended.exit_codes == [5, 5], ended.output
    assert "result [0, 0, 0]" in ended.output


def test_copies_are_told_of_an_end_before_the_first_job(tmp_path: Path) -> None:
    assert start([sys.executable, COPY, tmp_path, "0", "64"], 3, "processes").exit_codes == [64, 64, 64]


@pytest.fixture
def placement() -> Placement:
    return Placement(0, 3, 0, 3, "mpirun", f"127.0.0.1:{free_port()}", None)


@pytest.fixture
def server(placement: Placement) -> Iterator[RendezvousServer]:
    server = RendezvousServer(placement, patience_seconds=0.5, farewell_seconds=0.1)
    server.open()
    yield server
    server.end(0)


def come(placement: Placement, hello: bytes) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", int(str(placement.rendezvous).split(":")[1])), 20)
    connection.sendall(hello)
    return connection


def hello(rank: int, size: int = 3, version: str = __version__) -> bytes:
    return json.dumps({"hpcai500": version, "rank": rank, "size": size}).encode() + b"\n"


def test_strange_visitors_are_sent_away(
    server: RendezvousServer, placement: Placement, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rendezvous, "run_rank", lambda *_: RankEnd("n1", 7))
    strange = [
        b"GET / HTTP/1.1\r\n\r\n",
        b"[" * 60_000 + b"\n",
        b"x" * 2000,
        b"[]\n",
        hello(0),
        hello(3),
        hello(1, size=4),
        b'{"rank": true}\n',
        b"\xff\n",
    ]
    visitors = [come(placement, words) for words in strange]
    first = come(placement, hello(1))
    twin = come(placement, hello(1))
    second = come(placement, hello(2))
    name = Path(os.fsdecode(b"caf\xe9"))
    assert server.run("train", ["--out", name]) == 7
    told = [receive(connection.makefile("rb")) for connection in (first, second)]
    assert told[0] == told[1]
    assert isinstance(told[0], Job)
    assert told[0].command == ["train", "--out", str(name)]
    assert [connection.recv(1) for connection in (*visitors, twin)] == [b""] * (len(strange) + 1)
    for connection in (*visitors, twin, first, second):
        connection.close()


def test_strangers_who_say_nothing_or_little_delay_no_rank(
    placement: Placement, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them may take ten seconds, all at the same time."""
    monkeypatch.setattr(rendezvous, "run_rank", lambda *_: RankEnd("n1", 7))
    server = RendezvousServer(placement, patience_seconds=100.0)
    server.open()
    words = hello(1)
    strangers = [come(placement, words[: number % 20]) for number in range(30)]
    ended = threading.Event()

    def drip() -> None:
        for byte in words[20:-1]:
            for stranger in strangers:
                with contextlib.suppress(OSError):
                    stranger.send(bytes([byte]))
            if ended.wait(1):
                break

    thread = threading.Thread(target=drip)
    thread.start()
    with come(placement, hello(1)), come(placement, hello(2)):
        assert server.run("train", []) == 7
        ended.set()
        thread.join()
    server.end(0)
    for stranger in strangers:
        stranger.close()


@pytest.fixture(scope="module")
def lasting() -> Iterator[tuple[RendezvousServer, Placement]]:
    """A server that keeps being called on, of a job of 1000 ranks."""
    placement = Placement(0, 1000, 0, 1000, "mpirun", f"127.0.0.1:{free_port()}", None)
    server = RendezvousServer(placement, patience_seconds=0.0, farewell_seconds=0.0)
    server.open()
    yield server, placement
    server.end(0)


_RANKS = itertools.count(1)


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(said=strange_bytes("hpcai500", "rank", "size"), cuts=st.lists(st.integers(0, 3000), max_size=4))
def test_whatever_a_stranger_says_the_next_rank_is_taken(
    lasting: tuple[RendezvousServer, Placement], said: bytes, cuts: list[int]
) -> None:
    server, placement = lasting
    stranger = come(placement, b"")
    say_in_pieces(stranger, said, cuts)
    rank = next(_RANKS)
    with come(placement, hello(rank, size=1000)):
        limit = time.monotonic() + 60
        while rank in server._gather(0.01):
            assert time.monotonic() < limit
    stranger.close()


def test_missing_ranks_are_named_during_the_wait_and_after_it(
    server: RendezvousServer, placement: Placement, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "QUIET_SECONDS", 0.0)
    with (
        come(placement, hello(1)),
        pytest.raises(RunError, match=r"rank 2 of 3 did not connect within .* to 127.*see the output of mpirun"),
    ):
        server.run("train", [])
    assert "waiting for ranks 1, 2 of 3 at 127.0.0.1:" in capsys.readouterr().err


def test_the_first_copy_of_a_host_says_that_it_waits_for_rank_0(
    placement: Placement, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "QUIET_SECONDS", 0.0)
    monkeypatch.setattr(rendezvous, "PATIENCE_SECONDS", 0.2)
    for local_rank in (0, 1):
        with pytest.raises(RunError, match=f"rank 0 was not at {placement.rendezvous} within"):
            follow(replace(placement, rank=1, local_rank=local_rank))
    assert capsys.readouterr().err.count(f"waiting for rank 0 at {placement.rendezvous}") == 1


def test_a_rank_of_another_version_is_named(server: RendezvousServer, placement: Placement) -> None:
    with (
        come(placement, hello(1)),
        come(placement, hello(2, version="0.0.1")),
        pytest.raises(RunError, match=r"rank 2 runs hpcai500 0\.0\.1, rank 0"),
    ):
        server.run("train", [])


def test_a_copy_ends_when_rank_0_is_gone() -> None:
    assert start([sys.executable, "-c", GONE], 2, "processes").exit_codes == [3, 1]


@pytest.mark.parametrize("failing", ["0", "1"])
def test_a_rank_that_waits_for_one_that_has_failed_is_ended(failing: str) -> None:
    """As in Gloo's first connection, before there are monitors."""
    assert start([sys.executable, "-c", WAITING, failing], 2, "processes").exit_codes == [1, 1]


# One rank fails, and the other waits for it for ever.
WAITING = """
import os, sys
from hpcai500.hosts import find_placement
from hpcai500.launch import processes, rendezvous
place = find_placement(os.environ)
job = "import sys, time; sys.exit(1) if sys.argv[1] == sys.argv[2] else time.sleep(3600)"
rendezvous.module_command = lambda *command: [sys.executable, "-c", job, str(place.rank), sys.argv[1]]
processes._LATE_SECONDS = 1.0
if place.rank:
    sys.exit(rendezvous.follow(place))
server = rendezvous.RendezvousServer(place)
server.open()
code = server.run("job", [])
server.end(code)
sys.exit(code)
"""


# Rank 0 hears the other one, and ends without a word.
GONE = """
import os, sys
from hpcai500.launch.rendezvous import follow
from hpcai500.launch.rendezvous import listen_at, meeting_point
from hpcai500.hosts import find_placement
place = find_placement(os.environ)
if place.rank:
    sys.exit(follow(place))
with listen_at(*meeting_point(place)) as listener:
    connection = listener.accept()[0]
    connection.makefile("rb").readline()
    sys.exit(3)
"""


def test_a_copy_says_so_when_something_else_answers_in_the_place_of_rank_0(placement: Placement) -> None:
    with listen_at(*meeting_point(placement)) as listener:

        def answer() -> None:
            with listener.accept()[0] as connection:
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(RunError, match="rank 0's address does not answer as hpcai500 of this version"):
            follow(replace(placement, rank=1))
        thread.join()


def test_a_port_that_is_taken_is_named(server: RendezvousServer, placement: Placement) -> None:
    with pytest.raises(UsageError, match=r"127\.0\.0\.1:\d+: the ranks cannot meet here: .*set MASTER_PORT"):
        RendezvousServer(placement).open()


@pytest.mark.parametrize(
    ("launcher", "fix"), [("mpirun", "give -x MASTER_ADDR={}"), ("srun", "give MASTER_ADDR={} in the env")]
)
def test_several_hosts_without_a_first_one_are_refused_by_rank_0_before_a_copy_ends(
    placement: Placement, launcher: str, fix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []
    monkeypatch.setattr(time, "sleep", waited.append)
    lost = replace(placement, launcher=launcher, rendezvous=None)
    fix = fix.format(socket.gethostname())
    with pytest.raises(UsageError, match=f"{launcher} has started 3 ranks on several hosts.*{fix}"):
        RendezvousServer(lost).open()
    assert follow(replace(lost, rank=1)) == 64
    assert waited == [5.0]
