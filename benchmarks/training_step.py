"""A training step on two ranks of this machine: the reducer against each library's own data parallelism.

    python benchmarks/training_step.py [--rounds N] [--json FILE]

Rivals: torch's DistributedDataParallel (gradients as views of its buckets, which is its fastest way) over Gloo, and
Horovod's DistributedOptimizer over MPI, both as they come; the reducer over the same library, with the bucket size that
its own tuning picks before. All train ResNet-50's 161 tensors (102 MB of gradients) by SGD with momentum in the same
two processes, a step each in turn; the ratio of each round is taken, and the median of the ratios printed. `computes`
is the network at 64 x 64, batch 2; `communicates` has the same parameters and next to no computation. Weights
lie as torch makes them: DistributedOptimizer refuses channels_last. The same step without any exchange takes its turn,
too: it is what no library can be faster than.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from hpcai500.comm.communicator import Communicator
from hpcai500.comm.connect import connect
from hpcai500.comm.reducer import Reducer
from hpcai500.engine.warm_up import bucket_candidates, choose_bucket_bytes
from hpcai500.hosts import find_placement
from hpcai500.measure.host import available_cores
from hpcai500.recipe import load_recipe
from hpcai500.workloads.models.resnet import Bottleneck, ResNet

RANKS = 2
RIVALS = {"torch": "DistributedDataParallel", "horovod": "hvd.DistributedOptimizer"}
Step = Callable[[], None]


class ParametersOnly(nn.Module):
    """The parameters of `model`; the gradient of each is its share of the loss, made without any other work."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.all = nn.ParameterList(parameter.detach().clone() for parameter in model.parameters())

    def forward(self, images: Tensor) -> Tensor:
        """One number an image, from one element of each parameter."""
        first = torch.stack([parameter.flatten()[0] for parameter in self.all])
        return first.sum() * torch.ones(len(images), 1)


def cases() -> dict[str, tuple[nn.Module, Callable[[nn.Module], Tensor]]]:
    """Model and loss by name of the case."""
    torch.manual_seed(0)
    network = ResNet(Bottleneck, (3, 4, 6, 3))
    images = torch.randn(2, 3, 64, 64)
    labels = torch.randint(0, 1000, (2,))
    return {
        "computes": (network, lambda model: F.cross_entropy(model(images), labels)),
        "communicates": (ParametersOnly(network), lambda model: model(images).mean()),
    }


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.875, weight_decay=1 / 32768)


def ours(
    model: nn.Module, loss: Callable[[nn.Module], Tensor], ranks: Communicator, settings: Any
) -> tuple[Step, Reducer, int]:
    """A step with the reducer, and the bucket size that was chosen for it."""
    optimizer = sgd(model)
    candidates = bucket_candidates(model.parameters())
    reducer = Reducer(model.parameters(), ranks, settings, bucket_bytes=candidates[0])

    def step() -> None:
        optimizer.zero_grad()
        reducer.begin(0)
        loss(model).backward()
        reducer.finish([0.0])
        optimizer.step()

    def measure(bucket_bytes: int) -> float:
        reducer.set_bucket_bytes(bucket_bytes)
        return seconds_of(step)

    seconds_of(step)
    choice, _ = choose_bucket_bytes(candidates, measure, ranks)
    reducer.set_bucket_bytes(choice)
    return step, reducer, choice


def rival(model: nn.Module, loss: Callable[[nn.Module], Tensor], backend: str) -> Step:
    """A step as the library's own documentation has it."""
    wrapped = model
    optimizer: Any = sgd(model)
    if backend == "torch":
        wrapped = DistributedDataParallel(model, gradient_as_bucket_view=True)
    else:
        import horovod.torch as hvd

        optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

    def step() -> None:
        optimizer.zero_grad()
        loss(wrapped).backward()
        optimizer.step()

    return step


def alone(model: nn.Module, loss: Callable[[nn.Module], Tensor]) -> Step:
    """A step that exchanges nothing."""
    optimizer = sgd(model)

    def step() -> None:
        optimizer.zero_grad()
        loss(model).backward()
        optimizer.step()

    return step


