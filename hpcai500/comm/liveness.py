"""Detects lost ranks with any backend: a thread of each rank sends heartbeats to rank 0 over its own socket.

A rank without others is watched, too: it may hang in a library, a driver or a read.

Rank 0 listens to all ranks and decides; the others listen to rank 0. Both sides prove that they know the job's secret.
`bound_seconds` is the longest time from the loss of a rank to the end of all others.

Advantages over torch's store and timeouts: it works with Horovod, too; it names the rank and the host at fault, even if
a rank hangs and all others wait for it; it distinguishes a long evaluation from a hang; and it ends the other ranks
within that bound, where a collective would wait half an hour, or for ever.
"""

from __future__ import annotations

import contextlib
import hmac
import itertools
import math
import os
import secrets
import selectors
import signal
import socket
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from hpcai500.comm.communicator import Communicator
from hpcai500.errors import EnvironmentLacksError, ExitCode, RunError
from hpcai500.files import remove_scratch
from hpcai500.messages import Connection, Message, MessageError, Reception
from hpcai500.streams import report_fatal, say
from hpcai500.system.network import interface_addresses, is_loopback

# ----------------------------------------------------------------------------------------------------
# When a rank is lost: the monitor's decisions, without clocks, threads or sockets.


STARTING = "starting"
READING = "reading data"
COMPUTING = "computing"
WAITING = "waiting for sums"
# Passes of a sharded model: the rank computes, or waits for others.
TOGETHER = "computing with all ranks"
EVALUATING = "evaluating"
WRITING = "writing"
_WAITING = (WAITING, TOGETHER)
# The parts of an update, which repeat.
_STEP = (READING, COMPUTING, *_WAITING)

# For imports, the index of a large data set and compilation, before the first announced phase.
_STARTING_SECONDS = 3600.0
# A standstill of all ranks is reported after the timeout, or twice the longest part of an update so far, and ends the
# job after ten times that: code that is compiled again for other shapes, or a busy host, makes an update slow, and no
# rank waits that would show which is slow. Other work (an evaluation, a checkpoint) and the first update may take long;
# a measurement announces no phases, and may take hours.
_LONGER, _ENDING = 2, 10
_OTHER_WORK_SECONDS = 600.0
_HOPELESS_SECONDS = 3600.0
_RESUME = "go on with --resume"


def heartbeat_seconds(timeout_seconds: float) -> float:
    """Time between two heartbeats of a rank: a second, or a tenth of a timeout below ten seconds."""
    return min(1.0, timeout_seconds / 10)


@dataclass(frozen=True)
class Beat:
    """A heartbeat: what the rank's main thread is doing.

    Attributes:
        progress: grows whenever the main thread has made progress.
        phase: for messages; only `WAITING` and `TOGETHER` have a meaning: the rank waits, or may wait, for others.
        allowance_seconds: how long this phase may take without progress, if longer than the timeout.
    """

    progress: int
    phase: str
    allowance_seconds: float


FIRST_BEAT = Beat(0, STARTING, _STARTING_SECONDS)


@dataclass(frozen=True)
class Lost:
    """The lost rank; if all ranks wait for each other, `rank` is None and `host` is "".

    Attributes:
        reason: what happened, and what to do about it.
        seconds: time since its last sign of life, or since its last progress.
        by_own_error: whether it has ended with an error, which it would meet again; not killed, silent or hanging.
    """

    rank: int | None
    host: str
    reason: str
    seconds: float
    by_own_error: bool = False

    @property
    def message(self) -> str:
        """One line for the user and for the record's ERROR."""
        return self.reason if self.rank is None else f"rank {self.rank} on host {self.host}: {self.reason}"


@dataclass
class _Seen:
    """Times of the last message from a rank, and of its main thread's last progress; monotonic seconds."""

    heard: float
    moved: float
    beat: Beat = FIRST_BEAT
    present: bool = True


