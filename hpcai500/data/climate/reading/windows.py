"""Windows: images that share compressed chunks, inflated together and kept until all of them have been used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hpcai500._core import ClimateReader
from hpcai500.data.climate.storage import Storage

# Of a window's chunks, so many for each thread are inflated in one go: about 25 ms for the shipped chunks. Between two
# goes a batch that is asked for comes first.
_CHUNKS_A_GO = 32
# Threads wait for one another at the end of each call: when the consumer waits too, calls are longer.
_GOES_IN_A_HURRY = 8
BUFFERS = 2


def window_images(storage: Storage) -> int:
    """Images of a file that must be inflated together; 1 where an image can be read without its neighbours."""
    return storage.window if storage.filters else 1


def windows_of(storages: Sequence[Storage], samples: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Number the window that each sample is in; no two files share one.

    `samples` has a row (file, image) for each sample; repeats follow one another. Those of an image that is read
    without its neighbours have numbers of their own: nothing is saved where they meet. What `samplers.windowed_order`
    takes.
    """
    sizes = np.array([window_images(storage) for storage in storages], np.int64)
    counts = np.array([-(-storage.shape[0] // window_images(storage)) for storage in storages], np.int64)
    first = np.concatenate(([0], np.cumsum(counts)[:-1]))
    files, images = samples[:, 0], samples[:, 1]
    windows = np.asarray(first[files] + images // sizes[files], np.int64)
    again = 1 + np.flatnonzero((samples[1:] == samples[:-1]).all(axis=1) & (sizes[files[1:]] == 1))
    windows[again] = counts.sum() + np.arange(again.size)
    return windows


class WindowBuffers:
    """Two windows in memory: one that is used, and one that is filled ahead, a little at a time."""

    def __init__(self, reader: ClimateReader, storages: Sequence[Storage], dtype: Any, threads: int) -> None:
        self._reader = reader
        self._storages = storages
        self._dtype = dtype
        self._threads = threads
        self._memory: list[npt.NDArray[Any] | None] = [None] * BUFFERS
        # Of each buffer: the (file, first image) it holds or begins to hold, and how many goes are done.
        self._held: list[tuple[int, int] | None] = [None] * BUFFERS
        self._done = [0] * BUFFERS
        self._used = 0

    def free(self) -> None:
        """Forget what is held, and give its memory back: gigabytes, which another loader may want next."""
        self._memory = [None] * BUFFERS
        self._held = [None] * BUFFERS

    def advance(self, window: tuple[int, int], *, hurry: bool = False) -> bool:
        """Inflate a little of a window, or more in a hurry; False when all of it is here.

        Raises ClimateError; the window is then forgotten.
        """
        if window in self._held:
            buffer = self._held.index(window)
        else:
            buffer = (self._used + 1) % BUFFERS
            self._held[buffer], self._done[buffer] = window, 0
        goes = self._goes(window[0])
        if self._done[buffer] == goes:
            return False
        try:
            file, first = window
            images = self._images(buffer, window)
            end = min(self._done[buffer] + (_GOES_IN_A_HURRY if hurry else 1), goes)
            self._reader.read_window(file, first, len(images), images, part=(self._done[buffer], end, goes))
        except BaseException:
            self._held[buffer] = None
            raise
        self._done[buffer] = end
        return self._done[buffer] < goes

    def complete(self, window: tuple[int, int]) -> npt.NDArray[Any] | None:
        """The images of a window that is here and in use from now on; None while advance() has work to do."""
        if window not in self._held:
            return None
        buffer = self._held.index(window)
        if self._done[buffer] < self._goes(window[0]):
            return None
        self._used = buffer
        return self._images(buffer, window)

    def _goes(self, file: int) -> int:
        storage = self._storages[file]
        return max(1, storage.chunks_per_image // (self._threads * _CHUNKS_A_GO))

    def _images(self, buffer: int, window: tuple[int, int]) -> npt.NDArray[Any]:
        memory = self._memory[buffer]
        channels = self._reader.image_shape[0]
        rows, columns = self._storages[0].shape[2:]
        if memory is None:
            largest = max(min(window_images(storage), storage.shape[0]) for storage in self._storages)
            memory = self._memory[buffer] = np.empty((largest, channels, rows, columns), self._dtype)
        file, first = window
        return memory[: min(window_images(self._storages[file]), self._storages[file].shape[0] - first)]
