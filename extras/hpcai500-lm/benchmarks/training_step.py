"""A training step of the language model on two ranks of this machine, beside bare torch and torchtitan's model.

    .venv/lm/bin/python extras/hpcai500-lm/benchmarks/training_step.py [--rounds N] [--titan FOLDER] [--json FILE]

`ours` is hpcai500's own updater with its reducer, as in a run. `bare` is the loop that torch's tutorials show: the same
model in DistributedDataParallel over Gloo, AdamW and clip_grad_norm_. `torchtitan` is that loop with torchtitan's Llama
3 of the same shape (0.2.2, which has scaled_dot_product_attention), if `--titan` names a folder that pip has filled:

    pip install --no-deps --target FOLDER torchtitan==0.2.2 tyro docstring_parser tokenizers triton torchdata \\
        tensorboard protobuf absl-py datasets dill multiprocess pyarrow huggingface_hub httpcore2 httpx2 h11 \\
        truststore tqdm xxhash fsspec aiohttp pandas requests

Each contestant does a step in turn in the same two processes. A step counts as long as the slower rank takes. The ratio
of each round is taken, and the median printed: above 1, ours is faster.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from itertools import repeat
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from hpcai500.comm.communicator import Communicator
from hpcai500.comm.reducer import Reducer
from hpcai500.engine.precision import Precision, keep_freed_memory
from hpcai500.engine.reporting import EpochTally
from hpcai500.engine.signals import StopRequest
from hpcai500.engine.updates import Updater
from hpcai500.engine.warm_up import bucket_candidates, choose_bucket_bytes
from hpcai500.recipe import load_recipe
from hpcai500.workloads.base import Place, TrainingBatch
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

sys.path.append(str(Path(__file__).resolve().parents[3] / "tests"))

from builders.ranks import run_ranks

from hpcai500_lm.model import initialised
from hpcai500_lm.optimizer import ClippedAdamW
from hpcai500_lm.workload import LanguageModel

RANKS = 2
Step = Callable[[], None]
# Shapes whose hidden width torchtitan can have, too.
CASES: dict[str, dict[str, int]] = {
    "smoke": {},
    "16 million": {
        "vocabulary": 4096, "layers": 4, "width": 512, "heads": 8, "key_value_heads": 4, "head_width": 64,
        "hidden_width": 1408, "sequence_length": 256,
    },
}  # fmt: skip
BATCH = {"smoke": 16, "16 million": 2}


class Blank:
    """The parts of the workload that a step needs; its batches are random tokens."""

    def __init__(self, recipe: Any, place: Place) -> None:
        self._recipe, self._place, self._shape = recipe, place, recipe.workload
        self.model = initialised(recipe.workload)
        shape = (recipe.hyperparameters.batch_size, recipe.workload.sequence_length + 1)
        tokens = torch.randint(recipe.workload.vocabulary, shape)
        self.payload = tokens[:, :-1], tokens[:, 1:]

    loss = LanguageModel.loss
    _on_device = LanguageModel._on_device


def ours(recipe: Any, place: Place, blank: Any) -> tuple[Step, Reducer]:
    """A step of hpcai500, with the bucket size that its own tuning picks."""
    candidates = bucket_candidates(blank.model.parameters())
    reducer = Reducer(blank.model.parameters(), place.communicator, recipe.communication, bucket_bytes=candidates[0])
    updater = Updater(
        blank,
        blank.model,
        ClippedAdamW(blank.model, recipe, place),
        Precision("fp32", place.device),
        1,
        reducer,
        StopRequest(),
        None,
        lambda name: None,
    )
    batches = repeat(TrainingBatch(np.empty(0, np.int64), 0, blank.payload))
    tally = EpochTally()

    def step() -> None:
        updater.update(0, 0.0, 1e-4, batches, tally)

    def measure(bucket_bytes: int) -> float:
        reducer.set_bucket_bytes(bucket_bytes)
        return seconds_of(step)

    seconds_of(step)
    reducer.set_bucket_bytes(choose_bucket_bytes(candidates, measure, place.communicator)[0])
    return step, reducer


def bare(model: nn.Module, payload: tuple[torch.Tensor, torch.Tensor]) -> Step:
    """A step as torch's tutorials have it."""
    wrapped = DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1)
    tokens, targets = payload

    def step() -> None:
        optimizer.zero_grad()
        loss = F.cross_entropy(wrapped(tokens).flatten(0, 1).float(), targets.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step


def titan(folder: Path, shape: Any) -> nn.Module:
    """torchtitan's Llama 3 in the shape of a recipe."""
    sys.path.append(str(folder))
    # The packages' own __init__ import loaders and loggers, which a model does not need.
    for name in ("torchtitan.models.llama3", "torchtitan.models.llama3.model"):
        module = ModuleType(name)
        module.__path__ = [str(folder.joinpath(*name.split(".")))]
        sys.modules[name] = module
    from torchtitan.models.llama3.model.args import TransformerModelArgs
    from torchtitan.models.llama3.model.model import Transformer as Titan

    model = Titan(
        TransformerModelArgs(
            dim=shape.width,
            n_layers=shape.layers,
            n_heads=shape.heads,
            n_kv_heads=shape.key_value_heads,
            vocab_size=shape.vocabulary,
            multiple_of=128,
            max_seq_len=shape.sequence_length,
        )
    )
    with torch.no_grad():
        model.init_weights()
    return model


def seconds_of(step: Step) -> float:
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def compared(ranks: Communicator, rounds: int, titan_folder: Path | None) -> list[dict[str, Any]]:
    """What each rank does: for each case and rival, medians over all rounds."""
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // RANKS))
    keep_freed_memory()
    results = []
    for name, shape in CASES.items():
        settings = [f"workload.{key}={value}" for key, value in shape.items()]
        settings += ["communication.backend=torch", f"hardware.accelerators_per_node={RANKS}"]
        recipe = load_recipe("lm/smoke", (*settings, f"hyperparameters.batch_size={BATCH[name]}"))
        place = Place(torch.device("cpu"), torch.float32, 1, communicator=ranks)
        torch.manual_seed(1)
        blank = Blank(recipe, place)
        step, reducer = ours(recipe, place, blank)
        steps = {"ours": step, "bare": bare(initialised(recipe.workload), blank.payload)}
        if titan_folder:
            model = titan(titan_folder, recipe.workload)
            sizes = [sum(weight.numel() for weight in one.parameters()) for one in (model, blank.model)]
            assert sizes[0] == sizes[1], f"not the same shape: {sizes}"
            steps["torchtitan"] = bare(model, blank.payload)
        seconds: dict[str, list[float]] = {contestant: [] for contestant in steps}
        for turn in range(rounds + 2):
            for contestant in sorted(steps, reverse=turn % 2 == 1):
                ranks.barrier()
                slowest = max(ranks.gather_objects(seconds_of(steps[contestant])))
                # The first two rounds set things up.
                if turn >= 2:
                    seconds[contestant].append(slowest)
        reducer.close()
        for rival in steps:
            if rival != "ours":
                ratios = sorted(theirs / mine for mine, theirs in zip(seconds["ours"], seconds[rival], strict=True))
                results.append(
                    {
                        "case": name,
                        "rival": rival,
                        "ours_seconds": statistics.median(seconds["ours"]),
                        "rival_seconds": statistics.median(seconds[rival]),
                        "rival_over_ours": statistics.median(ratios),
                        "quartiles": [ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]],
                    }
                )
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=25, help="rounds of steps (default 25)")
    parser.add_argument("--titan", type=Path, help="folder with torchtitan")
    parser.add_argument("--json", type=Path, help="write the numbers here as well")
    options = parser.parse_args()
    results = run_ranks(compared, RANKS, options.rounds, options.titan, timeout=3600)[0]
    for row in results:
        low, high = row["quartiles"]
        print(f"{row['case']:12} {row['rival']:11} {row['rival_seconds'] * 1e3:7.1f} ms", end=", ")
        print(f"ours {row['ours_seconds'] * 1e3:7.1f} ms: {row['rival_over_ours']:.3f}", end=" ")
        print(f"(half of the rounds {low:.3f} to {high:.3f}; at least 1.0)")
    if options.json:
        machine = {"machine": platform.machine(), "torch": torch.__version__}
        options.json.write_text(json.dumps({"machine": machine, "results": results}, indent=2) + "\n")


if __name__ == "__main__":
    main()
