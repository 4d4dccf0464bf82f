"""What the engine costs: its whole training step against a bare PyTorch loop, and what JPEG input costs on top.

Both train the same model with the same optimizer on the same held batches, in one process, an engine epoch and a bare
epoch in turn; the ratio of each pair is taken, and the median of the ratios printed. The JPEG run trains the same
recipe from files, input threads sharing the cores.

The last case is a whole epoch from files: the engine's, in turn with those of bare loops that the loaders of
input_rivals.py feed, each in a process of its own (bare_epochs.py), and with the steps alone on held batches: no loader
can be faster.

    python benchmarks/engine_step.py [--rounds N] [--scale N] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import torch
from bare_epochs import STEP_ALONE, bare_epoch
from decode_crop import Worker
from torch import nn

from hpcai500.data.imagenet.synthetic import SyntheticSet, make_images
from hpcai500.engine.checkpoints import CheckpointStore, state_bytes
from hpcai500.engine.precision import Precision, keep_freed_memory
from hpcai500.engine.ranks import Ranks
from hpcai500.engine.reporting import Console
from hpcai500.engine.signals import StopRequest
from hpcai500.engine.trainer import Trainer
from hpcai500.hosts import find_placement
from hpcai500.layers import ImageClassification, Recipe
from hpcai500.measure.host import available_cores
from hpcai500.recipe import load_recipe, recipe_hash
from hpcai500.record import RecordWriter, iterate, read_record
from hpcai500.workloads.base import Evaluation, Place
from hpcai500.workloads.ic import ImageClassificationWorkload


@dataclass(frozen=True)
class Case:
    """A model and a batch, and how many images an epoch of the measurement has."""

    name: str
    recipe: str
    settings: tuple[str, ...]
    images: SyntheticSet

    def scaled(self, scale: int) -> Case:
        """The same, with a `scale`-th of the images."""
        return replace(self, images=replace(self.images, train_per_class=self.images.train_per_class // scale))


CASES = (
    Case(
        "smoke model, 64 x 64, batch 64", "ic/smoke", (), SyntheticSet(classes=20, train_per_class=80, val_per_class=1)
    ),
    Case(
        "ResNet-50, 224 x 224, batch 8",
        "ic/reference",
        ("accelerator.device=cpu", "hyperparameters.batch_size=8"),
        SyntheticSet(classes=2, train_per_class=12, val_per_class=1, smallest_side=375, largest_side=500),
    ),
)
# The steps alone in the engine's own process, which keeps the memory that it frees, and whose threads wait longer.
KEPT = "step alone, engine's settings"
EPOCHS = Case(
    "smoke epoch from files, 64 x 64, batch 64",
    "ic/smoke",
    (),
    SyntheticSet(classes=20, train_per_class=80, val_per_class=1),
)


class BareEpochs(ImageClassificationWorkload):
    """After each engine epoch, where an evaluation would be, the same steps in a bare loop, timed."""

    def __init__(self, recipe: Recipe, data: Path, place: Place) -> None:
        super().__init__(recipe, data, place)
        assert isinstance(recipe.workload, ImageClassification)
        policy = recipe.hyperparameters
        self._smoothing = recipe.workload.label_smoothing
        self._batches = [batch.payload for batch in self._copied(recipe)]
        self._optimizer = torch.optim.SGD(
            self.model.parameters(), lr=1e-4, momentum=policy.momentum, weight_decay=policy.weight_decay
        )
        self.bare_seconds: list[float] = []

    def _copied(self, recipe: Recipe) -> list[Any]:
        self.hold_in_memory(4)
        return list(self.training_batches(1, 0))

    def evaluate(self, model: nn.Module, on_batch: Callable[[int], None]) -> Evaluation:
        self.bare_seconds.append(self.epoch(model, len(self._batches)))
        return Evaluation(0.0, 0)

    def epoch(self, model: nn.Module, steps: int) -> float:
        """Seconds of steps in a bare loop on the held batches."""
        with torch.inference_mode(mode=False), torch.enable_grad():
            model.train()
            return bare_epoch(model, self._optimizer, self._smoothing, islice(cycle(self._batches), steps))


# The loaders that feed bare loops, and how many workers each tries: beside a step, few are best.
LOADERS = ("torchvision v2, DataLoader", "simplejpeg + OpenCV, DataLoader", "records, threads", "DALI")
WORKERS = (1, 2)


@dataclass(frozen=True)
class Loop:
    """A bare loop in the process of its loader's kind; `workers` 0: batches in memory."""

    name: str
    workers: int
    process: Worker

    def seconds(self) -> float:
        """Of an epoch."""
        return float(self.process.ask(str(self.workers)))


