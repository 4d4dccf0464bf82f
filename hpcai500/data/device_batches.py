"""Batches copied to the device, and converted there, ahead of the consumer while a step computes.

A few batches can also be held in memory and repeated, to measure training without its input.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar, cast

import torch
from torch import Tensor

from hpcai500 import _core
from hpcai500.data.samplers import SampleIds
from hpcai500.errors import EnvironmentLacksError
from hpcai500.side_stream import SideStream

# ----------------------------------------------------------------------------------------------------
# Ring slots whose batch the consumer has released, but whose copy to a device may still be in progress.


class Event(Protocol):
    """A point on a device's stream, as `torch.cuda.Event`."""

    def query(self) -> bool:
        """Whether the device has passed the point."""

    def synchronize(self) -> None:
        """Wait until the device has passed it."""


# Records a point after all work queued so far on a device that reads the current slot.
Mark = Callable[[], Event]


def stream_mark() -> Event:
    """A mark on the current CUDA stream: that of the computation, or the copy stream inside `CopyStream.beside`."""
    return cast(Event, torch.cuda.current_stream().record_event())


class HeldSlots:
    """Releases each slot once the device has passed the event that was recorded when the consumer released its batch.

    A `non_blocking` copy reads pinned memory after the call returns: a slot that is refilled too early would mix two
    batches without any error. At most `most_held` slots are held; beyond that, the host waits for the oldest, so that
    the ring keeps slots to fill.
    """

    def __init__(self, release: Callable[[int], None], most_held: int) -> None:
        self._release = release
        self._most_held = most_held
        self._held: deque[tuple[int, Event]] = deque()

    def add(self, slot: int, event: Event) -> None:
        """Hold `slot` until `event` has passed; release all slots whose events have passed."""
        self._held.append((slot, event))
        while self._held and self._held[0][1].query():
            self._release_oldest()
        while len(self._held) > self._most_held:
            self._held[0][1].synchronize()
            self._release_oldest()

    def flush(self) -> None:
        """Wait for all events and release all slots."""
        while self._held:
            self._held[0][1].synchronize()
            self._release_oldest()

    def _release_oldest(self) -> None:
        slot, _ = self._held.popleft()
        self._release(slot)


# ----------------------------------------------------------------------------------------------------
# A base class of loaders: one epoch at a time.


Item = TypeVar("Item")


class OneEpochAtATime(ABC, Generic[Item]):
    """A loader that reads one epoch at a time: an epoch ends when another begins, or when the loader is closed."""

    _running: Generator[Item, None, None] | None = None
    _closed = False

    def epoch(self, batches: Sequence[SampleIds], *, seed: int, epoch: int) -> Generator[Item, None, None]:
        """Yield one batch of at most `batch_size` images for each array of sample ids, in that order.

        Reading begins when the first batch is requested. The consumer may stop early; an epoch in progress ends when
        another begins. Raises DataError in place of the first batch with a sample that cannot be read.
        """
        if self._closed:
            raise ValueError("the input pipeline is closed")
        self._end_epoch()
        self._running = self._run(batches, seed, epoch)
        return self._running

    @abstractmethod
    def _run(self, batches: Sequence[SampleIds], seed: int, epoch: int) -> Generator[Item, None, None]:
        """The batches of an epoch; closing it releases its resources."""

    def _end_epoch(self) -> None:
        if self._running is not None:
            self._running.close()
            self._running = None


# ----------------------------------------------------------------------------------------------------
# Streams for copies to a device, beside the computation. The two wait for each other by events, without the host.


class CopyStream(Protocol):
    """Orders copies, and their conversion on the device, against the computation."""

    def mark(self) -> Event:
        """The end of work queued so far by this thread: on the copy stream inside `beside`, else on the computation."""

    @contextmanager
    def beside(self, *marks: Event) -> Iterator[None]:
        """Work that this thread queues inside runs beside the computation, after `marks`."""

    def follow(self, mark: Event) -> None:
        """Work that this thread queues on the computation from now on runs after `mark`."""


class HostCopyStream:
    """On a CPU, work is done when its call returns: nothing needs to wait."""

    def mark(self) -> Event:
        return _Passed()

    @contextmanager
    def beside(self, *marks: Event) -> Iterator[None]:
        del marks
        yield

    def follow(self, mark: Event) -> None:
        """Nothing to wait for."""


