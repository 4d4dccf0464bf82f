"""Batches of training images by DALI, seen as those of the native loader are."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import numpy as np
import numpy.typing as npt
import torch

from hpcai500._core import DecodeSpec
from hpcai500.data.imagenet.dali.feed import Feed
from hpcai500.data.imagenet.dali.graphs import Engine, device_pipeline, host_pipeline
from hpcai500.data.imagenet.dali.handover import DeviceHandover, Handover, HostHandover
from hpcai500.data.imagenet.dali.native_images import NativeImages
from hpcai500.data.imagenet.dali.plugin import first_line
from hpcai500.data.imagenet.dali.settings import CropSettings
from hpcai500.data.imagenet.image_index import Split
from hpcai500.data.imagenet.loader import ImageBatch
from hpcai500.data.imagenet.seek_index import FoundIndex, SeekCounts, find_seek_index
from hpcai500.data.samplers import SampleIds
from hpcai500.errors import EnvironmentLacksError, RunError
from hpcai500.system.dali_plugin import OTHERWISE

if TYPE_CHECKING:
    from nvidia.dali import Pipeline


class DaliBatches:
    """Images of one split, made ahead of the consumer by a DALI pipeline; as `JpegBatches`, which it stands in for.

    On a CPU, images are those of the native loader, bit for bit. On a CUDA device they lie there already, crops and
    flips are the same, and pixels are those of DALI's decoder and filter (docs/input.md). `depth` batches are made
    while the consumer has another.

    Raises EnvironmentLacksError where DALI, or our operators for it, are missing; ValueError as `JpegBatches`.
    """

    def __init__(
        self,
        split: Split,
        root: Path,
        *,
        batch_size: int,
        threads: int,
        device: torch.device,
        depth: int = 4,
        **settings: Unpack[CropSettings],
    ) -> None:
        if batch_size < 1 or threads < 1 or depth < 1:
            raise ValueError(f"batch_size, threads and depth must be at least 1: {batch_size}, {threads}, {depth}")
        self._split = split
        self._root = root
        self._seek_index: FoundIndex | None = None
        self._spec = DecodeSpec(**settings)
        self._engine = Engine(batch_size, threads, depth, _device_id(device))
        dtype: torch.dtype = getattr(torch, self._spec.dtype)
        self._handover: Handover = HostHandover(dtype) if device.type == "cpu" else DeviceHandover(device, dtype)
        self._feed = Feed(split, root)
        self._native = NativeImages(split, root, threads, settings)
        self._pipeline: Pipeline | None = self._build()
        self._running: Generator[ImageBatch, None, None] | None = None
        self._closed = False

    def epoch(self, batches: Sequence[SampleIds], *, seed: int, epoch: int) -> Iterator[ImageBatch]:
        """Yield one batch of at most `batch_size` images for each array of sample ids, in that order.

        Reading begins when the first batch is asked for. The consumer may stop early; an epoch that is still open
        ends when another begins. Raises DataError, naming the file and the reason, for one that cannot be decoded,
        and RunError for what else DALI fails of.
        """
        if self._closed:
            raise ValueError("the input pipeline is closed")
        if self._running is not None:
            self._running.close()
        self._running = self._run(batches, seed, epoch)
        return self._running

    def close(self) -> None:
        """Stop the threads. An epoch that is still open yields no further batch. May be called twice."""
        self._closed = True
        if self._running is not None:
            self._running.close()
            self._running = None
        self._handover.let_go()
        self._pipeline = None
        self._native.close()

    def _build(self) -> Pipeline:
        if self._engine.device_id is not None:
            return _built(device_pipeline(self._feed, self._spec, self._engine))
        self._seek_index = index = find_seek_index(self._root)
        pipeline = self._host_pipeline(index)
        if index is None:
            return _built(pipeline)
        try:
            pipeline.build()
        except RuntimeError as error:
            # The operator opens the index once more, which may have gone meanwhile.
            self._seek_index = None
            pipeline = _built(self._host_pipeline(None))
            index.tell(f"could not be used by DALI ({_reason(error)})")
        return pipeline

    def _host_pipeline(self, index: FoundIndex | None) -> Pipeline:
        return host_pipeline(self._feed, self._spec, self._engine, index.path.absolute() if index else None)

    def _run(self, batches: Sequence[SampleIds], seed: int, epoch: int) -> Generator[ImageBatch, None, None]:
        # After a failure a pipeline is good for nothing.
        self._pipeline = pipeline = self._pipeline or self._build()
        self._feed.begin(batches, seed, epoch)
        try:
            for _ in batches:
                if self._closed:
                    return
                yield self._next(pipeline, seed, epoch)
        finally:
            self._finish()

    def _next(self, pipeline: Pipeline, seed: int, epoch: int) -> ImageBatch:
        asked = time.perf_counter()
        try:
            pipeline.schedule_run()
            made, said = pipeline.outputs()
            made_at = time.perf_counter()
        except RuntimeError as error:
            self._pipeline = None
            raise self._explained(error, seed, epoch) from error
        ids = self._feed.queued.popleft()
        status = np.asarray(said.as_tensor())
        # Where this waits, it is for the device: no lack of data.
        images = self._handover.take(made)
        taken_at = time.perf_counter()
        if self._spec.layout == "nhwc":
            images = images.permute(0, 3, 1, 2)
        seek = self._seek_counts(status)
        mended = self._mend(images, ids, np.flatnonzero(status[:, 0]), seed, epoch)
        return ImageBatch(
            images=images,
            labels=torch.from_numpy(self._split.labels[ids]),
            samples=ids,
            warnings=int(status[:, 1].sum()) + mended,
            wait_seconds=made_at - asked + time.perf_counter() - taken_at,
            seek=seek,
        )

    def _seek_counts(self, status: npt.NDArray[np.int32]) -> SeekCounts:
        """What the third number of each status says, which is there where an index is used."""
        if self._seek_index is None:
            return SeekCounts()
        used, _, unknown, false = np.bincount(status[:, 2], minlength=4).tolist()
        counts = SeekCounts(used, unknown, false)
        self._seek_index.notice(counts, len(status))
        return counts

    def _mend(self, images: torch.Tensor, ids: SampleIds, places: npt.NDArray[np.int64], seed: int, epoch: int) -> int:
        """Put the native loader's images where there are none; returns warnings. DataError where it has none either."""
        if not places.size:
            return 0
        mended, warnings = self._native.images(ids[places], seed=seed, epoch=epoch)
        images[torch.from_numpy(places).to(images.device)] = mended.to(images.device)
        return warnings

    def _explained(self, error: RuntimeError, seed: int, epoch: int) -> RunError:
        """Why DALI failed: DataError, raised, where it is a file that the native loader cannot read either."""
        for ids in self._feed.queued:
            self._native.images(ids, seed=seed, epoch=epoch)
        return RunError(f"DALI could not make a batch: {_reason(error)}; see whether accelerator.loader=native can")

    def _finish(self) -> None:
        """Let go of what was made and not asked for, so that another epoch can begin."""
        self._feed.end()
        if self._pipeline is not None and not self._closed and not _drained(self._pipeline):
            self._pipeline = None
        self._feed.queued.clear()


def _built(pipeline: Pipeline) -> Pipeline:
    try:
        pipeline.build()
    except RuntimeError as error:
        raise EnvironmentLacksError(
            f"DALI cannot make its pipeline: {_reason(error)}; mend that, or {OTHERWISE}"
        ) from error
    return pipeline


def _reason(error: RuntimeError) -> str:
    """What went wrong, in one line: of an operator, DALI first says at length where it was defined."""
    return first_line(RuntimeError(str(error).rpartition("\nencountered:")[2]))


def _drained(pipeline: Pipeline) -> bool:
    """Take what is still being made, up to the end of the epoch; False where that fails, which nobody asked about."""
    while True:
        try:
            pipeline.schedule_run()
            pipeline.outputs()
        except StopIteration:
            pipeline.reset()
            return True
        except RuntimeError:
            return False


def _device_id(device: torch.device) -> int | None:
    if device.type == "cpu":
        return None
    return torch.cuda.current_device() if device.index is None else device.index
