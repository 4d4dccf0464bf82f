"""Batches of training images as torch tensors, made by the core's ring of native threads.

Files that the core's JPEG decoder does not support are decoded by Pillow.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack, cast

import numpy as np
import numpy.typing as npt
import torch

from hpcai500._core import Batch, DecodeSpec, Failure, JpegLoader, crop_pixels
from hpcai500.data.device_batches import HeldSlots, Mark, OneEpochAtATime, Source, stream_mark
from hpcai500.data.imagenet.index import Split, decode_odd, read_image
from hpcai500.data.imagenet.seek_index import NO_COUNTS, SeekCounts, find_seek_index
from hpcai500.data.read_ahead import ReadAhead
from hpcai500.data.samplers import SampleIds
from hpcai500.data.staged import is_staged, not_staged
from hpcai500.errors import DataError


class CropSettings(TypedDict, total=False):
    """Those settings of `hpcai500._core.DecodeSpec` that are in a recipe; `size` and `mode` are required."""

    size: int
    mode: Literal["random", "centre"]
    area: tuple[float, float]
    ratio: tuple[float, float]
    flip_probability: float
    resize_shorter: int
    dtype: Literal["float32", "float16", "bfloat16", "uint8"]
    layout: Literal["nchw", "nhwc"]
    dct_scaling: bool


@dataclass(frozen=True, eq=False)
class ImageBatch:
    """One batch on the host.

    `images` has shape (N, 3, size, size), in channels_last order for the layout "nhwc". It is a view of a slot that is
    refilled once the next batch is requested: use or copy it before. `labels` (N,) is int64; `samples` are the N
    requested ids. `warnings` counts images that decoded with warnings. `wait_seconds` is how long the consumer waited
    for decoded images; `seek` counts images by their use of a seek index.
    """

    images: torch.Tensor
    labels: torch.Tensor
    samples: SampleIds
    warnings: int
    wait_seconds: float = 0.0
    seek: SeekCounts = NO_COUNTS

    def repeated(self, ids: SampleIds) -> ImageBatch:
        """The images and labels of this batch as those of `ids`."""
        return ImageBatch(self.images[: len(ids)], self.labels[: len(ids)], ids, 0)


Batches = Source[ImageBatch]


class JpegBatches(OneEpochAtATime[ImageBatch]):
    """Reads, decodes, crops and normalises the files of one split ahead of the consumer, in native threads.

    `depth` batches are in the ring: one with the consumer, the others being filled; nothing is allocated after the
    first epoch. Memory: depth x batch_size x 3 x size x size x bytes of an item, page-locked with `pin_memory`. A slot
    is refilled only after the `mark` that is recorded when its batch is released has passed: by default, with
    `pin_memory`, an event of the stream that is current then. Crops depend on (seed, epoch, sample) alone. The set's
    seek index is used if it has one (`hpcai500.data.imagenet.seek_index`); it does not change pixels.

    The settings are those of `hpcai500._core.DecodeSpec`: `mode` "random" uses `area`, `ratio` and
    `flip_probability`; "centre" uses `resize_shorter` (pixels). Raises ValueError for invalid settings.
    """

    def __init__(
        self,
        split: Split,
        root: Path,
        *,
        batch_size: int,
        threads: int,
        depth: int = 4,
        pin_memory: bool = False,
        mark: Mark | None = None,
        **settings: Unpack[CropSettings],
    ) -> None:
        if batch_size < 1 or threads < 1 or depth < 1:
            raise ValueError(f"batch_size, threads and depth must be at least 1: {batch_size}, {threads}, {depth}")
        self._split = split
        self._root = root
        self._threads = threads
        self._depth = depth
        self._pin_memory = pin_memory
        self._mark = stream_mark if mark is None and pin_memory else mark
        self._spec = spec = DecodeSpec(**settings)
        channels_last = spec.layout == "nhwc"
        shape = (batch_size, spec.size, spec.size, 3) if channels_last else (batch_size, 3, spec.size, spec.size)
        # torch aligns host memory to 64 bytes, which the core's non-temporal stores need.
        slots = [torch.empty(shape, dtype=getattr(torch, spec.dtype), pin_memory=pin_memory) for _ in range(depth)]
        self._arrays = [_as_array(slot) for slot in slots]
        self._images = [slot.permute(0, 3, 1, 2) for slot in slots] if channels_last else slots
        self._seek_index = find_seek_index(root)
        self._read_ahead = ReadAhead(root, split.paths, depth)
        self._loader = JpegLoader(
            _fsencode(str(root)),
            [_fsencode(path) for path in split.paths],
            spec,
            slots=self._arrays,
            threads=threads,
            index=self._seek_index.index if self._seek_index else None,
        )

    @property
    def normalisation(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Mean and standard deviation of each channel, in levels; not applied if the dtype is uint8."""
        return self._spec.mean, self._spec.std

    def close(self) -> None:
        """Stop the threads. An epoch in progress yields no further batch. May be called twice."""
        self._closed = True
        self._read_ahead.close()
        self._loader.close()
        self._end_epoch()

    def _run(self, batches: Sequence[SampleIds], seed: int, epoch: int) -> Generator[ImageBatch, None, None]:
        waiting = iter(batches)
        queued: deque[SampleIds] = deque()
        held = HeldSlots(self._loader.release, most_held=max(self._depth - 2, 0))

        def submit_next() -> None:
            ids = next(waiting, None)
            if ids is not None:
                ids = np.ascontiguousarray(ids, dtype=np.int64)
                self._loader.submit(ids, seed=seed, epoch=epoch)
                self._read_ahead.submit(ids)
                queued.append(ids)

        try:
            for _ in range(self._depth):
                submit_next()
            while queued and not self._closed:
                start = time.perf_counter()
                finished = self._loader.next()
                batch = self._batch(finished, queued.popleft(), seed, epoch)
                try:
                    yield replace(batch, wait_seconds=time.perf_counter() - start)
                finally:
                    self._give_back(finished.slot, held)
                submit_next()
        finally:
            held.flush()
            if not self._closed:
                for _ in queued:
                    self._loader.release(self._loader.next().slot)

    def _give_back(self, slot: int, held: HeldSlots) -> None:
        if self._closed:
            return
        if self._mark is not None:
            held.add(slot, self._mark())
        else:
            self._loader.release(slot)

    def _batch(self, finished: Batch, ids: SampleIds, seed: int, epoch: int) -> ImageBatch:
        if finished.failures:
            self._decode_by_pillow(finished, seed, epoch)
        labels = torch.from_numpy(self._split.labels[ids])
        seek = SeekCounts(finished.seek_used, finished.seek_unknown, finished.seek_false)
        if self._seek_index:
            self._seek_index.warn_if_wrong(seek, finished.count)
        return ImageBatch(
            images=self._images[finished.slot][: finished.count],
            labels=labels.pin_memory() if self._pin_memory else labels,
            samples=ids,
            warnings=finished.warnings,
            seek=seek,
        )

    def _decode_by_pillow(self, finished: Batch, seed: int, epoch: int) -> None:
        """Decode the files that only Pillow can decode. Raises DataError for the first other failure."""
        if any(failure.kind == "memory" for failure in finished.failures):
            raise MemoryError
        for failure in finished.failures:
            if failure.kind != "unsupported":
                raise self._undecodable(failure.sample, failure.reason)

        def decode(failure: Failure) -> None:
            try:
                pixels = decode_odd(read_image(self._root / self._split.paths[failure.sample]))
            except OSError as error:
                raise self._undecodable(failure.sample, f"unreadable: {error.strerror}") from error
            except ValueError as error:
                raise self._undecodable(failure.sample, str(error)) from error
            place = self._arrays[finished.slot][failure.position]
            crop_pixels(pixels, self._spec, place, seed=seed, epoch=epoch, sample=failure.sample)

        # ImageNet has a few odd files, but a set may be PNG throughout.
        with ThreadPoolExecutor(min(self._threads, len(finished.failures))) as pool:
            list(pool.map(decode, finished.failures))

    def _undecodable(self, sample: int, reason: str) -> DataError:
        path = self._split.paths[sample]
        if is_staged(self._root) and not (self._root / path).exists():
            return not_staged(self._root, path)
        return DataError(
            f"cannot decode {self._root / path}: {reason}; "
            f"replace or remove it, and run `hpcai500 data check ic {self._root}` to find all such files"
        )


def _as_array(slot: torch.Tensor) -> npt.NDArray[Any]:
    # NumPy lacks bfloat16: the core takes it as uint16.
    array: npt.NDArray[Any] = (slot.view(torch.uint16) if slot.dtype == torch.bfloat16 else slot).numpy()
    return array


def _fsencode(path: str) -> str:
    # The core takes bytes: a file name that is not UTF-8 cannot be passed to C++ as str.
    return cast(str, os.fsencode(path))
