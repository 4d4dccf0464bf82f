"""Child processes that end with their parent, and are told the signals that it gets."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from types import FrameType, TracebackType
from typing import Any

# The last one is how a job's script warns all processes; who does not listen lives on.
_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGURG)
# <linux/prctl.h>
_PR_SET_PDEATHSIG = 1
# A terminal's Ctrl-C comes once from the terminal and perhaps once more from whoever passes it on.
_TOGETHER_SECONDS = 0.5


def start_child(
    command: Sequence[str],
    *,
    environment: Mapping[str, str] | None = None,
    cores: Sequence[int] | None = None,
    inherit: Sequence[int] = (),
    last_will: signal.Signals = signal.SIGTERM,
    own_session: bool = False,
    output: int | None = None,
) -> subprocess.Popen[bytes]:
    """Start `command`; its stdout goes to stderr, because ours carries the result alone.

    Args:
        environment: instead of our own.
        cores: those that it may run on; None: as ours.
        inherit: file descriptors that it keeps.
        last_will: what it gets when this process ends, also when that was killed. A job takes SIGTERM as a request to
            stop with a checkpoint.
        own_session: keep a terminal's Ctrl-C from it.
        output: file descriptor that takes all that it prints, instead of our stderr.
    """
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL if own_session else None,
        stdout=sys.stderr if output is None else output,
        stderr=output,
        env=environment,
        pass_fds=inherit,
        start_new_session=own_session,
        preexec_fn=_preparation(last_will, cores),  # noqa: PLW1509 - the login-node half has one thread
    )


def _preparation(last_will: signal.Signals, cores: Sequence[int] | None) -> Callable[[], None]:
    """What the child does before it becomes its command."""
    prctl, parent = ctypes.CDLL(None).prctl, os.getpid()

    def prepare() -> None:
        prctl(_PR_SET_PDEATHSIG, last_will)
        # The parent may have ended before the line above.
        if os.getppid() != parent:
            os._exit(1)
        if cores is not None:
            os.sched_setaffinity(0, cores)

    return prepare


class SignalRelay:
    """While it is entered, signals to stop go on to the children, and this process waits for what they do.

    Args:
        translation: what the first request to stop is turned into; a later one goes on as it is.
    """

    def __init__(self, translation: Mapping[int, signal.Signals] | None = None) -> None:
        self._translation = translation or {}
        self._children: list[subprocess.Popen[bytes]] = []
        self._noted: list[int] = []
        self._first_seconds: float | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> SignalRelay:
        self._before = {number: signal.signal(number, self._note) for number in _FORWARDED}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @property
    def heard(self) -> bool:
        """Whether a signal has come."""
        return bool(self._noted)

    def add(self, child: subprocess.Popen[bytes]) -> None:
        """Pass signals on to `child` too, also those that came before it was there."""
        self._children.append(child)
        for number in self._noted:
            child.send_signal(number)

    def _note(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        self._first_seconds = self._first_seconds or now
        if now - self._first_seconds <= _TOGETHER_SECONDS:
            number = self._translation.get(number, signal.Signals(number))
        self._noted.append(number)
        for child in self._children:
            child.send_signal(number)
