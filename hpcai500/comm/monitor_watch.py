"""The thread that keeps watch on one rank: says that it lives, hears who else does, and passes a decision on."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from hpcai500.comm.monitor_protocol import Connection, Message, NotAMonitorError, shortened
from hpcai500.comm.monitor_rules import FIRST_BEAT, Beat, Judge, Lost, heartbeat_seconds

# How long the end waits for the network to take the last words, and for the others to have read them.
_PARTING_SECONDS = 1.0


class Watch:
    """Rank 0 watches every other rank and itself, and decides; every other rank watches rank 0.

    Args:
        rank: this one.
        hosts: host name of each rank.
        timeout_seconds: silence, or lack of progress, after which a rank is lost.
        peers: connection to each watched rank.
        state: what this rank's main thread is at.
        on_lost: called once, from this thread, when it is known who is lost.
    """

    def __init__(
        self,
        rank: int,
        hosts: Sequence[str],
        timeout_seconds: float,
        peers: Mapping[int, Connection],
        state: Callable[[], Beat],
        on_lost: Callable[[Lost], None],
    ) -> None:
        self._rank, self._peers, self._state, self._on_lost = rank, dict(peers), state, on_lost
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
        self._thread = threading.Thread(target=self._run, name="monitor", daemon=True)
        self._thread.start()

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
                connection.send("alive")
            else:
                connection.send("beat", progress=beat.progress, phase=beat.phase, allowance=beat.allowance_seconds)

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
        except (NotAMonitorError, KeyError, TypeError, ValueError) as error:
            self._judge.failed(rank, f"what its monitor says cannot be understood ({error})")
            connection.open = False
        if not connection.open:
            self._judge.closed(rank, time.monotonic())
            self._leave(rank)

    def _leave(self, rank: int) -> None:
        connection = self._peers.pop(rank)
        self._selector.unregister(connection)
        connection.close()

    def _take(self, rank: int, message: Message) -> None:
        now = time.monotonic()
        match message["kind"]:
            case "beat":
                beat = Beat(int(message["progress"]), str(message["phase"]), float(message["allowance"]))
                self._judge.beat(rank, beat, now)
            case "alive":
                self._judge.beat(rank, FIRST_BEAT, now)
            case "failed":
                self._judge.failed(rank, str(message["reason"]))
            case "lost":
                named = message["rank"]
                self._found(
                    Lost(
                        None if named is None else int(named),
                        str(message["host"]),
                        str(message["reason"]),
                        float(message["seconds"]),
                    )
                )
            case "goodbye":
                self._judge.left(rank)

    def _say_failure(self) -> None:
        while self._failures:
            reason = self._failures.popleft()
            if self._rank == 0:
                self._judge.failed(0, reason)
                self._decide()
            for connection in self._peers.values():
                connection.send("failed", reason=reason)
            self._said.set()

    def _decide(self) -> None:
        if self._lost is None and (lost := self._judge.look(time.monotonic())):
            self._found(lost)

    def _found(self, lost: Lost) -> None:
        if self._lost is not None:
            return
        self._lost = lost
        if self._rank == 0:
            for connection in self._peers.values():
                connection.send(
                    "lost", rank=lost.rank, host=lost.host, reason=shortened(lost.reason), seconds=lost.seconds
                )
        self._on_lost(lost)

    def _part(self) -> None:
        """Leave so that all that was said arrives: a socket that is closed with something unread in it takes back
        what is still on its way, so each is read to its end, in which the other side hangs up too.
        """
        if self._lost and self._lost.rank in self._peers:
            self._leave(self._lost.rank)
        for connection in self._peers.values():
            connection.send("goodbye")
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
