"""Starts modules of the in-job half by command line and waits for them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import NoReturn

from hpcai500.errors import ExitCode
from hpcai500.launch.child import Patience, SignalRelay, start_child
from hpcai500.stopping import hold_signals
from hpcai500.streams import say


def become(command: Sequence[str], *, hold: bool = False) -> NoReturn:
    """Replace this process by `command`: its output, signals and exit code are then ours; `hold` as `start_child`'s."""
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

    Its stdout goes to stderr, because ours carries the result alone. It gets SIGTERM when this process is killed.
    The other arguments are those of `start_child` and `SignalRelay`.

    Raises:
        KeyboardInterrupt: a signal stopped it before it could handle it, or while it measured.
        OutOfTimeError: `patience` was over.
    """
    with SignalRelay(patience=patience) as relay:
        child = start_child(command, environment=environment, cores=cores, inherit=inherit, hold=hold)
        relay.add(child)
        code = wait_for(child)
    relay.conclude([code])
    return told_code(code, "the job")


def wait_for(child: subprocess.Popen[bytes]) -> int:
    """Exit code of `child` (negative for a signal); it is killed if this process cannot wait for it."""
    try:
        return child.wait()
    except BaseException:
        child.kill()
        raise


def told_code(code: int, who: str) -> int:
    """The exit code to go on with, after saying on stderr if a signal killed `who`.

    Of SIGALRM nothing is said: by it a rank ends that hangs after another one was lost (`comm.monitor`), and that one
    is the reason.

    Raises:
        KeyboardInterrupt: it was Ctrl-C's.
    """
    if code == -signal.SIGINT:
        raise KeyboardInterrupt
    if code == -signal.SIGALRM:
        return ExitCode.RUN_FAILED
    if code < 0:
        name = signal.Signals(-code).name
        say(f"error: {who} was killed by {name}")
        return ExitCode.RUN_FAILED
    return code
