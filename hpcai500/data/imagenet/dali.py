"""Input by NVIDIA's DALI: on a CPU with our own decoder, on a CUDA device with DALI's.

DALI takes long to import, so it is imported only when a run uses it.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.dlpack import from_dlpack

from hpcai500._core import DecodeSpec
from hpcai500.data.device_batches import OneEpochAtATime
from hpcai500.data.imagenet.index import Split
from hpcai500.data.imagenet.loader import CropSettings, ImageBatch, JpegBatches
from hpcai500.data.imagenet.seek_index import FoundIndex, SeekCounts, find_seek_index
from hpcai500.data.samplers import SampleIds
from hpcai500.errors import EnvironmentLacksError, RunError
from hpcai500.system.software import OTHERWISE, DaliPlugin, dali_problem, find_plugin

if TYPE_CHECKING:
    from nvidia.dali import Pipeline


# ----------------------------------------------------------------------------------------------------
# DALI with our operators.


@cache
def load_operators() -> None:
    """Import DALI and load our operators into it, once. Raises EnvironmentLacksError with the command that helps."""
    plugin = find_plugin()
    check_versions(plugin, installed_dali())
    assert plugin is not None
    try:
        import_module("nvidia.dali.plugin_manager").load_library(str(plugin.path))
    except RuntimeError as error:
        raise EnvironmentLacksError(
            f"DALI cannot load {plugin.path}: {first_line(error)}; run `make dali` to rebuild it, or {OTHERWISE}"
        ) from error


def installed_dali() -> str | None:
    """Import DALI and return its version; None if it is not installed."""
    try:
        version: str = import_module("nvidia.dali").__version__
    except ModuleNotFoundError:
        return None
    except ImportError as error:
        raise EnvironmentLacksError(
            f"DALI is installed but cannot be imported: {first_line(error)}; fix it, or {OTHERWISE}"
        ) from error
    return version


def check_versions(plugin: DaliPlugin | None, dali: str | None) -> None:
    """Raise EnvironmentLacksError, with the fix, unless the operators were built for this version of DALI."""
    problem = dali_problem(plugin, dali)
    if problem is not None:
        raise EnvironmentLacksError(f"accelerator.loader is dali, but {problem[0]}: {problem[1]}, or {OTHERWISE}")


def first_line(error: BaseException) -> str:
    """The first line of an error's text: DALI adds the stack of its own calls."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


# ----------------------------------------------------------------------------------------------------
# Input of a pipeline: the files of each batch, in our order, and the keys of their random draws.


class Feed:
    """A source for DALI's `external_source`: returns one batch per call until the end of the epoch.

    `queued` are the batches that the pipeline has received and not yet output.
    """

    def __init__(self, split: Split, root: Path) -> None:
        self._split = split
        self._root = os.fsencode(root.absolute())
        self._waiting: Iterator[SampleIds] = iter(())
        self._seed = self._epoch = 0
        self.queued: deque[SampleIds] = deque()

    def begin(self, batches: Sequence[SampleIds], seed: int, epoch: int) -> None:
        """Start an epoch. Raises ValueError for a seed or an epoch out of range."""
        if not 0 <= seed < 2**64 or not 0 <= epoch < 2**32:
            raise ValueError(f"seed must be in [0, 2^64) and epoch in [0, 2^32), got {seed} and {epoch}")
        self._waiting, self._seed, self._epoch = iter(batches), seed, epoch

    def end(self) -> None:
        """Return no further batch of this epoch."""
        self._waiting = iter(())

    def __call__(self) -> tuple[list[npt.NDArray[np.uint8]], npt.NDArray[np.int64]]:
        """Paths and keys of the next batch. Raises StopIteration at the end of the epoch."""
        ids = np.ascontiguousarray(next(self._waiting), dtype=np.int64)
        self.queued.append(ids)
        keys = np.empty((len(ids), 3), np.int64)
        # The seed's 64 bits, as a signed number.
        keys[:, 0], keys[:, 1], keys[:, 2] = ids, self._epoch, np.uint64(self._seed).astype(np.int64)
        return [self._path(sample) for sample in ids], keys

    def _path(self, sample: int) -> npt.NDArray[np.uint8]:
        return np.frombuffer(self._root + b"/" + os.fsencode(self._split.paths[sample]), np.uint8)


