"""Child processes: modules of the in-job half, which are started by command line, get our signals and end with us."""

from __future__ import annotations

import ctypes
import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, ClassVar, NoReturn, TypeVar

from hpcai500.errors import ExitCode, OutOfTimeError
from hpcai500.files import remove_scratch_of
from hpcai500.hosts import LISTEN_FD
from hpcai500.restarts import LINK_FD, MAY_RESTART, CommandSide, RankEnd
from hpcai500.stopping import STOPPING, TOGETHER_SECONDS, Stopped, hold_signals
from hpcai500.streams import say
from hpcai500.system.limits import memory_limits

# ----------------------------------------------------------------------------------------------------
# Children, and the relay of signals to them.


# A job's script warns all processes with SIGURG, which those that do not handle it ignore.
_FORWARDED = (*STOPPING, signal.SIGUSR1, signal.SIGURG)
# From a run's second Ctrl-C until it is killed, so that it can close its record.
_KILL_SECONDS = 10.0
# For a process that has ended, or was killed, to disappear.
_DYING_SECONDS = 5.0
_POLL_SECONDS = 0.05
# For a rank to end after its job has failed: the monitor of each has ended it long before (`comm.liveness`).
_LATE_SECONDS = 15.0
# <linux/prctl.h>
_PR_SET_PDEATHSIG = 1

T = TypeVar("T")


class Child(subprocess.Popen[bytes]):
    """A process that can be waited for even while it waits for a mount whose server does not answer.

    The kernel keeps the threads of such a process, even after SIGKILL, and does not tell the parent that it has ended.
    It counts as ended here, and is left behind, when it has been dying for five seconds.
    """

    _dying_since_seconds: float | None = None

    def poll(self) -> int | None:
        """Exit code (negative: a signal's number), 1 if the kernel does not give it, None while it lives."""
        if super().poll() is None and (code := _code_of_dying(self.pid)) is not None:
            now = time.monotonic()
            self._dying_since_seconds = self._dying_since_seconds or now
            if now - self._dying_since_seconds > _DYING_SECONDS:
                say(f"process {self.pid} is left behind: the kernel keeps its threads, which wait for a dead mount")
                self.returncode = code
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        limit = time.monotonic() + (math.inf if timeout is None else timeout)
        while (code := self.poll()) is None:
            if time.monotonic() > limit:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            time.sleep(_POLL_SECONDS)
        return code


def _code_of_dying(process: int) -> int | None:
    """Exit code of a process whose main thread has ended, 1 of one with SIGKILL pending; else None."""
    if not (fields := _status(process)):
        return None
    if fields[0] == "Z":
        return os.waitstatus_to_exitcode(int(fields[49]))
    pending = int(fields[28])
    return int(ExitCode.RUN_FAILED) if pending >> (signal.SIGKILL - 1) & 1 else None


