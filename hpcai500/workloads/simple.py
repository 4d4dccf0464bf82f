"""A workload for plug-ins: a classifier of arrays in memory. A plug-in only adds its model and its data."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hpcai500.data.derived import MANIFEST
from hpcai500.data.samplers import SampleIds, Shares, epoch_order, evaluation_passes, training_samples
from hpcai500.errors import DataError
from hpcai500.layers import Recipe
from hpcai500.workloads.base import Evaluation, Place, TrainingBatch, gather_rows, noise
from hpcai500.workloads.quality import Top1


@dataclass(frozen=True, eq=False)
class Arrays:
    """Samples (N, …), floats or integers, and their labels (N,), integers from 0."""

    samples: npt.NDArray[Any]
    labels: npt.NDArray[Any]


class ArrayClassifier:
    """Trains a model by cross entropy on arrays; its quality is top-1.

    It implements all that the rules require of a workload: orders, shares of ranks, a member's draws (also by class:
    the training set is sorted by label, and a sample's id is its place there), and the coverage of an epoch. A subclass
    may have another `loss`. The model may be sharded; then a subclass also has another `counted`.

    Args:
        recipe: its `tail` in layer 7 is used; without one, the last batch is filled up with repeats.
        model: maps samples (N, …) to a score for each class, (N, classes).
        root: the folder of both sets.

    Raises:
        DataError: the arrays do not match.
    """

    metric = "top1"

    def __init__(
        self, recipe: Recipe, place: Place, model: nn.Module, training: Arrays, evaluation: Arrays, root: Path
    ) -> None:
        self.model = model
        self._place, self._root = place, root
        self._seed = recipe.hyperparameters.seed
        self._classes = _checked(training, evaluation, root)
        self._training, self._evaluation = _by_label(training), evaluation
        self._fingerprint = _fingerprint(self._training, evaluation)
        of_class = np.bincount(self._training.labels, minlength=self._classes).tolist()
        self._samples = training_samples(recipe, len(training.labels), {"class": of_class})
        self.drawn = self._samples.drawn
        self._shares = Shares(
            len(self._samples),
            recipe.hyperparameters.batch_size,
            place.total_shares,
            place.shares,
            getattr(recipe.workload, "tail", "pad"),
        )
        self.steps_per_epoch = self._shares.steps_per_epoch
        self._held: list[tuple[Tensor, Tensor]] = []

    def dataset(self) -> dict[str, Any]:
        """Facts of the data set for the record; the fingerprint is over all values."""
        return {
            "root": str(self._root.resolve()),
            "fingerprint": self._fingerprint,
            "content_fingerprint": self._fingerprint,
            "training_samples": len(self._training.labels),
            "evaluation_samples": len(self._evaluation.labels),
            "classes": self._classes,
            "coverage": self._samples.coverage,
            "synthetic": (self._root / MANIFEST).is_file(),
            **self._samples.facts,
        }

    def counted(self) -> tuple[nn.Module, tuple[Tensor, ...]]:
        return self.model, (self._batch(self._training, np.arange(2) % len(self._training.labels))[0],)

    def blank_payload(self) -> tuple[Tensor, Tensor]:
        """On the device: noise (or, if samples are integers, real samples) like a batch, and labels of class 0."""
        ids = np.arange(self._shares.batch_size) % len(self._training.labels)
        samples, labels = self._batch(self._training, ids)
        device = self._place.device
        is_float = samples.is_floating_point()
        values = noise(*samples.shape, dtype=samples.dtype, device=device) if is_float else samples.to(device)
        return values, torch.zeros_like(labels, device=device)

    def graphed_parts(self) -> tuple[str, ...]:
        """The whole model, without the loss. Override this if the model's control flow depends on values."""
        return ("",)

    def hold_in_memory(self, count: int) -> None:
        self._held = [batch.payload for batch in islice(self.training_batches(1, 0), count)]

    def training_batches(self, epoch: int, first_step: int) -> Generator[TrainingBatch]:
        """Batches of `epoch` from step `first_step` on; payload: samples (N, …) and labels (N,)."""
        order = epoch_order(self._shares.samples, self._seed, epoch)
        for number, share in enumerate(self._shares.of_epoch(order, first_step)):
            ids = self._samples.ids(share.ids)
            payload = self._held[number % len(self._held)] if self._held else self._batch(self._training, ids)
            yield TrainingBatch(samples=ids[: share.real], padded=len(ids) - share.real, payload=payload)

    def loss(self, model: nn.Module, payload: Any) -> Tensor:
        samples, labels = (tensor.to(self._place.device, non_blocking=True) for tensor in payload)
        return F.cross_entropy(model(samples), labels)

    def evaluate(self, model: nn.Module, on_batch: Callable[[int], None]) -> Evaluation:
        """Top-1 over the evaluation set; correct answers are counted over all ranks."""
        top1, ranks, device = Top1(self._place.device), self._place.evaluation_ranks, self._place.device
        passes = evaluation_passes(len(self._evaluation.labels), self._shares.batch_size, ranks.size, ranks.rank)
        for share in passes:
            samples, labels = self._batch(self._evaluation, share.ids)
            scores = model(samples.to(device)).float()
            top1.update(scores[: share.real], labels[: share.real].to(device))
            on_batch(top1.samples * ranks.size)
        top1.combine(ranks)
        return Evaluation(top1.value, top1.samples)

    def predictions(
        self, model: nn.Module, samples: SampleIds | None, on_batch: Callable[[int], None]
    ) -> Mapping[str, npt.NDArray[Any]]:
        """The label of each sample and the model's logits (float32)."""
        arrays = self._evaluation if samples is None else self._training
        ids = np.arange(len(arrays.labels)) if samples is None else samples
        ranks, device = self._place.evaluation_ranks, self._place.device
        passes = evaluation_passes(len(ids), self._shares.batch_size, ranks.size, ranks.rank)
        scores, done = torch.empty(sum(share.real for share in passes), self._classes), 0
        for share in passes:
            values, _ = self._batch(arrays, ids[share.ids])
            scores[done : done + share.real] = model(values.to(device))[: share.real]
            done += share.real
            on_batch(done * ranks.size)
        logits = gather_rows(scores, ranks)
        if logits is None or self._place.rank != 0:
            return {}
        return {"samples": ids, "labels": arrays.labels[ids].astype(np.int64), "logits": logits.numpy()}

    def pictures(self) -> dict[str, bytes]:
        return {}

    def close(self) -> None:
        """Do nothing: there are no threads to stop."""

    def _batch(self, arrays: Arrays, ids: SampleIds) -> tuple[Tensor, Tensor]:
        samples = torch.from_numpy(np.ascontiguousarray(arrays.samples[ids]))
        labels = torch.from_numpy(np.ascontiguousarray(arrays.labels[ids], np.int64))
        return samples.to(self._place.input_dtype) if samples.is_floating_point() else samples, labels