# ----------------------------------------------------------------------------------------------------
# The two pipelines: ours on a CPU, and one for a device, whose decoder decodes regions of an image.


_LAYOUTS = {"nchw": "CHW", "nhwc": "HWC"}
# Nodes of DALI's graph, which have DALI's own type.
Node = Any


@dataclass(frozen=True)
class Engine:
    """Size of a pipeline.

    Attributes:
        batch_size: the most images of a batch.
        threads: of DALI, on the host.
        depth: batches prepared ahead.
        device_id: number of the CUDA device; None for a pipeline on the host.
    """

    batch_size: int
    threads: int
    depth: int
    device_id: int | None = None


def host_pipeline(feed: Feed, spec: DecodeSpec, engine: Engine, index: Path | None = None) -> Pipeline:
    """DALI reads files, and our operator decodes images as in `spec`, by a seek `index`. Outputs: images, status."""

    def graph(files: Node, keys: Node) -> tuple[Node, ...]:
        from nvidia.dali import fn

        images, status = fn.hpcai500.decode_crop(
            files,
            keys,
            mean=_texts(spec.mean),
            std=_texts(spec.std),
            dtype=spec.dtype,
            layout=_LAYOUTS[spec.layout],
            dct_scaling=spec.dct_scaling,
            index=list(os.fsencode(index)) if index else [],
            **_crop_arguments(spec),
        )
        return images, status

    return _pipeline(feed, engine, graph)


def device_pipeline(
    feed: Feed, spec: DecodeSpec, engine: Engine, *, decoder: Literal["mixed", "cpu"] = "mixed"
) -> Pipeline:
    """Our operator draws the crops; DALI decodes, resizes and normalises them on the device.

    `decoder="cpu"` is the same graph on a host, for tests. Outputs: images (float32 if `spec` has bfloat16, which
    DALI lacks), status of the headers.
    """

    def graph(files: Node, keys: Node) -> tuple[Node, ...]:
        from nvidia.dali import fn, types

        files, anchor, shape, begin, end, flip, status = fn.hpcai500.draw_crop(files, keys, **_crop_arguments(spec))
        # As in our decoder, EXIF's orientation is ignored.
        images = fn.decoders.image_slice(
            files, anchor, shape, device=decoder, axis_names="HW", adjust_orientation=False, output_type=types.RGB
        )
        # As in our decoder, values are not rounded to levels between resize and normalisation.
        images = fn.resize(
            images,
            size=[spec.size, spec.size],
            roi_start=begin,
            roi_end=end,
            interp_type=types.INTERP_LINEAR,
            antialias=True,
            dtype=types.FLOAT,
        )
        levels = spec.dtype == "uint8"
        images = fn.crop_mirror_normalize(
            images,
            mirror=flip,
            mean=[0.0] * 3 if levels else list(spec.mean),
            std=[1.0] * 3 if levels else list(spec.std),
            dtype={"uint8": types.UINT8, "float16": types.FLOAT16}.get(spec.dtype, types.FLOAT),
            output_layout=_LAYOUTS[spec.layout],
        )
        return images, status

    return _pipeline(feed, engine, graph)


def _pipeline(feed: Feed, engine: Engine, graph: Callable[[Node, Node], tuple[Node, ...]]) -> Pipeline:
    load_operators()
    from nvidia.dali import Pipeline, fn, types

    pipeline = Pipeline(
        batch_size=engine.batch_size,
        num_threads=engine.threads,
        device_id=engine.device_id,
        prefetch_queue_depth=engine.depth,
    )
    with pipeline:
        paths, keys = fn.external_source(source=feed, num_outputs=2, dtype=[types.UINT8, types.INT64], ndim=1)
        # A file that shrinks while it is mapped would kill the process.
        files = fn.io.file.read(paths, dont_use_mmap=True)
        pipeline.set_outputs(*graph(files, keys))
    return pipeline


def _crop_arguments(spec: DecodeSpec) -> dict[str, Any]:
    return {
        "size": spec.size,
        "mode": spec.mode,
        "area": _texts(spec.area),
        "ratio": _texts(spec.ratio),
        "flip_probability": repr(spec.flip_probability),
        "resize_shorter": spec.resize_shorter,
    }


