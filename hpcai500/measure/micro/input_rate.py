"""How many samples a second the input pipeline delivers to a consumer that takes them at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from hpcai500.errors import EnvironmentLacksError
from hpcai500.measure.micro.crew import Crew
from hpcai500.measure.repetition import Effort, Timing
from hpcai500.progress import Progress


class Batch(Protocol):
    """A part of `workloads.base.TrainingBatch`."""

    @property
    def samples(self) -> np.ndarray[Any, np.dtype[np.int64]]: ...
    @property
    def payload(self) -> Any: ...


# `epoch(number)` begins an epoch and yields its batches.
Epochs = Callable[[int], Generator[Batch]]


class Draining:
    """Takes batches, epoch after epoch, and knows how long each round of `batches` of one size took.

    What lay in the ring when an epoch began was not made at the pace that is measured: the first `ring` batches of each
    epoch, and one more, are taken and not counted (docs/input.md).
    """

    def __init__(self, epochs: Epochs, ring: int, batches: int, clock: Callable[[], float] = time.perf_counter) -> None:
        self._epochs, self._ring, self._batches, self._clock = epochs, ring, batches, clock
        self._number = 0
        self._current: Iterator[Batch] = iter(())
        self.samples = 0

    def round(self) -> float:
        """Take the next round; returns its seconds. Its samples are in `samples`."""
        while True:
            begin, samples = self._clock(), 0
            for _ in range(self._batches):
                batch = next(self._current, None)
                if batch is None:
                    break
                samples += len(batch.samples)
            else:
                self.samples = samples
                return self._clock() - begin
            self._begin_epoch()

    def _begin_epoch(self) -> None:
        self._number += 1
        self._current = self._epochs(self._number)
        for _ in range(self._ring + 1):
            if next(self._current, None) is None:
                raise EnvironmentLacksError("input: the data set is smaller than the input ring: give more, --data DIR")


def measure_input(
    name: str,
    crew: Crew,
    epochs: Epochs,
    ring: int,
    steps: int,
    seconds: float,
    bar: Progress,
    **more: Any,
) -> dict[str, Any]:
    """The document's entry `input NAME`.

    Args:
        name: `ic` or `ewa`, for messages.
        crew: all ranks; they read at once.
        epochs: begins one.
        ring: batches that the pipeline holds.
        steps: batches of an epoch.
        seconds: of measuring.
        bar: told once this is done.
        more: further keys.

    Raises:
        EnvironmentLacksError: an epoch is too short.
        WrongAnswerError: the same epoch begins with other images when it is read again, or with none.
    """
    # As long a round as the ring, so that one that waits for a slow file does not look like two; and of an epoch that
    # is short, what there is.
    batches = min(ring, steps - ring - 1)
    if batches < 1:
        raise EnvironmentLacksError(
            f"input {name}: {steps} batches an epoch are no more than the {ring} of the input ring and one: give a "
            "larger data set, --data DIR, or lower accelerator.prefetch_batches or hyperparameters.batch_size"
        )
    crew.require(f"input {name}", complaint(epochs))
    drain = Draining(epochs, ring, batches)
    timing: Timing = crew.time(drain.round, Effort(seconds=seconds, warm_up=1, most_seconds=5 * seconds))
    entry = crew.entry("samples/s", drain.samples, timing)
    bar.advance()
    return {**entry, "verified": True, **more}


def complaint(epochs: Epochs) -> str | None:
    """What is wrong with an epoch's first images; they depend on seed, epoch and sample alone, whoever reads them."""
    first, again = (_first_images(epochs) for _ in range(2))
    if not torch.isfinite(first).all():
        return "images hold values that are no numbers"
    if first.min() == first.max():
        return "images are blank"
    return None if torch.equal(first, again) else "the same images are read a second time, and are others"


def _first_images(epochs: Epochs) -> Tensor:
    """Those of an epoch's first batch; a payload's first part is its images."""
    batches = epochs(1)
    images: Tensor = next(batches).payload[0]
    # A view of memory that is filled anew when the next batch is asked for.
    kept = images.clone()
    batches.close()
    return kept