class LossDetector:
    """Decides from heartbeats which rank is lost. The first decision is final.

    Time in which the detector itself did not run (its host was suspended, or the whole job was stopped) is not counted
    against any rank. `timeout_seconds` is the silence, or lack of progress, after which a rank is lost; `now` is in
    monotonic seconds, of the same clock in all calls. `sees_progress` is whether the heartbeats of all ranks arrive
    here, and with them their progress.
    """

    def __init__(
        self, hosts: Mapping[int, str], timeout_seconds: float, now: float, *, sees_progress: bool = True
    ) -> None:
        self._hosts = dict(hosts)
        self._timeout = timeout_seconds
        self._sees_progress = sees_progress
        self._seen = {rank: _Seen(heard=now, moved=now) for rank in hosts}
        self._looked = now
        self._lost: Lost | None = None
        self._has_stepped = False
        self._longest = 0.0
        self._is_standstill_known = False

    def beat(self, rank: int, beat: Beat, now: float) -> None:
        """Note a heartbeat of `rank`."""
        seen = self._seen[rank]
        seen.heard = now
        if (beat.progress, beat.phase) != (seen.beat.progress, seen.beat.phase):
            if seen.beat.phase in _STEP:
                self._longest = max(self._longest, now - seen.moved)
                self._has_stepped |= seen.beat.phase in (COMPUTING, TOGETHER)
            seen.moved = now
        seen.beat = beat

    def left(self, rank: int) -> None:
        """Note that `rank` has left: no more messages are expected from it."""
        self._seen[rank].present = False

    def failed(self, rank: int, reason: str) -> None:
        """Note that `rank` ends because of its own error."""
        self._decide(rank, reason, 0.0, by_own_error=True)

    def closed(self, rank: int, now: float) -> None:
        """Note that the connection of `rank` was closed: unless it has left before, the rank is lost."""
        if self._seen[rank].present:
            self._decide(
                rank,
                "its process ended unexpectedly (killed or crashed: see its own messages, and its host's log for the "
                f"out-of-memory killer); {_RESUME}",
                now - self._seen[rank].heard,
            )

    def look(self, now: float) -> Lost | None:
        """The decision, if any. Call it every `heartbeat_seconds`, after all messages were noted."""
        self._excuse_own_sleep(now)
        if self._lost is None:
            self._look_for_silence(now)
        if self._lost is None:
            self._look_for_hang(now)
        if self._lost is None:
            self._look_for_standstill(now)
        return self._lost

    def standstill(self, now: float) -> str | None:
        """A sentence about a standstill that has lasted unusually long; once for each."""
        beats, seconds = self._standing(now)
        before, self._is_standstill_known = self._is_standstill_known, seconds > max(map(self._unusual, beats))
        return _standstill(beats, seconds) if self._is_standstill_known and not before else None

    def _standing(self, now: float) -> tuple[list[Beat], float]:
        """The last heartbeats of all ranks, and for how long no rank has made progress."""
        present = [seen for seen in self._seen.values() if seen.present]
        if not present or not self._sees_progress:
            return [FIRST_BEAT], 0.0
        return [seen.beat for seen in present], min(now - seen.moved for seen in present)

    def _unusual(self, beat: Beat) -> float:
        """The time after which a standstill in this phase is reported."""
        return max(self._timeout, _LONGER * self._longest) if beat.phase in _STEP else _OTHER_WORK_SECONDS

    def _hopeless(self, beat: Beat) -> float:
        """The time after which a standstill in this phase ends the job."""
        if beat.phase == STARTING:
            return math.inf
        is_known = beat.phase in _STEP and self._has_stepped
        return max(beat.allowance_seconds, _ENDING * self._unusual(beat) if is_known else _HOPELESS_SECONDS)

    def _look_for_standstill(self, now: float) -> None:
        beats, seconds = self._standing(now)
        if seconds > max(map(self._hopeless, beats)):
            reason = f"{_standstill(beats, seconds)}: a library, a driver or a read hangs; {_RESUME}"
            self._decide(0 if len(self._seen) == 1 else None, reason, seconds)

    def _excuse_own_sleep(self, now: float) -> None:
        gap, self._looked = now - self._looked, now
        # After a shorter gap, every rank still has time for another heartbeat.
        if gap > self._timeout / 2:
            for seen in self._seen.values():
                seen.heard = min(now, seen.heard + gap)
                seen.moved = min(now, seen.moved + gap)

    def _look_for_silence(self, now: float) -> None:
        silent = [(seen.heard, rank) for rank, seen in self._seen.items() if seen.present]
        heard, rank = min(silent, default=(now, -1))
        if now - heard > self._timeout:
            self._decide(
                rank,
                f"no sign of life for {now - heard:.0f} s (its host or network failed, or it was stopped): "
                f"check that host; {_RESUME}",
                now - heard,
            )

    def _look_for_hang(self, now: float) -> None:
        """Find, among the ranks that do not wait for others, the one without progress for longest."""
        present = {rank: seen for rank, seen in self._seen.items() if seen.present}
        waiting = [seen for seen in present.values() if seen.beat.phase in _WAITING]
        busy = [(seen.moved, rank) for rank, seen in present.items() if seen.beat.phase not in _WAITING]
        longest = max((now - seen.moved for seen in waiting), default=0.0)
        if longest <= self._timeout:
            return
        if not busy:
            # Even the rank that began to wait last has waited too long: no other rank will come.
            shortest = min(now - seen.moved for seen in waiting)
            if shortest > max(self._timeout, *(seen.beat.allowance_seconds for seen in waiting)):
                self._decide(None, _deadlock(shortest), shortest)
            return
        for moved, rank in sorted(busy):
            beat = present[rank].beat
            if now - moved > max(self._timeout, beat.allowance_seconds):
                self._decide(rank, _hang(beat, now - moved, len(waiting)), now - moved)
                return

    def _decide(self, rank: int | None, reason: str, seconds: float, *, by_own_error: bool = False) -> None:
        if self._lost is None:
            self._lost = Lost(rank, "" if rank is None else self._hosts[rank], reason, seconds, by_own_error)


