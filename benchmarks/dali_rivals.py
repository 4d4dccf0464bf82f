"""DALI pipelines of dali_loader.py: our operator in DALI's own reading, and our batches around that.

As the contestants of decode_rivals.py: `make(paths, threads) -> run`, and `run(batches)` makes that many.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from decode_rivals import AREA, BATCH, CONTESTANTS, MEAN, RATIO, SIZE, STD, Run


def operator(paths: Sequence[Path], threads: int) -> Run:
    """`hpcai500__DecodeCrop` in the pipeline of the rivals: fn.readers.file, then one operator for all the rest."""
    from nvidia.dali import fn, pipeline_def

    from hpcai500.data.imagenet.dali import load_operators

    load_operators()

    @pipeline_def(batch_size=BATCH, num_threads=threads, device_id=None)
    def pipeline() -> object:
        jpegs, labels = fn.readers.file(files=[str(path) for path in paths], random_shuffle=True, name="reader")
        drawn = fn.random.uniform(range=[0, 2**31 - 1])
        # Another crop each time, as the rivals draw them.
        keys = fn.cast(fn.stack(drawn, drawn * 0, drawn * 0), dtype=_int64())
        images, _ = fn.hpcai500.decode_crop(
            jpegs, keys, size=SIZE, area=_texts(AREA), ratio=_texts(RATIO), mean=_texts(MEAN), std=_texts(STD)
        )
        return images, labels

    built = pipeline()
    built.build()

    def run(batches: int) -> None:
        for _ in range(batches):
            built.run()

    return run


def batches_by_dali(paths: Sequence[Path], threads: int) -> Run:
    """What `accelerator.loader=dali` runs: our order, files read by DALI, our operator, tensors of torch."""
    import torch

    from hpcai500.data.imagenet.dali import DaliBatches
    from hpcai500.data.imagenet.index import make_split

    count = np.zeros(len(paths), np.int64)
    split = make_split("train", tuple(path.name for path in paths), count, count)
    torch.set_num_threads(1)
    source = DaliBatches(
        split,
        paths[0].parent,
        batch_size=BATCH,
        threads=threads,
        device=torch.device("cpu"),
        size=SIZE,
        mode="random",
        area=AREA,
        ratio=RATIO,
    )
    rng = np.random.default_rng(0)
    epoch = 0

    def run(batches: int) -> None:
        nonlocal epoch
        epoch += 1
        for _ in source.epoch([rng.integers(0, len(paths), BATCH) for _ in range(batches)], seed=1, epoch=epoch):
            pass

    return run


def _int64() -> object:
    from nvidia.dali import types

    return types.INT64


def _texts(numbers: Sequence[float]) -> list[str]:
    return [repr(number) for number in numbers]


DALI_CONTESTANTS: dict[str, Callable[[Sequence[Path], int], Run]] = {
    "operator": operator,
    "loader-dali": batches_by_dali,
    "loader-native": CONTESTANTS["ours"],
    "dali": CONTESTANTS["dali"],
    "dali-antialiased": CONTESTANTS["dali-antialiased"],
}