def _texts(numbers: tuple[float, ...]) -> list[str]:
    # Our operators take numbers as text: DALI would round them to float32.
    return [repr(number) for number in numbers]


# ----------------------------------------------------------------------------------------------------
# Images from DALI to torch.


_MOST_HELD = 2


class HostHandover:
    """On a CPU: a tensor on the same memory, which lives as long as the tensor."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype

    def take(self, tensors: Any) -> torch.Tensor:
        """Convert a list of DALI's tensors of one shape to one tensor of the requested type.

        DALI lacks bfloat16: our operator returns its bits.
        """
        images: torch.Tensor = from_dlpack(tensors.as_tensor())
        return images.view(self._dtype) if self._dtype == torch.bfloat16 else images

    def release(self) -> None:
        """Nothing to release."""


class DeviceHandover:
    """On a CUDA device: a copy on torch's current stream into torch's memory.

    DALI may reuse its memory as soon as it is released, even if torch's stream still reads it. So it is held until
    that stream has passed the copy. The copy is queued after the previous step, which the host does not wait for. At
    most two batches are held, so that DALI keeps buffers to fill.
    """

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self._device = device
        self._dtype = dtype
        self._held: deque[tuple[Any, torch.cuda.Event]] = deque()

    def take(self, tensors: Any) -> torch.Tensor:
        """As `HostHandover.take`. DALI lacks bfloat16: its operators return float32."""
        from nvidia.dali.plugin.pytorch import feed_ndarray

        self._keep(_MOST_HELD - 1)
        tensor = tensors.as_tensor()
        stream = torch.cuda.current_stream(self._device)
        given = torch.float32 if self._dtype == torch.bfloat16 else self._dtype
        images = torch.empty(tensor.shape(), dtype=given, device=self._device)
        feed_ndarray(tensor, images, cuda_stream=stream)
        self._held.append((tensor, stream.record_event()))
        return images.to(self._dtype)

    def release(self) -> None:
        """Wait for all copies."""
        self._keep(0)

    def _keep(self, most: int) -> None:
        """Release copied batches, and wait for the oldest copies while more than `most` are held."""
        while self._held and (len(self._held) > most or self._held[0][1].query()):
            self._held[0][1].synchronize()
            self._held.popleft()


# ----------------------------------------------------------------------------------------------------
# The native loader for files on which a DALI pipeline failed.


# Images at a time: ImageNet has a handful of odd files, and slots cost memory.
_BATCH = 8


class NativeImages:
    """The native loader, created when first needed: it decodes files that only Pillow reads, and names bad ones."""

    def __init__(self, split: Split, root: Path, threads: int, settings: CropSettings) -> None:
        self._make: Callable[[], JpegBatches] = lambda: JpegBatches(
            split, root, batch_size=_BATCH, threads=threads, depth=2, **settings
        )
        self._loader: JpegBatches | None = None

    def images(self, ids: SampleIds, *, seed: int, epoch: int) -> tuple[torch.Tensor, int]:
        """Images of the samples `ids`, and the number of warnings. Raises DataError, naming the file, for a bad one."""
        self._loader = self._loader or self._make()
        parts = np.split(ids, range(_BATCH, len(ids), _BATCH))
        made = [(batch.images.clone(), batch.warnings) for batch in self._loader.epoch(parts, seed=seed, epoch=epoch)]
        return torch.cat([images for images, _ in made]), sum(warnings for _, warnings in made)

    def close(self) -> None:
        if self._loader is not None:
            self._loader.close()


# ----------------------------------------------------------------------------------------------------
# Batches of training images by DALI, with the interface of the native loader.


class DaliBatches(OneEpochAtATime[ImageBatch]):
    """Images of one split, prepared ahead of the consumer by a DALI pipeline; a replacement for `JpegBatches`.

    On a CPU, images are those of the native loader, bit for bit. With a CUDA device, images are on the device; crops
    and flips are the same, but pixels are those of DALI's decoder and filter (docs/input.md). `depth` batches are
    prepared while the consumer has another.

    Raises EnvironmentLacksError if DALI, or our operators for it, are missing; ValueError as `JpegBatches`. An epoch
    raises RunError for a failure of DALI that is not due to a file.
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
        self._handover = HostHandover(dtype) if device.type == "cpu" else DeviceHandover(device, dtype)
        self._feed = Feed(split, root)
        self._native = NativeImages(split, root, threads, settings)
        self._pipeline: Pipeline | None = self._build()

    def close(self) -> None:
        """Stop the threads. An epoch in progress yields no further batch. May be called twice."""
        self._closed = True
        self._end_epoch()
        self._handover.release()
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
            # The operator opens the index again, and it may have been removed meanwhile.
            self._seek_index = None
            pipeline = _built(self._host_pipeline(None))
            index.warn(f"could not be used by DALI ({_reason(error)})")
        return pipeline

    def _host_pipeline(self, index: FoundIndex | None) -> Pipeline:
        return host_pipeline(self._feed, self._spec, self._engine, index.path.absolute() if index else None)

    def _run(self, batches: Sequence[SampleIds], seed: int, epoch: int) -> Generator[ImageBatch, None, None]:
        # A pipeline that has failed cannot be used again.
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
        start = time.perf_counter()
        try:
            pipeline.schedule_run()
            output, statuses = pipeline.outputs()
            output_at = time.perf_counter()
        except RuntimeError as error:
            self._pipeline = None
            raise self._error_of(error, seed, epoch) from error
        ids = self._feed.queued.popleft()
        status = np.asarray(statuses.as_tensor())
        # Time spent here is waiting for the device, not for data.
        images = self._handover.take(output)
        taken_at = time.perf_counter()
        if self._spec.layout == "nhwc":
            images = images.permute(0, 3, 1, 2)
        seek = self._seek_counts(status)
        native_warnings = self._fill_by_native(images, ids, np.flatnonzero(status[:, 0]), seed, epoch)
        return ImageBatch(
            images=images,
            labels=torch.from_numpy(self._split.labels[ids]),
            samples=ids,
            warnings=int(status[:, 1].sum()) + native_warnings,
            wait_seconds=output_at - start + time.perf_counter() - taken_at,
            seek=seek,
        )

    def _seek_counts(self, status: npt.NDArray[np.int32]) -> SeekCounts:
        """Counts from the third number of each status, which exists if an index is used."""
        if self._seek_index is None:
            return SeekCounts()
        used, _, unknown, false = np.bincount(status[:, 2], minlength=4).tolist()
        counts = SeekCounts(used, unknown, false)
        self._seek_index.warn_if_wrong(counts, len(status))
        return counts

    def _fill_by_native(
        self, images: torch.Tensor, ids: SampleIds, places: npt.NDArray[np.int64], seed: int, epoch: int
    ) -> int:
        """Fill `places` with images of the native loader; returns warnings. Raises DataError as it does."""
        if not places.size:
            return 0
        found, warnings = self._native.images(ids[places], seed=seed, epoch=epoch)
        images[torch.from_numpy(places).to(images.device)] = found.to(images.device)
        return warnings

    def _error_of(self, error: RuntimeError, seed: int, epoch: int) -> RunError:
        """The error for a failure of DALI. Raises DataError for a file that the native loader cannot read either."""
        for ids in self._feed.queued:
            self._native.images(ids, seed=seed, epoch=epoch)
        return RunError(f"DALI could not make a batch: {_reason(error)}; try accelerator.loader=native")

    def _finish(self) -> None:
        """Discard batches that were prepared but not used, so that another epoch can begin."""
        self._feed.end()
        if self._pipeline is not None and not self._closed and not _drained(self._pipeline):
            self._pipeline = None
        self._feed.queued.clear()


def _built(pipeline: Pipeline) -> Pipeline:
    try:
        pipeline.build()
    except RuntimeError as error:
        raise EnvironmentLacksError(
            f"DALI cannot build its pipeline: {_reason(error)}; fix that, or {OTHERWISE}"
        ) from error
    return pipeline


def _reason(error: RuntimeError) -> str:
    """The reason in one line: for an operator, DALI first lists where it was defined."""
    return first_line(RuntimeError(str(error).rpartition("\nencountered:")[2]))


def _drained(pipeline: Pipeline) -> bool:
    """Discard all batches up to the end of the epoch; False if that fails."""
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
