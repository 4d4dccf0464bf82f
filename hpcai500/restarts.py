"""Restarts: when a rank is lost, the processes of the other ranks stay, and train again from the last checkpoint.

A rank's process and the command that has started it share a socket. When another rank is lost, the process reports
which one, so that the command ends it if it still runs. If the job may restart, it then closes its job, and waits for
the arguments of the next job. It keeps its interpreter and all modules, which
thousands of ranks would otherwise import again from one file system. The command starts the lost rank anew, and each
process that did not get as far as waiting, as one that hangs in a collective.

The next job is a resumption of the record like any other: nothing else of the lost job is kept.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from hpcai500.hosts import LISTEN_FD, RENDEZVOUS
from hpcai500.messages import Message, line_of, parse
from hpcai500.streams import say

# ----------------------------------------------------------------------------------------------------
# How the ranks of a job ended, and whether another start may help.


@dataclass(frozen=True)
class Loss:
    """A lost rank; None if all ranks waited for each other. `reason` is one line that names rank and host."""

    rank: int | None
    reason: str


@dataclass(frozen=True)
class RankEnd:
    """How a rank's part in a job ended.

    Attributes:
        code: of its process, negative for a signal; None: it waits for the next job.
        loss: what it has reported about another rank.
    """

    host: str
    code: int | None
    loss: Loss | None = None


# The user, a scheduler, or the command itself has stopped the rank: no reason to start it again.
_STOPPED = {-signal.SIGINT, -signal.SIGTERM, -signal.SIGHUP, -signal.SIGUSR1}


def find_loss(ends: Mapping[int, RankEnd]) -> Loss | None:
    """The lost rank, after which another start may help; None if a rank ended by its own error, or was stopped.

    `ends` has every rank whose end is known.
    """
    losses = [end.loss for end in ends.values() if end.loss]
    for rank, end in ends.items():
        # The kernel's timer ends a rank that hangs because another one is lost.
        if end.code is not None and end.code < 0 and end.code not in {*_STOPPED, -signal.SIGALRM}:
            named = next((loss for loss in losses if loss.rank == rank), None)
            killed = f"rank {rank} on host {end.host}: it was killed by {signal.Signals(-end.code).name}"
            return named or Loss(rank, killed)
    if any(end.code is not None and end.code > 0 and end.loss is None for end in ends.values()):
        return None
    return losses[0] if losses else None


class Restarts:
    """The restarts of one run.

    Args:
        most: number of restarts.
        resume: called before each; returns the arguments of `hpcai500.train` that resume the run, or None where it
            cannot be resumed.
    """

    def __init__(self, most: int, resume: Callable[[], Sequence[str | Path] | None]) -> None:
        self._left = self._most = most
        self._resume = resume

    def after(self, loss: Loss) -> Sequence[str | Path] | None:
        """The arguments of the next job, or None if there is none; prints what was lost."""
        reason = loss.reason.removesuffix("; go on with --resume")
        if self._left == 0:
            count = f"{self._most} restart{'s' * (self._most > 1)}"
            say(f"error: {reason}: not started again, after {count} (--restarts); go on with --resume")
            return None
        arguments = self._resume()
        if arguments is None:
            say(f"error: {reason}: not started again, because the run had not begun to train")
            return None
        self._left -= 1
        say(f"{reason}: restart {self._most - self._left} of {self._most}, from the last checkpoint")
        return arguments


# ----------------------------------------------------------------------------------------------------
# The socket between a rank's process and the command that started it. Both trust each other.


# File descriptor of the rank's end.
LINK_FD = "HPCAI500_LINK_FD"
# Set if there may be another job after a loss.
MAY_RESTART = "HPCAI500_MAY_RESTART"
# What differs between the jobs of one process.
_PLACE = ("MASTER_PORT", RENDEZVOUS, LISTEN_FD)
_LONGEST = 1 << 16


class Lost(Message):
    """From the rank: another rank is lost."""

    kind: Literal["lost"] = "lost"
    rank: int | None
    reason: str


class Waits(Message):
    """From the rank: it has closed its job, and waits for the next one."""

    kind: Literal["waits"] = "waits"


class NextJob(Message):
    """From the command: arguments of `hpcai500.train`, bytes decoded as Latin-1, and changed variables.

    The socket that rank 0 listens at comes with the message.
    """

    kind: Literal["job"] = "job"
    arguments: list[str]
    environment: dict[str, str]


_MESSAGES: TypeAdapter[Lost | Waits | NextJob] = TypeAdapter(
    Annotated[Lost | Waits | NextJob, Field(discriminator="kind")]
)


class CommandSide:
    """The command's end. `rank_end` is for the rank's process, and is closed once that has started."""

    def __init__(self) -> None:
        self._stream, self.rank_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._stream.setblocking(False)
        self.waits = False
        self.loss: Loss | None = None

    def hear(self) -> None:
        """Take what the rank has sent."""
        with contextlib.suppress(OSError):  # nothing now, or its process has ended
            while line := self._stream.recv(_LONGEST):
                match parse(line, _MESSAGES):
                    case Lost(rank=rank, reason=reason):
                        self.loss = Loss(rank, reason)
                    case Waits():
                        self.waits = True

    def send_job(
        self,
        arguments: Sequence[str | Path],
        environment: Mapping[str, str],
        listener: socket.socket | None,
    ) -> bool:
        """Give a waiting rank its next job; returns whether it could be sent."""
        place = {name: environment[name] for name in _PLACE if name in environment and name != LISTEN_FD}
        words = [os.fsencode(argument).decode("latin-1") for argument in arguments]
        message = line_of(NextJob(arguments=words, environment=place))
        self.waits, self.loss = False, None
        try:
            socket.send_fds(self._stream, [message], [listener.fileno()] if listener else [])
        except OSError:
            return False
        return True

    def close(self) -> None:
        """A rank that waits ends then."""
        self._stream.close()
        self.rank_end.close()


class RankSide:
    """The rank's end, in a process that stays after another rank is lost if the job `may_restart`."""

    def __init__(self, descriptor: int, *, may_restart: bool) -> None:
        os.set_inheritable(descriptor, False)
        self._stream = socket.socket(fileno=descriptor)
        self.may_restart = may_restart
        self._has_reported = False
        # Whether this process has got over the loss of another rank.
        self.stays = False

    @property
    def has_lost(self) -> bool:
        """Whether another rank of the present job is lost, about which the command prints a line."""
        return self._has_reported and self.may_restart

    def report(self, rank: int | None, reason: str) -> None:
        """Report that another rank is lost: the command then ends it, or starts it again. Any thread may call it."""
        if not self._has_reported:
            self._has_reported = True
            with contextlib.suppress(OSError):  # the command has ended, and this process will
                self._stream.send(line_of(Lost(rank=rank, reason=reason)))

    def next_job(self) -> list[str] | None:
        """After a job: wait for the next one, and return its arguments; None if this process has to end."""
        if not self.stays:
            return None
        # Threads of a communicator end once nothing refers to it.
        gc.collect()
        try:
            self._stream.send(line_of(Waits()))
            line, descriptors, _, _ = socket.recv_fds(self._stream, _LONGEST, 1)
        except OSError:
            return None
        job = parse(line, _MESSAGES) if line else None
        if not isinstance(job, NextJob):
            return None
        os.environ.pop(LISTEN_FD, None)
        os.environ.update(job.environment)
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)
            os.environ[LISTEN_FD] = str(descriptor)
        self._has_reported = self.stays = False
        return [os.fsdecode(word.encode("latin-1")) for word in job.arguments]


@cache
def rank_side() -> RankSide | None:
    """This process's end, if a command of ours has started it as a rank."""
    # Not for child processes.
    descriptor, may_restart = os.environ.pop(LINK_FD, None), os.environ.pop(MAY_RESTART, None)
    return RankSide(int(descriptor), may_restart=bool(may_restart)) if descriptor else None