def _hang(beat: Beat, seconds: float, waiting: int) -> str:
    others = f"{waiting} other{' waits' if waiting == 1 else 's wait'}"
    return f"no progress for {seconds:.0f} s in its phase `{beat.phase}`, while {others} for it; {_RESUME}"


def _standstill(beats: Sequence[Beat], seconds: float) -> str:
    where = f"in its phase `{beats[0].phase}`" if len(beats) == 1 else "on any rank, although none waits for another"
    return f"no progress for {seconds:.0f} s {where}"


def _deadlock(seconds: float) -> str:
    return (
        f"all ranks have waited for each other for {seconds:.0f} s: the network between their hosts loses messages, or "
        "an all-reduce takes longer than communication.timeout_seconds: check the network, or raise the timeout; "
        f"{_RESUME}"
    )


# ----------------------------------------------------------------------------------------------------
# When this process did not run: it was stopped, or its host was suspended.


# Shorter gaps have other causes, such as a busy host.
_LEAST_STOP_SECONDS = 10.0


class Stops:
    """The time in which this process did not run: long gaps between looks at the clock.

    A gap in which the main thread computed is none: a library held Python's lock.
    `clock` runs on while the host is suspended; `main_clock` is the processor time of the main thread.
    """

    def __init__(self, clock: Callable[[], float], main_clock: Callable[[], float]) -> None:
        self._clock, self._main_clock = clock, main_clock
        self._lock = threading.Lock()
        self._looked, self._computed = clock(), main_clock()
        self._seconds = 0.0

    @classmethod
    def of_this_thread(cls) -> Stops:
        """Made by the main thread."""
        main = time.pthread_getcpuclockid(threading.get_ident())
        return cls(partial(time.clock_gettime, time.CLOCK_BOOTTIME), partial(time.clock_gettime, main))

    def look(self) -> float:
        """The seconds of all stops so far. Some thread must call this every second or more often."""
        with self._lock:
            looked, computed = self._looked, self._computed
            self._looked, self._computed = self._clock(), self._main_clock()
            gap = self._looked - looked
            if gap > _LEAST_STOP_SECONDS and self._computed - computed < gap / 2:
                self._seconds += gap
            return self._seconds


# ----------------------------------------------------------------------------------------------------
# The messages between monitors, and the proofs that both sides know the job's secret.


# Bytes of a line between ranks that have joined; the longest lines have a reason.
LONGEST_LINE = 16384
# In characters, each of which may take six bytes.
_LONGEST_REASON = 2000

_Hex = Annotated[str, Field(max_length=64, pattern="^[0-9a-f]*$")]
_Text = Annotated[str, Field(max_length=_LONGEST_REASON + 100)]
_Rank = Annotated[int, Field(ge=0, lt=2**31)]
_Seconds = Annotated[float, Field(ge=0, le=1e9)]


class Challenge(Message):
    """Rank 0 to any new connection: the number for the proof that it knows the secret."""

    kind: Literal["challenge"] = "challenge"
    number: _Hex


class Hello(Message):
    """A rank to rank 0: its number, its proof, and the challenge for rank 0's own proof."""

    kind: Literal["hello"] = "hello"
    rank: _Rank
    number: _Hex
    proof: _Hex


class Welcome(Message):
    """Rank 0 to a rank that it has accepted."""

    kind: Literal["welcome"] = "welcome"
    proof: _Hex


class Beating(Message):
    """A rank to rank 0: a heartbeat (`Beat`)."""

    kind: Literal["beat"] = "beat"
    progress: Annotated[int, Field(ge=0, lt=2**63)]
    phase: _Text
    allowance: _Seconds


class Alive(Message):
    """Rank 0 to the others: a heartbeat."""

    kind: Literal["alive"] = "alive"


class Failed(Message):
    """Any rank: it ends because of its own error."""

    kind: Literal["failed"] = "failed"
    reason: _Text


