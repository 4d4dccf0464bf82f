"""Requests to stop: Ctrl-C, a scheduler's SIGTERM or the warning ahead of it (SIGUSR1, SIGURG), a closed terminal."""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from types import FrameType, TracebackType
from typing import Any

from hpcai500.stopping import TOGETHER_SECONDS
from hpcai500.streams import say_bare

_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)
# A job's script forwards SIGUSR1 to all processes as SIGURG, which is ignored by default.
_FORWARDED = signal.SIGURG


class StopRequest:
    """While it is entered, a signal to stop is noted, and the engine stops after the current step.

    A second Ctrl-C stops at once, without a checkpoint. Two in quick succession count as one: a terminal sends Ctrl-C
    to the command and to the job, and the command forwards it. One rank announces the signal on stderr.
    """

    def __init__(self, announce: bool = True) -> None:
        self._announce = announce
        self.signal: signal.Signals | None = None
        self.agreed: signal.Signals | None = None
        self._noted_at_seconds = 0.0
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopRequest:
        # A process under nohup continues when the terminal is closed.
        is_nohup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        handled = [number for number in (*_STOPPING, _FORWARDED) if not (is_nohup and number == signal.SIGHUP)]
        self._before = {number: signal.signal(number, self._note) for number in handled}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def requests(self) -> list[float]:
        """The signal that this rank has received, as numbers to be summed over ranks: one for each signal."""
        return [float(self.signal == number) for number in _STOPPING]

    def agree(self, requests: Sequence[float]) -> None:
        """Agree on a signal, so that all ranks stop after the same step; `requests` are summed over ranks.

        A signal that arrives later counts at the next step; otherwise its rank would stop alone.
        """
        received = [number for number, count in zip(_STOPPING, requests, strict=True) if count > 0]
        self.agreed = self.agreed or (received[0] if received else None)

    def _note(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        number = signal.SIGUSR1 if number == _FORWARDED else number
        if self.signal is None:
            self.signal, self._noted_at_seconds = signal.Signals(number), now
            if self._announce:
                # Not `say`: the handler may interrupt a print.
                say_bare(f"\nhpcai500: {self.signal.name}: stopping with a checkpoint (Ctrl-C again: at once)\n")
        elif number == signal.SIGINT and now - self._noted_at_seconds > TOGETHER_SECONDS:
            raise KeyboardInterrupt
