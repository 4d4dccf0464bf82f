"""Requests to stop: Ctrl-C, a scheduler's SIGTERM, or the warning signal that it sends ahead (SIGUSR1)."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType
from typing import Any

_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


class StopRequest:
    """While it is entered, a signal to stop is noted instead of obeyed; the engine stops at the next step.

    A second Ctrl-C stops at once: the user has decided not to wait for the checkpoint.
    """

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
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
        if self.signal is signal.SIGINT and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = signal.Signals(number)
