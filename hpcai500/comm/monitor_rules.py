"""When a rank counts as lost: the monitor's decisions, without clocks, threads or sockets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

STARTING = "starting"
READING = "reading data"
COMPUTING = "computing"
WAITING = "waiting for sums"
EVALUATING = "evaluating"
WRITING = "writing"

# What comes before the first announced phase: imports, the index of a large data set, a compiler.
_STARTING_SECONDS = 3600.0
_GO_ON = "go on with --resume"


def heartbeat_seconds(timeout_seconds: float) -> float:
    """Time between two signs of life of a rank: a second, or a tenth of a timeout below ten seconds."""
    return min(1.0, timeout_seconds / 10)


@dataclass(frozen=True)
class Beat:
    """A sign of life: what the rank's main thread is at.

    Attributes:
        progress: grows whenever the main thread has got on.
        phase: a word for people; `WAITING` is the one that counts as waiting for others.
        allowance_seconds: how long this phase may take without progress; never less than the timeout counts.
    """

    progress: int
    phase: str
    allowance_seconds: float


FIRST_BEAT = Beat(0, STARTING, _STARTING_SECONDS)


@dataclass(frozen=True)
class Lost:
    """The rank that the job cannot go on without; `rank` is None where all wait for each other.

    Attributes:
        rank: in the whole job.
        host: its host name, or "" where there is no one rank.
        reason: what was seen and what to do about it.
        seconds: how long nothing was seen of it.
    """

    rank: int | None
    host: str
    reason: str
    seconds: float

    @property
    def message(self) -> str:
        """One line for the user and for the record's ERROR."""
        return self.reason if self.rank is None else f"rank {self.rank} on host {self.host}: {self.reason}"


@dataclass
class _Seen:
    """What is known of one rank: when it was heard of, and since when its main thread has not moved."""

    heard: float
    moved: float
    beat: Beat = FIRST_BEAT
    present: bool = True


class Judge:
    """Decides from signs of life which rank is lost. The first decision stands.

    The time in which the judge itself did not run (its host was suspended, or stopped as part of the whole job) counts
    against nobody.

    Args:
        hosts: host name of each watched rank.
        timeout_seconds: silence, or lack of progress, after which a rank is lost.
        now: the time, on the monotonic clock that all calls use; seconds.
    """

    def __init__(self, hosts: Mapping[int, str], timeout_seconds: float, now: float) -> None:
        self._hosts = dict(hosts)
        self._timeout = timeout_seconds
        self._seen = {rank: _Seen(heard=now, moved=now) for rank in hosts}
        self._looked = now
        self._lost: Lost | None = None

    def beat(self, rank: int, beat: Beat, now: float) -> None:
        """Rank `rank` is alive and its main thread is at `beat`."""
        seen = self._seen[rank]
        seen.heard = now
        if (beat.progress, beat.phase) != (seen.beat.progress, seen.beat.phase):
            seen.moved = now
        seen.beat = beat

    def left(self, rank: int) -> None:
        """Rank `rank` has said goodbye: it is done, and nothing more is expected of it."""
        self._seen[rank].present = False

    def failed(self, rank: int, reason: str) -> None:
        """Rank `rank` has said that it ends by an error of its own."""
        self._decide(rank, reason, 0.0)

    def closed(self, rank: int, now: float) -> None:
        """The connection of rank `rank` has ended; without a goodbye before it, the rank is lost."""
        if self._seen[rank].present:
            self._decide(
                rank,
                "its process ended without a word (killed or crashed: see its own messages, and its host's log for "
                f"the out-of-memory killer); {_GO_ON}",
                now - self._seen[rank].heard,
            )

    def look(self, now: float) -> Lost | None:
        """The decision, if there is one by now. To be called every `heartbeat_seconds`, after all news were told."""
        self._excuse_own_sleep(now)
        if self._lost is None:
            self._look_for_silence(now)
        if self._lost is None:
            self._look_for_standstill(now)
        return self._lost

    def _excuse_own_sleep(self, now: float) -> None:
        gap, self._looked = now - self._looked, now
        # A shorter one leaves everybody time to be heard of again.
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
                f"no sign of life for {now - heard:.0f} s (its host or its link is gone, or it was stopped): "
                f"look at that host; {_GO_ON}",
                now - heard,
            )

    def _look_for_standstill(self, now: float) -> None:
        """Ranks that wait are innocent of the standstill; among the others, the one that has not moved for longest."""
        present = {rank: seen for rank, seen in self._seen.items() if seen.present}
        waiting = [seen for seen in present.values() if seen.beat.phase == WAITING]
        busy = [(seen.moved, rank) for rank, seen in present.items() if seen.beat.phase != WAITING]
        longest = max((now - seen.moved for seen in waiting), default=0.0)
        if longest <= self._timeout:
            return
        if not busy:
            # Whoever began to wait last has waited long enough too: nobody is on the way any more.
            shortest = min(now - seen.moved for seen in waiting)
            if shortest > max(self._timeout, *(seen.beat.allowance_seconds for seen in waiting)):
                self._decide(None, _deadlock(shortest), shortest)
            return
        for moved, rank in sorted(busy):
            beat = present[rank].beat
            if now - moved > max(self._timeout, beat.allowance_seconds):
                self._decide(rank, _standstill(beat, now - moved, len(waiting)), now - moved)
                return

    def _decide(self, rank: int | None, reason: str, seconds: float) -> None:
        if self._lost is None:
            self._lost = Lost(rank, "" if rank is None else self._hosts[rank], reason, seconds)


def _standstill(beat: Beat, seconds: float, waiting: int) -> str:
    others = f"{waiting} other{' waits' if waiting == 1 else 's wait'}"
    return f"no progress for {seconds:.0f} s in its phase `{beat.phase}`, while {others} for it; {_GO_ON}"


def _deadlock(seconds: float) -> str:
    return (
        f"all ranks have waited for each other's sums for {seconds:.0f} s: the network between their hosts loses "
        "messages, or a sum takes longer than communication.timeout_seconds: look at the network, or allow more time; "
        f"{_GO_ON}"
    )
