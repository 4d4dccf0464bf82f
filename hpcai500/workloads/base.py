"""The interface of a benchmark, which defines the problem; the engine owns time, events, updates and checkpoints.

Also shared by benchmarks: noise for examples, gathering rows on one rank, and waiting for the first rank's work.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import index
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from hpcai500.comm.communicator import Communicator, LocalCommunicator
from hpcai500.comm.torch_backend import open_mesh
from hpcai500.errors import RunError, UsageError
from hpcai500.layers import Recipe
from hpcai500.progress import Tracker, track

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

# ----------------------------------------------------------------------------------------------------
# The workload, as the engine sees it.


@dataclass(frozen=True)
class TrainingBatch:
    """The input of one backward pass of one rank.

    Attributes:
        samples: ids (int64) of the samples in it, without padding.
        padded: samples that only fill the last batch; trained on, never counted as images.
        payload: the argument of `Workload.loss`: tensors on the host or already on the device, valid until the next
            batch is requested.
        warnings: samples that decoded with warnings.
        indexed: samples that were decoded with a seek index.
        wait_seconds: time spent waiting for this batch; None: how long taking it from `training_batches` took.
    """

    samples: np.ndarray[Any, np.dtype[np.int64]]
    padded: int
    payload: Any
    warnings: int = 0
    indexed: int = 0
    wait_seconds: float | None = None


@dataclass(frozen=True)
class Evaluation:
    """Quality on the whole evaluation set; numbers may be of any type, such as NumPy's or a tensor's.

    Attributes:
        value: 0 to 1; of a benchmark with `LossProblem`, any finite value of 0 or more.
        samples: number of samples it covers.
        per_class: by name, if the metric is defined per class; None for a class that does not occur.
    """

    value: float
    samples: int
    per_class: Mapping[str, float | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "value", float(self.value))
            object.__setattr__(self, "samples", index(self.samples))
            per_class = {name: None if one is None else float(one) for name, one in self.per_class.items()}
        except (TypeError, ValueError, AttributeError) as error:
            raise RunError(
                f"{self}: expected a number, an integer, and for each class a number or None: correct the workload"
            ) from error
        object.__setattr__(self, "per_class", per_class)


def noise(*shape: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Random values for blank payloads; the random generators of the run are not used.

    Zeros would stay zeros through the model, and take less power.
    """
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(device, dtype)


@dataclass(frozen=True)
class Place:
    """The resources of a process, and its part of each update.

    Attributes:
        input_dtype: type in which input is delivered.
        input_threads: threads that read and decode.
        communicator: all ranks; a workload may use it while it is built and while it evaluates, but not in passes.
        total_shares: backward passes of an update over all ranks (`data.samplers`).
        shares: numbers of those that this rank does, one after the other.
        replicas: the ranks that do this rank's part of a pass with other samples; None: all ranks.
        stages: the ranks that hold the parts of this rank's copy of the model; None if each rank holds all of it.
        tensor_ranks: consecutive ranks that get the same shares, for tensor parallelism; a resumed run may have fewer
            than its recipe.
        tracker: progress bars before training.
    """

    device: torch.device
    input_dtype: torch.dtype
    input_threads: int
    communicator: Communicator = field(default_factory=LocalCommunicator)
    total_shares: int = 1
    shares: tuple[int, ...] = (0,)
    replicas: Communicator | None = None
    stages: Communicator | None = None
    tensor_ranks: int = 1
    tracker: Tracker = track
    _for_passes: list[Communicator] = field(default_factory=list, init=False, repr=False, compare=False)

    def second_communicator(self) -> Communicator | None:
        """Another communicator of all replicas, for collectives in forward and backward passes; None for one rank."""
        replicas = self.replicas or self.communicator
        group = replicas.group(range(replicas.size)) if replicas.size > 1 else None
        if group:
            self._for_passes.append(group)
        return group

    @property
    def evaluation_ranks(self) -> Communicator:
        """The ranks among which the evaluation set is divided: all, or without those that get the same samples."""
        return self.replicas if self.tensor_ranks > 1 and self.replicas else self.communicator

    def device_mesh(self, shape: Sequence[int], names: Sequence[str]) -> DeviceMesh:
        """A mesh of all ranks, for `fully_shard` and `parallelize_module`; all ranks make the same call.

        Ranks are in row-major order, so that the last dimension has consecutive ranks, as tensor parallelism needs.

        Raises:
            UsageError: a backend other than torch, as in a run on one rank, or a shape of another number of ranks.
            RunError: another rank is lost.
        """
        ranks = self.communicator
        if ranks.backend != "torch" or ranks.size == 1:
            raise UsageError(
                f"Place.device_mesh: a mesh needs communication.backend torch and two ranks or more, got "
                f"{ranks.backend} and {ranks.size}: a workload on one rank must not distribute its model"
            )
        if math.prod(shape) != ranks.size:
            raise UsageError(f"Place.device_mesh: the job has {ranks.size} ranks, got a mesh of {tuple(shape)}")
        return open_mesh(self.device.type, shape, names)

    @property
    def passes_communicate(self) -> bool:
        """Whether the workload has asked for a communicator for its passes."""
        return bool(self._for_passes)

    @property
    def rank(self) -> int:
        return self.communicator.rank

    @property
    def world_size(self) -> int:
        return self.communicator.size

    @property
    def input_name(self) -> Literal["float32", "float16", "bfloat16"]:
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
        """The module whose operations are counted, and inputs: the model itself, or its parts in a fixed shape.

        The first dimension of the first input is samples; values do not matter.
        """

    def blank_payload(self) -> Any:
        """A payload with the shapes and types of training and any values, for compiling in advance.

        It is on the device of the place: steps on it are timed, and must not include a copy from the host.
        """

    def hold_in_memory(self, count: int) -> None:
        """Read `count` training batches now and repeat them from then on: training without the cost of input."""

    def training_batches(self, epoch: int, first_step: int) -> Generator[TrainingBatch]:
        """Batches of `epoch` (from 1) from step `first_step` on, one per step for each share of the place.

        They depend on (seed, epoch) only.
        """

    def loss(self, model: nn.Module, payload: Any) -> Tensor:
        """The scalar to minimise, for one batch."""

    def evaluate(self, model: nn.Module, on_batch: Callable[[int], None]) -> Evaluation:
        """Quality of `model` over the whole evaluation set, the same on every rank; each rank evaluates its share.

        Calls `on_batch(samples so far)` after each batch; with one rank, it may raise.
        """

    def predictions(
        self, model: nn.Module, samples: npt.NDArray[np.int64] | None, on_batch: Callable[[int], None]
    ) -> Mapping[str, npt.NDArray[Any]]:
        """A member's predictions for the vote of an ensemble, as arrays for its voter.

        For the training samples with these ids, ascending, read as in an evaluation; with None, for the evaluation set,
        so that the quality of the predictions is exactly that of the evaluation. Each rank predicts its share; rank 0
        gets all, the others nothing. `on_batch` as for `evaluate`.
        """

    def pictures(self) -> dict[str, bytes]:
        """Image files by name that show the last evaluation; may be empty."""

    def close(self) -> None:
        """Stop input threads and free memory."""


