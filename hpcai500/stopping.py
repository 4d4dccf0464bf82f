"""Signals end our processes at once, with one line, without a traceback, and without leaving temporary files.

There are two kinds of processes:

- A command (`hpcai500 …`) raises `Stopped` (`unwinding_on_signals`), so that open resources are closed. Before its
  modules are loaded there is nothing to close, and it exits at once.
- A process that computes (`ending_by_signals`) may be inside one library call for minutes, where Python's handlers do
  not run. So a thread waits for the signal and ends the process.

A process can get a signal from its first instruction on, and Python prints a traceback for a Ctrl-C while it starts. So
a command starts processes with signals blocked (`hold_signals`), and they unblock them when they are ready
(`let_signals_in`); a signal that arrived before is not lost.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import ClassVar, NoReturn

from hpcai500.errors import ExitCode
from hpcai500.files import remove_scratch
from hpcai500.streams import report_fatal

# Sent by Ctrl-C, by a scheduler, and when a terminal is closed.
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# A scheduler's warning before it stops a job. A job's script passes it on to all processes as SIGURG, which processes
# ignore by default.
_WARNINGS = (signal.SIGUSR1, signal.SIGURG)
_HELD = (*STOPPING, *_WARNINGS)
# A process may get Ctrl-C twice: from the terminal, and from a parent that passes it on.
TOGETHER_SECONDS = 0.5
# <linux/prctl.h>
_PR_SET_PDEATHSIG = 1
# The time limit for a command to unwind and print its verdict. It is needed because the exception that a handler raises
# can be lost: Python drops those in destructors and in callbacks of weak references.
_UNWINDING_SECONDS = 4.0


class Stopped(KeyboardInterrupt):
    """A signal has stopped this command.

    Not KeyboardInterrupt itself: if that is raised inside `exec` (which makes dataclasses), Python ends the process by
    SIGINT, even if the exception is caught later.
    """

    # Kept because libraries may turn the exception into another one, or into an exit code.
    last: ClassVar[Stopped | None] = None

    def __init__(self, number: int, then: str = "") -> None:
        super().__init__(f"stopped by {signal_name(number)}{then}")
        self.number = number
        Stopped.last = self


def signal_name(number: int) -> str:
    return "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name


def why_stopped(error: KeyboardInterrupt) -> str:
    """The line to print for a command that was stopped."""
    return str(error) or str(Stopped.last or "stopped by Ctrl-C")


@contextmanager
def unwinding_on_signals() -> Iterator[None]:
    """For a command: until `loaded` is called a signal ends this process; after that it raises `Stopped`.

    A second signal ends the process at once. A signal that the caller ignores stays ignored (`nohup`).
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    Stopped.last = None
    ours = [number for number in STOPPING if _is_default(number)]
    before = {number: signal.signal(number, leave) for number in ours}
    atexit.register(_ignore_signals)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)


def loaded() -> None:
    """Note that the command's modules are loaded: signals unwind it from now on."""
    for number in STOPPING:
        if signal.getsignal(number) is leave:
            signal.signal(number, _unwind)


@contextmanager
def ending_by_signals(last_words: Callable[[int], None] = lambda number: None) -> Iterator[None]:
    """For a process that computes: the first signal ends it, whatever its main thread is doing.

    Nothing is unwound: temporary folders are removed, and the signal kills the process, so that its parent sees the
    cause. If other code sets a handler meanwhile (a run that stops with a checkpoint), that handler gets the signal.
    `last_words` is called with the signal's number, in a separate thread, before the process ends.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    before_descriptor = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    before = {number: signal.signal(number, _noted) for number in _HELD if _is_default(number)}
    # A forked process shares the pipe; its signals must not end this one.
    os.register_at_fork(after_in_child=_forget)
    threading.Thread(target=_end_on_signal, args=(reading, last_words), name="signals", daemon=True).start()
    atexit.register(_ignore_signals)
    let_signals_in()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before_descriptor)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(writing)


def hold_signals() -> None:
    """Block the signals that stop a process, in a child that is about to execute one of our programs."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _HELD)


def let_signals_in() -> None:
    """Unblock these signals, once this process handles them."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _HELD)


def end_with_parent(parent: int) -> None:
    """Let the kernel kill this process when `parent`, which started it, ends or is killed."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _is_default(number: int) -> bool:
    return signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler)


def leave(number: int, frame: FrameType | None = None) -> NoReturn:
    """Print which signal came, remove temporary folders, and exit at once."""
    report_fatal(f"stopped by {signal_name(number)}")
    remove_scratch()
    os._exit(ExitCode.RUN_FAILED)


def _unwind(number: int, frame: FrameType | None) -> NoReturn:
    first_seconds = time.monotonic()

    def again(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGALRM or time.monotonic() - first_seconds > TOGETHER_SECONDS:
            remove_scratch()
            os._exit(ExitCode.RUN_FAILED)

    for each in (*STOPPING, signal.SIGALRM):
        if signal.getsignal(each) is not signal.SIG_IGN:
            signal.signal(each, again)
    signal.setitimer(signal.ITIMER_REAL, _UNWINDING_SECONDS)
    raise Stopped(number)


def _noted(number: int, frame: FrameType | None) -> None:
    """Do nothing: Python has written the number to the pipe, where a thread waits for it."""


def _end_on_signal(reading: int, last_words: Callable[[int], None]) -> None:
    while received := os.read(reading, 1):
        number = received[0]
        if signal.getsignal(number) is _noted:
            try:
                last_words(number)
                remove_scratch()
            finally:
                _die_of(number)
    os.close(reading)


def _die_of(number: int) -> None:
    # Through the C library: Python changes handlers in its main thread only, which may be busy in a library.
    library = ctypes.CDLL(None)
    library.signal.argtypes = ctypes.c_int, ctypes.c_void_p
    number = signal.SIGUSR1 if number == signal.SIGURG else number
    library.signal(number, None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os.kill(os.getpid(), number)
    # The kernel does not deliver the signal to the init process of a container.
    os._exit(128 + number)


def _forget() -> None:
    if signal.getsignal(signal.SIGTERM) is _noted:
        signal.set_wakeup_fd(-1)
        for number in _HELD:
            if signal.getsignal(number) is _noted:
                signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


def _ignore_signals() -> None:
    """Ignore signals at exit: everything is written, and another Ctrl-C would only cause a traceback."""
    for number in STOPPING:
        signal.signal(number, signal.SIG_IGN)
