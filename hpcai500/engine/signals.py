"""Requests to stop: Ctrl-C, a scheduler's SIGTERM or the warning ahead of it (SIGUSR1, SIGURG), a closed terminal."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from types import FrameType, TracebackType
from typing import Any

from hpcai500.stopping import TOGETHER_SECONDS

_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)
# A job's script says the same to all processes by a signal that ends none which has not asked for it.
_SAID_TO_ALL = signal.SIGURG


class StopRequest:
    """While it is entered, a signal to stop is noted instead of obeyed; the engine stops at the next step.

    A second Ctrl-C stops at once: the user has decided not to wait for the checkpoint. Two that come together are one:
    a terminal sends it to the command and to the job, and the command passes it on.
    """

    def __init__(self, announce: bool = True) -> None:
        """`announce`: say on stderr that the signal was heard; of many ranks, one does."""
        self._announce = announce
        self.signal: signal.Signals | None = None
        self.agreed: signal.Signals | None = None
        self._noted_at_seconds = 0.0
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopRequest:
        # Who was started by nohup goes on when the terminal is closed.
        is_nohup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        wanted = [number for number in (*_STOPPING, _SAID_TO_ALL) if not (is_nohup and number == signal.SIGHUP)]
        self._before = {number: signal.signal(number, self._note) for number in wanted}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def wishes(self) -> list[float]:
        """What this rank has heard, as numbers that can be summed over ranks: a place for each signal."""
        return [float(self.signal == number) for number in _STOPPING]

    def agree(self, wishes: Sequence[float]) -> None:
        """Take up what was heard, so that all ranks stop after the same step; `wishes` are summed over ranks.

        What a rank hears later is for the next time: to act on it now, it would be alone.
        """
        heard = [number for number, count in zip(_STOPPING, wishes, strict=True) if count > 0]
        self.agreed = self.agreed or (heard[0] if heard else None)

    def _note(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        number = signal.SIGUSR1 if number == _SAID_TO_ALL else number
        if self.signal is None:
            self.signal, self._noted_at_seconds = signal.Signals(number), now
            if self._announce:
                # Not print: the handler may have come in the middle of one.
                line = f"\nhpcai500: {self.signal.name}: stopping with a checkpoint (Ctrl-C again: at once)\n"
                os.write(2, line.encode())
        elif number == signal.SIGINT and now - self._noted_at_seconds > TOGETHER_SECONDS:
            raise KeyboardInterrupt
