"""Optimizers of a model that is distributed over real ranks learn what they learn on one rank."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from builders.ranks import run_ranks
from torch import Tensor, nn
from torch.nn import functional as F

from hpcai500.optim.optimizers import advance, build_optimizer
from hpcai500.recipe import load_recipe
from hpcai500.workloads.base import Place

STEPS, SAMPLES, FEATURES, CLASSES = 6, 8, 6, 3
RULES = (
    ("sgd", "hyperparameters.momentum_form=outside"),
    ("sgd", "hyperparameters.momentum_form=corrected"),
    ("lars", "hyperparameters.epsilon=1e-6"),
    ("lamb", "hyperparameters.weight_decay=0.01"),
    ("adam", "framework.fused_optimizer=false"),
    ("adam", "framework.fused_optimizer=true"),
    ("adagrad", "framework.fused_optimizer=false"),
    ("rmsprop-warmup", "hyperparameters.weight_decay_on=weights"),
)


def network() -> nn.Sequential:
    torch.manual_seed(1)
    # With four ranks, the last weight leaves one of them without a row.
    return nn.Sequential(nn.LayerNorm(FEATURES), nn.Linear(FEATURES, 8), nn.GELU(), nn.Linear(8, CLASSES))


def trained(model: nn.Module, rule: tuple[str, str], rank: int = 0, replicas: int = 1) -> dict[str, Tensor]:
    """The whole weights after some steps, in which each replica has its own samples."""
    recipe = load_recipe("ic/smoke", [f"hyperparameters.optimizer={rule[0]}", rule[1]])
    optimizer = build_optimizer(model, recipe.hyperparameters, fused=recipe.framework.fused_optimizer)
    generator = torch.Generator().manual_seed(2)
    for step in range(STEPS):
        samples = torch.randn(SAMPLES, FEATURES, generator=generator)[rank::replicas]
        labels = torch.randint(CLASSES, (SAMPLES,), generator=generator)[rank::replicas]
        for group in optimizer.param_groups:
            group["lr"] = 0.01 * (step + 1)
        advance(optimizer, step / STEPS)
        optimizer.zero_grad(set_to_none=True)
        F.cross_entropy(model(samples), labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    state: dict[str, Any] = model.state_dict()
    return {name: value.full_tensor() if hasattr(value, "full_tensor") else value for name, value in state.items()}


def on_ranks(communicator: Any, tensor_ranks: int) -> list[dict[str, Tensor]]:
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    replicas, found = communicator.size // tensor_ranks, []
    place = Place(torch.device("cpu"), torch.float32, 1, communicator)
    mesh = place.device_mesh((replicas, tensor_ranks), ("samples", "tensor"))
    for rule in RULES:
        model = network()
        if tensor_ranks > 1:
            parallelize_module(model, mesh["tensor"], {"1": ColwiseParallel(), "3": RowwiseParallel()})
        if replicas > 1:
            fully_shard(model, mesh=mesh["samples"])
        found.append(trained(model, rule, communicator.rank // tensor_ranks, replicas))
    return found


@pytest.mark.parametrize(("size", "tensor_ranks"), [(4, 1), (2, 2), (4, 2)], ids=["samples", "tensor", "both"])
def test_each_rule_moves_shards_as_it_moves_whole_weights(size: int, tensor_ranks: int) -> None:
    ranks = run_ranks(on_ranks, size, tensor_ranks, timeout=300)
    for number, rule in enumerate(RULES):
        expected = trained(network(), rule)
        for found in (one[number] for one in ranks):
            assert found.keys() == expected.keys()
            for name, value in expected.items():
                torch.testing.assert_close(
                    found[name], value, rtol=1e-4, atol=1e-5, msg=lambda text, r=rule, n=name: f"{r} {n}: {text}"
                )