class Verdict(Message):
    """Rank 0 to the others: which rank is lost (`Lost`)."""

    kind: Literal["lost"] = "lost"
    rank: _Rank | None
    host: _Text
    reason: _Text
    seconds: _Seconds
    by_own_error: bool = False


class Goodbye(Message):
    """Any rank: it ends normally."""

    kind: Literal["goodbye"] = "goodbye"


MonitorMessage = Challenge | Hello | Welcome | Beating | Alive | Failed | Verdict | Goodbye
MONITOR_MESSAGES: TypeAdapter[MonitorMessage] = TypeAdapter(Annotated[MonitorMessage, Field(discriminator="kind")])
Peer = Connection[MonitorMessage]


def proof(token: str, challenge: str, *values: object) -> str:
    """Proof of knowing `token` without revealing it: HMAC-SHA-256 over a number that the other side chose."""
    text = "\0".join((challenge, *map(str, values)))
    return hmac.new(token.encode(), text.encode(), "sha256").hexdigest()


def is_proof(given: str, token: str, challenge: str, *values: object) -> bool:
    return hmac.compare_digest(given.encode(), proof(token, challenge, *values).encode())


def shortened(reason: str) -> str:
    """`reason` on one line that fits into a message; surrogates (from file names) are escaped."""
    text = " ".join(reason.encode(errors="backslashreplace").decode().split())
    return text if len(text) <= _LONGEST_REASON else f"{text[:_LONGEST_REASON]} ..."


# ----------------------------------------------------------------------------------------------------
# Where rank 0's monitor can be reached: its listening socket and its addresses.


@dataclass(frozen=True)
class Offer:
    """How the other ranks find rank 0's monitor and prove that they belong to the job.

    `addresses` has the likeliest first; `token` is the secret of this job.
    """

    host: str
    addresses: tuple[str, ...]
    port: int
    token: str


def listen(waiting: int) -> socket.socket:
    """A socket on a free port of all interfaces, with a backlog of `waiting` connections."""
    if socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):  # IPv6 is disabled by the administrator
            return socket.create_server(("", 0), family=socket.AF_INET6, backlog=waiting, dualstack_ipv6=True)
    return socket.create_server(("", 0), backlog=waiting)


def own_addresses() -> tuple[str, ...]:
    """This host's addresses, likeliest first.

    The order is: the interface of GLOO_SOCKET_IFNAME, MASTER_ADDR if it is an address of this host, the addresses of
    the host name, all other interfaces, loopback addresses.
    """
    by_interface = interface_addresses()
    own = [address for addresses in by_interface.values() for address in addresses]
    names = os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")
    named = [address for name in names for address in by_interface.get(name.strip(), ())]
    master = [address for address in _resolved(os.environ.get("MASTER_ADDR", "")) if address in own]
    found = (*named, *master, *_resolved(socket.gethostname()), *own)
    return tuple(sorted(dict.fromkeys(found), key=is_loopback))


def candidates(offer: Offer, own_host: str) -> list[str]:
    """Addresses of `offer` that may be reachable from host `own_host`."""
    return [one for one in offer.addresses if own_host == offer.host or not is_loopback(one)]


def _resolved(name: str) -> list[str]:
    if not name:
        return []
    try:
        return [str(entry[4][0]) for entry in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)]
    except OSError:
        return []


# ----------------------------------------------------------------------------------------------------
# The watching thread of one rank: sends heartbeats, receives those of others, and reports a decision.


# Time at the end for the network to send the last messages, and for the others to read them.
_PARTING_SECONDS = 1.0


def start_watcher(name: str, work: Callable[[], None], ended: Callable[[RunError], None]) -> threading.Thread:
    """Run `work` in a daemon thread; if it raises, the thread calls `ended` with an error that names the thread."""

    def run() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001  (reported with its place)
            place = traceback.extract_tb(error.__traceback__)[-1]
            ended(
                RunError(
                    f"the thread {name} of hpcai500, which watches the ranks, failed with {type(error).__name__}: "
                    f"{error} ({Path(place.filename).name}:{place.lineno}): report it, and go on with --resume"
                )
            )

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread


