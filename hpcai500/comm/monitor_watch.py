"""The thread that keeps watch on one rank: says that it lives, hears who else does, and passes a decision on."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from hpcai500.comm.monitor_protocol import (
    Alive,
    Beating,
    Failed,
    Goodbye,
    Peer,
    Said,
    Verdict,
    shortened,
)
from hpcai500.comm.monitor_rules import FIRST_BEAT, Beat, Judge, Lost, heartbeat_seconds
from hpcai500.errors import RunError
from hpcai500.messages import MessageError

# How long the end waits for the network to take the last words, and for the others to have read them.
_PARTING_SECONDS = 1.0


def start_watcher(name: str, work: Callable[[], None], ended: Callable[[RunError], None]) -> threading.Thread:
    """Do `work` in a daemon thread that others rely on.

    Args:
        name: of the thread.
        work: what it does.
        ended: called in the thread with an error that names it, where `work` raises anything.
    """

    def run() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001  (passed on with its place)
            place = traceback.extract_tb(error.__traceback__)[-1]
            ended(
                RunError(
                    f"the thread {name} of hpcai500, which watches the ranks, has ended by {type(error).__name__}: "
                    f"{error} ({Path(place.filename).name}:{place.lineno}): report it, and go on with --resume"
                )
            )

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread


class Watch:
    """Rank 0 watches every other rank and itself, and decides; every other rank watches rank 0.

    Args:
        rank: this one.
        hosts: host name of each rank.
        timeout_seconds: silence, or lack of progress, after which a rank is lost.
        peers: connection to each watched rank.
        state: what this rank's main thread is at.
        on_lost: called once, from the thread that watches, when it is known who is lost; that is this rank itself
            where the thread cannot go on.
    """

    def __init__(
        self,
        rank: int,
        hosts: Sequence[str],
        timeout_seconds: float,
        peers: Mapping[int, Peer],
        state: Callable[[], Beat],
        on_lost: Callable[[Lost], None],
    ) -> None:
        self._rank, self._host = rank, hosts[rank]
        self._peers, self._state, self._on_lost = dict(peers), state, on_lost
        watched = range(len(hosts)) if rank == 0 else [0]
        self._judge = Judge({each: hosts[each] for each in watched}, timeout_seconds, time.monotonic())
        self._interval = heartbeat_seconds(timeout_seconds)
        self._lost: Lost | None = None
        self._failures: deque[str] = deque()
        self._said = threading.Event()
        self._closing = False
        self._waker, self._wakes = socket.socketpair()
        self._wakes.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wakes, selectors.EVENT_READ)
        for each, connection in self._peers.items():
            self._selector.register(connection, selectors.EVENT_READ, each)
        self._thread = start_watcher("monitor", self._run, self._ended)

    def fail(self, reason: str) -> None:
        """Tell the others that this rank ends, and why; returns when that is on its way."""
        self._failures.append(shortened(reason))
        self._wake()
        self._said.wait(_PARTING_SECONDS)

    def close(self) -> None:
        """Say goodbye and stop: takes `_PARTING_SECONDS`, or twice that where this host is busy."""
        self._closing = True
        self._wake()
        self._thread.join(2 * _PARTING_SECONDS)

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # the thread has ended already
            self._waker.send(b"w")

    def _run(self) -> None:
        beat_at = time.monotonic()
        while not self._closing:
            if time.monotonic() >= beat_at:
                beat_at = time.monotonic() + self._interval
                self._say_alive()
            self._hear(beat_at - time.monotonic())
            self._say_failure()
            self._decide()
        self._part()

    def _say_alive(self) -> None:
        beat = self._state()
        if self._rank == 0:
            self._judge.beat(0, beat, time.monotonic())
        for connection in self._peers.values():
            # Rank 0 alone knows what all are at; of rank 0 the others only need to know that it lives.
            if self._rank == 0:
                connection.send(Alive())
            else:
                connection.send(Beating(progress=beat.progress, phase=beat.phase, allowance=beat.allowance_seconds))

    def _hear(self, seconds: float) -> None:
        for key, _ in self._selector.select(max(0.0, seconds)):
            if key.fileobj is self._wakes:
                self._wakes.recv(4096)
            else:
                self._hear_from(key.data)

    def _hear_from(self, rank: int) -> None:
        connection = self._peers[rank]
        try:
            for message in connection.receive():
                self._take(rank, message)
        except MessageError as error:
            self._judge.failed(rank, f"what its monitor says cannot be understood ({error})")
            connection.open = False
        if not connection.open:
            self._judge.closed(rank, time.monotonic())
            self._leave(rank)

    def _leave(self, rank: int) -> None:
        connection = self._peers.pop(rank)
        self._selector.unregister(connection)
        connection.close()

    def _take(self, rank: int, message: Said) -> None:
        now = time.monotonic()
        match message:
            case Beating():
                self._judge.beat(rank, Beat(message.progress, message.phase, message.allowance), now)
            case Alive():
                self._judge.beat(rank, FIRST_BEAT, now)
            case Failed():
                self._judge.failed(rank, message.reason)
            case Verdict():
                self._found(Lost(message.rank, message.host, message.reason, message.seconds))
            case Goodbye():
                self._judge.left(rank)
            case _:
                raise MessageError(f"{message.kind}: not now")

    def _say_failure(self) -> None:
        while self._failures:
            reason = self._failures.popleft()
            if self._rank == 0:
                self._judge.failed(0, reason)
                self._decide()
            for connection in self._peers.values():
                connection.send(Failed(reason=reason))
            self._said.set()

    def _decide(self) -> None:
        if self._lost is None and (lost := self._judge.look(time.monotonic())):
            self._found(lost)

    def _found(self, lost: Lost) -> None:
        if self._lost is not None:
            return
        self._lost = lost
        if self._rank == 0:
            verdict = Verdict(rank=lost.rank, host=lost.host, reason=shortened(lost.reason), seconds=lost.seconds)
            for connection in self._peers.values():
                connection.send(verdict)
        self._on_lost(lost)

    def _ended(self, error: RunError) -> None:
        """Nobody watches any more: this rank ends, and says why."""
        try:
            for connection in self._peers.values():
                connection.send(Failed(reason=shortened(str(error))))
        finally:
            if self._lost is not None:
                raise error  # the job ends already, for another reason: this one is printed
            self._lost = Lost(self._rank, self._host, str(error), 0.0)
            self._on_lost(self._lost)

    def _part(self) -> None:
        """Leave so that all that was said arrives: a socket that is closed with something unread in it takes back
        what is still on its way, so each is read to its end, in which the other side hangs up too.
        """
        if self._lost and self._lost.rank in self._peers:
            self._leave(self._lost.rank)
        for connection in self._peers.values():
            connection.send(Goodbye())
        deadline = time.monotonic() + _PARTING_SECONDS
        while self._peers and (left := deadline - time.monotonic()) > 0:
            for connection in self._peers.values():
                if connection.flush():
                    connection.finish()
            self._hear(min(left, self._interval))
        for connection in self._peers.values():
            connection.close()
        self._selector.close()
        self._wakes.close()
        self._waker.close()
