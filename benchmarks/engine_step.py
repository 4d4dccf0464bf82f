"""What the engine costs: its whole training step against a bare PyTorch loop, and what JPEG input costs on top.

Both train the same model with the same optimizer on the same held batches, in one process, an engine epoch and a bare
epoch in turn; the ratio of each pair is taken, and the median of the ratios printed. The JPEG run trains the same
recipe from files, input threads sharing the cores.

    python benchmarks/engine_step.py [--rounds N] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

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
            start = time.perf_counter()
            for images, labels in self._batches:
                self._optimizer.zero_grad(set_to_none=True)
                loss = F.cross_entropy(model(images), labels, label_smoothing=self._smoothing)
                loss.backward()
                self._optimizer.step()
            self.bare_seconds.append(time.perf_counter() - start)
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
        )
        writer.event("init_start", {"recipe_hash": recipe_hash(recipe)})
        trainer.run()
    workload.close()
    return [event["value"] for event in iterate(read_record(record).events, "epoch_stop")]


def measure(case: Case, rounds: int, folder: Path) -> dict[str, Any]:
    """Medians of one case; rates in images a second, ratios without unit."""
    make_images(folder / "images", case.images)
    # A rate of nearly nothing keeps random labels' losses finite however many epochs are measured.
    still = (
        "hyperparameters.base_learning_rate=1e-6",
        f"problem.epochs={rounds + 1}",
        "hyperparameters.warmup_epochs=0",
    )
    recipe = load_recipe(case.recipe, (*case.settings, *still))
    torch.set_num_threads(available_cores())
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9, help="pairs of epochs of each case (default 9)")
    parser.add_argument("--json", type=Path, help="write the numbers here as well")
    options = parser.parse_args()
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
    if options.json:
        machine = {"cores": available_cores(), "machine": platform.machine(), "torch": torch.__version__}
        options.json.write_text(json.dumps({"machine": machine, "results": results}, indent=2) + "\n")


if __name__ == "__main__":
    main()
