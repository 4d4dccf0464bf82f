"""Batches that pass stages on real ranks leave the gradients of one process; fp16 leaves out a step on all alike."""

from __future__ import annotations

import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from many_ranks import run_ranks
from threads_at_exit import ThreadsAtExit
from torch import Tensor, nn
from torch.nn import functional as F

from hpcai500.engine.pipeline import Pipe
from hpcai500.engine.precision import Precision
from hpcai500.engine.ranks import Neighbours
from hpcai500.errors import CommunicationError
from hpcai500.workloads.models.parts import Chain, Part

CPU = torch.device("cpu")
SAMPLES, CLASSES, PASSES = 8, 5, 2


class Doubled(nn.Module):
    """Two tensors from one, as a detector hands finished stages on."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        return images, self.convolution(images)


class Joined(nn.Module):
    """One tensor of two."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(2, 4)
        self.head = nn.Linear(4, CLASSES)

    def forward(self, one: Tensor, other: Tensor) -> Tensor:
        scores: Tensor = self.head(self.norm(one * other).mean((2, 3)))
        return scores


def model() -> nn.ModuleList:
    torch.manual_seed(1)
    first = nn.Sequential(nn.Conv2d(3, 4, 3, stride=2), nn.ReLU())
    return nn.ModuleList([first, Doubled(), Joined()])


def payload(turn: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(turn)
    images = torch.randn(SAMPLES, 3, 16, 16, generator=generator)
    return images, torch.randint(CLASSES, (SAMPLES,), generator=generator)


def chain_of(parts: nn.ModuleList) -> Chain:
    return Chain(
        parts=tuple(Part(module, (str(number),)) for number, module in enumerate(parts)),
        inputs=lambda given: given[0],
        targets=lambda given: given[1],
        pick=lambda labels, which: labels[which],
        loss=lambda outputs, labels: F.cross_entropy(outputs[0], labels),
    )


def gradients_of_stages(
    communicator: Any, micro_batches: int, precision_name: str, channels_last: bool, *, stop: bool = False
) -> tuple[float, dict[str, Tensor], int]:
    parts, precision = model(), Precision(precision_name, CPU, stages=communicator)
    rank = communicator.rank
    pipe = Pipe(
        chain_of(parts),
        range(rank, rank + 1),
        Neighbours(communicator, communicator.process_group),
        precision,
        payload(0)[0],
        micro_batches=micro_batches,
        channels_last=channels_last,
    )
    pipe.begin()
    loss = sum(pipe.run(payload(turn) if pipe.is_first else None, PASSES) for turn in range(PASSES))
    assert pipe.waited_seconds > 0
    if stop:
        raise InterruptedError("stopped")
    found = {name: parameter.grad for name, parameter in parts.named_parameters() if parameter.grad is not None}
    return loss, found, pipe.sent_bytes(("here", "here", "there"))


def gradients_alone(precision_name: str) -> tuple[float, dict[str, Tensor]]:
    parts, precision, total = model(), Precision(precision_name, CPU), 0.0
    for turn in range(PASSES):
        images, labels = payload(turn)
        with precision.forward():
            loss = F.cross_entropy(parts[2](*parts[1](parts[0](images))), labels) / PASSES
        loss.backward()  # type: ignore[no-untyped-call]
        total += loss.item()
    return total, {name: parameter.grad for name, parameter in parts.named_parameters() if parameter.grad is not None}


# Micro-batches, precision, memory layout: one, fewer than stages (GPipe), and more (one forward, one backward).
CASES = ((1, "fp32", True), (2, "int8", False), (4, "fp32", False))


def gradients_of_all_cases(communicator: Any) -> list[tuple[float, dict[str, Tensor], int]]:
    return [gradients_of_stages(communicator, *case) for case in CASES]


def test_gradients_of_three_stages_are_those_of_one_process() -> None:
    ranks = run_ranks(gradients_of_all_cases, 3)
    for number, (_, precision, _) in enumerate(CASES):
        loss, expected = gradients_alone(precision)
        losses, gradients, sent = zip(*(cases[number] for cases in ranks), strict=True)
        assert list(losses) == pytest.approx([0, 0, loss])
        assert [len(one) for one in gradients] == [2, 2, 4]
        found = {name: gradient for one in gradients for name, gradient in one.items()}
        assert found.keys() == expected.keys()
        for name, gradient in expected.items():
            torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-6)
        # The second stage sends two tensors (4, 7, 7) of each sample to the third, on another host, and gets as many.
        assert list(sent) == [0, *[2 * SAMPLES * 4 * 7 * 7 * 4] * 2]