class CudaCopyStream:
    """On a CUDA device, a separate stream. Copies from pinned memory and kernels run there in the order queued.

    Memory allocated inside `beside` belongs to this stream and is reused in the order of this stream. Before freeing
    memory that the computation still reads, call `beside` with the computation's mark.
    """

    def __init__(self, device: torch.device) -> None:
        self._side = SideStream(device)

    def mark(self) -> Event:
        return cast(Event, self._side.current().record_event())

    @contextmanager
    def beside(self, *marks: Event) -> Iterator[None]:
        with self._side.beside(*(cast(torch.cuda.Event, mark) for mark in marks)):
            yield

    def follow(self, mark: Event) -> None:
        self._side.current().wait_event(cast(torch.cuda.Event, mark))


class _Passed:
    """A point that is already passed."""

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        return


def make_copy_stream(device: torch.device) -> CopyStream:
    return CudaCopyStream(device) if device.type == "cuda" else HostCopyStream()


# ----------------------------------------------------------------------------------------------------
# The conversion of images: normalised by channel, cast and laid out in one pass, on their device.


def convert_images(
    images: Tensor,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    dtype: torch.dtype = torch.float32,
    memory_format: torch.memory_format = torch.contiguous_format,
    out: Tensor | None = None,
) -> Tensor:
    """Convert images to another type and layout, each value to (value - mean) / std of its channel, on the same device.

    Computed as the host's loaders do: value * scale + bias, where scale is 1 / std and bias -mean / std as float32,
    rounded once to float32 and once more, to nearest even, to a short type. On a CPU the work is done on return, on a
    CUDA device it is queued on the current stream; both give the same bits, except for the payloads of NaNs.

    Args:
        images: (N, C, H, W), float32, float16, bfloat16 or uint8, contiguous or channels_last; C at most 256.
        mean, std: of each channel, std above 0; without both, only type and layout change.
        dtype: float32, float16 or bfloat16.
        memory_format: contiguous_format or channels_last.
        out: takes the result, in its own type and layout; `dtype` and `memory_format` are then ignored.

    Raises:
        ValueError: wrong shape, type or layout, an `out` that overlaps, or invalid mean or std.
        EnvironmentLacksError: images on a CUDA device, but a build without CUDA.
    """
    if out is None:
        out = torch.empty(images.shape, dtype=dtype, device=images.device, memory_format=memory_format)
    if out.device != images.device:
        raise ValueError(f"images and out must be on one device, got {images.device} and {out.device}")
    if not images.is_cuda:
        arrays = _bits(images).numpy(), _bits(out).numpy()
        _core.convert_images(*arrays, mean=mean, std=std, threads=torch.get_num_threads())
        return out
    require_cuda_build()
    _core.convert_images_cuda(
        images,
        out,
        mean=mean,
        std=std,
        device=images.get_device(),
        stream=torch.cuda.current_stream(images.device).cuda_stream,
    )
    return out


def require_cuda_build() -> None:
    """Raise EnvironmentLacksError, with the fix, if the core has no kernels for CUDA devices."""
    if not _core.cuda_architectures():
        raise EnvironmentLacksError(
            "hpcai500 is built without CUDA, but accelerator.conversion needs it: put nvcc on PATH (or set CUDACXX), "
            "run make build again, or set accelerator.conversion=host"
        )


def _bits(tensor: Tensor) -> Tensor:
    """The tensor in a type that NumPy has: bfloat16 as uint16."""
    tensor = tensor.detach()
    return tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor


# ----------------------------------------------------------------------------------------------------
# The loader's batches on the device, one ahead.


# The computation uses one batch while the next is copied. A third would wait for the same computation.
_BUFFERS = 2


