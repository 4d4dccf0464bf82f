"""Image Classification, the whole training step: the engine's, with what the recipe can ask for, against plain torch.

Rivals, in the same precision, on the same held batch, taking turns with ours: our ResNet in a bare eager loop
(channels_last, autocast where the precision is mixed, torch's default SGD), and torchvision's resnet50 in the same
loop where torchvision imports. The batch lies on the device in the type that the precision takes (bf16 in bf16), for
all of them: nobody pays for a cast of it. Input costs nothing here: `data_wait` has that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from ceilings import gemm_ceiling
from clock import Timed, timed
from contest import Maker, hold, speed_rows
from eager import eager_step
from held import HeldSteps, Shape, free, held_workload
from options import Options
from rows import Target, ratio_row, without_rival
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision_here import why_not

from hpcai500.layers import ImageClassification, Recipe
from hpcai500.measure.flops import count_flops
from hpcai500.recipe import load_recipe
from hpcai500.workloads.ic import build_model, example_images

PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
# Of mixed precision alone: products in fp32 take most of a step, and are the same products for all.
TARGET = Target(least=1.3)
MIXED = ("bf16", "fp16")
_BATCHES = {"fp32": (64, 128, 256), "tf32": (64, 128, 256), "bf16": (64, 128, 256, 512), "fp16": (256,)}
# Compiling takes a minute for each shape.
_COMPILED_BATCHES = (256,)
_CLASSES = 1000
_FUSED, _GRAPHS, _COMPILED = (
    "framework.fused_optimizer=true",
    "framework.cuda_graphs=true",
    "framework.compile=true",
)
_EAGER, _TORCHVISION = "eager torch, our ResNet", "eager torchvision resnet50"
_SMALL = ("workload.width=4", "workload.image_size=32", "workload.depths=[1, 1, 1, 1]")


def measure(options: Options, precisions: Sequence[str] = PRECISIONS) -> dict[str, object]:
    """The sweep over batches in each of `precisions`."""
    rows: list[dict[str, Any]] = []
    ratios: list[dict[str, Any]] = []
    for precision in precisions:
        if options.device.type == "cpu" and precision == "tf32":
            ratios.append(without_rival("ResNet-50, tf32", _EAGER, "tf32 exists on CUDA devices only"))
            continue
        ceiling = gemm_ceiling(precision, options)
        for batch in (4,) if options.quick else _BATCHES[precision]:
            _compare(precision, batch, ceiling, options, rows, ratios)
            free(options.device)
    return {"tables": {"Image Classification, one step": rows}, "ratios": ratios}


def _compare(
    precision: str,
    batch: int,
    ceiling: float | None,
    options: Options,
    rows: list[dict[str, Any]],
    ratios: list[dict[str, Any]],
) -> None:
    # A shape that was compiled before must not make this one a dynamic shape.
    torch.compiler.reset()
    recipe = _recipe(precision, batch, options, ())
    assert isinstance(recipe.workload, ImageClassification)
    classes = 10 if options.quick else _CLASSES
    flops = count_flops(build_model(recipe.workload, classes), example_images(recipe.workload)).training_flops
    makers = dict(_ours(precision, batch, options, classes)) | dict(_rivals(recipe, options, classes))
    seconds, failed = hold(makers, options)
    amounts = {"images": float(batch), "analytic_flops": batch * flops}
    for row in speed_rows({"precision": precision, "batch": batch}, seconds, failed, amounts):
        rate = row["analytic_flops_per_second"]
        rows.append(row | {"share_of_gemm_ceiling": rate / ceiling if rate and ceiling else None})
    case = f"ResNet-50, {precision}, batch {batch}"
    target = TARGET if precision in MIXED else None
    ours = [name for name in seconds if name.startswith("ours")]
    best = min(ours, key=lambda name: sum(seconds[name]), default=None)
    for rival, bound in ((_EAGER, target), (_TORCHVISION, None)):
        if best is not None and rival in seconds:
            ratios.append(ratio_row(case, seconds, best, options, bound, rival))
        else:
            why = failed.get(rival) or why_not() or "; ".join(failed.values())
            ratios.append(without_rival(case, rival, why, bound))


def _ours(precision: str, batch: int, options: Options, classes: int) -> Iterator[tuple[str, Maker]]:
    """The engine's step as the reference recipe has it, and with what it can be asked for."""
    variants: dict[str, tuple[str, ...]] = {"as the reference recipe": (), "fused optimizer": (_FUSED,)}
    if options.device.type == "cuda":
        variants["fused optimizer, graphs"] = (_FUSED, _GRAPHS)
        if precision in MIXED and batch in _COMPILED_BATCHES:
            variants["fused optimizer, compiled"] = (_FUSED, _COMPILED)
            variants["fused optimizer, compiled, graphs"] = (_FUSED, _COMPILED, _GRAPHS)
    for name, settings in variants.items():

        def make(settings: tuple[str, ...] = settings) -> Any:
            recipe = _recipe(precision, batch, options, settings)
            return HeldSteps(recipe, options.device, Shape(classes=classes)).timed(options.quick)

        yield f"ours, {name}", make


def _rivals(recipe: Recipe, options: Options, classes: int) -> Iterator[tuple[str, Maker]]:
    assert isinstance(recipe.workload, ImageClassification)
    smoothing = recipe.workload.label_smoothing

    def run(model: nn.Module | None = None) -> Timed:
        held = held_workload(recipe, options.device, Shape(classes=classes))
        images, labels = held.payload

        def loss(model: nn.Module) -> Tensor:
            return F.cross_entropy(model(images), labels, label_smoothing=smoothing)

        trained = held.model if model is None else model
        return timed(eager_step(trained, loss, recipe, options.device), options.device)

    yield _EAGER, run
    if why_not() is None:
        from torchvision.models import resnet50  # it imports beside few builds of torch

        yield _TORCHVISION, lambda: run(resnet50(weights=None, num_classes=classes))


def _recipe(precision: str, batch: int, options: Options, settings: Sequence[str]) -> Recipe:
    common = (
        f"accelerator.device={options.device.type}",
        f"accelerator.precision={precision}",
        "accelerator.loader=memory",
        f"hyperparameters.batch_size={batch}",
        # Labels of noise cannot be learnt: what the weights become must not matter.
        "hyperparameters.base_learning_rate=1e-6",
    )
    return load_recipe("ic/reference", (*common, *(_SMALL if options.quick else ()), *settings))
