"""Extreme Weather Analytics: Faster R-CNN on yearly HDF5 files of 16-channel climate images (V2.0 section 4.2.1)."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from hpcai500.comm.turns import leader_first
from hpcai500.data.climate.index import load_climate_index, load_content_fingerprint
from hpcai500.data.climate.layout import CHANNELS, CLASSES
from hpcai500.data.climate.reading.loader import ClimateBatch
from hpcai500.data.climate.reading.memory import MemoryClimateBatches
from hpcai500.data.climate.reading.windows import windows_of
from hpcai500.data.climate.truth import Truth, most_boxes, moved, truths_of
from hpcai500.data.climate.values.moments import combined
from hpcai500.data.climate.values.statistics import load_or_measure, require_varied
from hpcai500.data.climate.year_file import YearFile
from hpcai500.data.device_batches import Source
from hpcai500.data.samplers import SampleIds, evaluation_shard, windowed_order
from hpcai500.data.shares import Shares
from hpcai500.data.synthetic_manifest import MANIFEST
from hpcai500.data.training_samples import training_samples
from hpcai500.errors import DataError, RecipeError
from hpcai500.layers import ClimateProblem, ExtremeWeather, Recipe
from hpcai500.workloads.base import Evaluation, Place, TrainingBatch, noise
from hpcai500.workloads.chains import Chain, detector_chain
from hpcai500.workloads.ewa_input import ClimateInput
from hpcai500.workloads.ewa_model import build_model, example_inputs
from hpcai500.workloads.ewa_picture import Scene, draw
from hpcai500.workloads.ewa_targets import as_arrays, as_image, padded_targets, seed_of
from hpcai500.workloads.models.faster_rcnn import CountedDetector, FasterRCNN
from hpcai500.workloads.models.targets import Targets, blank_targets
from hpcai500.workloads.quality.average_precision import AveragePrecision
from hpcai500.workloads.static_parts import static_parts
from hpcai500.workloads.voting.detections import flat

_PICTURES = 4
# The number of an image, and the boxes, scores and labels that were found in it.
Found = tuple[int, tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]]


class ExtremeWeatherWorkload:
    """Faster R-CNN on climate years: training by its four losses, quality by mean average precision at IoU 0.5."""

    metric = "map50"

    def __init__(self, recipe: Recipe, data: Path, place: Place) -> None:
        problem, options = recipe.problem, recipe.workload
        assert isinstance(problem, ClimateProblem)
        assert isinstance(options, ExtremeWeather)
        self._options, self._place = options, place
        self._seed = recipe.hyperparameters.seed
        self._channels_last = recipe.framework.channels_last
        channels = [CHANNELS.index(name) for name in options.channels]
        with leader_first(place.communicator):
            self._index = load_climate_index(data, progress=place.tracker)
        training, evaluation = (
            self._index.select(*years) for years in (problem.training_years, problem.evaluation_years)
        )
        self._image_size = training[0].height, training[0].width
        self._training_width = options.crop_width or self._image_size[1]
        if self._training_width > self._image_size[1]:
            raise RecipeError(f"workload.crop_width: expected at most {self._image_size[1]}, the width of the images")
        self._training_truths, self._evaluation_truths = _truths(training), _truths(evaluation)
        for truths, years in (
            (self._training_truths, problem.training_years),
            (self._evaluation_truths, problem.evaluation_years),
        ):
            if not any(len(truth.labels) for truth in truths):
                raise DataError(
                    f"{data}: the years {years[0]} to {years[1]} hold no boxes: there is nothing to learn or find"
                )
        self._truth_places = most_boxes(self._training_truths, rolled=options.longitude_roll)
        conversation = place.second_conversation() if options.norm == "sync-batch" else None
        self.model: nn.Module = build_model(options, conversation)
        images_of_year = [year.images for year in training]
        self._samples = training_samples(recipe, len(self._training_truths), {"year": images_of_year})
        self.drawn = self._samples.drawn
        batch_size = recipe.hyperparameters.batch_size
        self._shares = Shares(len(self._samples), batch_size, place.total_shares, place.shares, options.tail)
        self.steps_per_epoch = self._shares.steps_per_epoch
        # Of both sets: a damaged chunk or a NaN in the evaluation years would show after the first epoch only.
        with leader_first(place.communicator):
            measured = load_or_measure([*training, *evaluation], channels=channels, progress=place.tracker)
        values = combined(measured[: len(training)])
        require_varied(values, channels, str(data))
        all_places = _places(training)
        # Each repeat of an image is a sample of its own, with its own roll.
        drawn_places = all_places if self.drawn is None else all_places[self.drawn]
        self._input = ClimateInput(recipe, place, channels, values.mean[channels], values.std[channels])
        of_training, of_evaluation = ([(year.path, year.storage) for year in years] for years in (training, evaluation))
        loader = self._input.loader
        training_loader = loader(of_training, drawn_places, width=self._training_width, roll=options.longitude_roll)
        self._training = self._input.on_device(training_loader)
        # Whole images, as they are.
        self._evaluation = self._input.on_device(loader(of_evaluation, _places(evaluation), width=self._image_size[1]))
        self._unmoved = partial(loader, of_training, all_places, width=self._image_size[1])
        storages = [year.storage for year in training]
        self._images_per_window = int(np.bincount(windows_of(storages, all_places)).max())
        self._windows = windows_of(storages, drawn_places)
        self._shard = evaluation_shard(len(self._evaluation_truths), batch_size, place.world_size, place.rank)
        seen = sum(len(ids) for ids in self._shard)
        # The first rank's share begins with the first image, and it is the first rank that draws.
        self._shown = _most_varied(self._evaluation_truths[:seen]) if place.rank == 0 else set()
        self._scenes: list[Scene] = []

    def graphed_parts(self) -> tuple[str, ...]:
        """As `static_parts`."""
        return static_parts(self.model, self._place.world_size)

    def hold_in_memory(self, count: int) -> None:
        """Read `count` training batches now and repeat them from then on: training without the cost of input."""
        order = windowed_order(self._windows, self._seed, 1, self._shares.total)
        wanted = [share.ids for share in islice(self._shares.of_epoch(order), count)]
        held = MemoryClimateBatches(self._training.epoch(wanted, seed=self._seed, epoch=1))
        self._training.close()
        self._training = held

    def dataset(self) -> dict[str, Any]:
        """Facts of the climate years for the record."""
        return {
            "root": str(self._index.root.resolve()),
            "fingerprint": self._index.fingerprint,
            "content_fingerprint": load_content_fingerprint(self._index),
            "training_samples": len(self._training_truths),
            "evaluation_samples": len(self._evaluation_truths),
            "classes": len(CLASSES),
            "classes_not_evaluated": self._classes_not_evaluated(),
            "grid": list(self._image_size),
            "images_per_window": self._images_per_window,
            "coverage": self._samples.coverage,
            "synthetic": (self._index.root / MANIFEST).is_file(),
            **self._samples.facts,
        }

    def counted(self) -> tuple[nn.Module, tuple[Tensor, ...]]:
        """The detector's dense parts, two images and as many regions as a step samples."""
        detector = cast(FasterRCNN, self.model)
        return CountedDetector(detector), example_inputs(self._options, self._image_size[0], self._training_width)

    def blank_payload(self) -> tuple[Tensor, Targets]:
        """Images of noise (N, C, H, W), each with one box."""
        height, width, batch = self._image_size[0], self._training_width, self._shares.batch_size
        images = noise(batch, len(self._options.channels), height, width, dtype=self._place.input_dtype)
        return images, blank_targets(batch, self._truth_places, height, width)

    def training_batches(self, epoch: int, first_step: int) -> Generator[TrainingBatch]:
        """Batches of `epoch` from step `first_step` on; payload: images (N, C, H, W) and `Targets`."""
        order = windowed_order(self._windows, self._seed, epoch, self._shares.total)
        shares = list(self._shares.of_epoch(order, first_step))
        images = self._training.epoch([share.ids for share in shares], seed=self._seed, epoch=epoch)
        for share, batch in zip(shares, images, strict=True):
            yield TrainingBatch(
                samples=self._samples.ids(share.ids[: share.real]),
                padded=len(share.ids) - share.real,
                payload=(batch.images, self._targets(batch, epoch)),
                wait_seconds=batch.wait_seconds,
            )

    def loss(self, model: nn.Module, payload: Any) -> Tensor:
        """The sum of the four losses: objectness and boxes of the proposals, classes and boxes of the detections."""
        images, targets = payload
        losses = model(self._on_device(images), targets.to(self._place.device))
        return cast(Tensor, sum(losses.values()))

    def chain(self) -> Chain:
        """Backbone block by block, pyramid, and the two stages that judge it, which are a part of the loss."""
        return detector_chain(
            cast(FasterRCNN, self.model),
            (self._image_size[0], self._training_width),
            self._place.device,
            inputs=lambda payload: self._on_device(payload[0]),
        )

    def evaluate(self, model: nn.Module, on_batch: Callable[[int], None]) -> Evaluation:
        """Mean average precision over the detections of all ranks together."""
        self._scenes = []
        found: list[Found] = []
        ranks = self._place.communicator
        for batch in self._evaluation.epoch(self._shard, seed=self._seed, epoch=0):
            for position, detections in enumerate(model(self._on_device(batch.images))):
                sample = int(batch.samples[position])
                found.append((sample, as_arrays(detections)))
                if sample in self._shown:
                    # A copy: the batch is a view of memory that is filled anew.
                    image = batch.images[position].to("cpu", torch.float32, copy=True).numpy()
                    self._scenes.append(Scene(sample, image, self._evaluation_truths[sample], *found[-1][1]))
            on_batch(len(found) * ranks.size)
        gathered = ranks.gather_objects(found)
        result = self._precision(gathered) if ranks.rank == 0 else None
        return cast(Evaluation, ranks.broadcast_object(result))

    def predictions(
        self, model: nn.Module, samples: SampleIds | None, on_batch: Callable[[int], None]
    ) -> Mapping[str, npt.NDArray[Any]]:
        """Of each image its true boxes and those that the model finds, as in an evaluation."""
        if samples is None:
            ids = np.arange(len(self._evaluation_truths))
            return self._predicted(self._evaluation, ids, self._evaluation_truths, model, on_batch)
        batches = self._input.on_device(self._unmoved())
        try:
            return self._predicted(batches, samples, self._training_truths, model, on_batch)
        finally:
            batches.close()

    def _predicted(
        self,
        batches: Source[ClimateBatch],
        samples: SampleIds,
        truths: Sequence[Truth],
        model: nn.Module,
        on_batch: Callable[[int], None],
    ) -> Mapping[str, npt.NDArray[Any]]:
        ranks, found = self._place.communicator, list[Found]()
        shard = evaluation_shard(len(samples), self._shares.batch_size, ranks.size, ranks.rank)
        for batch in batches.epoch([samples[places] for places in shard], seed=self._seed, epoch=0):
            for sample, detections in zip(batch.samples, model(self._on_device(batch.images)), strict=True):
                found.append((int(sample), as_arrays(detections)))
            on_batch(len(found) * ranks.size)
        gathered = ranks.gather_objects(found)
        if ranks.rank != 0:
            return {}
        return flat([as_image(sample, truths[sample], seen) for sample, seen in chain.from_iterable(gathered)])

    def _precision(self, gathered: Sequence[Sequence[Found]]) -> Evaluation:
        """Average precision of all ranks' detections, in the order of the images: as one process has them."""
        precision = AveragePrecision(CLASSES)
        for sample, detections in chain.from_iterable(gathered):
            truth = self._evaluation_truths[sample]
            precision.add(truth.boxes, truth.labels, *detections)
        result = precision.result()
        return Evaluation(result.mean, precision.images, result.per_class)

    def pictures(self) -> dict[str, bytes]:
        """A few evaluation images with their true boxes and what the last evaluation found in them."""
        return {"detections.png": draw(self._scenes, self._options.channels)} if self._scenes else {}

    def close(self) -> None:
        """Stop both input pipelines."""
        self._training.close()
        self._evaluation.close()

    def _classes_not_evaluated(self) -> list[str]:
        found = {int(label) for truth in self._evaluation_truths for label in truth.labels}
        return [name for label, name in enumerate(CLASSES, 1) if label not in found]

    def _targets(self, batch: ClimateBatch, epoch: int) -> Targets:
        truths = [
            moved(self._training_truths[sample], int(roll), self._image_size[1], self._training_width)
            for sample, roll in zip(self._samples.ids(batch.samples), batch.rolls, strict=True)
        ]
        seeds = [seed_of(self._seed, epoch, int(place)) for place in batch.samples]
        return padded_targets(truths, seeds, self._truth_places)

    def _on_device(self, images: Tensor) -> Tensor:
        layout = torch.channels_last if self._channels_last else torch.contiguous_format
        return images.to(self._place.device, non_blocking=True).contiguous(memory_format=layout)


def _truths(years: Sequence[YearFile]) -> list[Truth]:
    """The truths of all images, year after year."""
    return [truth for year in years for truth in truths_of(year.boxes, *year.grid)]


def _most_varied(truths: Sequence[Truth]) -> set[int]:
    """The images that show most classes, of equally varied ones the first: what is worth looking at."""
    variety = [len(set(truth.labels.tolist())) for truth in truths]
    return set(np.argsort(-np.array(variety), kind="stable")[:_PICTURES].tolist())


def _places(years: Sequence[YearFile]) -> SampleIds:
    """Of each sample, (samples, 2), the number of its file and of its image therein."""
    return np.concatenate([[(number, image) for image in range(year.images)] for number, year in enumerate(years)])