class ImagesOfBatch(Protocol):
    """A batch as a dataclass with images. All other fields stay on the host."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def images(self) -> Tensor:
        """(N, C, H, W)."""

    @property
    def wait_seconds(self) -> float:
        """How long the consumer waited."""


B = TypeVar("B", bound=ImagesOfBatch)
B_co = TypeVar("B_co", bound=ImagesOfBatch, covariant=True)


class Source(Protocol[B_co]):
    """A loader, such as `JpegBatches` and `ClimateBatches`, or `MemoryBatches`."""

    def epoch(self, batches: Sequence[SampleIds], *, seed: int, epoch: int) -> Generator[B_co, None, None]:
        """Yield one batch for each array of sample ids, in that order; its memory is free once it is closed."""

    def close(self) -> None:
        """Free threads and memory."""


@dataclass(frozen=True)
class DeviceForm:
    """Type and layout of images on the device.

    Attributes:
        dtype: float32, float16 or bfloat16.
        memory_format: contiguous_format or channels_last.
        converted: whether our kernel converts them on the device; otherwise they arrive normalised in `dtype`, and only
            their layout changes.
        mean, std: of each channel, if they are converted.
    """

    dtype: torch.dtype
    memory_format: torch.memory_format
    converted: bool = False
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None


class DeviceBatches(Generic[B]):
    """A loader's batches with their images on the device, one batch ahead.

    While the consumer computes with batch k, batch k + 1 is copied from its (pinned) slot and converted, both on
    `stream`. Three waits, by events on the device, keep the order:

    - the computation waits for the conversion of batch k before it is handed out;
    - the copy of batch k + 2, into the memory of batch k, waits for all work that was queued on the computation when
      batch k + 1 was requested;
    - the host waits for the copy from a slot before the loader refills it: the loader is advanced inside
      `stream.beside`, so the event that it records by `HeldSlots` is the stream's.

    So a batch is valid until the next one is requested, as a loader's is, and an epoch begins by waiting for two
    batches. An error takes the place of its batch. Everything except the images stays on the host.

    Memory on the device, in bytes, from the first batch of an epoch to its end: 2 x batch_size x converted image, and
    batch_size x image as loaded if it is converted or its layout changes. On the host, only the loader's slots are
    pinned. This class keeps memory of the stream from batch to batch, which torch's allocator does not protect: only
    the events above order reads and writes. Loaders that share a stream, and whose epochs do not overlap, use the same
    memory in turn.
    """

    def __init__(
        self, source: Source[B], *, device: torch.device, batch_size: int, form: DeviceForm, stream: CopyStream
    ) -> None:
        self._source = source
        self._device = device
        self._batch_size = batch_size
        self._form = form
        self._stream = stream
        self._running: Generator[B, None, None] | None = None
        self._closed = False

    def epoch(self, batches: Sequence[SampleIds], *, seed: int, epoch: int) -> Generator[B, None, None]:
        """Yield one batch for each array of sample ids, as the loader does, with images on the device.

        `wait_seconds` is how long the consumer waited for the loader: for the batch ahead, and at the start of an epoch
        also for the first batch. If the device waits for a copy, its steps take longer. The consumer may stop early; an
        epoch in progress ends when another begins. Raises what the loader raises.
        """
        if self._running is not None:
            self._running.close()
        self._running = self._run(self._source.epoch(batches, seed=seed, epoch=epoch))
        return self._running

    def close(self) -> None:
        """Close the loader. An epoch in progress yields no further batch. May be called twice."""
        self._closed = True
        self._source.close()
        if self._running is not None:
            self._running.close()
            self._running = None

    def _run(self, source: Generator[B, None, None]) -> Generator[B, None, None]:
        buffers = [_Buffer(self._device, self._batch_size, self._form) for _ in range(_BUFFERS)]
        staging = _Staging(self._device, self._batch_size)
        number = 0

        def begin() -> _Moved[B] | Exception | None:
            nonlocal number
            buffer = buffers[number % _BUFFERS]
            number += 1
            try:
                # This waits for no step: the loader records the end of the previous copy, and waits for that.
                with self._stream.beside():
                    batch = next(source, None)
                if batch is None:
                    return None
                with self._stream.beside(*buffer.marks):
                    images = buffer.fill(batch.images, staging)
                    return _Moved(replace(batch, images=images), self._stream.mark(), buffer)
            except Exception as error:  # noqa: BLE001  # raised in place of its batch
                return error

        try:
            moved = begin()
            waited = _wait_of(moved)
            while moved is not None:
                if isinstance(moved, Exception):
                    raise moved
                following = begin()
                waited += _wait_of(following)
                self._stream.follow(moved.ready)
                try:
                    yield replace(moved.batch, wait_seconds=waited)
                finally:
                    moved.buffer.marks = (self._stream.mark(),)
                if self._closed:
                    return
                moved, waited = following, 0.0
        finally:
            with self._stream.beside():
                source.close()
            # The next user of this memory on the stream must wait for the computation that still uses it.
            with self._stream.beside(*(mark for buffer in buffers for mark in buffer.marks)):
                pass


@dataclass(frozen=True)
class _Moved(Generic[B]):
    """A batch being moved; `ready` is passed when it has arrived."""

    batch: B
    ready: Event
    buffer: _Buffer


def _wait_of(moved: _Moved[B] | Exception | None) -> float:
    return moved.batch.wait_seconds if isinstance(moved, _Moved) else 0.0


class _Staging:
    """Memory on the device for images as loaded. It is used in the order of the stream, so one is enough."""

    def __init__(self, device: torch.device, batch_size: int) -> None:
        self._device = device
        self._batch_size = batch_size
        self._memory: Tensor | None = None

    def copy(self, images: Tensor) -> Tensor:
        if self._memory is None:
            self._memory = _memory(images, self._batch_size, self._device, images.dtype, _format_of(images))
        return self._memory[: len(images)].copy_(images, non_blocking=True)


class _Buffer:
    """Memory on the device for converted images; `marks` must have passed before it is written."""

    def __init__(self, device: torch.device, batch_size: int, form: DeviceForm) -> None:
        self._device = device
        self._batch_size = batch_size
        self._form = form
        self._memory: Tensor | None = None
        self.marks: tuple[Event, ...] = ()

    def fill(self, images: Tensor, staging: _Staging) -> Tensor:
        """Queue copy and conversion on the stream, and return the tensor for the result."""
        form = self._form
        if self._memory is None:
            self._memory = _memory(images, self._batch_size, self._device, form.dtype, form.memory_format)
        buffer = self._memory[: len(images)]
        if form.converted:
            return convert_images(staging.copy(images), form.mean, form.std, out=buffer)
        same = images.is_contiguous(memory_format=form.memory_format)
        return buffer.copy_(images if same else staging.copy(images), non_blocking=True)


def _memory(
    images: Tensor, batch_size: int, device: torch.device, dtype: torch.dtype, memory_format: torch.memory_format
) -> Tensor:
    shape = (max(batch_size, len(images)), *images.shape[1:])
    return torch.empty(shape, dtype=dtype, device=device, memory_format=memory_format)


def _format_of(images: Tensor) -> torch.memory_format:
    return torch.contiguous_format if images.is_contiguous() else torch.channels_last


# ----------------------------------------------------------------------------------------------------
# A few batches in memory, repeated, to measure training without its input.


class RepeatableBatch(ImagesOfBatch, Protocol):
    @property
    def samples(self) -> SampleIds:
        """The id of each image."""

    def repeated(self, ids: SampleIds) -> Self:
        """Its first images, as many as `ids`, as the batch of these samples."""


R = TypeVar("R", bound=RepeatableBatch)


class MemoryBatches(Generic[R]):
    """Holds copies of a few batches, each on its device, and repeats them."""

    def __init__(self, batches: Iterable[R]) -> None:
        """Copy `batches`, for example `source.epoch(...)`. Raises ValueError when there are none."""
        self._held = [replace(batch, images=_copy(batch.images)) for batch in batches]
        if not self._held:
            raise ValueError("at least one batch must be held")

    def epoch(self, batches: Sequence[SampleIds], *, seed: int, epoch: int) -> Generator[R, None, None]:
        """Yield a held batch for each of `batches`, of its size. Raises ValueError for one larger than those held."""
        del seed, epoch
        for number, ids in enumerate(batches):
            held = self._held[number % len(self._held)]
            if len(ids) > len(held.samples):
                raise ValueError(f"a batch of {len(ids)} was requested, but only {len(held.samples)} images are held")
            yield held.repeated(ids)

    def close(self) -> None:
        self._held = []


def _copy(images: Tensor) -> Tensor:
    copy = images.clone()
    return copy.pin_memory() if images.is_pinned() else copy
