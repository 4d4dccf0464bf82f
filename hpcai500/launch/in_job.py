"""Starts modules of the in-job half by command line and waits for them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

from hpcai500.errors import ExitCode

_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


def module_command(module: str, *arguments: str | Path) -> list[str]:
    """The tokens that run `module` of this package in a Python of its own."""
    return [sys.executable, "-m", f"hpcai500.{module}", *map(str, arguments)]


def become(command: Sequence[str]) -> NoReturn:
    """Replace this process by `command`: its output, signals and exit code are then ours."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(command[0], list(command))


def run_to_end(command: Sequence[str]) -> int:
    """Run `command`, pass signals on to it, and return its exit code (1 if a signal killed it).

    Raises:
        KeyboardInterrupt: Ctrl-C killed it before it could catch it.

    Its stdout goes to stderr, because ours carries the result alone."""
    process: subprocess.Popen[bytes] | None = None
    pending: list[int] = []

    def forward(number: int, frame: FrameType | None) -> None:
        if process is None:
            pending.append(number)
        else:
            process.send_signal(number)

    before = {number: signal.signal(number, forward) for number in _FORWARDED}
    try:
        process = subprocess.Popen(command, stdout=sys.stderr)
        for number in pending:
            process.send_signal(number)
        code = process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if code == -signal.SIGINT:
        raise KeyboardInterrupt
    if code < 0:
        name = signal.Signals(-code).name
        print(f"hpcai500: error: the job was killed by {name}", file=sys.stderr)  # noqa: T201
        return ExitCode.RUN_FAILED
    return code
