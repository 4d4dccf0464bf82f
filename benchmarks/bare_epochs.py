"""Epochs of a bare PyTorch loop that one kind of loader feeds, in its own process: reads a number of workers a line,
answers seconds of its epoch.

    python benchmarks/bare_epochs.py RECIPE DATA KIND

KIND is a kind of input_rivals.py, or `step alone` for batches in memory.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from input_rivals import KINDS, Contestant, Images
from torch import Tensor, nn
from torch.nn import functional as F

from hpcai500.data.imagenet.index import load_index
from hpcai500.layers import ImageClassification
from hpcai500.measure.host import available_cores
from hpcai500.recipe import load_recipe
from hpcai500.workloads.ic import build_model

STEP_ALONE = "step alone"


def bare_epoch(
    model: nn.Module, optimizer: torch.optim.Optimizer, smoothing: float, batches: Iterable[tuple[Tensor, Tensor]]
) -> float:
    """Train on all batches, as a tutorial does; returns seconds."""
    start = time.perf_counter()
    for images, labels in batches:
        optimizer.zero_grad(set_to_none=True)
        scores = model(images.to(memory_format=torch.channels_last))
        F.cross_entropy(scores, labels, label_smoothing=smoothing).backward()
        optimizer.step()
    return time.perf_counter() - start


def order_of(images: Images) -> list[np.ndarray[Any, Any]]:
    """An epoch of whole batches."""
    count = len(images.paths) // images.batch
    return np.split(np.random.default_rng(0).permutation(len(images.paths))[: count * images.batch], count)


def main() -> None:
    torch.set_num_threads(available_cores())
    recipe, data = load_recipe(sys.argv[1]), Path(sys.argv[2])
    options, policy = recipe.workload, recipe.hyperparameters
    assert isinstance(options, ImageClassification)
    index = load_index(data)
    split = index.train
    images = Images(data, split.paths, split.labels.copy(), policy.batch_size, options.image_size, options.crop_area)
    order = order_of(images)
    loaders: dict[int, Contestant] = {}
    if sys.argv[3] == STEP_ALONE:
        ours = KINDS["ours"](images, available_cores())
        held = [(made.clone(), labels) for made, labels in ours.epoch(order[:4])]
    else:
        loaders[1] = KINDS[sys.argv[3]](images, 1)
    model = build_model(options, len(index.classes)).to(memory_format=torch.channels_last).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6, momentum=policy.momentum, weight_decay=policy.weight_decay)
    print("ready", flush=True)
    for line in sys.stdin:
        workers = int(line)
        if workers and workers not in loaders:
            loaders[workers] = KINDS[sys.argv[3]](images, workers)
        batches = loaders[workers].epoch(order) if workers else islice(cycle(held), len(order))
        print(bare_epoch(model, optimizer, options.label_smoothing, batches), flush=True)


if __name__ == "__main__":
    main()
