"""The workload: sequences of numbers, sorted into three classes by a small model that can also be cut into stages."""

from __future__ import annotations

import os
import signal
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hpcai500_clipped import ClippedRecipe
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from hpcai500.comm.communicator import Communicator
from hpcai500.workloads.base import Place, TrainingBatch
from hpcai500.workloads.models.parts import Chain, Part
from hpcai500.workloads.simple import ArrayClassifier, Arrays

# `EPOCH:STEP` after which the process sends itself SIGINT.
STOP = "CLIPPED_STOP"
CLASSES, TRAINING, EVALUATION = 3, 80, 30


class ClippedAdamW(torch.optim.AdamW):
    """AdamW after the gradient of all weights is scaled to at most `most`; `stages` as `Place.stages`."""

    def __init__(
        self, parameters: Iterable[Tensor], *, most: float, stages: Communicator | None = None, **options: Any
    ) -> None:
        super().__init__(parameters, **options)
        self._most, self._stages = most, stages

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        weights = [weight for group in self.param_groups for weight in group["params"] if weight.grad is not None]
        norm = get_total_norm([weight.grad for weight in weights])
        if self._stages is not None:
            square = norm.double().square().view(1)
            self._stages.all_reduce(square)
            norm = square.sqrt().view(()).to(norm.dtype)
        clip_grads_with_norm_(weights, self._most, norm)
        super().step(closure)


class Clipped(ArrayClassifier):
    """Has its own update rule."""

    def __init__(self, recipe: ClippedRecipe, place: Place, data: Path) -> None:
        with np.load(data / "sequences.npz") as file:
            numbers, labels = file["numbers"][:, : recipe.workload.length], file["labels"]
        sets = (Arrays(numbers[part], labels[part]) for part in (slice(TRAINING), slice(TRAINING, None)))
        super().__init__(recipe, place, network(recipe), *sets, data)
        self._recipe = recipe

    def dataset(self) -> dict[str, Any]:
        return {**super().dataset(), "unit": {"name": "numbers", "per_sample": self._recipe.workload.length}}

    def optimizer(self, model: nn.Module) -> ClippedAdamW:
        policy = self._recipe.hyperparameters
        return ClippedAdamW(
            [parameter for parameter in model.parameters() if parameter.requires_grad],
            most=policy.gradient_norm,
            stages=self._place.stages,
            lr=0.0,
            betas=(policy.beta1, policy.beta2),
            eps=policy.epsilon,
            weight_decay=policy.weight_decay,
            fused=self._recipe.framework.fused_optimizer,
        )

    def training_batches(self, epoch: int, first_step: int) -> Generator[TrainingBatch]:
        stop = os.environ.get(STOP, "0:0")
        for number, batch in enumerate(super().training_batches(epoch, first_step)):
            if stop == f"{epoch}:{number}":
                os.kill(os.getpid(), signal.SIGINT)
            yield batch

    def chain(self) -> Chain:
        parts = [Part(module, (name,)) for name, module in self.model.named_children()]
        return Chain(
            parts=tuple(parts),
            inputs=lambda payload: payload[0],
            targets=lambda payload: payload[1],
            pick=lambda labels, which: labels[which],
            loss=lambda outputs, labels: F.cross_entropy(outputs[0], labels),
        )


def network(recipe: ClippedRecipe) -> nn.Sequential:
    """Numbers (N, length) -> scores (N, 3)."""
    width = recipe.workload.width
    middle = [nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(2)]
    first = nn.Sequential(nn.Linear(recipe.workload.length, width), nn.Tanh())
    return nn.Sequential(first, *middle, nn.Linear(width, CLASSES))


def build(recipe: ClippedRecipe, data: Path, place: Place) -> Clipped:
    return Clipped(recipe, place, data)


def model_of(recipe: ClippedRecipe, classes: int | None) -> tuple[nn.Module, tuple[Tensor, ...]]:
    return network(recipe), (torch.zeros(2, recipe.workload.length),)


def make(folder: Path) -> None:
    random = np.random.default_rng(1)
    labels = random.integers(CLASSES, size=TRAINING + EVALUATION)
    numbers = labels[:, None] + random.normal(0, 0.7, (len(labels), 16))
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / "sequences.npz", numbers=numbers.astype(np.float32), labels=labels)
