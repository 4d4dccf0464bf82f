"""What a benchmark gives to the engine: the problem. The engine owns time, events, updates and checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from hpcai500.comm.base import Communicator
from hpcai500.comm.local import LocalCommunicator
from hpcai500.layers import Recipe
from hpcai500.progress import Tracker, track


@dataclass(frozen=True)
class TrainingBatch:
    """What one backward pass of one rank takes.

    Attributes:
        samples: ids (int64) of the samples in it, without those that only fill the last batch.
        padded: samples that only fill the last batch; trained on, never counted as images.
        payload: what `Workload.loss` takes: tensors on the host or already on the device, valid until the next batch is
            asked for.
        warnings: samples that were decoded with complaints.
        indexed: samples that were decoded by points of a seek index.
        wait_seconds: how long this batch was waited for.
    """

    samples: np.ndarray[Any, np.dtype[np.int64]]
    padded: int
    payload: Any
    warnings: int = 0
    indexed: int = 0
    wait_seconds: float = 0.0


@dataclass(frozen=True)
class Evaluation:
    """Quality on the whole evaluation set.

    Attributes:
        value: 0 to 1.
        samples: how many samples it stands for.
        per_class: the same for each class alone, by name, where the metric has such; None for a class that does not
            occur.
    """

    value: float
    samples: int
    per_class: Mapping[str, float | None] = field(default_factory=dict)


def noise(*shape: int, dtype: torch.dtype) -> Tensor:
    """Values for payloads that do not matter: zeros would stay zeros through the model, and cost a device less power.

    They leave the generators of the run as they are.
    """
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)


@dataclass(frozen=True)
class Place:
    """Where a process computes and reads, and which part of each update it does.

    Attributes:
        device: where the model is.
        input_dtype: type in which input is delivered.
        input_threads: threads that read and decode.
        communicator: the other ranks; a workload may talk through it while it is built and while it evaluates.
        total_shares: backward passes of an update over all ranks (`data.shares`).
        shares: numbers of those that this rank does, one after the other.
        replicas: the ranks that hold the same part of the model; None where each holds all of it.
        tracker: shows what takes long before training.
    """

    device: torch.device
    input_dtype: torch.dtype
    input_threads: int
    communicator: Communicator = field(default_factory=LocalCommunicator)
    total_shares: int = 1
    shares: tuple[int, ...] = (0,)
    replicas: Communicator | None = None
    tracker: Tracker = track

    def second_conversation(self) -> Communicator | None:
        """All replicas once more, for what talks during backward passes while gradients are summed; None for one."""
        replicas = self.replicas or self.communicator
        return replicas.group(range(replicas.size)) if replicas.size > 1 else None

    @property
    def rank(self) -> int:
        """Number of this process among all."""
        return self.communicator.rank

    @property
    def world_size(self) -> int:
        """How many processes train the model together."""
        return self.communicator.size

    @property
    def input_name(self) -> Literal["float32", "float16", "bfloat16"]:
        """`input_dtype` as the core names it."""
        names: dict[torch.dtype, Literal["float32", "float16", "bfloat16"]] = {
            torch.float32: "float32",
            torch.float16: "float16",
            torch.bfloat16: "bfloat16",
        }
        return names[self.input_dtype]


class Workload(Protocol):
    """A benchmark, as the engine sees it."""

    model: nn.Module
    metric: str
    steps_per_epoch: int
    drawn: npt.NDArray[np.int64] | None

    def dataset(self) -> dict[str, Any]:
        """Facts of the data set for the record: root, fingerprint, counts, the digest of a complete epoch."""

    def counted(self) -> tuple[nn.Module, tuple[Tensor, ...]]:
        """What does the counted work of a step, and inputs for it: the model itself, or its parts in a fixed shape.

        The first input has samples first; values do not matter.
        """

    def blank_payload(self) -> Any:
        """A payload shaped and typed as those of training, whose values do not matter, for compiling ahead."""

    def hold_in_memory(self, count: int) -> None:
        """Read `count` training batches now and repeat them from then on: training without the cost of input."""

    def training_batches(self, epoch: int, first_step: int) -> Generator[TrainingBatch]:
        """Batches of `epoch` (from 1) from step `first_step` on; a function of (seed, epoch) alone.

        As many a step as the place has shares.
        """

    def loss(self, model: nn.Module, payload: Any) -> Tensor:
        """The scalar that is minimised, for one batch."""

    def evaluate(self, model: nn.Module, on_batch: Callable[[int], None]) -> Evaluation:
        """Quality of `model` over the whole evaluation set, the same on every rank; each rank looks at its share.

        Calls `on_batch(samples so far)` after each batch, which may raise where there is one rank.
        """

    def predictions(
        self, model: nn.Module, samples: npt.NDArray[np.int64] | None, on_batch: Callable[[int], None]
    ) -> Mapping[str, npt.NDArray[Any]]:
        """What a member of an ensemble says of each sample, for the vote: arrays as its voter takes them.

        Of the training samples with these ids, ascending, read as in an evaluation; where None, of the evaluation set,
        so that the quality of the predictions is exactly that of the evaluation. Each rank looks at its share; rank 0
        gets all, the others nothing. `on_batch` as for `evaluate`.
        """

    def pictures(self) -> dict[str, bytes]:
        """Files by name that show the last evaluation to a person; may be none."""

    def close(self) -> None:
        """Stop input threads and give memory back."""


@runtime_checkable
class Graphable(Protocol):
    """A workload that gives this besides can be run with `framework.cuda_graphs`."""

    def graphed_parts(self) -> tuple[str, ...]:
        """Names of modules of the model, in the order of their calls, that a CUDA graph can hold; "" is all of it.

        Each is called once in a pass, with tensors (or lists of them) whose shapes are the same in every step; it
        decides nothing by their values, and talks to no other rank.
        """


class WorkloadFactory(Protocol):
    """Builds a workload from a recipe, the folder of its data, and the place that the process has."""

    def __call__(self, recipe: Recipe, data: Path, place: Place) -> Workload: ...
