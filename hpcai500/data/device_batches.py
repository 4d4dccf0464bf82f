"""Batches that are on the device before they are asked for: copied, and converted there, while a step computes.

A few batches can also be held in memory and repeated, to see what training costs without its input.
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
# Ring slots whose batch the consumer is done with, but whose copy to a device may still be under way.


class Event(Protocol):
    """A point on a device's stream, as `torch.cuda.Event`."""

    def query(self) -> bool:
        """Whether the device has passed the point."""

    def synchronize(self) -> None:
        """Wait until the device has passed it."""


# Records a point behind all work queued on a device so far that reads the slot in hand.
Mark = Callable[[], Event]


def stream_mark() -> Event:
    """A mark on the current CUDA stream: that of the computation, or inside `CopyStream.beside` that of the stream."""
    return cast(Event, torch.cuda.current_stream().record_event())


class HeldSlots:
    """Gives each slot back once the device has passed the event that was recorded when its batch was done with.

    A `non_blocking` copy reads pinned memory after Python has moved on: a slot that is refilled too early would mix
    two batches without any error. At most `most_held` slots wait; beyond that the oldest is waited for, so that the
    ring keeps slots to fill.
    """

    def __init__(self, release: Callable[[int], None], most_held: int) -> None:
        self._release = release
        self._most_held = most_held
        self._held: deque[tuple[int, Event]] = deque()

    def add(self, slot: int, event: Event) -> None:
        """Hold `slot` until `event` has passed; give back all slots that need not wait any longer."""
        self._held.append((slot, event))
        while self._held and self._held[0][1].query():
            self._release_oldest()
        while len(self._held) > self._most_held:
            self._held[0][1].synchronize()
            self._release_oldest()

    def flush(self) -> None:
        """Wait for all events and give all slots back."""
        while self._held:
            self._held[0][1].synchronize()
            self._release_oldest()

    def _release_oldest(self) -> None:
        slot, _ = self._held.popleft()
        self._release(slot)


# ----------------------------------------------------------------------------------------------------
# What loaders share: one epoch at a time.


Item = TypeVar("Item")


class OneEpochAtATime(ABC, Generic[Item]):
    """Batches of which one epoch is read at a time: it ends when another begins, or when the loader is closed."""

    _running: Generator[Item, None, None] | None = None
    _closed = False

    def epoch(self, batches: Sequence[SampleIds], *, seed: int, epoch: int) -> Iterator[Item]:
        """Yield one batch of at most `batch_size` images for each array of sample ids, in that order.

        Reading begins when the first batch is asked for. The consumer may stop early; an epoch that is still open
        ends when another begins. Raises DataError, in the place of the first batch with a sample that cannot be read.
        """
        if self._closed:
            raise ValueError("the input pipeline is closed")
        self._end_epoch()
        self._running = self._run(batches, seed, epoch)
        return self._running

    @abstractmethod
    def _run(self, batches: Sequence[SampleIds], seed: int, epoch: int) -> Generator[Item, None, None]:
        """The batches of an epoch; what it holds goes back when it is closed."""

    def _end_epoch(self) -> None:
        if self._running is not None:
            self._running.close()
            self._running = None


# ----------------------------------------------------------------------------------------------------
# Where copies to a device are queued: beside the computation. The two wait for each other by events, never the host.


class CopyStream(Protocol):
    """Orders copies, and their conversion on the device, against the computation."""

    def mark(self) -> Event:
        """The end of what the calling thread queued so far: on the stream inside `beside`, else on the computation."""

    @contextmanager
    def beside(self, *marks: Event) -> Iterator[None]:
        """What the calling thread queues inside runs beside the computation, after `marks`."""

    def follow(self, mark: Event) -> None:
        """What the calling thread queues on the computation from now on runs after `mark`."""


class HostCopyStream:
    """On the processor, work is done when its call returns: nothing needs to wait."""

    def mark(self) -> Event:
        return _Passed()

    @contextmanager
    def beside(self, *marks: Event) -> Iterator[None]:
        del marks
        yield

    def follow(self, mark: Event) -> None:
        """Nothing to wait for."""