class Watch:
    """Rank 0 watches every other rank and itself, and decides; every other rank watches rank 0.

    Made by the main thread. `stops` are those of this process.

    Args:
        timeout_seconds: silence, or lack of progress, after which a rank is lost.
        peers: connection to each watched rank; closed here.
        state: returns what this rank's main thread is doing; called from the watching thread.
        on_lost: called once, from the watching thread, when a rank is lost; if the thread fails, with this rank.
        on_standstill: called with a sentence if all ranks make no progress for unusually long.
    """

    def __init__(
        self,
        rank: int,
        hosts: Sequence[str],
        timeout_seconds: float,
        peers: Mapping[int, Peer],
        state: Callable[[], Beat],
        on_lost: Callable[[Lost], None],
        on_standstill: Callable[[str], None] = lambda sentence: None,
    ) -> None:
        self._rank, self._host = rank, hosts[rank]
        self._peers, self._state = dict(peers), state
        self._on_standstill, self._on_lost = on_standstill, on_lost
        watched = range(len(hosts)) if rank == 0 else [0]
        self._detector = LossDetector(
            {each: hosts[each] for each in watched}, timeout_seconds, time.monotonic(), sees_progress=rank == 0
        )
        self._interval = heartbeat_seconds(timeout_seconds)
        self.stops = Stops.of_this_thread()
        self._lost: Lost | None = None
        self._failures: deque[str] = deque()
        self._failure_sent = threading.Event()
        self._rank_0_failure: str | None = None
        self._rank_0_failed = threading.Event()
        self._closing = False
        self._waker, self._wakes = socket.socketpair()
        self._wakes.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wakes, selectors.EVENT_READ)
        for each, connection in self._peers.items():
            self._selector.register(connection, selectors.EVENT_READ, each)
        self._thread = start_watcher("monitor", self._run, self._ended)

    def fail(self, reason: str) -> None:
        """Report to the others why this rank ends; returns when that was sent, after a second at the latest."""
        self._failures.append(shortened(reason))
        self._wake()
        self._failure_sent.wait(_PARTING_SECONDS)

    def failure_of_rank_0(self, seconds: float) -> str | None:
        """On other ranks: the error that rank 0 has reported about itself. Waits `seconds` at most."""
        self._rank_0_failed.wait(seconds)
        return self._rank_0_failure

    def close(self) -> None:
        """Send goodbye and stop: takes at most `_PARTING_SECONDS`, or twice that if this host is busy."""
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
                self._send_heartbeats()
            self._receive(beat_at - time.monotonic())
            self.stops.look()
            self._send_failures()
            self._decide()
        self._part()

    def _send_heartbeats(self) -> None:
        beat = self._state()
        if self._rank == 0:
            self._detector.beat(0, beat, time.monotonic())
        for connection in self._peers.values():
            # Only rank 0 checks progress; the others only need to know that rank 0 is alive.
            if self._rank == 0:
                connection.send(Alive())
            else:
                connection.send(Beating(progress=beat.progress, phase=beat.phase, allowance=beat.allowance_seconds))

    def _receive(self, seconds: float) -> None:
        for key, _ in self._selector.select(max(0.0, seconds)):
            if key.fileobj is self._wakes:
                self._wakes.recv(4096)
            else:
                self._receive_from(key.data)

    def _receive_from(self, rank: int) -> None:
        connection = self._peers[rank]
        try:
            for message in connection.receive():
                self._take(rank, message)
        except MessageError as error:
            self._detector.failed(rank, f"its monitor sent an invalid message ({error})")
            connection.open = False
        if not connection.open:
            self._detector.closed(rank, time.monotonic())
            self._leave(rank)

    def _leave(self, rank: int) -> None:
        connection = self._peers.pop(rank)
        self._selector.unregister(connection)
        connection.close()

    def _take(self, rank: int, message: MonitorMessage) -> None:
        now = time.monotonic()
        match message:
            case Beating():
                self._detector.beat(rank, Beat(message.progress, message.phase, message.allowance), now)
            case Alive():
                self._detector.beat(rank, FIRST_BEAT, now)
            case Failed():
                self._detector.failed(rank, message.reason)
                if rank == 0:
                    self._rank_0_failure = message.reason
                    self._rank_0_failed.set()
            case Verdict():
                self._found(Lost(message.rank, message.host, message.reason, message.seconds, message.by_own_error))
            case Goodbye():
                self._detector.left(rank)
            case _:
                raise MessageError(f"{message.kind}: unexpected now")

    def _send_failures(self) -> None:
        while self._failures:
            reason = self._failures.popleft()
            if self._rank == 0:
                self._detector.failed(0, reason)
                self._decide()
            for connection in self._peers.values():
                connection.send(Failed(reason=reason))
            self._failure_sent.set()

    def _decide(self) -> None:
        now = time.monotonic()
        if self._lost is None and (lost := self._detector.look(now)):
            self._found(lost)
        elif self._lost is None and (sentence := self._detector.standstill(now)):
            self._on_standstill(sentence)

    def _found(self, lost: Lost) -> None:
        if self._lost is not None:
            return
        self._lost = lost
        if self._rank == 0:
            verdict = Verdict(
                rank=lost.rank,
                host=lost.host,
                reason=shortened(lost.reason),
                seconds=lost.seconds,
                by_own_error=lost.by_own_error,
            )
            for connection in self._peers.values():
                connection.send(verdict)
        self._on_lost(lost)

    def _ended(self, error: RunError) -> None:
        """The watching thread has failed: end this rank, and report to the others why."""
        try:
            for connection in self._peers.values():
                connection.send(Failed(reason=shortened(str(error))))
        finally:
            if self._lost is not None:
                raise error  # the job already ends for another reason; this one is printed
            self._lost = Lost(self._rank, self._host, str(error), 0.0)
            self._on_lost(self._lost)

    def _part(self) -> None:
        """Leave so that all messages arrive.

        Closing a TCP socket with unread data discards what is still being sent. So each is read to its end, when the
        other side has closed, too.
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
            self._receive(min(left, self._interval))
        for connection in self._peers.values():
            connection.close()
        self._selector.close()
        self._wakes.close()
        self._waker.close()


# ----------------------------------------------------------------------------------------------------
# Connecting the monitors of a job: rank 0 listens, the others connect and prove that they belong to the job.


# An address in another network may drop packets: all addresses are tried with a short timeout, then with a long one.
_TRY_SECONDS = (1.0, 5.0)
_LOOK_SECONDS = 0.05


class Gate:
    """Rank 0's listening socket. A thread accepts peers that prove to be ranks of this job, until `close`."""

    def __init__(self, host: str, size: int) -> None:
        self._token = secrets.token_hex(32)
        self._size = size
        listener = listen(size)
        self._joined: dict[int, Peer] = {}
        self._closing = threading.Event()
        self._failure: RunError | None = None
        self.offer = Offer(host, own_addresses(), listener.getsockname()[1], self._token)
        self._reception = Reception(listener, MONITOR_MESSAGES, size, greet=self._challenge, take=self._take)
        self._thread = start_watcher("monitor-gate", self._keep, self._ended)

    def close(self) -> dict[int, Peer]:
        """Stop accepting; returns the connection of each rank that joined.

        Raises:
            RunError: the accepting thread has failed.
        """
        self._closing.set()
        self._thread.join()
        if self._failure:
            raise self._failure
        return self._joined

    def _keep(self) -> None:
        try:
            while not self._closing.is_set():
                self._reception.serve(_LOOK_SECONDS)
        finally:
            self._reception.close()

    def _ended(self, error: RunError) -> None:
        self._failure = error

    def _challenge(self, peer: Peer) -> str:
        number = secrets.token_hex(16)
        peer.send(Challenge(number=number))
        return number

    def _take(self, peer: Peer, number: str, hello: MonitorMessage) -> bool:
        if not isinstance(hello, Hello) or not 0 < hello.rank < self._size:
            return False
        if not is_proof(hello.proof, self._token, number, hello.rank):
            return False
        if hello.rank in self._joined:
            # It has abandoned an earlier attempt, on an address that answered late.
            self._joined[hello.rank].close()
        self._joined[hello.rank] = peer
        peer.longest_line = LONGEST_LINE
        peer.send(Welcome(proof=proof(self._token, hello.number, "welcome")))
        return True


