"""Over NCCL, all ranks start the collectives of all communicators in one order, however fast their threads are.

There is no NCCL here: communicators that call themselves NCCL write down what their rank starts. On some ranks the
training thread is slow, on others the thread that sends gradients, so that an order that depends on time differs.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import repeat
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
import torch.distributed as dist
from builders.ranks import run_ranks
from reduction import settings
from thread_ranks import ThreadCommunicator, run_threads
from torch import Tensor, nn
from torch.nn import functional as F

from hpcai500.comm import reducer as reducer_module
from hpcai500.comm.communicator import Communicator
from hpcai500.comm.reducer import Reducer
from hpcai500.comm.torch_backend import TorchCommunicator
from hpcai500.engine.measured_steps import BlankSteps
from hpcai500.engine.precision import Precision
from hpcai500.engine.ranks import Ranks, stage_groups
from hpcai500.engine.signals import StopRequest
from hpcai500.engine.updates import StagedUpdater
from hpcai500.engine.warm_up import WarmUp
from hpcai500.hosts import find_placement
from hpcai500.recipe import load_recipe
from hpcai500.workloads.base import Place, TrainingBatch
from hpcai500.workloads.models.parts import Chain, Part
from hpcai500.workloads.models.sync_batch_norm import SyncBatchNorm2d

CPU = torch.device("cpu")
NCCL = "NCCL 2.28"
TRAINING, EXCHANGE = "training", "exchange"
SLOW_SECONDS = 0.01
UPDATES = 3
# A name, and the ranks of the job that take part.
Launch = tuple[str, tuple[int, ...]]
# Launches that NCCL runs as one, as `ncclGroupStart` and `ncclGroupEnd` make them.
Batch = tuple[Launch, ...]


@dataclass
class Launches:
    """What one rank starts on its device, in this order, by which thread; one of its two threads is slow."""

    slow: str
    found: list[tuple[str, Batch]] = field(default_factory=list)

    def add(self, *batch: Launch) -> None:
        thread = EXCHANGE if threading.current_thread().name.startswith("hpcai500-exchange") else TRAINING
        if thread == self.slow:
            time.sleep(SLOW_SECONDS)
        self.found.append((thread, batch))

    @property
    def batches(self) -> list[Batch]:
        return [batch for _, batch in self.found]


@pytest.fixture
def one_channel(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a CUDA device."""
    monkeypatch.setitem(reducer_module._CHANNELS, "cpu", 1)


# ----------------------------------------------------------------------------------------------------
# Ranks as threads.


class RecordingCommunicator(ThreadCommunicator):
    """A communicator of some backend and library; its groups write to the same list."""

    launches: Launches
    name = "world"

    def become(self, launches: Launches, backend: str, library: str) -> None:
        self.launches, self.backend, self.library = launches, backend, library

    def all_reduce(self, tensor: Tensor) -> None:
        self.launches.add((f"{self.name}: {tensor.numel()}", self.world_ranks))
        super().all_reduce(tensor)

    def group(self, members: Sequence[int]) -> Communicator | None:
        self.group_type = RecordingCommunicator
        made = super().group(members)
        if isinstance(made, RecordingCommunicator):
            made.become(self.launches, self.backend, self.library)
            made.name = f"{self.name}.{self._calls}"
        return made


class Network(nn.Module):
    """Batch norm after each convolution; `extra` is used by some ranks only, and its bucket is the first."""

    def __init__(self, norm: Any) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(layer for _ in range(4) for layer in (nn.Conv2d(3, 3, 3, padding=1), norm(3), nn.ReLU()))
        )
        self.extra = nn.Linear(3, 3, bias=False)
        generator = torch.Generator().manual_seed(0)
        for parameter in self.parameters():
            nn.init.normal_(parameter, generator=generator)

    def forward(self, images: Tensor, *, with_extra: bool) -> Tensor:
        means = self.layers(images).mean((2, 3))
        total: Tensor = (self.extra(means) if with_extra else means).square().sum()
        return total


@dataclass
class Trained:
    launches: list[tuple[str, Batch]]
    gradients: list[Tensor]


def train(
    communicator: Communicator, *, backend: str, library: str, users_of_extra: tuple[int, ...] = (0, 1)
) -> Trained:
    assert isinstance(communicator, ThreadCommunicator)
    world = RecordingCommunicator(communicator._meeting, communicator.rank, communicator.hosts, (0, 1))
    world.become(launches := Launches((TRAINING, EXCHANGE)[world.rank]), backend, library)
    place = Place(CPU, torch.float32, 1, communicator=world)
    network = Network(partial(SyncBatchNorm2d, communicator=place.second_communicator()))
    reducer = Reducer(
        network.parameters(), world, settings(), bucket_bytes=4, passes_communicate=place.passes_communicate
    )
    images = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(world.rank))
    for number in range(UPDATES):
        network.zero_grad()
        reducer.begin(number)
        network(images, with_extra=world.rank in users_of_extra).backward()
        reducer.finish([])
    reducer.close()
    return Trained(launches.found, [parameter.grad for parameter in network.parameters() if parameter.grad is not None])


