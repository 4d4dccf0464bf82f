"""Extreme Weather Analytics, the whole training step: the engine's against torchvision's eager Faster R-CNN.

The rival (`ewa_rival`) is the same network with the same numbers of anchors, proposals, samples and classes, on the
same batch, in the same precision, in torch's default SGD; in both layouts, of which the faster counts. Its resizing and
normalising are taken out, which is to its favour: our images come normalised, at their own size. Each row has how many
proposals and sampled regions its contestant's batch has (`regions`): they must be near each other, or somebody does
less than the others.

The target is held in mixed precision alone: in fp32, the products that both do alike take most of a step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from ceilings import gemm_ceiling
from clock import Timed
from contest import Maker, hold, speed_rows
from eager import arithmetic
from held import HeldSteps, Shape, free
from options import Options
from regions import PROPOSALS, SAMPLED, Counts, of_ours
from rows import Target, ratio_row, without_rival
from torchvision_here import why_not

from hpcai500.layers import ExtremeWeather, Recipe
from hpcai500.measure.flops import count_flops
from hpcai500.recipe import load_recipe
from hpcai500.workloads.ewa import REFERENCE_GRID, build_model, example_inputs
from hpcai500.workloads.models.detector import CountedDetector, FasterRCNN

PRECISIONS = ("fp32", "tf32", "bf16")
TARGET = Target(least=1.5)
RIVAL = "eager torchvision Faster R-CNN"
_BATCHES = (1, 2, 4)
_SMALL_GRID = (64, 96)
_SMALL = (
    "workload.width=8",
    "workload.pyramid_channels=8",
    "workload.head_width=16",
    "workload.depths=[1, 1, 1, 1]",
    "workload.proposals_before_nms=[30, 30]",
    "workload.proposals_after_nms=[20, 20]",
)
_VARIANTS: dict[str, tuple[str, ...]] = {
    "as the reference recipe": (),
    "fused optimizer": ("framework.fused_optimizer=true",),
    "fused optimizer, graphs": ("framework.fused_optimizer=true", "framework.cuda_graphs=true"),
}


def measure(options: Options, precisions: Sequence[str] = PRECISIONS) -> dict[str, object]:
    """Each batch in each of `precisions`."""
    rows: list[dict[str, Any]] = []
    ratios: list[dict[str, Any]] = []
    for precision in precisions:
        if options.device.type == "cpu" and precision == "tf32":
            ratios.append(without_rival("Faster R-CNN, tf32", RIVAL, "tf32 exists on CUDA devices only"))
            continue
        ceiling = gemm_ceiling(precision, options)
        for batch in (1,) if options.quick else _BATCHES:
            _compare(precision, batch, ceiling, options, rows, ratios)
            free(options.device)
    return {"tables": {"Extreme Weather Analytics, one step": rows}, "ratios": ratios}


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
    recipe, grid = _recipe(precision, batch, options, ()), _SMALL_GRID if options.quick else REFERENCE_GRID
    assert isinstance(recipe.workload, ExtremeWeather)
    counted = CountedDetector(build_model(recipe.workload))
    flops = count_flops(counted, *example_inputs(recipe.workload, *grid)).training_flops
    counts: dict[str, Counts] = {}
    seconds, failed = hold(dict(_contestants(recipe, batch, options, grid, counts)), options)
    amounts = {"images": float(batch), "analytic_flops": batch * flops}
    for row in speed_rows({"precision": precision, "batch": batch}, seconds, failed, amounts):
        rate = row["analytic_flops_per_second"]
        found = dict.fromkeys((PROPOSALS, SAMPLED)) | counts.get(row["contestant"], {})
        rows.append(row | {"share_of_gemm_ceiling": rate / ceiling if rate and ceiling else None} | found)
    case = f"Faster R-CNN, {precision}, batch {batch}, {grid[0]} x {grid[1]}"
    target = TARGET if precision == "bf16" else None
    ours, rivals = ([name for name in seconds if name.startswith("ours") is mine] for mine in (True, False))
    if ours and rivals:
        best = min(ours, key=lambda name: sum(seconds[name]))
        strongest = min(rivals, key=lambda name: sum(seconds[name]))
        ratios.append(ratio_row(case, seconds, best, options, target, strongest))
    else:
        ratios.append(without_rival(case, RIVAL, why_not() or "; ".join(failed.values()), target))


def _contestants(
    recipe: Recipe, batch: int, options: Options, grid: tuple[int, int], counts: dict[str, Counts]
) -> Iterator[tuple[str, Maker]]:
    """Each writes into `counts` what it finds in the batch."""
    precision = recipe.accelerator.precision
    for name, settings in _VARIANTS.items():
        if options.device.type == "cpu" and "framework.cuda_graphs=true" in settings:
            continue

        def ours(name: str = f"ours, {name}", settings: tuple[str, ...] = settings) -> Timed:
            steps = HeldSteps(_recipe(precision, batch, options, settings), options.device, Shape(grid=grid))
            run = steps.timed(options.quick)
            # Behind the warm-up: graphs are captured before any other pass.
            counts[name] = _counted(steps, precision, options)
            return run

        yield f"ours, {name}", ours
    if why_not() is None:
        from ewa_rival import rival_step  # torchvision imports beside few builds of torch

        layouts = {"channels_last": torch.channels_last, "channels first": torch.contiguous_format}
        for name, layout in layouts.items():

            def rival(name: str = f"{RIVAL}, {name}", layout: torch.memory_format = layout) -> Timed:
                run, counts[name] = rival_step(recipe, options.device, grid, layout)
                return run

            yield f"{RIVAL}, {name}", rival


def _counted(steps: HeldSteps, precision: str, options: Options) -> Counts:
    def one_pass() -> None:
        with arithmetic(precision, options.device):
            steps.model(*steps.payload)

    assert isinstance(steps.model, FasterRCNN)
    return of_ours(steps.model, one_pass)


def _recipe(precision: str, batch: int, options: Options, settings: Sequence[str]) -> Recipe:
    common = (
        f"accelerator.device={options.device.type}",
        f"accelerator.precision={precision}",
        "accelerator.loader=memory",
        f"hyperparameters.batch_size={batch}",
        # Boxes in noise cannot be learnt: what the weights become must not matter.
        "hyperparameters.base_learning_rate=1e-6",
    )
    return load_recipe("ewa/reference", (*common, *(_SMALL if options.quick else ()), *settings))