class CudaCopyStream:
    """On a CUDA device, a stream of its own. Copies out of pinned memory and kernels run there in the order queued.

    What is allocated inside `beside` belongs to this stream, and its memory is used again in the order of this stream.
    Who frees it while the computation still reads it must call `beside` with the computation's mark before.
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
# The conversion of images: normalised by channel, cast and laid out in one pass, where they are.


def convert_images(
    images: Tensor,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    dtype: torch.dtype = torch.float32,
    memory_format: torch.memory_format = torch.contiguous_format,
    out: Tensor | None = None,
) -> Tensor:
    """Images in another type and layout, each value as (value - mean) / std of its channel, on the same device.

    Computed as the host's loaders do: value * scale + bias, where scale is 1 / std and bias -mean / std as float32,
    rounded once to float32 and once more, to nearest even, to a short type. The CPU's work is done on return, a CUDA
    device's is queued on its current stream; both give the same bits, but for which NaN a NaN becomes.

    Args:
        images: (N, C, H, W), float32, float16, bfloat16 or uint8, contiguous or channels_last; C at most 256.
        mean, std: of each channel, std above 0; without both, only type and layout change.
        dtype: float32, float16 or bfloat16.
        memory_format: contiguous_format or channels_last.
        out: takes the result, in its own type and layout; `dtype` and `memory_format` are then ignored.

    Raises:
        ValueError: another shape, type or layout, an `out` that overlaps, or impossible mean or std.
        EnvironmentLacksError: images on a CUDA device, and a build without CUDA.
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
    """Raise EnvironmentLacksError, with the fix, where the core has no kernel for CUDA devices."""
    if not _core.cuda_architectures():
        raise EnvironmentLacksError(
            "hpcai500 is built without CUDA, but images shall be converted on a CUDA device: put nvcc on PATH (or set "
            "CUDACXX) and run make build again, or set accelerator.conversion=host"
        )


def _bits(tensor: Tensor) -> Tensor:
    """The tensor as NumPy can have it: bfloat16, which it lacks, as uint16."""
    tensor = tensor.detach()
    return tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor


# ----------------------------------------------------------------------------------------------------
# The loader's batches, one ahead on the device.


# One batch is computed with while the next is copied: a third would wait for the same computation.
_PLACES = 2


class ImagesOfBatch(Protocol):
    """What is moved: a dataclass with images. All its other fields stay where they are."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def images(self) -> Tensor:
        """(N, C, H, W)."""

    @property
    def wait_seconds(self) -> float:
        """How long the consumer was kept waiting."""


B = TypeVar("B", bound=ImagesOfBatch)
B_co = TypeVar("B_co", bound=ImagesOfBatch, covariant=True)


class Source(Protocol[B_co]):
    """A loader, such as `JpegBatches` and `ClimateBatches`, or what holds batches in memory."""

    def epoch(self, batches: Sequence[SampleIds], *, seed: int, epoch: int) -> Iterator[B_co]:
        """Yield one batch for each array of sample ids, in that order."""

    def close(self) -> None:
        """Free threads and memory."""


@dataclass(frozen=True)
class DeviceForm:
    """What images are on the device.

    Attributes:
        dtype: float32, float16 or bfloat16.
        memory_format: contiguous_format or channels_last.
        converted: by our kernel, on the device; otherwise they come in `dtype`, normalised, and are only laid out.
        mean, std: of each channel, where they are converted.
    """

    dtype: torch.dtype
    memory_format: torch.memory_format
    converted: bool = False
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None


class DeviceBatches(Generic[B]):
    """A loader's batches with their images on the device, one batch ahead.

    While the consumer computes with batch k, batch k + 1 is copied out of its (pinned) slot and converted, both on
    `stream`. These wait, all of them by events on the device:

    - the computation, before batch k is handed out, for the end of its conversion;
    - the copy of batch k + 2, into the place of batch k, for the end of all work that was queued on the computation
      when batch k + 1 was asked for;
    - the host, before the loader refills a slot, for the end of the copy out of it: the loader is advanced inside
      `stream.beside`, where the event that it records by `HeldSlots` is the stream's.

    So a batch is valid until the next one is asked for, as a loader's is, and one more is waited for at the beginning
    of an epoch. An error comes in the place of its batch. All but the images stays on the host.

    Memory on the device, in bytes, from the first batch of an epoch to its end: 2 x batch_size x image in its form, and
    batch_size x image as it comes where it is converted or laid out. On the host, only the loader's slots are pinned.
    Places are memory of the stream that this class keeps from batch to batch, so torch's allocator protects none of it:
    the marks above alone order reads and writes. Loaders that share a stream, and whose epochs do not overlap, take
    turns with the same memory.
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

    def epoch(self, batches: Sequence[SampleIds], *, seed: int, epoch: int) -> Iterator[B]:
        """Yield one batch for each array of sample ids, as the loader does, with images on the device.

        `wait_seconds` is how long the loader kept the consumer waiting: for the batch ahead, and at first for the first
        batch, too. Where the device waits for a copy, its steps take longer. The consumer may stop early; an epoch that
        is still open ends when another begins. Raises what the loader raises.
        """
        if self._running is not None:
            self._running.close()
        self._running = self._run(self._source.epoch(batches, seed=seed, epoch=epoch))
        return self._running

    def close(self) -> None:
        """Close the loader. An epoch that is still open yields no further batch. May be called twice."""
        self._closed = True
        self._source.close()
        if self._running is not None:
            self._running.close()
            self._running = None

    def _run(self, source: Iterator[B]) -> Generator[B, None, None]:
        places = [_Place(self._device, self._batch_size, self._form) for _ in range(_PLACES)]
        staging = _Staging(self._device, self._batch_size)
        number = 0

        def begin() -> _Moved[B] | Exception | None:
            nonlocal number
            place = places[number % _PLACES]
            number += 1
            try:
                # Without waiting for any step: the loader marks the end of the copy before, and waits for that.
                with self._stream.beside():
                    batch = next(source, None)
                if batch is None:
                    return None
                with self._stream.beside(*place.marks):
                    images = place.fill(batch.images, staging)
                    return _Moved(replace(batch, images=images), self._stream.mark(), place)
            except Exception as error:  # noqa: BLE001  # told in the place of its batch, whatever it is
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
                    moved.place.marks = (self._stream.mark(),)
                if self._closed:
                    return
                moved, waited = following, 0.0
        finally:
            with self._stream.beside():
                if isinstance(source, Generator):
                    source.close()
            # Who gets the places' memory next on this stream must wait for the computation that still uses it.
            with self._stream.beside(*(mark for place in places for mark in place.marks)):
                pass


