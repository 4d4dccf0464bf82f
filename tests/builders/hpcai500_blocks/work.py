"""The model, and how it is distributed: FSDP2 over ranks with different samples, tensor parallelism over the others."""

from pathlib import Path
from typing import Any

import torch
from hpcai500_blocks.data import CLASSES, FEATURES, read
from torch import Tensor, nn
from torch.nn import functional as F

from hpcai500.layers import Recipe
from hpcai500.workloads.base import Place
from hpcai500.workloads.simple import ArrayClassifier, Arrays


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, values: Tensor) -> Tensor:
        changed: Tensor = self.down(F.gelu(self.up(self.norm(values))))
        return values + changed


class Model(nn.Module):
    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.embed = nn.Linear(FEATURES, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.head = nn.Linear(width, CLASSES)
        self.register_buffer("scale", torch.full((width,), 0.5))

    def forward(self, samples: Tensor) -> Tensor:
        values = self.embed(samples) * self.scale
        for block in self.blocks:
            values = block(values)
        scores: Tensor = self.head(values)
        return scores


class Workload(ArrayClassifier):
    def __init__(self, recipe: Any, place: Place, model: nn.Module, data: Path) -> None:
        sets = [Arrays(*read(data, name)) for name in ("training", "evaluation")]
        super().__init__(recipe, place, model, *sets, data)
        self._options = recipe.workload

    def counted(self) -> tuple[nn.Module, tuple[Tensor, ...]]:
        if self._options.mistake == "counted":
            return super().counted()
        with torch.device("meta"):
            return Model(self._options.width, self._options.depth), (torch.empty(2, FEATURES),)


def build(recipe: Recipe, data: Path, place: Place) -> Workload:
    options: Any = recipe.workload
    if options.mistake == "seed":
        torch.manual_seed(place.rank)
    model = Model(options.width, options.depth).to(place.device)
    sharded = recipe.is_sharded or options.mistake == "mode"
    if sharded and place.world_size > 1 and options.mistake != "whole":
        distribute(model, place, without_replicas=options.mistake == "replicas")
    return Workload(recipe, place, model, data)


def distribute(model: Model, place: Place, *, without_replicas: bool = False) -> None:
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    replicas = place.world_size // place.tensor_ranks
    mesh = place.device_mesh((replicas, place.tensor_ranks), ("samples", "tensor"))
    for block in model.blocks:
        if place.tensor_ranks > 1:
            parallelize_module(block, mesh["tensor"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        if replicas > 1 and not without_replicas:
            fully_shard(block, mesh=mesh["samples"])
    if replicas > 1 and not without_replicas:
        fully_shard(model, mesh=mesh["samples"])
