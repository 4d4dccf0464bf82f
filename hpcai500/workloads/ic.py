"""Image Classification: ResNet v1.5 on JPEG files (V2.0 section 4.2.2)."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hpcai500.comm.communicator import Communicator
from hpcai500.data.derived import MANIFEST
from hpcai500.data.device_batches import CopyStream, DeviceBatches, DeviceForm, MemoryBatches, make_copy_stream
from hpcai500.data.imagenet.dali import DaliBatches
from hpcai500.data.imagenet.index import Split, left_out_line, load_content_fingerprint, load_index, make_split
from hpcai500.data.imagenet.loader import Batches, CropSettings, JpegBatches
from hpcai500.data.samplers import SampleIds, Shares, epoch_order, evaluation_shard, training_samples
from hpcai500.files import as_utf8
from hpcai500.layers import ImageClassification, Recipe
from hpcai500.streams import say
from hpcai500.workloads.base import Evaluation, Place, TrainingBatch, gather_rows, leader_first, noise
from hpcai500.workloads.models.normalisation import norm_factory
from hpcai500.workloads.models.parts import Chain, classifier_parts, static_parts
from hpcai500.workloads.models.resnet import BLOCKS, ResNet
from hpcai500.workloads.quality import Top1

# ----------------------------------------------------------------------------------------------------
# Input: the recipe's loaders of images, for training and for evaluation.


@dataclass(frozen=True)
class ImageInput:
    """Makes the recipe's loaders for splits of the set in `root`, for the process at `place`."""

    recipe: Recipe
    root: Path
    place: Place

    def training(self, split: Split) -> Batches:
        """Random crops, flipped at random. Raises EnvironmentLacksError if the recipe's loader is missing."""
        options = self._options
        crop: CropSettings = {
            "mode": "random",
            "area": options.crop_area,
            "ratio": options.crop_ratio,
            "flip_probability": options.flip_probability,
        }
        return self._loader(split, crop)

    def evaluation(self, split: Split) -> Batches:
        """Centre crops. Raises EnvironmentLacksError if the recipe's loader is missing."""
        return self._loader(split, {"mode": "centre", "resize_shorter": self._options.evaluation_resize})

    @property
    def _options(self) -> ImageClassification:
        options = self.recipe.workload
        assert isinstance(options, ImageClassification)
        return options

    def _loader(self, split: Split, crop: CropSettings) -> Batches:
        settings: CropSettings = {
            **crop,
            "size": self._options.image_size,
            "dtype": "uint8" if self._converted else self.place.input_name,
            "layout": "nhwc" if self.recipe.framework.channels_last else "nchw",
            "dct_scaling": self._options.dct_scaling,
        }
        batch_size, depth = self.recipe.hyperparameters.batch_size, self.recipe.accelerator.prefetch_batches
        threads, device = self.place.input_threads, self.place.device
        if self.recipe.accelerator.loader == "dali":
            return DaliBatches(
                split, self.root, batch_size=batch_size, threads=threads, depth=depth, device=device, **settings
            )
        loader = JpegBatches(
            split,
            self.root,
            batch_size=batch_size,
            threads=threads,
            depth=depth,
            pin_memory=device.type == "cuda",
            **settings,
        )
        return self._on_device(loader) if device.type == "cuda" else loader

    def _on_device(self, loader: JpegBatches) -> Batches:
        """The same batches, prefetched by one onto the CUDA device, in the form that the model takes."""
        mean, std = loader.normalisation if self._converted else (None, None)
        memory_format = torch.channels_last if self.recipe.framework.channels_last else torch.contiguous_format
        form = DeviceForm(self.place.input_dtype, memory_format, self._converted, mean, std)
        batch_size = self.recipe.hyperparameters.batch_size
        return DeviceBatches(loader, device=self.place.device, batch_size=batch_size, form=form, stream=self._stream)

    @property
    def _converted(self) -> bool:
        """Whether the native loader delivers uint8 values, which the device normalises."""
        return self.recipe.accelerator.loader != "dali" and self.recipe.accelerator.conversion == "device"

    @cached_property
    def _stream(self) -> CopyStream:
        """One for training and evaluation, which alternate and so share memory on the device."""
        return make_copy_stream(self.place.device)


# ----------------------------------------------------------------------------------------------------
# The workload.


