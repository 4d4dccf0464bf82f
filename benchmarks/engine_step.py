"""What the engine costs: its whole training step against a bare PyTorch loop, and what JPEG input costs on top.

Both train the same model with the same optimizer on the same held batches, in one process, an engine epoch and a bare
epoch in turn; the ratio of each pair is taken, and the median of the ratios printed. The JPEG run trains the same
recipe from files, input threads sharing the cores.

The last case is a whole epoch from files: the engine's, in turn with those of bare loops that the loaders of
input_rivals.py feed, and with the steps alone on held batches, which no loader can pass.

    python benchmarks/engine_step.py [--rounds N] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from input_rivals import KINDS, Contestant, Images
from torch import Tensor, nn
from torch.nn import functional as F

from hpcai500.data.imagenet.index import load_index
from hpcai500.data.imagenet.synthetic import SyntheticSet, make_images
from hpcai500.engine.checkpoints import CheckpointStore, state_bytes
from hpcai500.engine.precision import Precision
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
        with torch.inference_mode(mode=False), torch.enable_grad():
            model.train()
            self.bare_seconds.append(bare_epoch(model, self._optimizer, self._smoothing, self._batches))
        return Evaluation(0.0, 0)


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


# The loaders that feed bare loops, and how many workers each tries: beside a step, few are best.
LOADERS = ("torchvision v2, DataLoader", "simplejpeg + OpenCV, DataLoader", "records, threads", "DALI")
WORKERS = (1, 2)
STEP_ALONE = "step alone"


class EpochsFromFiles(ImageClassificationWorkload):
    """After each engine epoch, as many steps in bare loops: on batches in memory, and fed by each loader."""

    def __init__(self, recipe: Recipe, data: Path, place: Place) -> None:
        super().__init__(recipe, data, place)
        options, policy = recipe.workload, recipe.hyperparameters
        assert isinstance(options, ImageClassification)
        self._smoothing = options.label_smoothing
        self._optimizer = torch.optim.SGD(
            self.model.parameters(), lr=1e-4, momentum=policy.momentum, weight_decay=policy.weight_decay
        )
        split = load_index(data).train
        images = Images(
            data, split.paths, split.labels.copy(), policy.batch_size, options.image_size, options.crop_area
        )
        self.skipped: dict[str, str] = {}
        self._loaders: dict[str, Contestant] = {}
        for kind in LOADERS:
            try:
                self._loaders |= {f"{kind}, {workers}": KINDS[kind](images, workers) for workers in WORKERS}
            except ImportError as error:
                self.skipped[kind] = str(error)
        ours = KINDS["ours"](images, place.input_threads)
        self._held = [(one.clone(), labels) for one, labels in ours.epoch(self._order(images)[:4])]
        self._images = images
        self.seconds: dict[str, list[float]] = {name: [] for name in (STEP_ALONE, *self._loaders)}

    def _order(self, images: Images) -> list[np.ndarray[Any, Any]]:
        count = len(images.paths) // images.batch
        order = np.random.default_rng(0).permutation(len(images.paths))
        return np.split(order[: count * images.batch], count)

    def evaluate(self, model: nn.Module, on_batch: Callable[[int], None]) -> Evaluation:
        order = self._order(self._images)
        with torch.inference_mode(mode=False), torch.enable_grad():
            model.train()
            for name, its in self.seconds.items():
                loader = self._loaders.get(name)
                batches = loader.epoch(order) if loader else islice(cycle(self._held), len(order))
                its.append(bare_epoch(model, self._optimizer, self._smoothing, batches))
        return Evaluation(0.0, 0)


def train(workload: ImageClassificationWorkload, recipe: Recipe, place: Place, record: Path) -> list[dict[str, Any]]:
    """Run the engine on `workload`; returns the values of its epochs."""
    with RecordWriter.create(record, recipe) as writer, StopRequest() as stop:
        trainer = Trainer(
            recipe,
            workload,
            place,
            Ranks(find_placement({}), place.communicator, recipe.communication.timeout_seconds),
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
    workload = EpochsFromFiles(recipe, folder / "images", place)
    epochs = train(workload, recipe, place, folder / "files")[1:]
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
    fed = {name: row for name, row in rows.items() if name != STEP_ALONE}
    return {
        "case": case.name,
        "engine_images_per_second": recipe.global_batch / statistics.median(engine),
        "data_wait_share": statistics.median(epoch["data_wait_seconds"] / epoch["seconds"] for epoch in epochs),
        "fastest_loader": max(fed, key=lambda name: fed[name]["images_per_second"], default=None),
        "bare_loops": rows,
        "skipped": workload.skipped,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9, help="pairs of epochs of each case (default 9)")
    parser.add_argument("--json", type=Path, help="write the numbers here as well")
    options = parser.parse_args()
    torch.set_num_threads(available_cores())
    results = []
    for case in CASES:
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
        results.append(measure_epochs(EPOCHS, max(options.rounds // 2, 1), Path(folder)))
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