class EpochsFromFiles(ImageClassificationWorkload):
    """After each engine epoch, as many steps on batches in memory, and then the epochs of the bare loops."""

    def __init__(self, recipe: Recipe, data: Path, place: Place, loops: Sequence[Loop]) -> None:
        super().__init__(recipe, data, place)
        self._loops, self._held = loops, BareEpochs(recipe, data, place)
        self.seconds: dict[str, list[float]] = {KEPT: [], **{loop.name: [] for loop in loops}}

    def evaluate(self, model: nn.Module, on_batch: Callable[[int], None]) -> Evaluation:
        self.seconds[KEPT].append(self._held.epoch(model, self.steps_per_epoch))
        for loop in self._loops:
            self.seconds[loop.name].append(loop.seconds())
        return Evaluation(0.0, 0)


def train(workload: ImageClassificationWorkload, recipe: Recipe, place: Place, record: Path) -> list[dict[str, Any]]:
    """Run the engine on `workload`; returns the values of its epochs."""
    ranks = Ranks(find_placement({}), place.communicator, recipe.communication.timeout_seconds)
    with closing(ranks), RecordWriter.create(record, recipe) as writer, StopRequest() as stop:
        trainer = Trainer(
            recipe,
            workload,
            place,
            ranks,
            precision=Precision(recipe.accelerator.precision, place.device),
            journal=writer,
            checkpoints=CheckpointStore(record, state_bytes(workload.model)),
            console=Console("benchmark", "top1", recipe.global_batch, 0, 10**9),
            stop=stop,
            sink=None,
            resume_command="",
        )
        writer.event("init_start", {"recipe_hash": recipe_hash(recipe)})
        trainer.run()
    workload.close()
    return [event["value"] for event in iterate(read_record(record).events, "epoch_stop")]


def still(case: Case, rounds: int) -> Recipe:
    """The recipe, at a rate of nearly nothing: losses stay finite however many epochs are measured."""
    settings = (
        "hyperparameters.base_learning_rate=1e-6",
        f"problem.epochs={rounds + 1}",
        "hyperparameters.warmup_epochs=0",
    )
    return load_recipe(case.recipe, (*case.settings, *settings))


def measure(case: Case, rounds: int, folder: Path) -> dict[str, Any]:
    """Medians of one case; rates in images a second, ratios without unit."""
    make_images(folder / "images", case.images)
    recipe = still(case, rounds)
    place = Place(torch.device("cpu"), torch.float32, available_cores())
    bare = BareEpochs(recipe, folder / "images", place)
    memory = train(bare, recipe, place, folder / "memory")[1:]
    ratios = [b / e["seconds"] for b, e in zip(bare.bare_seconds[1:], memory, strict=True)]
    files = ImageClassificationWorkload(recipe, folder / "images", place)
    jpeg = train(files, recipe, place, folder / "jpeg")[1:]

    def rate(epochs: list[dict[str, Any]]) -> float:
        return statistics.median(epoch["steps"] * recipe.global_batch / epoch["seconds"] for epoch in epochs)

    return {
        "case": case.name,
        "engine_images_per_second": rate(memory),
        "engine_over_bare_loop": statistics.median(ratios),
        "ratios": sorted(ratios),
        "jpeg_images_per_second": rate(jpeg),
        "jpeg_over_memory": rate(jpeg) / rate(memory),
        "jpeg_data_wait_share": statistics.median(epoch["data_wait_seconds"] / epoch["seconds"] for epoch in jpeg),
    }