def weights_after_a_step(communicator: Any) -> list[tuple[float, float]]:
    """With gradients that overflow on no rank, on the second, on both; by an optimizer in many kernels, and in one."""
    found = []
    for overflowing, fused in product(((), (1,), (0, 1)), (False, True)):
        weight = nn.Parameter(torch.ones(1))
        precision = Precision("fp16", CPU, stages=communicator)
        optimizer = torch.optim.SGD([weight], lr=0.1, fused=fused)
        scale = precision.scaled(torch.ones(())).item()
        weight.grad = torch.full((1,), float("inf") if communicator.rank in overflowing else scale)
        precision.step(optimizer)
        found.append((weight.item(), precision.scaled(torch.ones(())).item() / scale))
    return found


def test_a_step_whose_gradients_overflow_in_one_stage_is_left_out_by_all() -> None:
    assert run_ranks(weights_after_a_step, 2) == [[(pytest.approx(0.9), 1.0)] * 2 + [(1.0, 0.5)] * 4] * 2


def weight_beside_a_stage_without_gradients(communicator: Any) -> float:
    weight = nn.Parameter(torch.ones(1))
    precision = Precision("fp16", CPU, stages=communicator)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    if communicator.rank == 0:
        weight.grad = precision.scaled(torch.ones(1))
    precision.step(optimizer)
    return weight.item()


def test_a_stage_without_gradients_steps_beside_the_others() -> None:
    assert run_ranks(weight_beside_a_stage_without_gradients, 2) == [pytest.approx(0.9), 1.0]


def failing_stage(communicator: Any) -> str:
    parts, rank = model(), communicator.rank
    own = (range(1), range(1, 3))[rank]
    group = Neighbours(communicator, communicator.process_group)
    precision = Precision("fp32", CPU)
    pipe = Pipe(chain_of(parts), own, group, precision, payload(0)[0], micro_batches=1, channels_last=False)
    if rank == 0:
        parts[0].register_forward_hook(_fail)
    with pytest.raises((torch.OutOfMemoryError, CommunicationError)) as caught:
        pipe.run(payload(0) if rank == 0 else None, 1)
    return caught.type.__name__


def _fail(*given: Any) -> None:
    raise torch.OutOfMemoryError("no more")


def test_what_goes_wrong_in_a_stage_is_not_taken_for_a_lost_rank() -> None:
    assert run_ranks(failing_stage, 2) == ["OutOfMemoryError", "CommunicationError"]


def stopped_after_a_batch(communicator: Any) -> str:
    try:
        gradients_of_stages(communicator, 2, "fp16", False, stop=True)
    except InterruptedError as error:
        # As a run that is stopped: the traceback still has the schedule, which has the group.
        communicator.close()
        return str(error)
    raise AssertionError


def test_an_error_that_a_schedule_was_in_leaves_no_threads_of_gloo(tmp_path: Path) -> None:
    at_exit = ThreadsAtExit(tmp_path / "at-exit")
    assert run_ranks(stopped_after_a_batch, 3, environment=at_exit.environment) == ["stopped"] * 3
    assert at_exit.counts == [0, 0, 0]


def test_a_run_of_whole_models_does_not_load_what_passes_batches() -> None:
    """It brings torch's compiler along, whose import and end take seconds on every rank."""
    code = "import sys, hpcai500.engine.job; sys.exit('torch.distributed.pipelining' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