@runtime_checkable
class Graphable(Protocol):
    """A workload that supports `framework.cuda_graphs`."""

    def graphed_parts(self) -> tuple[str, ...]:
        """Names of modules of the model that a CUDA graph can hold, in the order of their calls; "" is all of it.

        Each is called once in a pass, with tensors (or lists of them) whose shapes are the same in every step. Its
        control flow does not depend on their values, and it does not communicate.
        """


@runtime_checkable
class OwnOptimizer(Protocol):
    """A workload with its own update rule, in place of the one that `hyperparameters.optimizer` names."""

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """The rule over all trainable parameters of `model`, which is on its device.

        Before each step the engine sets `lr` of all groups to the rate of the recipe's schedule. Then `.grad` has the
        mean gradient over all ranks, unscaled also with fp16, so that the rule may clip it; `step()` may change it.
        What a resumed run needs is in `state` and `param_groups`, as tensors, numbers and strings. If the model is in
        stages, the parameters of other stages have no gradient (None): a norm over the whole model is summed over
        `Place.stages`.
        """


class WorkloadFactory(Protocol):
    """Builds a workload from a recipe, the folder of its data, and the place of the process."""

    def __call__(self, recipe: Recipe, data: Path, place: Place) -> Workload: ...


# ----------------------------------------------------------------------------------------------------
# Rows computed by all ranks, gathered on the rank that writes.


# Memory limit of one exchange on each rank, in addition to its own rows and, on rank 0, the result.
_BLOCK_BYTES = 32 << 20


def gather_rows(share: Tensor, ranks: Communicator) -> Tensor | None:
    """The rows of all ranks, concatenated by rank, on rank 0; None elsewhere.

    `share` is this rank's rows (n, columns) on the host; n may differ between ranks.
    """
    if ranks.size == 1:
        return share
    counts: list[int] = ranks.gather_objects(share.shape[0])
    columns = share.shape[1]
    rows = max(1, _BLOCK_BYTES // (columns * share.element_size() * ranks.size))
    mine = torch.zeros(rows, columns, dtype=share.dtype)
    block = torch.empty(ranks.size, rows, columns, dtype=share.dtype)
    whole = torch.empty(sum(counts), columns, dtype=share.dtype) if ranks.rank == 0 else None
    for at in range(0, max(counts), rows):
        part = share[at : at + rows]
        mine[: part.shape[0]] = part
        ranks.all_gather(mine.view(-1), block.view(-1))
        if whole is not None:
            _place(block, whole, counts, at)
    return whole


def _place(block: Tensor, whole: Tensor, counts: list[int], at: int) -> None:
    first = 0
    for rank, count in enumerate(counts):
        rows = min(block.shape[1], max(0, count - at))
        whole[first + at : first + at + rows] = block[rank, :rows]
        first += count


# ----------------------------------------------------------------------------------------------------
# Waiting for the first rank, whose work the others reuse.


@contextmanager
def leader_first(ranks: Communicator) -> Iterator[None]:
    """Run the block on rank 0 before the others, which then find its results on a shared disk.

    If disks are not shared, the others do the work themselves, all at once.
    """
    if ranks.rank != 0:
        ranks.barrier()
    yield
    if ranks.rank == 0:
        ranks.barrier()
