"""Normalisation as the recipe names it, in whole models, on real ranks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from many_ranks import run_ranks
from tiny_detector import tiny_options
from torch import Tensor, nn
from torch.nn import functional as F

from hpcai500.comm.communicator import Communicator
from hpcai500.layers import ImageClassification
from hpcai500.recipe import load_recipe
from hpcai500.workloads.ewa import build_model as build_detector
from hpcai500.workloads.ic import build_model
from hpcai500.workloads.models.normalisation import norm_factory
from hpcai500.workloads.models.sync_batch_norm import SyncBatchNorm2d

SHARES = (5, 3)


def options(**changes: Any) -> ImageClassification:
    settings = [f"workload.{key}={value}" for key, value in {"width": 8, "image_size": 32, **changes}.items()]
    workload = load_recipe("ic/smoke", settings).workload
    assert isinstance(workload, ImageClassification)
    return workload


def step(communicator: Communicator | None, *, compiled: bool = False, **changes: Any) -> dict[str, Tensor]:
    """Gradients and statistics of one step on this rank's share of 8 images, without a rank on all of them."""
    torch.manual_seed(0)
    talk = communicator.group(range(communicator.size)) if communicator else None
    model: nn.Module = build_model(options(**changes), 3, talk)
    random = torch.Generator().manual_seed(1)
    images, labels = torch.randn(8, 3, 32, 32, generator=random), torch.arange(8) % 3
    if communicator:
        images, labels = (whole.split(SHARES)[communicator.rank] for whole in (images, labels))
    called = torch.compile(model, backend="eager") if compiled else model
    F.cross_entropy(called(images), labels, reduction="sum").backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    if communicator:
        for gradient in gradients.values():
            communicator.all_reduce(gradient)
    return {**gradients, **{f"buffer {name}": buffer for name, buffer in model.named_buffers()}}


def steps_of_a_rank(communicator: Communicator) -> list[dict[str, Tensor]]:
    changes = ({}, {"compiled": True}, {"norm_statistics": "last-batch"})
    return [step(communicator, norm="sync-batch", **change) for change in changes]


def test_a_network_on_two_ranks_has_the_gradients_and_statistics_of_one_process() -> None:
    plain, compiled, last = zip(*run_ranks(steps_of_a_rank, 2), strict=True)
    for ranks, expected in (
        (plain, step(None)),
        (compiled, step(None)),
        (last, step(None, norm_statistics="last-batch")),
    ):
        assert ranks[0].keys() == expected.keys()
        for name, value in expected.items():
            assert torch.equal(ranks[0][name], ranks[1][name]), name
            assert torch.allclose(ranks[0][name], value, rtol=1e-4, atol=1e-4), name


def test_statistics_of_the_last_batch_forget_those_before() -> None:
    for name in ("batch", "sync-batch"):
        norm = norm_factory(name, momentum=1.0)(3)
        first, last = torch.randn(2, 4, 3, 5, 5) * 2 + 1
        norm(first)
        norm(last)
        assert torch.allclose(norm.get_buffer("running_mean"), last.mean((0, 2, 3)), atol=1e-6)
        assert torch.allclose(norm.get_buffer("running_var"), last.var((0, 2, 3)), rtol=1e-5)


@pytest.mark.parametrize(("statistics", "momentum"), [("moving", 0.1), ("last-batch", 1.0)])
@pytest.mark.parametrize(("norm", "kind"), [("batch", nn.BatchNorm2d), ("sync-batch", SyncBatchNorm2d)])
def test_a_recipes_norm_is_in_every_place(norm: str, kind: type, statistics: str, momentum: float) -> None:
    model = build_model(options(norm=norm, norm_statistics=statistics), 3)
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    # Stem, two in each of the four blocks, and the three shortcuts that change the shape.
    assert len(norms) == 1 + 2 * 4 + 3
    assert {(type(module), module.momentum) for module in norms} == {(kind, momentum)}


@pytest.mark.parametrize("norm", ["group", "batch", "sync-batch", "frozen-batch"])
def test_a_detector_has_the_norm_of_its_recipe(norm: str) -> None:
    body = build_detector(tiny_options(norm=norm)).backbone.body
    made = norm_factory(norm)(8)
    assert type(body.bn1) is type(made)
    assert type(body.layer2[0].bn2) is type(made)
    assert body.bn1.state_dict().keys() == made.state_dict().keys()