def seconds_of(step: Step) -> float:
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def run_rank(folder: Path, backend: str, rounds: int) -> None:
    """What each rank does; rank 0 leaves the results."""
    torch.set_num_threads(max(1, available_cores() // RANKS))
    recipe = load_recipe(
        "ic/reference",
        (f"communication.backend={backend}", f"hardware.accelerators_per_node={RANKS}", "accelerator.device=cpu"),
    )
    ranks = connect(recipe, find_placement(os.environ))
    results = []
    for name, (model, loss) in cases().items():
        step, reducer, bucket_bytes = ours(copy.deepcopy(model), loss, ranks, recipe.communication)
        steps = {
            "ours": step,
            "rival": rival(copy.deepcopy(model), loss, backend),
            "alone": alone(copy.deepcopy(model), loss),
        }
        seconds: dict[str, list[float]] = {name: [] for name in steps}
        for turn in range(rounds + 2):
            for contestant in sorted(steps, reverse=turn % 2 == 1):
                ranks.barrier()
                slowest = max(ranks.gather_objects(seconds_of(steps[contestant])))
                # The first two rounds set things up: DistributedDataParallel orders its buckets anew after one step.
                if turn >= 2:
                    seconds[contestant].append(slowest)
        reducer.close()
        ratios = [theirs / mine for mine, theirs in zip(seconds["ours"], seconds["rival"], strict=True)]
        results.append(
            {
                "case": name,
                "library": ranks.library,
                "rival": RIVALS[backend],
                "bucket_bytes": bucket_bytes,
                "ours_seconds": statistics.median(seconds["ours"]),
                "rival_seconds": statistics.median(seconds["rival"]),
                "alone_seconds": statistics.median(seconds["alone"]),
                "rival_over_ours": statistics.median(ratios),
                "ratios": sorted(ratios),
            }
        )
    if ranks.rank == 0:
        (folder / "results.json").write_text(json.dumps(results))
    ranks.close()


def environments(size: int) -> list[dict[str, str]]:
    """Of the ranks of a job on this machine, as torchrun sets them."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(probe.getsockname()[1]), "WORLD_SIZE": str(size)}
    return [{**os.environ, **place, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(size)]


def start_ranks(backend: str, rounds: int) -> list[dict[str, Any]]:
    """Run both cases over `backend` in new processes."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--rounds", str(rounds), "--as-rank", folder, backend]
        if backend == "horovod":
            quiet = ["--mca", "btl_vader_single_copy_mechanism", "none", "--bind-to", "none"]
            launcher = ["mpirun", "--allow-run-as-root", "--oversubscribe", *quiet, "-np", str(RANKS)]
            processes = [subprocess.Popen([*launcher, *command])]
        else:
            processes = [subprocess.Popen(command, env=environment) for environment in environments(RANKS)]
        codes = [process.wait() for process in processes]
        if any(codes):
            raise SystemExit(f"{backend}: a rank failed; what it wrote is above")
        results: list[dict[str, Any]] = json.loads((Path(folder) / "results.json").read_text())
        return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15, help="pairs of steps of each case (default 15)")
    parser.add_argument("--json", type=Path, help="write the numbers here as well")
    parser.add_argument("--backends", nargs="+", choices=RIVALS, default=list(RIVALS), help="which libraries")
    parser.add_argument("--as-rank", nargs=2, metavar=("FOLDER", "BACKEND"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.as_rank:
        run_rank(Path(options.as_rank[0]), options.as_rank[1], options.rounds)
        return
    results = []
    for backend in options.backends:
        for row in start_ranks(backend, options.rounds):
            results.append(row)
            print(f"{row['case']}, over {row['library']}, buckets of {row['bucket_bytes'] / 2**20:.0f} MiB")
            print(f"  {row['rival']:24} {row['rival_seconds'] * 1e3:8.1f} ms")
            print(f"  ours                     {row['ours_seconds'] * 1e3:8.1f} ms")
            print(f"  rival / ours             {row['rival_over_ours']:8.3f}   (at least 1.0)")
    if options.json:
        machine = {"cores": available_cores(), "machine": platform.machine(), "torch": torch.__version__}
        options.json.write_text(json.dumps({"machine": machine, "results": results}, indent=2) + "\n")


if __name__ == "__main__":
    main()