def measure_epochs(case: Case, rounds: int, folder: Path) -> dict[str, Any]:
    """Whole epochs from files: the engine's rate, the steps' alone, and the ratio to a bare loop with each loader."""
    make_images(folder / "images", case.images)
    recipe = still(case, rounds)
    place = Place(torch.device("cpu"), torch.float32, available_cores())
    processes = {
        kind: Worker.start(case.recipe, str(folder / "images"), kind, sys.executable, "bare_epochs.py")
        for kind in (STEP_ALONE, *LOADERS)
    }
    skipped = {kind: reason for kind, process in processes.items() if (reason := process.ready())}
    loops = [
        Loop(f"{kind}, {workers}" if workers else kind, workers, process)
        for kind, process in processes.items()
        if kind not in skipped
        for workers in ((0,) if kind == STEP_ALONE else WORKERS)
    ]
    workload = EpochsFromFiles(recipe, folder / "images", place, loops)
    epochs = train(workload, recipe, place, folder / "files")[1:]
    for process in processes.values():
        process.stop()
    engine = [epoch["seconds"] / epoch["steps"] for epoch in epochs]
    steps = epochs[0]["steps"]
    others = {name: [spent / steps for spent in its[1:]] for name, its in workload.seconds.items()}
    rows = {}
    for name, its in others.items():
        ratios = [other / mine for other, mine in zip(its, engine, strict=True)]
        rows[name] = {
            "images_per_second": recipe.global_batch / statistics.median(its),
            "engine_over_it": statistics.median(ratios),
            "ratios": ratios,
        }
    fed = {name: row for name, row in rows.items() if name not in (KEPT, STEP_ALONE)}
    return {
        "case": case.name,
        "engine_images_per_second": recipe.global_batch / statistics.median(engine),
        "data_wait_share": statistics.median(epoch["data_wait_seconds"] / epoch["seconds"] for epoch in epochs),
        "fastest_loader": max(fed, key=lambda name: fed[name]["images_per_second"], default=None),
        "bare_loops": rows,
        "skipped": skipped,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9, help="pairs of epochs of each case (default 9)")
    parser.add_argument("--scale", type=int, default=1, help="epochs of a SCALE-th of the images, 3 at most")
    parser.add_argument("--json", type=Path, help="write the numbers here as well")
    options = parser.parse_args()
    torch.set_num_threads(available_cores())
    keep_freed_memory()
    results = []
    for case in (one.scaled(options.scale) for one in CASES):
        with tempfile.TemporaryDirectory() as folder:
            results.append(measure(case, options.rounds, Path(folder)))
        row = results[-1]
        print(f"{row['case']}")
        print(f"  engine / bare loop           {row['engine_over_bare_loop']:.3f}   (at least 0.98)")
        print(f"  with data in memory          {row['engine_images_per_second']:.1f} images/s")
        print(f"  from JPEG files              {row['jpeg_images_per_second']:.1f} images/s")
        print(f"  JPEG / memory                {row['jpeg_over_memory']:.3f}")
        print(f"  data-wait share with JPEG    {row['jpeg_data_wait_share']:.1%}")
    with tempfile.TemporaryDirectory() as folder:
        results.append(measure_epochs(EPOCHS.scaled(options.scale), max(options.rounds // 2, 1), Path(folder)))
    print_epochs(results[-1])
    if options.json:
        machine = {"cores": available_cores(), "machine": platform.machine(), "torch": torch.__version__}
        options.json.write_text(json.dumps({"machine": machine, "results": results}, indent=2) + "\n")


def print_epochs(row: dict[str, Any]) -> None:
    """The whole epochs."""
    print(f"{row['case']}")
    print(f"  {'engine':36s} {row['engine_images_per_second']:8.1f} images/s, waits {row['data_wait_share']:.1%}")
    for name, its in row["bare_loops"].items():
        fastest = " (the fastest loader)" if name == row["fastest_loader"] else ""
        rate, ratio = its["images_per_second"], its["engine_over_it"]
        print(f"  {name:36s} {rate:8.1f} images/s, engine / it {ratio:.3f}{fastest}")
    for kind, reason in row["skipped"].items():
        print(f"  {kind:36s} skipped: {reason}")


if __name__ == "__main__":
    main()
