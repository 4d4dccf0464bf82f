"""Knows which rank is gone, whatever the backend: one thread a rank, heartbeats to rank 0 over sockets of their own."""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from types import TracebackType

from hpcai500.comm.base import Communicator
from hpcai500.comm.monitor_joining import Gate, join
from hpcai500.comm.monitor_protocol import Peer
from hpcai500.comm.monitor_rules import (
    COMPUTING,
    EVALUATING,
    FIRST_BEAT,
    READING,
    STARTING,
    WAITING,
    WRITING,
    Beat,
    Lost,
    heartbeat_seconds,
)
from hpcai500.comm.monitor_watch import Watch, start_watcher
from hpcai500.errors import EnvironmentLacksError, ExitCode, RunError
from hpcai500.scratch import remove_scratch
from hpcai500.streams import tell_at_once

__all__ = ["COMPUTING", "EVALUATING", "READING", "STARTING", "WAITING", "WRITING", "Lost", "Monitor", "bound_seconds"]

# After a rank is known to be lost: time in which the main thread may end in order, and then to write why it did not.
GRACE_SECONDS = 4.0
LAST_WORDS_SECONDS = 2.0


def bound_seconds(timeout_seconds: float) -> float:
    """Longest time from the loss of a rank to the end of every other one:

        timeout + 2 heartbeats + GRACE_SECONDS + LAST_WORDS_SECONDS

    where a heartbeat is a second, or a tenth of a timeout below ten seconds. That is the case of a host that
    disappears or a rank that is stopped. A process that is killed or ends by its own error is known at once: 0 in place
    of the timeout. For a rank that hangs, the time counts from when the others have come to wait for it, and a phase
    that was announced with a longer allowance has that in place of the timeout.
    """
    return timeout_seconds + 2 * heartbeat_seconds(timeout_seconds) + GRACE_SECONDS + LAST_WORDS_SECONDS


class Monitor:
    """One rank's part of the watch that all ranks keep on each other.

    Made by all ranks of `communicator` together, after connecting. Rank 0 hears all; the others hear rank 0. When a
    rank is lost, `on_lost` is called in a thread of the monitor, and this process ends within `GRACE_SECONDS` +
    `LAST_WORDS_SECONDS`, also where its main thread never comes back from a sum: if it is still there after the grace,
    `last_words` is called and the process exits with 1. Where no Python runs any more (a library that hangs in its
    clean-up), the kernel's timer ends it.

    In a `with` statement, an error that ends the block is told to the others as this rank's failure.

    Args:
        communicator: all ranks of the job.
        timeout_seconds: silence of a rank, or standstill while others wait for it, that ends the job.
        on_lost: told at once, but for a failure of this very rank; on rank 0 it should write ERROR, since a launcher
            that sees a rank die may kill all others a second later. Must be thread-safe.
        last_words: told the message when the main thread is stuck; without it, one line goes to stderr.

    Raises:
        EnvironmentLacksError: a rank cannot reach rank 0 (on all ranks).
        RunError: a rank was lost while they came together, or the thread that takes ranks in has ended.
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
        self._on_lost, self._last_words = on_lost, last_words or tell_at_once
        self._counter = itertools.count(1)
        self._progress = FIRST_BEAT.progress
        self._announced = (FIRST_BEAT.phase, FIRST_BEAT.allowance_seconds)
        self._failure: str | None = None
        self._verdict: Lost | None = None
        self._known = threading.Event()
        self._watch: Watch | None = None
        if communicator.size > 1:
            hosts = communicator.hosts
            peers = _meet(communicator)
            self._watch = Watch(self._rank, hosts, timeout_seconds, peers, self._beat, self._found)

    def __enter__(self) -> Monitor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.failed(str(error) or type(error).__name__)
        self.close()

    def phase(self, name: str, allowance_seconds: float = 0.0) -> None:
        """Announce what the main thread is at now, for example `WAITING`; costs less than a microsecond.

        Args:
            name: a word for people; only `WAITING` has a meaning.
            allowance_seconds: how long it may go on without progress, where that is longer than the timeout.
        """
        self._announced = (name, allowance_seconds)
        self._progress = next(self._counter)

    def progress(self) -> None:
        """Announce that the main thread has got on within its phase. Any thread may."""
        self._progress = next(self._counter)

    def failed(self, reason: str) -> None:
        """Tell the others that this rank ends by an error of its own, and why. The first failure of the job stands."""
        if self._watch and self._verdict is None:
            self._failure = reason
            self._watch.fail(reason)

    def give_up(self, reason: str) -> None:
        """End the job, and this process in any case: for another thread, where the main one does not come back."""
        if self._watch:
            self._watch.fail(reason)
        else:
            self._found(Lost(self._rank, self._host, reason, 0.0))

    def verdict(self) -> Lost | None:
        """Who is lost, if that is known by now."""
        return self._verdict

    def wait_for_verdict(self, seconds: float | None = None) -> Lost | None:
        """Who is lost: to be asked when a collective has failed, since it does not know who and where.

        Args:
            seconds: longest time to wait; None is as long as a rank may be silent, and two heartbeats.
        """
        longest = self.timeout_seconds + 2 * heartbeat_seconds(self.timeout_seconds) if seconds is None else seconds
        if self._watch:
            self._known.wait(longest)
        return self._verdict

    def close(self) -> None:
        """Say goodbye, so that the end of this process is no failure. In any order; waits two seconds at most."""
        if self._watch:
            self._watch.close()

    def _beat(self) -> Beat:
        # The count after the phase: a phase that is announced in between is then seen as progress a beat later.
        name, allowance = self._announced
        return Beat(self._progress, name, allowance)

    def _found(self, lost: Lost) -> None:
        signal.setitimer(signal.ITIMER_REAL, GRACE_SECONDS + LAST_WORDS_SECONDS)
        self._verdict = lost
        # A thread of its own: that of the watch has to go on telling the others.
        start_watcher("monitor-end", partial(self._end, lost), self._end_without_ado)

    def _end(self, lost: Lost) -> None:
        try:
            if self._on_lost and self._failure is None:
                self._on_lost(lost)
        finally:
            self._known.set()
            time.sleep(GRACE_SECONDS)
        self._last_words(lost.message)
        remove_scratch()
        os._exit(ExitCode.RUN_FAILED)

    def _end_without_ado(self, error: RunError) -> None:
        tell_at_once(f"{self._verdict.message}; and {error}" if self._verdict else str(error))
        os._exit(ExitCode.RUN_FAILED)


def _meet(communicator: Communicator) -> dict[int, Peer]:
    """Connect everyone with rank 0; returns the connections of this rank.

    Raises:
        EnvironmentLacksError: on all ranks, when one cannot reach rank 0.
        RunError: on rank 0, when the thread that takes the others in has ended.
    """
    rank, host = communicator.rank, communicator.hosts[communicator.rank]
    gate = Gate(host, communicator.size) if rank == 0 else None
    trouble, peers = None, {}
    try:
        offer = communicator.broadcast_object(gate.offer if gate else None)
        if gate is None:
            try:
                peers = {0: join(offer, rank, host)}
            except OSError as error:
                trouble = f"rank {rank} on host {host} cannot reach rank 0 on host {offer.host} at {error}"
        troubles = [each for each in communicator.gather_objects(trouble) if each]
    finally:
        if gate:
            peers = gate.close()
    if troubles:
        for connection in peers.values():
            connection.close()
        raise EnvironmentLacksError(
            f"{troubles[0]}: let the job's hosts talk to each other on all TCP ports, or name the interface that "
            "joins them in GLOO_SOCKET_IFNAME"
        )
    return peers
