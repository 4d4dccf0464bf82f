"""Who has left a job has no thread of the library any more: one that frees a tensor at Python's end aborts the rank."""

from __future__ import annotations

from pathlib import Path

import torch
from many_ranks import run_ranks
from torch import nn
from torch.nn import functional as F

from hpcai500.comm.torch_backend import TorchCommunicator
from hpcai500.engine.pipe import Pipe
from hpcai500.engine.precision import Precision
from hpcai500.engine.stage_groups import Neighbours
from hpcai500.workloads.chains import Chain
from hpcai500.workloads.models.parts import Part


def threads_of_groups() -> int:
    names = [(task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir()]
    return names.count("pt_gloo_runloop")


def before_and_after_leaving(communicator: TorchCommunicator) -> tuple[int, int]:
    part = communicator.split([[0, 1]])
    groups = [communicator, part, part.group([0, 1])]
    for group in groups:
        assert group
        group.all_reduce(torch.ones(1))
    before = threads_of_groups()
    communicator.close()
    assert len(groups) == 3, "whose communicators are still held here"
    return before, threads_of_groups()


def test_the_threads_of_all_groups_end_with_the_job() -> None:
    for before, after in run_ranks(before_and_after_leaving, 2):
        assert before >= 3
        assert after == 0


def pass_a_batch(communicator: TorchCommunicator) -> None:
    parts = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)])
    chain = Chain(
        parts=tuple(Part(module, (str(number),)) for number, module in enumerate(parts)),
        inputs=lambda given: given[0],
        targets=lambda given: given[1],
        pick=lambda labels, which: labels[which],
        loss=lambda outputs, labels: F.cross_entropy(outputs[0], labels),
    )
    own = range(communicator.rank, communicator.rank + 1)
    batch = torch.ones(2, 3), torch.zeros(2, dtype=torch.int64)
    precision = Precision("fp16", torch.device("cpu"), stages=communicator)
    neighbours = Neighbours(communicator, communicator.process_group)
    pipe = Pipe(chain, own, neighbours, precision, batch[0], micro_batches=2, channels_last=False)
    pipe.begin()
    pipe.run(batch if pipe.is_first else None, 1)


def after_a_pipe(communicator: TorchCommunicator) -> int:
    pass_a_batch(communicator)
    communicator.close()
    return threads_of_groups()


def test_no_schedule_of_a_cut_model_keeps_threads_alive() -> None:
    assert run_ranks(after_a_pipe, 2) == [0, 0]