def join(offer: Offer, rank: int, own_host: str) -> Peer:
    """Connect `rank` to the gate of rank 0, at the first of its addresses that answers.

    Raises:
        OSError: none answers; the text names all of them.
    """
    refused: dict[str, str] = {}
    for seconds in _TRY_SECONDS:
        for address in candidates(offer, own_host):
            try:
                return _authenticated(
                    socket.create_connection((address, offer.port), timeout=seconds), offer, rank, seconds
                )
            except (OSError, MessageError) as error:
                refused[address] = getattr(error, "strerror", None) or str(error)
    listed = ", ".join(f"{address} ({reason})" for address, reason in refused.items())
    raise OSError(f"{listed or 'it has no address for other hosts'}; port {offer.port}")


def _authenticated(stream: socket.socket, offer: Offer, rank: int, seconds: float) -> Peer:
    connection = Connection(stream, MONITOR_MESSAGES)
    try:
        deadline = time.monotonic() + 2 * seconds
        challenge = _next(connection, deadline)
        if not isinstance(challenge, Challenge):
            raise MessageError("not a monitor of hpcai500")
        number = secrets.token_hex(16)
        connection.send(Hello(rank=rank, number=number, proof=proof(offer.token, challenge.number, rank)))
        welcome = _next(connection, deadline)
        if not isinstance(welcome, Welcome) or not is_proof(welcome.proof, offer.token, number, "welcome"):
            raise MessageError("the monitor of another job")
    except BaseException:
        connection.close()
        raise
    connection.longest_line = LONGEST_LINE
    return connection