def build_model(options: ImageClassification, classes: int, communicator: Communicator | None = None) -> ResNet:
    """The residual network that the recipe describes; `communicator` as of `norm_factory`."""
    momentum = 1.0 if options.norm_statistics == "last-batch" else 0.1
    return ResNet(
        BLOCKS[options.block],
        options.depths,
        width=options.width,
        classes=classes,
        zero_gamma=options.zero_gamma,
        norm=norm_factory(options.norm, communicator, momentum),
    )


def example_images(options: ImageClassification) -> Tensor:
    """Two uninitialised images, (2, 3, size, size), because batch norm cannot train on a single pixel."""
    return torch.empty(2, 3, options.image_size, options.image_size)


class ImageClassificationWorkload:
    """ResNet on an ImageNet-shaped folder: training by label-smoothed cross entropy, quality by top-1."""

    metric = "top1"

    def __init__(self, recipe: Recipe, data: Path, place: Place) -> None:
        options = recipe.workload
        assert isinstance(options, ImageClassification)
        self._options = options
        self._place = place
        self._seed = recipe.hyperparameters.seed
        self._channels_last = recipe.framework.channels_last
        with leader_first(place.communicator):
            self._index = load_index(data, progress=place.tracker)
        if self._index.left_out and place.rank == 0:
            say(f"warning: {data}: {left_out_line(self._index.left_out)}")
        communicator = place.second_communicator() if options.norm == "sync-batch" else None
        self.model: nn.Module = build_model(options, len(self._index.classes), communicator)
        images_of_class = np.bincount(self._index.train.labels, minlength=len(self._index.classes)).tolist()
        self._samples = training_samples(recipe, len(self._index.train), {"class": images_of_class})
        self.drawn = self._samples.drawn
        batch_size = recipe.hyperparameters.batch_size
        self._shares = Shares(len(self._samples), batch_size, place.total_shares, place.shares, options.tail)
        self.steps_per_epoch = self._shares.steps_per_epoch
        self._input = ImageInput(recipe, self._index.root, place)
        training = self._index.train if self.drawn is None else _drawn_from(self._index.train, self.drawn)
        self._training = self._input.training(training)
        self._evaluation = self._input.evaluation(self._index.val)

    def graphed_parts(self) -> tuple[str, ...]:
        return static_parts(self.model, self._place.world_size)

    def hold_in_memory(self, count: int) -> None:
        """Decode `count` training batches now and repeat them from then on: training without the cost of input."""
        order = epoch_order(self._shares.samples, self._seed, epoch=1)
        batches = [share.ids for share in islice(self._shares.of_epoch(order), count)]
        held = MemoryBatches(self._training.epoch(batches, seed=self._seed, epoch=1))
        self._training.close()
        self._training = held

    def dataset(self) -> dict[str, Any]:
        return {
            "root": as_utf8(self._index.root.resolve()),
            "fingerprint": self._index.fingerprint,
            "content_fingerprint": load_content_fingerprint(self._index),
            "training_samples": len(self._index.train.paths),
            "evaluation_samples": len(self._index.val.paths),
            "classes": len(self._index.classes),
            "classes_not_evaluated": list(map(as_utf8, self._index.classes_absent_in_val)),
            "ignored_files": self._index.ignored_files,
            "coverage": self._samples.coverage,
            "synthetic": (self._index.root / MANIFEST).is_file(),
            **self._samples.facts,
        }

    def counted(self) -> tuple[nn.Module, tuple[Tensor, ...]]:
        return self.model, (example_images(self._options),)

    def blank_payload(self) -> tuple[Tensor, Tensor]:
        """On the device: images of noise (N, 3, size, size) in the input pipeline's layout, labels (N,) of class 0."""
        size, batch = self._options.image_size, self._shares.batch_size
        layout = torch.channels_last if self._channels_last else torch.contiguous_format
        device = self._place.device
        images = noise(batch, 3, size, size, dtype=self._place.input_dtype, device=device).to(memory_format=layout)
        return images, torch.zeros(batch, dtype=torch.int64, device=device)

    def training_batches(self, epoch: int, first_step: int) -> Generator[TrainingBatch]:
        """Batches of `epoch` from step `first_step` on; payload: images (N, 3, S, S) and labels (N,)."""
        shares = list(self._shares.of_epoch(epoch_order(self._shares.samples, self._seed, epoch), first_step))
        # The loader keeps its epoch, and an evaluation needs the memory.
        with closing(self._training.epoch([share.ids for share in shares], seed=self._seed, epoch=epoch)) as images:
            for share, batch in zip(shares, images, strict=True):
                yield TrainingBatch(
                    samples=self._samples.ids(share.ids[: share.real]),
                    padded=len(share.ids) - share.real,
                    payload=(batch.images, batch.labels),
                    warnings=batch.warnings,
                    indexed=batch.seek.used,
                    wait_seconds=batch.wait_seconds,
                )

    def loss(self, model: nn.Module, payload: Any) -> Tensor:
        """Cross entropy with label smoothing."""
        images, labels = self._on_device(payload)
        return self._loss_of((model(images),), labels)

    def chain(self) -> Chain:
        return Chain(
            parts=classifier_parts(cast(ResNet, self.model)),
            inputs=lambda payload: self._on_device(payload)[0],
            targets=lambda payload: payload[1],
            pick=lambda labels, which: labels[which],
            loss=self._loss_of,
        )

    def _loss_of(self, outputs: tuple[Tensor, ...], labels: Tensor) -> Tensor:
        (scores,) = outputs
        labels = labels.to(self._place.device, non_blocking=True)
        return F.cross_entropy(scores, labels, label_smoothing=self._options.label_smoothing)

    def evaluate(self, model: nn.Module, on_batch: Callable[[int], None]) -> Evaluation:
        """Top-1 over centre crops of the evaluation images; right answers are counted over all ranks."""
        top1, ranks = Top1(self._place.device), self._place.communicator
        shard = evaluation_shard(len(self._index.val.paths), self._shares.batch_size, ranks.size, ranks.rank)
        for batch in self._evaluation.epoch(shard, seed=self._seed, epoch=0):
            images, labels = self._on_device((batch.images, batch.labels))
            top1.update(model(images).float(), labels)
            on_batch(top1.samples * ranks.size)
        top1.combine(ranks)
        return Evaluation(top1.value, top1.samples)

    def predictions(
        self, model: nn.Module, samples: SampleIds | None, on_batch: Callable[[int], None]
    ) -> Mapping[str, npt.NDArray[Any]]:
        """The label of each image and the model's logits (float32) for its centre crop, as in an evaluation."""
        if samples is None:
            return self._predicted(self._evaluation, self._index.val, model, on_batch)
        chosen = _drawn_from(self._index.train, samples)
        batches = self._input.evaluation(chosen)
        try:
            return {**self._predicted(batches, chosen, model, on_batch), "samples": samples}
        finally:
            batches.close()

    def _predicted(
        self, batches: Batches, split: Split, model: nn.Module, on_batch: Callable[[int], None]
    ) -> dict[str, npt.NDArray[Any]]:
        ranks = self._place.communicator
        shard = evaluation_shard(len(split), self._shares.batch_size, ranks.size, ranks.rank)
        scores, done = torch.empty(sum(map(len, shard)), len(self._index.classes)), 0
        for batch in batches.epoch(shard, seed=self._seed, epoch=0):
            images, _ = self._on_device((batch.images, batch.labels))
            scores[done : done + len(batch.samples)] = model(images)
            done += len(batch.samples)
            on_batch(done * ranks.size)
        logits = gather_rows(scores, ranks)
        if logits is None:
            return {}
        return {"samples": np.arange(len(split)), "labels": split.labels, "logits": logits.numpy()}

    def pictures(self) -> dict[str, bytes]:
        """None: there is nothing to see in a wrong class."""
        return {}

    def close(self) -> None:
        self._training.close()
        self._evaluation.close()

    def _on_device(self, payload: Any) -> tuple[Tensor, Tensor]:
        images, labels = payload
        device = self._place.device
        return images.to(device, non_blocking=True), labels.to(device, non_blocking=True)


def _drawn_from(split: Split, drawn: SampleIds) -> Split:
    """The drawn images, in order: each repeat is a separate sample, with its own crop."""
    paths = tuple(split.paths[sample] for sample in drawn)
    return make_split(split.name, paths, split.sizes_bytes[drawn], split.labels[drawn])
