"""Steps before the clock starts: fewer of them where the run is to be stopped, and as many on all ranks."""

from __future__ import annotations

import os
import signal
from typing import cast

import torch
from many_ranks import run_ranks

from hpcai500.comm.communicator import Communicator
from hpcai500.engine.precision import Precision
from hpcai500.engine.ranks import Ranks
from hpcai500.engine.signals import StopRequest
from hpcai500.engine.updates import Updater
from hpcai500.engine.warm_up import WarmUp
from hpcai500.hosts import find_placement
from hpcai500.recipe import load_recipe
from hpcai500.workloads.base import Place, Workload
from hpcai500.workloads.blank import BlankWorkload

SMALL = ("workload.width=8", "workload.image_size=32", "hyperparameters.batch_size=2",
         "hardware.accelerators_per_node=2", "communication.backend=torch")  # fmt: skip
CPU = torch.device("cpu")


def _warm_up(communicator: Communicator, stopped_rank: int | None) -> tuple[int, signal.Signals | None]:
    """How many passes this rank makes; `stopped_rank` has heard a signal before."""
    recipe = load_recipe("ic/smoke", SMALL)
    workload = BlankWorkload(recipe, Place(CPU, torch.float32, 1, communicator=communicator), 3)
    passes: list[int] = []
    workload.after_loss = lambda: passes.append(1)
    stop = StopRequest(announce=False)
    if communicator.rank == stopped_rank:
        stop.signal = signal.SIGTERM
    updater = Updater(
        workload=cast(Workload, workload),
        model=workload.model,
        optimizer=torch.optim.SGD(workload.model.parameters(), lr=0.1),
        precision=Precision("fp32", CPU),
        passes=1,
        reducer=None,
        stop=stop,
        sink=None,
        phase=lambda name: None,
    )
    ranks = Ranks(find_placement(os.environ), communicator, 60.0)
    WarmUp(updater, workload.model, ranks, recipe.communication).with_ranks()
    assert updater.reducer
    updater.reducer.close()
    return len(passes), stop.agreed


def test_a_signal_to_one_rank_cuts_the_warm_up_of_all_short() -> None:
    whole = run_ranks(_warm_up, 2, None)
    cut = run_ranks(_warm_up, 2, 1)
    assert len(set(whole)) == len(set(cut)) == 1
    assert cut[0][1] == signal.SIGTERM
    # The first step, three alone, one by buckets, one with those that are chosen, one pair.
    assert cut[0][0] == 8
    assert whole[0][0] > 2 * cut[0][0]