def _next(connection: Peer, deadline: float) -> MonitorMessage:
    with selectors.DefaultSelector() as selector:
        selector.register(connection, selectors.EVENT_READ)
        while connection.open and (left := deadline - time.monotonic()) > 0:
            selector.select(left)
            if messages := connection.receive():
                return messages[0]
    raise MessageError("no answer" if connection.open else "connection closed")


# ----------------------------------------------------------------------------------------------------
# The monitor of one rank, and how a process ends once a rank is lost.


# After a rank is lost: time for the main thread to end normally, and then to report that it did not.
GRACE_SECONDS = 4.0
LAST_WORDS_SECONDS = 2.0
# Of the main thread's stack, innermost: from the engine's update to the call that hangs.
_FRAMES = 8


def bound_seconds(timeout_seconds: float) -> float:
    """Longest time from the loss of a rank to the end of every other one:

        timeout + 2 heartbeats + GRACE_SECONDS + LAST_WORDS_SECONDS

    That holds for a host that disappears and for a rank that is stopped. A process that is killed or ends with an error
    is detected at once: 0 instead of the timeout. For a rank that hangs, the time starts when the others wait for it,
    and the allowance of its phase replaces the timeout if it is longer.
    """
    return timeout_seconds + 2 * heartbeat_seconds(timeout_seconds) + GRACE_SECONDS + LAST_WORDS_SECONDS


