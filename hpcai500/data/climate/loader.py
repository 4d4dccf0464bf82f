"""Batches of climate images for training: read, normalised, rolled and cropped ahead of the consumer.

Where images share compressed chunks, windows of them are inflated together by one thread that runs ahead.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from hpcai500._core import ClimateError, ClimateReader
from hpcai500.data.climate.years import Located, Storage, unreadable
from hpcai500.data.device_batches import HeldSlots, Mark, OneEpochAtATime, stream_mark
from hpcai500.data.samplers import SampleIds
from hpcai500.errors import DataError
from hpcai500.methodology.sampling import Draw, random_words

# ----------------------------------------------------------------------------------------------------
# Windows: images that share compressed chunks, inflated together and kept until all of them have been used.


# Chunks of a window that each thread inflates in one step: about 25 ms for the shipped chunks. Between two steps, a
# requested batch has priority.
_CHUNKS_PER_STEP = 32
# Threads wait for one another at the end of each call. While the consumer waits, a call takes more steps.
_URGENT_STEPS = 8
BUFFERS = 2


def window_images(storage: Storage) -> int:
    """Images of a file that must be inflated together; 1 where an image can be read without its neighbours."""
    return storage.window if storage.filters else 1


def windows_of(storages: Sequence[Storage], samples: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The number of the window that each sample is in, for `samplers.windowed_order`; no two files share a window.

    `samples` has a row (file, image) for each sample; repeats are adjacent. Repeats of an image that is read without
    its neighbours have different numbers: keeping them together saves nothing.
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
    """Two windows in memory: one in use, and one that is filled ahead, step by step."""

    def __init__(self, reader: ClimateReader, storages: Sequence[Storage], dtype: Any, threads: int) -> None:
        self._reader = reader
        self._storages = storages
        self._dtype = dtype
        self._threads = threads
        self._memory: list[npt.NDArray[Any] | None] = [None] * BUFFERS
        # For each buffer: the (file, first image) that it holds or is being filled with, and how many steps are done.
        self._held: list[tuple[int, int] | None] = [None] * BUFFERS
        self._done = [0] * BUFFERS
        self._used = 0

    def free(self) -> None:
        """Drop both windows and free their memory: gigabytes that another loader may need next."""
        self._memory = [None] * BUFFERS
        self._held = [None] * BUFFERS

    def advance(self, window: tuple[int, int], *, urgent: bool = False) -> bool:
        """Inflate one step of a window, or several if `urgent`. Return False when the window is complete.

        Raises ClimateError; the window is then dropped.
        """
        if window in self._held:
            buffer = self._held.index(window)
        else:
            buffer = (self._used + 1) % BUFFERS
            self._held[buffer], self._done[buffer] = window, 0
        steps = self._steps(window[0])
        if self._done[buffer] == steps:
            return False
        try:
            file, first = window
            images = self._images(buffer, window)
            end = min(self._done[buffer] + (_URGENT_STEPS if urgent else 1), steps)
            self._reader.read_window(file, first, len(images), images, part=(self._done[buffer], end, steps))
        except BaseException:
            self._held[buffer] = None
            raise
        self._done[buffer] = end
        return self._done[buffer] < steps

    def complete(self, window: tuple[int, int]) -> npt.NDArray[Any] | None:
        """The images of a complete window, which is then the one in use; None while advance() has work to do."""
        if window not in self._held:
            return None
        buffer = self._held.index(window)
        if self._done[buffer] < self._steps(window[0]):
            return None
        self._used = buffer
        return self._images(buffer, window)

    def _steps(self, file: int) -> int:
        storage = self._storages[file]
        return max(1, storage.chunks_per_image // (self._threads * _CHUNKS_PER_STEP))

    def _images(self, buffer: int, window: tuple[int, int]) -> npt.NDArray[Any]:
        memory = self._memory[buffer]
        channels = self._reader.image_shape[0]
        rows, columns = self._storages[0].shape[2:]
        if memory is None:
            largest = max(min(window_images(storage), storage.shape[0]) for storage in self._storages)
            memory = self._memory[buffer] = np.empty((largest, channels, rows, columns), self._dtype)
        file, first = window
        return memory[: min(window_images(self._storages[file]), self._storages[file].shape[0] - first)]


# ----------------------------------------------------------------------------------------------------
# The thread that fills slots ahead of the consumer, and windows ahead of the slots.


@dataclass(frozen=True, eq=False)
class Visit:
    """Images of one batch from one window, a (file, first image), or directly from files if it is None."""

    window: tuple[int, int] | None
    files: npt.NDArray[np.int64]
    images: npt.NDArray[np.int64]
    places: npt.NDArray[np.int64]
    rolls: npt.NDArray[np.int64]


class _Stopped(Exception):  # noqa: N818  # ends the thread; not an error
    """The epoch was ended early."""


class Filler:
    """Fills slots in the order of the batches, one thread per epoch; an error takes the place of its batch."""

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
        """Start to fill slots; all of them are free. An earlier epoch must have been ended."""
        assert self._thread is None
        self._free = deque(range(len(self._slots)))
        self._finished.clear()
        self._stopped = False
        # A daemon: a consumer that died without close() must not keep the interpreter alive.
        self._thread = threading.Thread(target=self._fill_all, args=(batches,), name="climate-filler", daemon=True)
        self._thread.start()

    def next(self) -> int:
        """Wait for the oldest filled slot, the caller's until release(). Raises what filling it raised."""
        with self._changed:
            self._changed.wait_for(lambda: self._finished)
            result = self._finished.popleft()
        if isinstance(result, BaseException):
            raise result
        return result

    def release(self, slot: int) -> None:
        with self._changed:
            self._free.append(slot)
            self._changed.notify_all()

    def end(self) -> None:
        """Stop after the read in progress, and wait for it. The windows are then freed."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        thread, self._thread = self._thread, None
        # The garbage collector may end a loader on this very thread, which cannot join itself.
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
        except BaseException as error:  # noqa: BLE001  # the consumer raises it
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
            self._windows.advance(visit.window, urgent=True)
            images = self._windows.complete(visit.window)
        positions = visit.images - visit.window[1]
        self._reader.take(images, positions, out, places=visit.places, rolls=visit.rolls)
        ahead.passed(visit.window)


class _LookAhead:
    """The window after the one in use, while it is incomplete."""

    def __init__(self, windows: Sequence[tuple[int, int]]) -> None:
        distinct = [window for at, window in enumerate(windows) if at == 0 or window != windows[at - 1]]
        # The first window is inflated when it is needed: none is in use before it.
        self._later = iter(distinct[1:])
        self._current: tuple[int, int] | None = None
        self.next: tuple[int, int] | None = None

    def passed(self, window: tuple[int, int]) -> None:
        if window != self._current:
            self._current = window
            self.next = next(self._later, None)

    def advance(self, windows: WindowBuffers) -> None:
        assert self.next is not None
        try:
            if not windows.advance(self.next):
                self.next = None
        except ClimateError:
            # The window is inflated again when needed, and raises then: errors keep the order of batches.
            self.next = None


# ----------------------------------------------------------------------------------------------------
# Random rotations of the globe: longitude is periodic, so a rolled image is as realistic as the recorded one.


def epoch_rolls(samples: int, columns: int, seed: int, epoch: int) -> npt.NDArray[np.int64]:
    """By how many columns (0 ... columns - 1) each sample is rolled in this epoch, as by `numpy.roll`.

    A function of (seed, epoch, sample) alone, the same on every machine, NumPy version and number of ranks. `seed` and
    `epoch` are non-negative and below 2**64, `columns` below 2**32.
    """
    words = random_words(samples, seed, epoch, Draw.ROLLS)
    return ((words >> np.uint64(32)) * np.uint64(columns) >> np.uint64(32)).astype(np.int64)


# ----------------------------------------------------------------------------------------------------
# Batches of climate images: the core's reader, a ring of slots that one thread fills ahead, and torch tensors.


DType = Literal["float32", "float16", "bfloat16"]
_ITEMS = {"float32": np.float32, "float16": np.float16, "bfloat16": np.uint16}


@dataclass(frozen=True, eq=False)
class ClimateBatch:
    """One batch on the host.

    `images` has shape (N, channels, rows, width) and is a view of a slot that is refilled once the next batch is
    requested: use or copy it before. `samples` are the N requested ids. Image i was rolled by `rolls[i]` columns, as by
    `numpy.roll(image, rolls[i], axis=-1)`, before its columns were cropped; its boxes must be moved likewise.
    `wait_seconds` is how long the consumer waited for it.
    """

    images: torch.Tensor
    samples: SampleIds
    rolls: npt.NDArray[np.int64]
    wait_seconds: float

    def repeated(self, ids: SampleIds) -> ClimateBatch:
        """As many images as `ids`, with their own ids and rolls, which lead to their boxes."""
        count = len(ids)
        return ClimateBatch(self.images[:count], self.samples[:count], self.rolls[:count], 0.0)


class ClimateBatches(OneEpochAtATime[ClimateBatch]):
    """Reads, normalises, rolls and crops images of HDF5 years ahead of the consumer.

    `files` are paths and the storage of their images; `samples` has a row (file, image) for each sample. `channels` are
    numbers of channels in the order of the output (None: all). `mean` and `std` have a value for each of them; without
    them values are as stored, and float32 keeps their bits. Each image is cropped to its first `width`
    columns (None: all). With `roll`, it is first rolled by a random number of columns that depends on (seed, epoch,
    sample) alone.

    `depth` batches are in the ring: one with the consumer, the others filled ahead by one thread, whose reads are
    shared by `threads` native threads. With `pin_memory`, slots are page-locked. A slot is refilled only after the
    `mark` that is recorded when its batch is released has passed: by default, with `pin_memory`, an event of the stream
    that is current then.

    Where images share compressed chunks (the shipped layout: 46), whole windows of them are inflated, so that the order
    of `samplers.windowed_order` inflates each chunk once; in another order a window is inflated again whenever the
    consumer returns to it. At most two windows are in memory: one in use, one that is filled ahead.

    Memory, in bytes, with I = channels x rows x columns x 2 (float16, bfloat16) or x 4 (float32): at most
    depth x batch_size x I for the slots, threads x (tile of 256 KiB, or 3.75 times the largest chunk as float32), and,
    from the first batch of an epoch to its end, 2 x window x I for the windows (none, where window is 1; shipped size
    as float16: 46 x 28.3 MB twice, 2.6 GB). Loaders whose epochs do not overlap never hold windows at the same time.

    Raises ValueError for invalid settings, DataError for a file that cannot be opened.
    """

    def __init__(
        self,
        files: Sequence[tuple[Path, Storage]],
        samples: npt.NDArray[np.int64],
        *,
        batch_size: int,
        threads: int,
        channels: Sequence[int] | None = None,
        mean: npt.NDArray[np.float64] | None = None,
        std: npt.NDArray[np.float64] | None = None,
        dtype: DType = "float32",
        width: int | None = None,
        roll: bool = False,
        depth: int = 4,
        pin_memory: bool = False,
        mark: Mark | None = None,
    ) -> None:
        if batch_size < 1 or depth < 1 or samples.ndim != 2:
            raise ValueError(f"batch_size and depth must be at least 1, samples (S, 2): {batch_size}, {depth}")
        self._paths = [path for path, _ in files]
        self._storages = [storage for _, storage in files]
        self._samples = samples
        self._roll = roll
        self._depth = depth
        self._mark = stream_mark if mark is None and pin_memory else mark
        _, in_file, _, self._columns = self._storages[0].shape
        try:
            self._reader = ClimateReader(
                [Located(path, storage) for path, storage in files],
                channels=range(in_file) if channels is None else channels,
                mean=mean,
                std=std,
                dtype=dtype,
                left=0,
                width=self._columns if width is None else width,
                threads=threads,
            )
        except ClimateError as error:
            raise self._unreadable(error) from error
        shape = (batch_size, *self._reader.image_shape)
        # torch aligns host memory to 64 bytes, which the core's non-temporal stores need.
        self._slots = [torch.empty(shape, dtype=getattr(torch, dtype), pin_memory=pin_memory) for _ in range(depth)]
        arrays = [(slot.view(torch.uint16) if dtype == "bfloat16" else slot).numpy() for slot in self._slots]
        self._batch_size = batch_size
        windows = WindowBuffers(self._reader, self._storages, _ITEMS[dtype], threads)
        self._filler = Filler(self._reader, windows, arrays)
        # At interpreter exit, Python kills a thread that returns from native code, which aborts the process.
        self._at_exit = weakref.finalize(self, _stop, self._reader, self._filler)

    @property
    def chunks_inflated(self) -> int:
        """Chunks inflated since the loader was created."""
        return self._reader.chunks_inflated

    def epoch(self, batches: Sequence[SampleIds], *, seed: int, epoch: int) -> Generator[ClimateBatch, None, None]:
        """As in `OneEpochAtATime`; the error names file, dataset, image and chunk."""
        for ids in batches:
            if not 1 <= len(ids) <= self._batch_size:
                raise ValueError(f"a batch must have 1 to {self._batch_size} samples, got {len(ids)}")
        return super().epoch(batches, seed=seed, epoch=epoch)

    def close(self) -> None:
        """Stop the threads. An epoch in progress yields no further batch. May be called twice."""
        self._closed = True
        self._reader.close()
        self._end_epoch()

    def _run(self, batches: Sequence[SampleIds], seed: int, epoch: int) -> Generator[ClimateBatch, None, None]:
        rolls = np.zeros(len(self._samples), np.int64)
        if self._roll:
            rolls = epoch_rolls(len(self._samples), self._columns, seed, epoch)
        held = HeldSlots(self._filler.release, most_held=max(self._depth - 2, 0))
        self._filler.begin([self._visits(ids, rolls) for ids in batches])
        try:
            for ids in batches:
                start = time.perf_counter()
                try:
                    slot = self._filler.next()
                except ClimateError as error:
                    raise self._unreadable(error) from error
                waited = time.perf_counter() - start
                try:
                    yield ClimateBatch(self._slots[slot][: len(ids)], ids, rolls[ids], waited)
                finally:
                    self._give_back(slot, held)
                if self._closed:
                    return
        finally:
            held.flush()
            self._filler.end()

    def _give_back(self, slot: int, held: HeldSlots) -> None:
        if self._mark is not None and not self._closed:
            held.add(slot, self._mark())
        else:
            self._filler.release(slot)

    def _visits(self, ids: SampleIds, rolls: npt.NDArray[np.int64]) -> list[Visit]:
        """The images that one batch takes from each window; those that need no window are one read."""
        groups: dict[tuple[int, int] | None, list[int]] = {}
        for place, sample in enumerate(ids):
            file, image = map(int, self._samples[sample])
            size = window_images(self._storages[file])
            groups.setdefault((file, image // size * size) if size > 1 else None, []).append(place)
        visits = []
        for window, members in groups.items():
            places = np.array(members, np.int64)
            files, images = self._samples[ids[places]].T
            visits.append(Visit(window, files, images, places, rolls[ids[places]]))
        return visits

    def _unreadable(self, error: ClimateError) -> DataError:
        return unreadable(error, self._paths[error.file], self._storages[error.file].shape[1])


def _stop(reader: ClimateReader, filler: Filler) -> None:
    reader.close()
    filler.end()