@dataclass(frozen=True)
class _Moved(Generic[B]):
    """A batch under way; `ready` is passed when it is there."""

    batch: B
    ready: Event
    place: _Place


def _wait_of(moved: _Moved[B] | Exception | None) -> float:
    return moved.batch.wait_seconds if isinstance(moved, _Moved) else 0.0


class _Staging:
    """Memory on the device for images as they come. Used in the order of the stream alone, so one is enough."""

    def __init__(self, device: torch.device, batch_size: int) -> None:
        self._device = device
        self._batch_size = batch_size
        self._memory: Tensor | None = None

    def copy(self, images: Tensor) -> Tensor:
        if self._memory is None:
            self._memory = _memory(images, self._batch_size, self._device, images.dtype, _format_of(images))
        return self._memory[: len(images)].copy_(images, non_blocking=True)


class _Place:
    """Memory on the device for images in their form; `marks` must have passed before it is written."""

    def __init__(self, device: torch.device, batch_size: int, form: DeviceForm) -> None:
        self._device = device
        self._batch_size = batch_size
        self._form = form
        self._memory: Tensor | None = None
        self.marks: tuple[Event, ...] = ()

    def fill(self, images: Tensor, staging: _Staging) -> Tensor:
        """Queue copy and conversion on the stream, and return what will hold the result."""
        form = self._form
        if self._memory is None:
            self._memory = _memory(images, self._batch_size, self._device, form.dtype, form.memory_format)
        place = self._memory[: len(images)]
        if form.converted:
            return convert_images(staging.copy(images), form.mean, form.std, out=place)
        same = images.is_contiguous(memory_format=form.memory_format)
        return place.copy_(images if same else staging.copy(images), non_blocking=True)


def _memory(
    images: Tensor, batch_size: int, device: torch.device, dtype: torch.dtype, memory_format: torch.memory_format
) -> Tensor:
    shape = (max(batch_size, len(images)), *images.shape[1:])
    return torch.empty(shape, dtype=dtype, device=device, memory_format=memory_format)


def _format_of(images: Tensor) -> torch.memory_format:
    return torch.contiguous_format if images.is_contiguous() else torch.channels_last


# ----------------------------------------------------------------------------------------------------
# A few batches in memory, repeated: what training costs without its input.


class RepeatableBatch(ImagesOfBatch, Protocol):
    @property
    def samples(self) -> SampleIds:
        """The id of each image."""

    def repeated(self, ids: SampleIds) -> Self:
        """The first of its images, as many as `ids`, in answer to a call for these."""


R = TypeVar("R", bound=RepeatableBatch)


class MemoryBatches(Generic[R]):
    """Holds copies of a few batches, wherever they are, and repeats them."""

    def __init__(self, batches: Iterable[R]) -> None:
        """Copy `batches`, for example `source.epoch(...)`. Raises ValueError when there are none."""
        self._held = [replace(batch, images=_copy(batch.images)) for batch in batches]
        if not self._held:
            raise ValueError("at least one batch must be held")

    def epoch(self, batches: Sequence[SampleIds], *, seed: int, epoch: int) -> Iterator[R]:
        """Yield as many batches as asked for, of the sizes asked for (ValueError when larger than the held ones)."""
        del seed, epoch
        for number, ids in enumerate(batches):
            held = self._held[number % len(self._held)]
            if len(ids) > len(held.samples):
                raise ValueError(f"a batch of {len(ids)} was asked for, and {len(held.samples)} images are held")
            yield held.repeated(ids)

    def close(self) -> None:
        self._held = []


def _copy(images: Tensor) -> Tensor:
    copy = images.clone()
    return copy.pin_memory() if images.is_pinned() else copy