class Monitor:
    """One rank's monitor of the other ranks, and of itself if it has no others.

    Made by all ranks of `communicator` together, after connecting. When a rank is lost, `on_lost` is called in a thread
    of the monitor, and this process ends within `GRACE_SECONDS` + `LAST_WORDS_SECONDS`, even if its main thread never
    returns from a collective: if it still runs after the grace period, `last_words` is called and the process exits
    with 1. If no Python runs any more (a library hangs in its clean-up), the kernel's timer (SIGALRM) ends it. Only
    `stay` prevents that.

    In a `with` statement, an error that ends the block is reported to the others as this rank's failure.

    Args:
        timeout_seconds: silence of a rank, or lack of progress while others wait for it, that ends the job.
        on_lost: called at once, except for a failure of this rank itself; on rank 0 it should write ERROR, because a
            launcher that sees a rank die may kill all others a second later. Must be thread-safe.
        last_words: called with the message if the main thread is stuck; by default it is printed on stderr.

    Raises:
        EnvironmentLacksError: a rank cannot reach rank 0 (on all ranks).
        RunError: a rank was lost while connecting, or the accepting thread has failed.
    """

    def __init__(
        self,
        communicator: Communicator,
        timeout_seconds: float,
        *,
        on_lost: Callable[[Lost], None] | None = None,
        last_words: Callable[[str], None] | None = None,
    ) -> None:
        self.timeout_seconds = timeout_seconds
        self._rank, self._host = communicator.rank, communicator.hosts[communicator.rank]
        self._is_alone = communicator.size == 1
        self._thread = threading.get_ident()
        self._on_lost, self._last_words = on_lost, last_words or report_fatal
        self._counter = itertools.count(1)
        self._progress = FIRST_BEAT.progress
        self._announced = (FIRST_BEAT.phase, FIRST_BEAT.allowance_seconds)
        self._failure: str | None = None
        self._verdict: Lost | None = None
        self._known = threading.Event()
        self._stays = threading.Event()
        peers = {} if self._is_alone else _connect_monitors(communicator)
        hosts = communicator.hosts
        self._watch = Watch(self._rank, hosts, timeout_seconds, peers, self._beat, self._found, self._report_standstill)

    def __enter__(self) -> Monitor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.failed(str(error) or type(error).__name__)
        self.close()

    def phase(self, name: str, allowance_seconds: float = 0.0) -> None:
        """Announce what the main thread does now, as in `Beat`; takes less than a microsecond."""
        self._announced = (name, allowance_seconds)
        self._progress = next(self._counter)

    def progress(self) -> None:
        """Announce that the main thread has made progress within its phase. Any thread may call it."""
        self._progress = next(self._counter)

    def stopped_seconds(self) -> float:
        """For how long this process was stopped, or its host suspended, since this was made."""
        return self._watch.stops.look()

    def failed(self, reason: str) -> None:
        """Report to the others that this rank ends with an error. The first failure of the job is final."""
        if not self._is_alone:
            if self._verdict is None:
                self._failure = reason
            self._watch.fail(reason)

    def failure_of_rank_0(self, seconds: float) -> str | None:
        """On ranks other than 0: the error that rank 0 has reported about itself, as from `shortened`.

        Waits `seconds` at most.
        """
        return self._watch.failure_of_rank_0(seconds) if self._rank else None

    def give_up(self, reason: str) -> None:
        """End the job and this process, from another thread, if the main thread does not return."""
        if self._is_alone:
            self._found(Lost(self._rank, self._host, reason, 0.0))
        else:
            self._watch.fail(reason)

    def verdict(self) -> Lost | None:
        """The lost rank, if it is already known."""
        return self._verdict

    def wait_for_verdict(self, seconds: float | None = None) -> Lost | None:
        """The lost rank. Call it when a collective has failed, because its error does not name the rank.

        Waits `seconds` at most; None is the timeout and two heartbeats.
        """
        longest = self.timeout_seconds + 2 * heartbeat_seconds(self.timeout_seconds) if seconds is None else seconds
        if not self._is_alone:
            self._known.wait(longest)
        return self._verdict

    def close(self) -> None:
        """Send goodbye, so that the end of this process is not a failure. Ranks may close in any order.

        Waits two seconds at most.
        """
        self._watch.close()

    def stay(self) -> None:
        """Let this process live on although a rank is lost. Called once everything of the job is closed."""
        self._stays.set()
        signal.setitimer(signal.ITIMER_REAL, 0)

    def _beat(self) -> Beat:
        # The count is read after the phase: a phase announced in between then counts as progress one beat later.
        name, allowance = self._announced
        return Beat(self._progress, name, allowance)

    def _report_standstill(self, sentence: str) -> None:
        # In another thread, because stderr or the folder of the source may be what the main thread hangs on.
        start_watcher("monitor-report", partial(self._show_stack, sentence), lambda error: None)

    def _show_stack(self, sentence: str) -> None:
        frame = sys._current_frames().get(self._thread)
        who = "" if self._is_alone else f"rank {self._rank} on host {self._host}: "
        say(f"{who}{sentence}; the main thread is here, the innermost call last:")
        for place in traceback.extract_stack(frame)[-_FRAMES:] if frame else ():
            say(f"  {Path(place.filename).name}:{place.lineno} {place.name}: {place.line}")

    def _found(self, lost: Lost) -> None:
        signal.setitimer(signal.ITIMER_REAL, GRACE_SECONDS + LAST_WORDS_SECONDS)
        last_words_at = time.monotonic() + GRACE_SECONDS
        self._verdict = lost
        # In another thread, because the watching thread must still inform the others.
        start_watcher("monitor-end", partial(self._end, lost, last_words_at), self._end_at_once)

    def _end(self, lost: Lost, last_words_at: float) -> None:
        try:
            if self._on_lost and self._failure is None:
                self._on_lost(lost)
        finally:
            self._known.set()
            # A slow file system must not delay the last words past the kernel's timer.
            stays = self._stays.wait(max(0.0, last_words_at - time.monotonic()))
        if stays:
            return
        self._last_words(lost.message)
        remove_scratch()
        os._exit(ExitCode.RUN_FAILED)

    def _end_at_once(self, error: RunError) -> None:
        report_fatal(f"{self._verdict.message}; and {error}" if self._verdict else str(error))
        os._exit(ExitCode.RUN_FAILED)


def _connect_monitors(communicator: Communicator) -> dict[int, Peer]:
    """Connect every rank with rank 0; returns the connections of this rank.

    Raises:
        EnvironmentLacksError: a rank cannot reach rank 0 (on all ranks).
        RunError: on rank 0, the accepting thread has failed.
    """
    rank, host = communicator.rank, communicator.hosts[communicator.rank]
    gate = Gate(host, communicator.size) if rank == 0 else None
    failure, peers = None, {}
    try:
        offer = communicator.broadcast_object(gate.offer if gate else None)
        if gate is None:
            try:
                peers = {0: join(offer, rank, host)}
            except OSError as error:
                failure = f"rank {rank} on host {host} cannot reach rank 0 on host {offer.host} at {error}"
        failures = [each for each in communicator.gather_objects(failure) if each]
    finally:
        if gate:
            peers = gate.close()
    if failures:
        for connection in peers.values():
            connection.close()
        raise EnvironmentLacksError(
            f"{failures[0]}: allow TCP connections between the job's hosts on all ports, or name the interface that "
            "connects them in GLOO_SOCKET_IFNAME"
        )
    return peers