def _status(process: int) -> list[str]:
    """Fields of /proc/PID/stat from the state on (proc(5)); empty if there is no such process."""
    try:
        # The name before them may have any characters.
        return Path(f"/proc/{process}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
    except OSError:
        return []


def start_child(
    command: Sequence[str],
    *,
    environment: Mapping[str, str] | None = None,
    cores: Sequence[int] | None = None,
    inherit: Sequence[int] = (),
    death_signal: signal.Signals = signal.SIGTERM,
    own_session: bool = False,
    output: int | None = None,
    hold: bool = False,
) -> Child:
    """Start `command`; its stdout goes to stderr, because ours has only the result.

    Args:
        environment: instead of our own.
        cores: that it may run on; None: ours.
        inherit: file descriptors that it keeps.
        death_signal: sent to it when this process ends, even if killed. A job takes SIGTERM as a request to stop with a
            checkpoint.
        own_session: so that a terminal's Ctrl-C does not reach it.
        output: file descriptor for all that it prints, instead of our stderr.
        hold: block signals to stop until it lets them in (`stopping.let_signals_in`), as our modules do.
    """
    return Child(
        command,
        stdin=subprocess.DEVNULL if own_session else None,
        stdout=sys.stderr if output is None else output,
        stderr=output,
        env=environment,
        pass_fds=inherit,
        start_new_session=own_session,
        preexec_fn=_preparation(death_signal, cores, hold),  # the login-node half has one thread
    )


def _preparation(death_signal: signal.Signals, cores: Sequence[int] | None, hold: bool) -> Callable[[], None]:
    """What the child does before it becomes its command."""
    prctl, parent = ctypes.CDLL(None).prctl, os.getpid()

    def prepare() -> None:
        if hold:
            hold_signals()
        prctl(_PR_SET_PDEATHSIG, death_signal)
        # The parent may have ended before prctl.
        if os.getppid() != parent:
            os._exit(1)
        if cores is not None:
            os.sched_setaffinity(0, cores)

    return prepare


@dataclass(frozen=True)
class Patience:
    """How long children that measure may take; unlike a run, they have no checkpoint to write.

    Attributes:
        limit_seconds: until they are asked to end.
        grace_seconds: from then until they are killed.
    """

    limit_seconds: float
    grace_seconds: float = 1.0


class SignalRelay:
    """Within its block, signals to stop are passed on to the children, and this process waits for them.

    Args:
        translation: what the first request to stop is turned into; later ones are passed on unchanged.
        patience: for children that measure: they are killed soon after the first signal, at once after the second, and
            when their time is over. Without it, a run stops with a checkpoint; after another Ctrl-C it has ten seconds.
    """

    # The first signal of the relay that was entered last.
    last_signal: ClassVar[int | None] = None

    def __init__(
        self, translation: Mapping[int, signal.Signals] | None = None, patience: Patience | None = None
    ) -> None:
        self._translation = translation or {}
        self._patience = patience
        self._children: list[subprocess.Popen[bytes]] = []
        self._noted: list[int] = []
        self._first: tuple[int, float] | None = None
        self._is_late = self._is_over = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> SignalRelay:
        SignalRelay.last_signal = None
        # A process started by nohup continues when the terminal is closed.
        forwarded = [number for number in _FORWARDED if number != signal.SIGHUP or not _is_ignored(number)]
        self._before = {number: signal.signal(number, self._note) for number in forwarded}
        self._before[signal.SIGALRM] = signal.signal(signal.SIGALRM, self._expire)
        if self._patience:
            signal.setitimer(signal.ITIMER_REAL, self._patience.limit_seconds)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        for child in self._children:
            if (child.returncode or 0) < 0:
                remove_scratch_of(child.pid, os.environ, Path.cwd())

    @property
    def has_signal(self) -> bool:
        """Whether a signal has come."""
        return bool(self._noted)

    def add(self, child: subprocess.Popen[bytes]) -> None:
        """Pass signals on to `child` too, including those that came before."""
        self._children.append(child)
        for number in self._noted:
            child.send_signal(number)
        if self._is_over:
            child.kill()

    def conclude(self, codes: Iterable[int] = ()) -> None:
        """Raise if the children, which have ended, were stopped; `codes` are their exit codes.

        Raises:
            Stopped: by a signal to this process, while they measured or before they could handle it, or because they
                did not end and were killed.
            OutOfTimeError: their time was over.
        """
        if self._first and (self._patience or any(-code in _FORWARDED for code in codes)):
            raise Stopped(self._first[0])
        if self._first and self._is_over and -signal.SIGKILL in codes:
            raise Stopped(
                self._first[0],
                f": the run did not end within {_KILL_SECONDS:.0f} s of the last Ctrl-C, so it was killed; --resume "
                "continues from its last checkpoint, if it has one",
            )
        if self._is_late and self._patience:
            raise OutOfTimeError(f"it did not end within {self._patience.limit_seconds:.0f} s")

    def _note(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        is_first = self._first is None
        self._first = self._first or (number, now)
        SignalRelay.last_signal = self._first[0]
        together = now - self._first[1] <= TOGETHER_SECONDS
        if self._patience and is_first:
            signal.setitimer(signal.ITIMER_REAL, self._patience.grace_seconds)
        elif self._patience and not together:
            self._kill()
        elif number == signal.SIGINT and not together and signal.getitimer(signal.ITIMER_REAL)[0] == 0:
            # A second Ctrl-C stops them at once, unless they wait for a dead mount, where no handler runs.
            signal.setitimer(signal.ITIMER_REAL, _KILL_SECONDS)
        if together:
            number = self._translation.get(number, signal.Signals(number))
        self._noted.append(number)
        for child in self._children:
            child.send_signal(number)

    def _expire(self, number: int, frame: FrameType | None) -> None:
        if self._first is None and not self._is_late and self._patience:
            self._is_late = True
            signal.setitimer(signal.ITIMER_REAL, self._patience.grace_seconds)
            for child in self._children:
                child.terminate()
        else:
            self._kill()

    def _kill(self) -> None:
        self._is_over = True
        for child in self._children:
            child.kill()


def until_stopped(items: Iterable[T]) -> Iterator[T]:
    """`items`, one for each job; a signal that came too late for a job to obey stops the series.

    Raises:
        Stopped: before the next item.
    """
    SignalRelay.last_signal = None
    for item in items:
        if SignalRelay.last_signal is not None:
            raise Stopped(SignalRelay.last_signal)
        yield item


def _is_ignored(number: signal.Signals) -> bool:
    return signal.getsignal(number) is signal.SIG_IGN


# ----------------------------------------------------------------------------------------------------
# Starting one process, and waiting for it.


def become(command: Sequence[str], *, hold: bool = False) -> NoReturn:
    """Replace this process by `command`, with its output, signals and exit code; `hold` as in `start_child`."""
    if hold:
        hold_signals()
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(command[0], list(command))


def run_to_end(
    command: Sequence[str],
    *,
    environment: Mapping[str, str] | None = None,
    cores: Sequence[int] | None = None,
    inherit: Sequence[int] = (),
    hold: bool = False,
    patience: Patience | None = None,
) -> int:
    """Run `command`, pass signals on to it, and return its exit code (1 if a signal killed it).

    Its stdout goes to stderr, because ours has only the result. It gets SIGTERM when this process is killed. The other
    arguments are those of `start_child` and `SignalRelay`.

    Raises:
        KeyboardInterrupt: a signal stopped it before it could handle it, or while it measured.
        OutOfTimeError: `patience` was over.
    """
    with SignalRelay(patience=patience) as relay:
        child = start_child(command, environment=environment, cores=cores, inherit=inherit, hold=hold)
        relay.add(child)
        code = wait_for(child)
    relay.conclude([code])
    return checked_code(code, "the job")


class RankProcess:
    """The process of one rank, which may stay for the job that follows the loss of another rank (`restarts`)."""

    def __init__(self) -> None:
        self._child: Child | None = None
        self._link: CommandSide | None = None
        self._is_asked = False

    def start(
        self,
        command: Sequence[str],
        *,
        relay: SignalRelay,
        environment: Mapping[str, str],
        cores: Sequence[int] | None = None,
        listener: socket.socket | None = None,
        hold: bool = False,
        next_job: Sequence[str | Path] | None = None,
        may_restart: bool = False,
    ) -> None:
        """Run `command`, in a new process or, if it waits for `next_job`, in that of the job before.

        Args:
            relay: passes signals on to it.
            listener: on rank 0, where the ranks meet.
            hold: as `start_child`'s; `environment` and `cores`, too.
            next_job: arguments of `hpcai500.train`, which `command` runs with them.
            may_restart: whether there may be another job after a loss.
        """
        if (
            next_job is not None
            and self.is_waiting
            and self._link
            and self._link.send_job(next_job, environment, listener)
        ):
            return
        self.kill()
        link = CommandSide()
        inherit = [one.fileno() for one in (listener, link.rank_end) if one]
        own = {LISTEN_FD: str(listener.fileno())} if listener else {}
        own |= {LINK_FD: str(link.rank_end.fileno()), MAY_RESTART: "1" * may_restart}
        self._child = start_child(command, environment={**environment, **own}, cores=cores, inherit=inherit, hold=hold)
        link.rank_end.close()
        self._link, self._is_asked = link, False
        relay.add(self._child)

    @property
    def is_waiting(self) -> bool:
        """Whether it waits for its next job."""
        if self._link:
            self._link.hear()
        return self.code is None and self._link is not None and self._link.waits

    @property
    def is_busy(self) -> bool:
        """Whether its part in the job has not ended."""
        return self.code is None and not self.is_waiting

    @property
    def is_ended_by_us(self) -> bool:
        """Whether it was asked to end, or killed, by `send_signal`."""
        return self._is_asked

    @property
    def is_stopped(self) -> bool:
        """Whether a signal has stopped it, so that it hears nothing until it is continued."""
        return self._child is not None and _status(self._child.pid)[:1] == ["T"]

    @property
    def code(self) -> int | None:
        """Its exit code, negative for a signal; None while it lives."""
        return self._child.poll() if self._child else None

    @property
    def end(self) -> RankEnd:
        """How its part in the job has ended."""
        code = self.code
        if self._link:
            self._link.hear()
        if self._is_asked and code == -signal.SIGKILL:
            code = -signal.SIGTERM  # killed by us: no loss
        return RankEnd(socket.gethostname(), code, self._link.loss if self._link else None)

    def send_signal(self, number: signal.Signals) -> None:
        """Ask it to end, or kill it; it then does not count as lost."""
        if self._child:
            self._is_asked = True
            self._child.send_signal(number)

    def wait(self, is_over: Callable[[], bool] = lambda: False) -> int:
        """Wait until its part in the job has ended; returns its exit code, 1 if it waits for its next job.

        `is_over` returns whether the job has failed, or this rank was given up by the others: it then has some seconds
        to end by itself, and none if it is stopped.
        """
        over_seconds: float | None = None
        try:
            while self.is_busy:
                if over_seconds is None and is_over():
                    over_seconds = time.monotonic()
                if over_seconds is not None and (self.is_stopped or time.monotonic() - over_seconds > _LATE_SECONDS):
                    self.send_signal(signal.SIGKILL)
                time.sleep(_POLL_SECONDS)
        except BaseException:
            self.kill()
            raise
        return ExitCode.RUN_FAILED if self.code is None else self.code

    def kill(self) -> None:
        """Kill it, and wait until it is gone."""
        if self._child:
            self._child.kill()
            self._child.wait()
        if self._link:
            self._link.close()
        self._child = self._link = None


def wait_for(child: subprocess.Popen[bytes]) -> int:
    """Exit code of `child` (negative for a signal); it is killed if this process cannot wait for it."""
    try:
        return child.wait()
    except BaseException:
        child.kill()
        raise


def checked_code(code: int, name: str) -> int:
    """The exit code for our `code` of a child (negative for a signal); prints which signal killed `name`.

    SIGALRM is not printed: it ends a rank that hangs after another one was lost (`comm.liveness`), and that other rank
    is the reason.

    Raises:
        KeyboardInterrupt: it was Ctrl-C.
    """
    if code == -signal.SIGINT:
        raise KeyboardInterrupt
    if code == -signal.SIGALRM:
        return ExitCode.RUN_FAILED
    if code < 0:
        why = _why_killed(signal.Signals(-code))
        say(f"error: {name} was killed by {signal.Signals(-code).name}{why}")
        return ExitCode.RUN_FAILED
    return code


def _why_killed(number: signal.Signals) -> str:
    """What to suspect: where memory runs out, the kernel kills without a message, and libraries end the process."""
    limits = memory_limits()
    if number not in (signal.SIGKILL, signal.SIGABRT) or (number == signal.SIGABRT and not limits):
        return ""
    why = f"memory ran out{limits};" if limits else "the host ran out of memory (`dmesg`):"
    return f", perhaps because {why} use a smaller hyperparameters.batch_size, or more hosts"
