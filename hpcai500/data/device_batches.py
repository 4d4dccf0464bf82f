"""Batches that are on the device before they are asked for: copied, and converted there, while a step computes."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from hpcai500.data.copy_lanes import CopyLane
from hpcai500.data.device_images import convert_images
from hpcai500.data.held_slots import Event
from hpcai500.data.samplers import SampleIds

# One batch is computed with while the next is copied: more would wait for the same computation.
_PLACES = 2


class ImagesOfBatch(Protocol):
    """What is moved: a dataclass with images. All else of it stays where it is."""

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
        """Give threads and memory back."""


@dataclass(frozen=True)
class DeviceForm:
    """What images are on the device.

    Attributes:
        dtype: float32, float16 or bfloat16.
        memory_format: contiguous_format or channels_last.
        converted: by our kernel, on the device; otherwise they come in `dtype`, normalised, and are only laid out.
        mean: of each channel, where they are converted.
        std: of each channel, where they are converted.
    """

    dtype: torch.dtype
    memory_format: torch.memory_format
    converted: bool = False
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None


class DeviceBatches(Generic[B]):
    """A loader's batches with their images on the device, one batch ahead.

    While the consumer computes with batch k, batch k + 1 is copied out of its (pinned) slot and converted, both on
    `lane`. What waits for what, all of it by events on the device:

    - the computation, before batch k is handed out, for the end of its conversion;
    - the copy of batch k + 2, into the place of batch k, for the end of all that was given to the computation when
      batch k + 1 was asked for;
    - the host, before the loader refills a slot, for the end of the copy out of it: the loader is advanced inside
      `lane.beside`, where the event that it records by `HeldSlots` is the lane's.

    So a batch is valid until the next one is asked for, as a loader's is, and one more is waited for at the beginning
    of an epoch. An error comes in the place of its batch. All but the images stays on the host.

    Memory on the device, in bytes, from the first batch of an epoch to its end: 2 x batch_size x image in its form, and
    batch_size x image as it comes where it is converted or laid out. Pinned on the host is what the loader pins: its
    slots. Places are memory of the lane, kept by this class, not of torch's allocator: which of the two reads or
    writes them when follows from the marks above alone. Loaders that share a lane, and whose epochs do not overlap,
    take turns with the same memory.
    """

    def __init__(
        self, source: Source[B], *, device: torch.device, batch_size: int, form: DeviceForm, lane: CopyLane
    ) -> None:
        self._source = source
        self._device = device
        self._batch_size = batch_size
        self._form = form
        self._lane = lane
        self._running: Generator[B, None, None] | None = None
        self._closed = False

    def epoch(self, batches: Sequence[SampleIds], *, seed: int, epoch: int) -> Iterator[B]:
        """Yield one batch for each array of sample ids, as the loader does, with images on the device.

        `wait_seconds` is how long the consumer was kept waiting by the loader: for the batch ahead, and for the first
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
                # First without waiting for any step: the loader marks the end of the copy before, and waits for it.
                with self._lane.beside():
                    batch = next(source, None)
                if batch is None:
                    return None
                with self._lane.beside(*place.marks):
                    images = place.fill(batch.images, staging)
                    return _Moved(replace(batch, images=images), self._lane.mark(), place)
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
                self._lane.follow(moved.ready)
                try:
                    yield replace(moved.batch, wait_seconds=waited)
                finally:
                    moved.place.marks = (self._lane.mark(),)
                if self._closed:
                    return
                moved, waited = following, 0.0
        finally:
            with self._lane.beside():
                if isinstance(source, Generator):
                    source.close()
            # Whoever gets the places' memory next on this lane comes after what the computation does with it.
            with self._lane.beside(*(mark for place in places for mark in place.marks)):
                pass


@dataclass(frozen=True)
class _Moved(Generic[B]):
    """A batch that is on its way; `ready` is when it is there."""

    batch: B
    ready: Event
    place: _Place


def _wait_of(moved: _Moved[B] | Exception | None) -> float:
    return moved.batch.wait_seconds if isinstance(moved, _Moved) else 0.0


class _Staging:
    """Memory on the device for images as they come. Used in the order of the lane alone, so one is enough."""

    def __init__(self, device: torch.device, batch_size: int) -> None:
        self._device = device
        self._batch_size = batch_size
        self._memory: Tensor | None = None

    def copy(self, images: Tensor) -> Tensor:
        """The images, on the device, in their type and layout."""
        if self._memory is None:
            self._memory = _memory(images, self._batch_size, self._device, images.dtype, _format_of(images))
        return self._memory[: len(images)].copy_(images, non_blocking=True)


class _Place:
    """Memory on the device for images in their form.

    Attributes:
        marks: what must have passed before it is written.
    """

    def __init__(self, device: torch.device, batch_size: int, form: DeviceForm) -> None:
        self._device = device
        self._batch_size = batch_size
        self._form = form
        self._memory: Tensor | None = None
        self.marks: tuple[Event, ...] = ()

    def fill(self, images: Tensor, staging: _Staging) -> Tensor:
        """Put copy and conversion in the lane, and return what will hold the result."""
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
