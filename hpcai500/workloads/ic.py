"""Image Classification: ResNet v1.5 on JPEG files (V2.0 section 4.2.2)."""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hpcai500.comm.base import Communicator
from hpcai500.comm.turns import leader_first
from hpcai500.data.imagenet.content_fingerprint import load_content_fingerprint
from hpcai500.data.imagenet.listing import load_index
from hpcai500.data.imagenet.loader import Batches, JpegBatches, MemoryBatches
from hpcai500.data.samplers import epoch_order, evaluation_shard
from hpcai500.data.shares import Shares
from hpcai500.data.synthetic_manifest import MANIFEST
from hpcai500.layers import ImageClassification, Recipe
from hpcai500.methodology.coverage import Coverage
from hpcai500.workloads.base import Evaluation, Place, TrainingBatch, noise
from hpcai500.workloads.models.normalisation import norm_factory
from hpcai500.workloads.models.resnet import BLOCKS, ResNet
from hpcai500.workloads.quality.top1 import Top1


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
    """Two images, (2, 3, size, size), whose values do not matter; batch norm cannot train on one pixel alone."""
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
        conversation = place.second_conversation() if options.norm == "sync-batch" else None
        self.model: nn.Module = build_model(options, len(self._index.classes), conversation)
        batch_size, samples = recipe.hyperparameters.batch_size, len(self._index.train.paths)
        self._shares = Shares(samples, batch_size, place.total_shares, place.shares, options.tail)
        self.steps_per_epoch = self._shares.steps_per_epoch
        batches = partial(
            JpegBatches,
            root=self._index.root,
            batch_size=batch_size,
            threads=place.input_threads,
            size=options.image_size,
            dtype=place.input_name,
            layout="nhwc" if self._channels_last else "nchw",
            dct_scaling=options.dct_scaling,
            depth=recipe.accelerator.prefetch_batches,
            pin_memory=place.device.type == "cuda",
        )
        self._training: Batches = batches(
            self._index.train,
            mode="random",
            area=options.crop_area,
            ratio=options.crop_ratio,
            flip_probability=options.flip_probability,
        )
        self._evaluation = batches(self._index.val, mode="centre", resize_shorter=options.evaluation_resize)

    def hold_in_memory(self, count: int) -> None:
        """Decode `count` training batches now and repeat them from then on: training without the cost of input."""
        order = epoch_order(self._shares.samples, self._seed, epoch=1)
        wanted = [share.ids for share in islice(self._shares.of_epoch(order), count)]
        held = MemoryBatches(self._training.epoch(wanted, seed=self._seed, epoch=1))
        self._training.close()
        self._training = held

    def dataset(self) -> dict[str, Any]:
        """Facts of the image set for the record."""
        return {
            "root": str(self._index.root.resolve()),
            "fingerprint": self._index.fingerprint,
            "content_fingerprint": load_content_fingerprint(self._index),
            "training_samples": len(self._index.train.paths),
            "evaluation_samples": len(self._index.val.paths),
            "classes": len(self._index.classes),
            "coverage": Coverage.expected(len(self._index.train.paths)).digest,
            "synthetic": (self._index.root / MANIFEST).is_file(),
        }

    def counted(self) -> tuple[nn.Module, tuple[Tensor, ...]]:
        """The model and two images."""
        return self.model, (example_images(self._options),)

    def blank_payload(self) -> tuple[Tensor, Tensor]:
        """Images of noise (N, 3, size, size) in the layout of the input pipeline, and labels (N,) of class 0."""
        size, batch = self._options.image_size, self._shares.batch_size
        layout = torch.channels_last if self._channels_last else torch.contiguous_format
        images = noise(batch, 3, size, size, dtype=self._place.input_dtype).to(memory_format=layout)
        return images, torch.zeros(batch, dtype=torch.int64)

    def training_batches(self, epoch: int, first_step: int) -> Generator[TrainingBatch]:
        """Batches of `epoch` from step `first_step` on; payload: images (N, 3, S, S) and labels (N,)."""
        shares = list(self._shares.of_epoch(epoch_order(self._shares.samples, self._seed, epoch), first_step))
        images = self._training.epoch([share.ids for share in shares], seed=self._seed, epoch=epoch)
        for share, batch in zip(shares, images, strict=True):
            yield TrainingBatch(
                samples=share.ids[: share.real],
                padded=len(share.ids) - share.real,
                payload=(batch.images, batch.labels),
                warnings=batch.warnings,
                wait_seconds=batch.wait_seconds,
            )

    def loss(self, model: nn.Module, payload: Any) -> Tensor:
        """Cross entropy with label smoothing."""
        images, labels = self._on_device(payload)
        return F.cross_entropy(model(images), labels, label_smoothing=self._options.label_smoothing)

    def evaluate(self, model: nn.Module, on_batch: Callable[[int], None]) -> Evaluation:
        """Top-1 over the evaluation images, centre crops; right answers are counted over all ranks."""
        top1, ranks = Top1(self._place.device), self._place.communicator
        shard = evaluation_shard(len(self._index.val.paths), self._shares.batch_size, ranks.size, ranks.rank)
        for batch in self._evaluation.epoch(shard, seed=self._seed, epoch=0):
            images, labels = self._on_device((batch.images, batch.labels))
            top1.update(model(images).float(), labels)
            on_batch(top1.samples * ranks.size)
        top1.combine(ranks)
        return Evaluation(top1.value, top1.samples)

    def pictures(self) -> dict[str, bytes]:
        """None: a wrong class is not worth a look."""
        return {}

    def close(self) -> None:
        """Stop both input pipelines."""
        self._training.close()
        self._evaluation.close()

    def _on_device(self, payload: Any) -> tuple[Tensor, Tensor]:
        images, labels = payload
        device = self._place.device
        return images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