@pytest.mark.usefixtures("one_channel")
@pytest.mark.parametrize("users_of_extra", [(0, 1), (0,)], ids=["same parameters", "different parameters"])
def test_gradients_and_batch_norm_are_summed_in_one_order(users_of_extra: tuple[int, ...]) -> None:
    one, other = run_threads(partial(train, backend="torch", library=NCCL, users_of_extra=users_of_extra), "ab")
    assert one.launches == other.launches
    # In each update 4 layers forward and back, then 17 buckets and the status.
    assert [thread for thread, _ in one.launches] == ([TRAINING] * 8 + [EXCHANGE] * 18) * UPDATES
    concurrent, _ = run_threads(partial(train, backend="torch", library="Gloo", users_of_extra=users_of_extra), "ab")
    for found, expected in zip(one.gradients, concurrent.gradients, strict=True):
        torch.testing.assert_close(found, expected)


@pytest.mark.usefixtures("one_channel")
@pytest.mark.parametrize(("backend", "library"), [("torch", "Gloo"), ("horovod", NCCL)])
def test_libraries_that_keep_communicators_apart_send_during_the_pass(backend: str, library: str) -> None:
    one, other = run_threads(partial(train, backend=backend, library=library), "ab")
    assert one.launches != other.launches
    for trained in (one, other):
        threads = [thread for thread, _ in trained.launches]
        assert EXCHANGE in threads[: threads.index(EXCHANGE) + 1 + threads[threads.index(EXCHANGE) :].index(TRAINING)]


# ----------------------------------------------------------------------------------------------------
# Real processes: the engine's steps, with whole models and with stages.


