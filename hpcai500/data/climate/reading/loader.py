"""Batches of climate images: the core's reader, a ring of slots that one thread fills ahead, torch tensors."""

from __future__ import annotations

import time
import weakref
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch

from hpcai500._core import ClimateError, ClimateReader
from hpcai500.data.climate.reading.filler import Filler, Visit
from hpcai500.data.climate.reading.rolls import epoch_rolls
from hpcai500.data.climate.reading.unreadable import unreadable
from hpcai500.data.climate.reading.windows import WindowBuffers, window_images
from hpcai500.data.climate.storage import Located, Storage
from hpcai500.data.held_slots import HeldSlots, Mark, stream_mark
from hpcai500.data.samplers import SampleIds
from hpcai500.data.staging.reading import images_here, not_staged
from hpcai500.errors import DataError

DType = Literal["float32", "float16", "bfloat16"]
_ITEMS = {"float32": np.float32, "float16": np.float16, "bfloat16": np.uint16}


@dataclass(frozen=True, eq=False)
class ClimateBatch:
    """One batch on the host.

    `images` has shape (N, channels, rows, width). `samples` are the N ids that were asked for. Image i was turned
    around the globe by `rolls[i]` columns, as `numpy.roll(image, rolls[i], axis=-1)`, before its columns were cropped:
    boxes follow. `wait_seconds` is how long the consumer was kept waiting for it.
    `images` is a view of a slot that is refilled once the next batch is asked for: use it, or copy it, before.
    """

    images: torch.Tensor
    samples: SampleIds
    rolls: npt.NDArray[np.int64]
    wait_seconds: float


class ClimateBatches:
    """Reads, normalises, rolls and crops images of HDF5 years ahead of the consumer.

    `files` are paths and where their images lie; `samples` has a row (file, image) for each sample. `channels` are
    numbers of channels in the wanted order (all, where None); `mean` and `std` have a value for each of them; of each
    image the columns left ... left + width are taken. With `roll`, each image is turned by a random number of columns
    that depends on (seed, epoch, sample) alone.

    `depth` batches are in the ring: one with the consumer, the others filled ahead by one thread, whose reads are
    shared by `threads` native threads. With `pin_memory`, slots are page-locked. A slot is refilled only after `mark`,
    recorded when its batch is done with, has passed: by default, with `pin_memory`, an event of the stream that is
    current then. Without `mean` and `std`, values are as stored, and float32 keeps their bits.

    Where images share compressed chunks (the shipped layout: 46), whole windows of them are inflated, so that an order
    of `samplers.windowed_order` inflates each chunk once; in another order a window is inflated again whenever the
    consumer comes back to it. At most two windows are in memory: one that is used, one that is filled ahead.

    Memory, in bytes, with I = channels x rows x columns x 2 (float16, bfloat16) or x 4 (float32): at most
    depth x batch_size x I for the slots, threads x (tile of 256 KiB, or 3.75 times the largest chunk as float32), and,
    from the first batch of an epoch to its end, 2 x window x I for the windows (none, where window is 1; shipped size
    as float16: 46 x 28.3 MB twice, 2.6 GB). Loaders whose epochs do not overlap never hold windows at the same time.

    Raises ValueError for settings that make no sense, DataError for a file that cannot be opened.
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
        left: int = 0,
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
                left=left,
                width=self._columns - left if width is None else width,
                threads=threads,
            )
        except ClimateError as error:
            raise self._unreadable(error) from error
        shape = (batch_size, *self._reader.image_shape)
        # torch aligns host memory to 64 bytes, which the core's non-temporal stores want.
        self._slots = [torch.empty(shape, dtype=getattr(torch, dtype), pin_memory=pin_memory) for _ in range(depth)]
        arrays = [(slot.view(torch.uint16) if dtype == "bfloat16" else slot).numpy() for slot in self._slots]
        self._batch_size = batch_size
        windows = WindowBuffers(self._reader, self._storages, _ITEMS[dtype], threads)
        self._filler = Filler(self._reader, windows, arrays)
        # A thread that comes back from native code into an interpreter that ends would be killed there, and abort.
        self._at_exit = weakref.finalize(self, _stop, self._reader, self._filler)
        self._running: Generator[ClimateBatch, None, None] | None = None
        self._closed = False

    @property
    def chunks_inflated(self) -> int:
        """Chunks that were inflated since the loader was made."""
        return self._reader.chunks_inflated

    def epoch(self, batches: Sequence[SampleIds], *, seed: int, epoch: int) -> Iterator[ClimateBatch]:
        """Yield one batch of at most `batch_size` images for each array of sample ids, in that order.

        Reading begins when the first batch is asked for. The consumer may stop early; an epoch that is still open
        ends when another begins. Raises DataError, naming file, dataset, image and chunk, in the place of the first
        batch with an image that cannot be read; at once where an image was not staged into the folder.
        """
        if self._closed:
            raise ValueError("the input pipeline is closed")
        for ids in batches:
            if not 1 <= len(ids) <= self._batch_size:
                raise ValueError(f"a batch must have 1 to {self._batch_size} samples, got {len(ids)}")
        self._require_staged(batches)
        if self._running is not None:
            self._running.close()
        self._running = self._run(batches, seed, epoch)
        return self._running

    def close(self) -> None:
        """Stop the threads. An epoch that is still open yields no further batch. May be called twice."""
        self._closed = True
        self._reader.close()
        if self._running is not None:
            self._running.close()
            self._running = None

    def _run(self, batches: Sequence[SampleIds], seed: int, epoch: int) -> Generator[ClimateBatch, None, None]:
        rolls = np.zeros(len(self._samples), np.int64)
        if self._roll:
            rolls = epoch_rolls(len(self._samples), self._columns, seed, epoch)
        held = HeldSlots(self._filler.release, most_held=max(self._depth - 2, 0))
        self._filler.begin([self._visits(ids, rolls) for ids in batches])
        try:
            for ids in batches:
                asked = time.perf_counter()
                try:
                    slot = self._filler.next()
                except ClimateError as error:
                    raise self._unreadable(error) from error
                waited = time.perf_counter() - asked
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
        """What one batch takes: from each window, and all that needs none in one read."""
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

    def _require_staged(self, batches: Sequence[SampleIds]) -> None:
        """In a staged file, an image that is not there is a hole, and a hole is zeros: no values of any image."""
        for file, path in enumerate(self._paths):
            here = images_here(path)
            if here is None or here.all():
                continue
            for ids in batches:
                files, images = self._samples[ids].T
                missing = images[files == file][~here[images[files == file]]]
                if missing.size:
                    raise not_staged(path.parent, f"image {missing[0]} of {path.name}")

    def _unreadable(self, error: ClimateError) -> DataError:
        return unreadable(error, self._paths[error.file], self._storages[error.file].shape[1])


def _stop(reader: ClimateReader, filler: Filler) -> None:
    reader.close()
    filler.end()
