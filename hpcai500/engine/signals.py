"""Requests to stop: Ctrl-C, a scheduler's SIGTERM, or the warning signal that it sends ahead (SIGUSR1)."""

from __future__ import annotations

import os
import signal
import time
from types import FrameType, TracebackType
from typing import Any

_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
_TOGETHER_SECONDS = 0.5


class StopRequest:
    """While it is entered, a signal to stop is noted instead of obeyed; the engine stops at the next step.

    A second Ctrl-C stops at once: the user has decided not to wait for the checkpoint. Two that come together are one:
    a terminal sends it to the command and to the job, and the command passes it on.
    """

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self._noted_at_seconds = 0.0
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopRequest:
        self._before = {number: signal.signal(number, self._note) for number in _STOPPING}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self.signal is None:
            self.signal, self._noted_at_seconds = signal.Signals(number), now
            # Not print: the handler may have come in the middle of one.
            os.write(
                2, f"\nhpcai500: {self.signal.name}: stopping with a checkpoint (Ctrl-C again: at once)\n".encode()
            )
        elif number == signal.SIGINT and now - self._noted_at_seconds > _TOGETHER_SECONDS:
            raise KeyboardInterrupt
