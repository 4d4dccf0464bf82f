"""One kind of contestant of input_loaders.py in its own process: reads `set workers batches` a line, answers images a
second of an epoch of that many batches, from its first request to its last batch. A contestant is made and warmed up
when its number of workers is first named, and closed when another set is.

    python benchmarks/input_worker.py KIND SET COPIES
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import numpy as np
import torch
from decode_images import SETS, copies_of
from input_rivals import KINDS, Contestant, Images

WARM_UP = 2


def images_of(set_name: str, copies: int) -> Images:
    """The copies of a set; each folder of them is a class."""
    paths = copies_of(next(image_set for image_set in SETS if image_set.name == set_name), copies)
    root = paths[0].parent.parent
    names = tuple(str(path.relative_to(root)) for path in paths)
    return Images(root, names, np.array([int(Path(name).parent.name) for name in names], np.int64))


def epoch_of(contestant: Contestant, images: Images, batches: int, random: np.random.Generator) -> float:
    """Seconds of an epoch in random order, in which no file is read twice if there are enough."""
    repeats = -(-batches * images.batch // len(images.paths))
    order = np.concatenate([random.permutation(len(images.paths)) for _ in range(repeats)])
    wanted = np.split(order[: batches * images.batch], batches)
    began = time.perf_counter()
    for made, _ in contestant.epoch(wanted):
        float(made.flatten()[0])
    return time.perf_counter() - began


def check(contestant: Contestant, images: Images) -> None:
    """A contestant that makes something else is none."""
    ((made, labels),) = contestant.epoch([np.arange(images.batch)])
    if len(labels) == images.batch:
        assert (tuple(made.shape), made.dtype) == ((images.batch, 3, images.size, images.size), torch.float32)
        assert made.is_contiguous()
        assert abs(float(made.mean())) < 1
        assert 0.3 < float(made.std()) < 2


def main() -> None:
    kind, set_name, copies = sys.argv[1], sys.argv[2], int(sys.argv[3])
    images = images_of(set_name, copies)
    random = np.random.default_rng(os.getpid())
    contestants: dict[int, Contestant] = {}
    KINDS[kind](images, 1)
    print("ready", flush=True)
    for line in sys.stdin:
        wanted, workers, batches = line.split()[0], *map(int, line.split()[1:])
        if wanted != set_name:
            contestants.clear()
            set_name, images = wanted, images_of(wanted, copies)
        if workers not in contestants:
            contestants[workers] = KINDS[kind](images, workers)
            check(contestants[workers], images)
            epoch_of(contestants[workers], images, WARM_UP, random)
        seconds = epoch_of(contestants[workers], images, batches, random)
        print(batches * images.batch / seconds, flush=True)


if __name__ == "__main__":
    main()
