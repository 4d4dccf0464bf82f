"""The thread that fills slots ahead of the consumer, and windows ahead of the slots."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hpcai500._core import ClimateError, ClimateReader
from hpcai500.data.climate.reading.windows import WindowBuffers


@dataclass(frozen=True, eq=False)
class Visit:
    """Images of one batch that come from one window, a (file, first image); or, without one, straight from files."""

    window: tuple[int, int] | None
    files: npt.NDArray[np.int64]
    images: npt.NDArray[np.int64]
    places: npt.NDArray[np.int64]
    rolls: npt.NDArray[np.int64]


class _Stopped(Exception):  # noqa: N818  # ends the thread, and is no error
    """The epoch was ended early."""


class Filler:
    """Fills slots in the order of the batches, one thread per epoch; errors come in the place of their batch."""

    def __init__(self, reader: ClimateReader, windows: WindowBuffers, slots: Sequence[npt.NDArray[Any]]) -> None:
        self._reader = reader
        self._windows = windows
        self._slots = slots
        self._changed = threading.Condition()
        self._free: deque[int] = deque()
        self._finished: deque[int | BaseException] = deque()
        self._stopped = False
        self._thread: threading.Thread | None = None

    def begin(self, batches: Sequence[list[Visit]]) -> None:
        """Start to fill slots; all of them are free. An epoch that runs must have been ended before."""
        assert self._thread is None
        self._free = deque(range(len(self._slots)))
        self._finished.clear()
        self._stopped = False
        # A daemon: a consumer that died without close() must not keep the interpreter.
        self._thread = threading.Thread(target=self._fill_all, args=(batches,), name="climate-filler", daemon=True)
        self._thread.start()

    def next(self) -> int:
        """Wait for the oldest filled slot; it is the caller's until release(). Raises what filling it raised."""
        with self._changed:
            self._changed.wait_for(lambda: self._finished)
            result = self._finished.popleft()
        if isinstance(result, BaseException):
            raise result
        return result

    def release(self, slot: int) -> None:
        """The slot may be overwritten from now on."""
        with self._changed:
            self._free.append(slot)
            self._changed.notify_all()

    def end(self) -> None:
        """Stop after what is being read now, and wait for that. Windows are then no longer in memory."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        thread, self._thread = self._thread, None
        # A loader that nobody holds any more may be collected on this very thread, which then ends by itself.
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _fill_all(self, batches: Sequence[list[Visit]]) -> None:
        windows = [visit.window for visits in batches for visit in visits if visit.window is not None]
        ahead = _LookAhead(windows)
        try:
            for visits in batches:
                slot = self._free_slot(ahead)
                for visit in visits:
                    self._fill(visit, self._slots[slot], ahead)
                self._publish(slot)
        except _Stopped:
            pass
        except BaseException as error:  # noqa: BLE001  # handed to the consumer, whatever it is
            self._publish(error)
        finally:
            self._windows.free()

    def _publish(self, result: int | BaseException) -> None:
        with self._changed:
            self._finished.append(result)
            self._changed.notify_all()

    def _free_slot(self, ahead: _LookAhead) -> int:
        """Wait for a free slot, and inflate a little of the next window meanwhile."""
        while True:
            with self._changed:
                if self._stopped:
                    raise _Stopped
                if self._free:
                    return self._free.popleft()
                if ahead.next is None:
                    self._changed.wait()
                    continue
            ahead.advance(self._windows)

    def _fill(self, visit: Visit, slot: npt.NDArray[Any], ahead: _LookAhead) -> None:
        out = slot[: int(visit.places.max()) + 1]
        if visit.window is None:
            self._reader.read(visit.files, visit.images, out, places=visit.places, rolls=visit.rolls)
            return
        images = self._windows.complete(visit.window)
        while images is None:
            if self._stopped:
                raise _Stopped
            self._windows.advance(visit.window, hurry=True)
            images = self._windows.complete(visit.window)
        positions = visit.images - visit.window[1]
        self._reader.take(images, positions, out, places=visit.places, rolls=visit.rolls)
        ahead.passed(visit.window)


class _LookAhead:
    """The window after the one in use, while there is something of it to inflate."""

    def __init__(self, windows: Sequence[tuple[int, int]]) -> None:
        distinct = [window for at, window in enumerate(windows) if at == 0 or window != windows[at - 1]]
        # The first is inflated when it is asked for: nothing is in use before it.
        self._later = iter(distinct[1:])
        self._current: tuple[int, int] | None = None
        self.next: tuple[int, int] | None = None

    def passed(self, window: tuple[int, int]) -> None:
        """A batch has taken images out of `window`."""
        if window != self._current:
            self._current = window
            self.next = next(self._later, None)

    def advance(self, windows: WindowBuffers) -> None:
        """Inflate a little of it."""
        assert self.next is not None
        try:
            if not windows.advance(self.next):
                self.next = None
        except ClimateError:
            # Damage is told when the window's turn comes and it is inflated again: errors come in order.
            self.next = None
