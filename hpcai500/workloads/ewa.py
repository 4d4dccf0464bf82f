"""Extreme Weather Analytics: Faster R-CNN on yearly HDF5 files of 16-channel climate images (V2.0 section 4.2.1)."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from hpcai500.comm.communicator import Communicator
from hpcai500.data.climate.boxes import Truth, most_boxes, moved, truths_of
from hpcai500.data.climate.index import load_climate_index, load_content_fingerprint
from hpcai500.data.climate.loader import ClimateBatch, ClimateBatches, windows_of
from hpcai500.data.climate.values import combined, load_or_measure, require_varied
from hpcai500.data.climate.years import CHANNELS, CLASSES, Storage, YearFile
from hpcai500.data.derived import MANIFEST
from hpcai500.data.device_batches import CopyStream, DeviceBatches, DeviceForm, MemoryBatches, Source, make_copy_stream
from hpcai500.data.samplers import SampleIds, Shares, evaluation_shard, training_samples, windowed_order
from hpcai500.drawing import drawn
from hpcai500.errors import DataError, RecipeError
from hpcai500.files import as_utf8
from hpcai500.layers import ClimateProblem, ExtremeWeather, Recipe
from hpcai500.workloads.base import Evaluation, Place, TrainingBatch, leader_first, noise
from hpcai500.workloads.models.detector import (
    Anchors,
    Backbone,
    CountedDetector,
    DetectionOptions,
    Detections,
    FasterRCNN,
    ProposalHead,
    ProposalNetwork,
    ProposalOptions,
    RegionHeads,
    RegionPooling,
    Targets,
    blank_targets,
)
from hpcai500.workloads.models.normalisation import norm_factory
from hpcai500.workloads.models.parts import Chain, detector_chain, static_parts
from hpcai500.workloads.models.resnet import BLOCKS, ResNetStages
from hpcai500.workloads.quality import AveragePrecision
from hpcai500.workloads.voting import Image, Seen, flat

# ----------------------------------------------------------------------------------------------------
# Input: climate images, normalised by the host's threads, or on the device while a step computes.


class ClimateInput:
    """Makes the recipe's loaders of climate years, for the process at `place`.

    `channels` are numbers of the recipe's channels; `mean` and `std` have a value for each of them.
    """

    def __init__(
        self,
        recipe: Recipe,
        place: Place,
        channels: Sequence[int],
        mean: npt.NDArray[np.float64],
        std: npt.NDArray[np.float64],
    ) -> None:
        self._recipe = recipe
        self._place = place
        self._channels = channels
        self._mean, self._std = mean, std

    def loader(
        self, files: Sequence[tuple[Path, Storage]], samples: npt.NDArray[np.int64], *, width: int, roll: bool = False
    ) -> ClimateBatches:
        """Batches on the host: in the form that the model takes, or as stored if the device converts them."""
        return ClimateBatches(
            files,
            samples,
            batch_size=self._recipe.hyperparameters.batch_size,
            threads=self._place.input_threads,
            channels=self._channels,
            mean=None if self._on_device else self._mean,
            std=None if self._on_device else self._std,
            dtype="float32" if self._on_device else self._place.input_name,
            width=width,
            roll=roll,
            depth=self._recipe.accelerator.prefetch_batches,
            pin_memory=self._place.device.type == "cuda",
        )

    def on_device(self, source: Source[ClimateBatch]) -> Source[ClimateBatch]:
        """The same batches in the form that the model takes, prefetched by one; on a CPU the source itself."""
        if self._place.device.type != "cuda":
            return source
        form = DeviceForm(
            dtype=self._place.input_dtype,
            memory_format=torch.channels_last if self._recipe.framework.channels_last else torch.contiguous_format,
            converted=self._on_device,
            mean=tuple(self._mean.tolist()) if self._on_device else None,
            std=tuple(self._std.tolist()) if self._on_device else None,
        )
        batch_size = self._recipe.hyperparameters.batch_size
        return DeviceBatches(source, device=self._place.device, batch_size=batch_size, form=form, stream=self._stream)

    @property
    def _on_device(self) -> bool:
        return self._recipe.accelerator.conversion == "device"

    @cached_property
    def _stream(self) -> CopyStream:
        """One for training and evaluation, which alternate and so share memory on the device."""
        return make_copy_stream(self._place.device)


# ----------------------------------------------------------------------------------------------------
# Conversions: boxes of climate images to the detector's targets, and its detections to arrays.


def seed_of(seed: int, epoch: int, sample: int) -> int:
    return int(np.random.SeedSequence([seed, epoch, sample]).generate_state(1, np.uint64)[0] >> np.uint64(1))


def padded_targets(truths: Sequence[Truth], seeds: Sequence[int], places: int) -> Targets:
    """The truths of a batch, padded to `places` boxes per image with label 0; no image of the run has more.

    All batches of a run have the same shape, so that code is compiled once.
    """
    boxes, labels = torch.zeros(len(truths), places, 4), torch.zeros(len(truths), places, dtype=torch.int64)
    for image, truth in enumerate(truths):
        count = len(truth.labels)
        boxes[image, :count], labels[image, :count] = torch.from_numpy(truth.boxes), torch.from_numpy(truth.labels)
    return Targets(boxes, labels, torch.tensor(seeds, dtype=torch.int64))


def as_arrays(found: Detections) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]:
    """Boxes (D, 4), scores (D,) and labels (D,) for NumPy."""
    boxes, scores, labels = (tensor.float().numpy() for tensor in (found.boxes, found.scores, found.labels))
    return boxes, scores, labels.astype(np.int64)


def as_image(sample: int, truth: Truth, found: tuple[npt.NDArray[Any], ...]) -> Image:
    """An image with its truth and the detections from `as_arrays`, for a file of predictions."""
    return Image(sample, Seen(truth.boxes, np.empty(0), truth.labels), Seen(*found))


# ----------------------------------------------------------------------------------------------------
# The detector of a recipe of Extreme Weather Analytics.


# V2.0 Table 4, except that the width is that of the data.
REFERENCE_GRID = (768, 1152)


def build_model(options: ExtremeWeather, communicator: Communicator | None = None) -> FasterRCNN:
    """Faster R-CNN for the four classes and background; `communicator` as of `norm_factory`."""
    body = ResNetStages(
        BLOCKS[options.block],
        options.depths,
        width=options.width,
        channels=len(options.channels),
        norm=norm_factory(options.norm, communicator),
    )
    backbone = Backbone(body, options.pyramid_channels)
    head = ProposalHead(options.pyramid_channels, len(options.anchors[0]))
    rpn = ProposalNetwork(
        head,
        Anchors(options.anchors, backbone.strides),
        ProposalOptions(
            before_nms=options.proposals_before_nms,
            after_nms=options.proposals_after_nms,
            nms_iou=options.proposal_nms_iou,
            foreground_iou=options.proposal_foreground_iou,
            background_iou=options.proposal_background_iou,
            samples=options.proposal_samples,
            positive_fraction=options.proposal_positive_fraction,
        ),
    )
    heads = RegionHeads(
        RegionPooling(backbone.strides[:-1], options.canonical_side),
        options.pyramid_channels,
        options.head_width,
        len(CLASSES) + 1,
        DetectionOptions(
            foreground_iou=options.detection_foreground_iou,
            samples=options.detection_samples,
            positive_fraction=options.detection_positive_fraction,
            score=options.detection_score,
            nms_iou=options.detection_nms_iou,
            most=options.detections,
        ),
    )
    return FasterRCNN(backbone, rpn, heads)


def example_inputs(options: ExtremeWeather, height: int, width: int) -> tuple[Tensor, Tensor]:
    """Two images (2, C, H, W) and the regions (2 x samples, 5) of a full step, on the meta device."""
    images = torch.empty(2, len(options.channels), height, width, device="meta")
    return images, torch.empty(2 * options.detection_samples, 5, device="meta")


# ----------------------------------------------------------------------------------------------------
# Pictures of the weather: moisture in colour, pressure as contours, and the boxes, true and found.


# The channels that show storms and rivers best; a recipe may lack them.
_COLOURED, _CONTOURED = "TMQ", "PSL"
_LONG_NAMES = {"TMQ": "precipitable water (TMQ)", "PSL": "pressure at sea level (PSL)"}
# Width of a letter of a label and height of its line, as shares of a picture's width.
_LETTER, _LINE = 0.0085, 0.024
_COLOURS = ("#e69f00", "#d55e00", "#0072b2", "#009e73")
# Detections below this are not drawn: fewer lines keep the picture readable.
_LEAST_SCORE = 0.3


@dataclass(frozen=True, eq=False)
class Scene:
    """One evaluation image: its standardised channels (C, H, W), its true boxes, and the boxes that were found."""

    sample: int
    image: npt.NDArray[np.float32]
    truth: Truth
    boxes: npt.NDArray[Any]
    scores: npt.NDArray[Any]
    labels: npt.NDArray[Any]


def draw(scenes: Sequence[Scene], channels: Sequence[str]) -> bytes:
    """The scenes in two columns, as a PNG file."""
    height, width = scenes[0].image.shape[1:]
    columns = min(len(scenes), 2)
    rows = -(-len(scenes) // columns)
    size = (8 * columns, 0.5 + rows * (0.5 + 7.5 * height / width))
    return drawn(lambda figure: _draw(figure, scenes, list(channels), (rows, columns)), size, 100, ["png"])["png"]


def _draw(figure: Any, scenes: Sequence[Scene], channels: list[str], shape: tuple[int, int]) -> None:
    grid = figure.subplots(*shape, squeeze=False).ravel()
    for axes, scene in zip(grid, scenes, strict=False):
        _draw_scene(axes, scene, channels)
    for unused in grid[len(scenes) :]:
        unused.set_axis_off()
    _draw_legend(figure)


def _draw_scene(axes: Any, scene: Scene, channels: list[str]) -> None:
    coloured = _COLOURED if _COLOURED in channels else channels[0]
    axes.imshow(scene.image[channels.index(coloured)], cmap="GnBu", origin="lower", interpolation="nearest")
    if _CONTOURED in channels:
        pressure = _smooth(scene.image[channels.index(_CONTOURED)])
        axes.contour(pressure, levels=9, colors="black", linewidths=0.4, alpha=0.45, linestyles="solid")
    for box, label in zip(scene.truth.boxes, scene.truth.labels, strict=True):
        _draw_box(axes, box, _COLOURS[label - 1], "--")
    shown = scene.scores >= _LEAST_SCORE
    taken: list[tuple[float, float, float]] = []
    for box, score, label in zip(scene.boxes[shown], scene.scores[shown], scene.labels[shown], strict=True):
        _draw_box(axes, box, _COLOURS[label - 1], "-")
        text = f"{CLASSES[label - 1]} {score:.2f}"
        style = {"facecolor": _COLOURS[label - 1], "edgecolor": "none", "pad": 1.0, "alpha": 0.8}
        x, y = _free_place(float(box[0]), float(box[3]), len(text), scene.image.shape[2], scene.image.shape[1], taken)
        axes.text(x, y, text, fontsize=7, color="white", va="bottom", bbox=style, clip_on=True)
    height, width = scene.image.shape[1:]
    axes.set_xticks(np.linspace(0, width, 7), [f"{degrees:.0f}°E" for degrees in np.linspace(0, 360, 7)], fontsize=7)
    axes.set_yticks(np.linspace(0, height, 5), ["90°S", "45°S", "0°", "45°N", "90°N"], fontsize=7)
    axes.set_xlim(-0.5, width - 0.5)
    axes.set_ylim(-0.5, height - 0.5)
    colour_name = f"colour: {_LONG_NAMES.get(coloured, coloured)}"
    shown_channels = f"{colour_name}; contours: {_LONG_NAMES[_CONTOURED]}" if _CONTOURED in channels else colour_name
    axes.set_title(f"evaluation image {scene.sample} ({shown_channels})", fontsize=9, loc="left")


def _free_place(
    x: float, y: float, letters: int, width: int, height: int, taken: list[tuple[float, float, float]]
) -> tuple[float, float]:
    """Position of a label of `letters` letters, inside the picture and not overlapping those in `taken`."""
    wide, line = letters * _LETTER * width, _LINE * width
    x, highest = max(0.0, min(x, width - wide)), height - line

    def is_free(at: float) -> bool:
        return all(abs(at - other) >= line or x >= end or x + wide <= start for start, end, other in taken)

    steps = range(max(1, round(height / line)))
    places = [place for step in steps for place in (y + step * line, y - step * line) if 0 <= place <= highest]
    y = next((place for place in places if is_free(place)), min(max(y, 0.0), highest))
    taken.append((x, x + wide, y))
    return x, y


def _smooth(field: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """A running mean over a fiftieth of the globe, because contours of noise would hide the storms."""
    side = max(1, field.shape[1] // 50) | 1
    for axis, mode in ((0, "edge"), (1, "wrap")):
        pad = [(side // 2, side // 2) if at == axis else (0, 0) for at in (0, 1)]
        field = np.lib.stride_tricks.sliding_window_view(np.pad(field, pad, mode=mode), side, axis).mean(axis=-1)  # type: ignore[call-overload]
    return field


def _draw_box(axes: Any, box: npt.NDArray[Any], colour: str, style: str) -> None:
    from matplotlib.patches import Rectangle  # only after the clock has stopped

    size = box[2] - box[0], box[3] - box[1]
    axes.add_patch(Rectangle((box[0], box[1]), *size, fill=False, edgecolor=colour, linestyle=style, linewidth=1.4))


def _draw_legend(figure: Any) -> None:
    from matplotlib.lines import Line2D  # only after the clock has stopped

    entries = [Line2D([], [], color=colour, label=name) for colour, name in zip(_COLOURS, CLASSES, strict=True)]
    entries.append(Line2D([], [], color="black", linestyle="--", label="truth"))
    entries.append(Line2D([], [], color="black", label=f"found (score {_LEAST_SCORE:g} or more)"))
    figure.legend(handles=entries, loc="outside upper center", ncols=len(entries), fontsize=8, frameon=False)


# ----------------------------------------------------------------------------------------------------
# The workload.


_PICTURES = 4
# The number of an image, and the boxes, scores and labels found in it.
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
                    f"{data}: the years {years[0]} to {years[1]} have no boxes: there is nothing to learn or find"
                )
        self._truth_places = most_boxes(self._training_truths, rolled=options.longitude_roll)
        communicator = place.second_communicator() if options.norm == "sync-batch" else None
        self.model: nn.Module = build_model(options, communicator)
        images_of_year = [year.images for year in training]
        self._samples = training_samples(recipe, len(self._training_truths), {"year": images_of_year})
        self.drawn = self._samples.drawn
        batch_size = recipe.hyperparameters.batch_size
        self._shares = Shares(len(self._samples), batch_size, place.total_shares, place.shares, options.tail)
        self.steps_per_epoch = self._shares.steps_per_epoch
        # For both sets: a damaged chunk or a NaN in the evaluation years would only show after the first epoch.
        with leader_first(place.communicator):
            measured = load_or_measure([*training, *evaluation], channels=channels, progress=place.tracker)
        values = combined(measured[: len(training)])
        require_varied(values, channels, str(data))
        all_places = _places(training)
        # Each repeat of an image is a separate sample, with its own roll.
        drawn_places = all_places if self.drawn is None else all_places[self.drawn]
        self._input = ClimateInput(recipe, place, channels, values.mean[channels], values.std[channels])
        of_training, of_evaluation = ([(year.path, year.storage) for year in years] for years in (training, evaluation))
        loader = self._input.loader
        training_loader = loader(of_training, drawn_places, width=self._training_width, roll=options.longitude_roll)
        self._training = self._input.on_device(training_loader)
        # Whole images, without a roll.
        self._evaluation = self._input.on_device(loader(of_evaluation, _places(evaluation), width=self._image_size[1]))
        self._unmoved = partial(loader, of_training, all_places, width=self._image_size[1])
        storages = [year.storage for year in training]
        self._images_per_window = int(np.bincount(windows_of(storages, all_places)).max())
        self._windows = windows_of(storages, drawn_places)
        self._shard = evaluation_shard(len(self._evaluation_truths), batch_size, place.world_size, place.rank)
        seen = sum(len(ids) for ids in self._shard)
        # The first rank draws the pictures; the first images are in its share.
        self._shown = _most_varied(self._evaluation_truths[:seen]) if place.rank == 0 else set()
        self._scenes: list[Scene] = []

    def graphed_parts(self) -> tuple[str, ...]:
        return static_parts(self.model, self._place.world_size)

    def hold_in_memory(self, count: int) -> None:
        """Read `count` training batches now and repeat them from then on: training without the cost of input."""
        order = windowed_order(self._windows, self._seed, 1, self._shares.total)
        batches = [share.ids for share in islice(self._shares.of_epoch(order), count)]
        held = MemoryBatches(self._training.epoch(batches, seed=self._seed, epoch=1))
        self._training.close()
        self._training = held

    def dataset(self) -> dict[str, Any]:
        return {
            "root": as_utf8(self._index.root.resolve()),
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
        """The detector's dense parts, with two images and the regions that a step samples from them."""
        detector = cast(FasterRCNN, self.model)
        return CountedDetector(detector), example_inputs(self._options, self._image_size[0], self._training_width)

    def blank_payload(self) -> tuple[Tensor, Targets]:
        """On the device: images of noise (N, C, H, W), each with one box."""
        height, width, batch = self._image_size[0], self._training_width, self._shares.batch_size
        channels, device = len(self._options.channels), self._place.device
        images = self._on_device(noise(batch, channels, height, width, dtype=self._place.input_dtype, device=device))
        return images, blank_targets(batch, self._truth_places, height, width).to(device)

    def training_batches(self, epoch: int, first_step: int) -> Generator[TrainingBatch]:
        """Batches of `epoch` from step `first_step` on; payload: images (N, C, H, W) and `Targets`."""
        order = windowed_order(self._windows, self._seed, epoch, self._shares.total)
        shares = list(self._shares.of_epoch(order, first_step))
        # The loader keeps its epoch, and an evaluation needs the memory.
        with closing(self._training.epoch([share.ids for share in shares], seed=self._seed, epoch=epoch)) as images:
            for share, batch in zip(shares, images, strict=True):
                yield TrainingBatch(
                    samples=self._samples.ids(share.ids[: share.real]),
                    padded=len(share.ids) - share.real,
                    payload=(batch.images, self._targets(batch, epoch)),
                    wait_seconds=batch.wait_seconds,
                )

    def loss(self, model: nn.Module, payload: Any) -> Tensor:
        """The sum of the four losses: objectness and boxes of proposals, classes and boxes of detections."""
        images, targets = payload
        losses = model(self._on_device(images), targets.to(self._place.device))
        return cast(Tensor, sum(losses.values()))

    def chain(self) -> Chain:
        """Backbone block by block, pyramid, and the two detection stages, which are a part of the loss."""
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
                    # A copy, because the batch is a view of memory that will be overwritten.
                    image = batch.images[position].to("cpu", torch.float32, copy=True).numpy()
                    self._scenes.append(Scene(sample, image, self._evaluation_truths[sample], *found[-1][1]))
            on_batch(len(found) * ranks.size)
        gathered = ranks.gather_objects(found)
        result = self._precision(gathered) if ranks.rank == 0 else None
        return cast(Evaluation, ranks.broadcast_object(result))

    def predictions(
        self, model: nn.Module, samples: SampleIds | None, on_batch: Callable[[int], None]
    ) -> Mapping[str, npt.NDArray[Any]]:
        """The true boxes of each image and those found by the model, as in an evaluation."""
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
        """Average precision of all ranks' detections, in the order of the images, as for one process."""
        precision = AveragePrecision(CLASSES)
        for sample, detections in chain.from_iterable(gathered):
            truth = self._evaluation_truths[sample]
            precision.add(truth.boxes, truth.labels, *detections)
        result = precision.result()
        return Evaluation(result.mean, precision.images, result.per_class)

    def pictures(self) -> dict[str, bytes]:
        """A few evaluation images with their true boxes and the boxes found by the last evaluation."""
        return {"detections.png": draw(self._scenes, self._options.channels)} if self._scenes else {}

    def close(self) -> None:
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
    return [truth for year in years for truth in truths_of(year.boxes, *year.grid)]


def _most_varied(truths: Sequence[Truth]) -> set[int]:
    """The images with the most classes, which are the most interesting; of equally varied ones the first."""
    variety = [len(set(truth.labels.tolist())) for truth in truths]
    return set(np.argsort(-np.array(variety), kind="stable")[:_PICTURES].tolist())


def _places(years: Sequence[YearFile]) -> SampleIds:
    """(samples, 2): for each sample the number of its file, and of its image in that file."""
    return np.concatenate([[(number, image) for image in range(year.images)] for number, year in enumerate(years)])