def _checked(training: Arrays, evaluation: Arrays, root: Path) -> int:
    """Check the arrays and return the number of classes. Raises DataError."""
    for name, arrays in (("training", training), ("evaluation", evaluation)):
        labels = arrays.labels
        if labels.ndim != 1 or not len(labels) or len(labels) != len(arrays.samples):
            shapes = f"samples {arrays.samples.shape}, labels {labels.shape}"
            raise DataError(f"{root}: the {name} set needs samples, with one label each; got {shapes}")
        if labels.dtype.kind not in "iu" or labels.min() < 0:
            raise DataError(f"{root}: labels of the {name} set: expected integers of 0 or more, got {labels.dtype}")
    classes = int(training.labels.max()) + 1
    if (highest := int(evaluation.labels.max())) >= classes:
        raise DataError(f"{root}: the evaluation set has the label {highest}, which the training set lacks")
    return classes


def _by_label(arrays: Arrays) -> Arrays:
    """`arrays` sorted by label, so that the samples of a class have consecutive ids."""
    order = np.argsort(arrays.labels, kind="stable")
    return Arrays(arrays.samples[order], arrays.labels[order])


def _fingerprint(*sets: Arrays) -> str:
    """SHA-256 (hex) over types, shapes and values."""
    digest = hashlib.sha256()
    for arrays in sets:
        for values in (arrays.samples, arrays.labels):
            digest.update(f"{values.dtype.str}{values.shape}".encode())
            digest.update(np.ascontiguousarray(values).data)
    return digest.hexdigest()