def record(communicator: TorchCommunicator) -> Launches:
    """Make this process's communicators call themselves NCCL, and write down what it starts from now on."""
    reducer_module._CHANNELS["cpu"] = 1
    communicator.library, communicator.members = NCCL, replace(communicator.members, library=NCCL)
    launches = Launches((TRAINING, EXCHANGE)[communicator.rank // 2])
    _record_sums(launches)
    _record_stages(launches)
    return launches


def _record_sums(launches: Launches) -> None:
    original = TorchCommunicator.all_reduce

    def all_reduce(self: TorchCommunicator, tensor: Tensor) -> None:
        name = self.process_group.group_name
        launches.add((f"{name}: {tensor.numel()}", self.world_ranks))
        original(self, tensor)

    TorchCommunicator.all_reduce = all_reduce  # type: ignore[method-assign]


def _record_stages(launches: Launches) -> None:
    from torch.distributed.pipelining import schedules

    original = schedules._batch_p2p

    def batch(p2p_ops: list[dist.P2POp], desc: str | None = None) -> list[dist.Work]:
        if p2p_ops:
            launches.add(*map(transfer, p2p_ops))
        return original(p2p_ops, desc=desc)

    schedules._batch_p2p = batch


def transfer(operation: dist.P2POp) -> Launch:
    here = dist.get_rank()
    other = dist.get_global_rank(operation.group, operation.group_peer)
    ends = (here, other) if operation.op is dist.isend else (other, here)
    return f"{ends[0]} to {ends[1]}", ends


def in_processes(communicator: TorchCommunicator) -> dict[str, list[Batch]]:
    """What this rank starts in updates of whole models, and of stages with one micro-batch and with several."""
    launches = record(communicator)
    ranks = Ranks(find_placement({}), communicator, 60.0)
    found = {}
    for name, updates in (
        ("whole models", updates_of_whole_models),
        ("model", partial(updates_of_stages, micro_batches=1)),
        ("pipeline", partial(updates_of_stages, micro_batches=4)),
    ):
        update = updates(ranks)
        launches.found.clear()
        for number in range(UPDATES):
            update(number)
        found[name] = launches.batches
    ranks.close()
    return found


def updates_of_whole_models(ranks: Ranks) -> Any:
    table = (
        "workload.width=8",
        "workload.image_size=32",
        "workload.norm=sync-batch",
        "hyperparameters.batch_size=2",
        "communication.bucket_bytes=20000",
    )
    steps = BlankSteps(load_recipe("ic/smoke", table), ranks, CPU, 1, classes=3)
    steps.prepare()
    return lambda number: steps.step(together=True)


def updates_of_stages(ranks: Ranks, micro_batches: int) -> Any:
    from hpcai500.engine.pipeline import Pipe

    table = (
        "programming.parallel_mode=mixed",
        "programming.stages=2",
        "hardware.accelerators_per_node=4",
        "hyperparameters.batch_size=8",
        "communication.backend=torch",
        "communication.bucket_bytes=4",
    )
    recipe = load_recipe("ic/smoke", table)
    groups = stage_groups(recipe, ranks)
    assert groups
    place = Place(CPU, torch.float32, 1, communicator=ranks.world, replicas=groups.watched_replicas)
    norm = partial(SyncBatchNorm2d, communicator=place.second_communicator())
    torch.manual_seed(0)
    parts = [nn.Sequential(*(nn.Sequential(nn.Conv2d(3, 3, 3), norm(3)) for _ in range(3))) for _ in range(2)]
    images = torch.randn(8, 3, 16, 16, generator=torch.Generator().manual_seed(ranks.world.rank))
    column, precision = groups.neighbours.column, Precision("fp32", CPU)
    pipe = Pipe(
        Chain(
            parts=tuple(Part(part, (str(number),)) for number, part in enumerate(parts)),
            inputs=lambda given: given,
            targets=lambda given: torch.zeros(len(given)),
            pick=lambda targets, which: targets[which],
            loss=lambda outputs, targets: F.mse_loss(outputs[0].mean((1, 2, 3)), targets),
        ),
        range(column.rank, column.rank + 1),
        groups.neighbours,
        precision,
        images,
        micro_batches=micro_batches,
        channels_last=False,
    )
    updater = StagedUpdater(
        workload=cast(Any, SimpleNamespace(blank_payload=lambda: images)),
        model=pipe.stage,
        optimizer=torch.optim.SGD(pipe.stage.parameters(), lr=0.1),
        precision=precision,
        passes=1,
        reducer=None,
        stop=StopRequest(announce=False),
        sink=None,
        phase=lambda name: None,
        pipe=pipe,
        world=ranks.world,
        replicas=groups.watched_replicas,
        micro_batches=micro_batches,
    )
    staged = SimpleNamespace(stage=pipe.stage, groups=groups)
    WarmUp(updater, pipe.stage, ranks, recipe.communication, cast(Any, staged)).with_stages()
    batches = repeat(TrainingBatch(np.empty(0, np.int64), 0, images))
    return lambda number: updater.gradients(number, batches)


def left_over(ranks: Sequence[Sequence[Batch]]) -> list[list[Batch]]:
    """What devices never finish that run only one batch at a time, each in the order in which its host started them.

    A launch ends once it has come to the front on all ranks that take part.
    """
    queues = [[Counter(batch) for batch in batches] for batches in ranks]
    while True:
        fronts = [queue[0] if queue else Counter() for queue in queues]
        ready = {
            launch for front in fronts for launch in front if all(fronts[member][launch] > 0 for member in launch[1])
        }
        if not ready:
            return [[tuple(batch.elements()) for batch in queue] for queue in queues]
        for queue, front in zip(queues, fronts, strict=True):
            front.subtract(launch for launch in ready if front[launch] > 0)
            if queue and not any((+front).values()):
                queue.pop(0)


def test_devices_that_run_one_batch_at_a_time_wait_for_ever_if_orders_differ() -> None:
    norm, gradients = (("norm", (0, 1)),), (("gradients", (0, 1)),)
    assert left_over([[norm, gradients], [norm, gradients]]) == [[], []]
    assert left_over([[norm, gradients], [gradients, norm]]) == [[norm, gradients], [gradients, norm]]
    there, back = ("0 to 1", (0, 1)), ("1 to 0", (1, 0))
    assert left_over([[(there,), (back,)], [(back,), (there,)]]) != [[], []]
    assert left_over([[(there, back)], [(back, there)]]) == [[], []]


@pytest.fixture(scope="module")
def ranks() -> list[dict[str, list[Batch]]]:
    return run_ranks(in_processes, 4, timeout=300)


@pytest.mark.slow
def test_steps_of_whole_models_start_everything_in_one_order(ranks: list[dict[str, list[Batch]]]) -> None:
    orders = [rank["whole models"] for rank in ranks]
    assert orders == orders[:1] * 4
    assert left_over(orders) == [[]] * 4


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["model", "pipeline"])
def test_replicas_of_a_stage_start_everything_in_one_order(mode: str, ranks: list[dict[str, list[Batch]]]) -> None:
    orders = [[kinds(batch) for batch in rank[mode]] for rank in ranks]
    # Ranks 0 and 2 have the first stage, 1 and 3 the second.
    assert orders[:2] == orders[2:]
    for order in orders:
        # Activations, their gradients, batch norm of 3 channels forward and back, gradients of a convolution.
        assert {"down", "up", "sum of 7", "sum of 6", "sum of 81"} <= {kind for batch in order for kind in batch}
    assert left_over([rank[mode] for rank in ranks]) == [[]] * 4


def kinds(batch: Batch) -> list[str]:
    """What `batch` does, without the ranks of one replica."""
    return [
        f"sum of {name.partition(': ')[2]}" if ": " in name else "down" if ends[0] < ends[1] else "up"
        for name, ends in batch
    ]
