"""Image Classification from JPEG files: how long a step waits for its images, and what input costs altogether.

The whole training path (loader, copies, step) runs for some hundred steps with each input pipeline; `memory` repeats
a few batches and shows the step without input. Pipelines run one after the other: two at once would share the cores.
The share is the record's `data_wait_seconds`, which each loader tells with its batches, of all seconds of the steps:
of DALI on a device, until a batch is made, and not until the device is ready to take it over. A device works on while
the loop waits, so the share is an upper bound of what the device lost; images per second beside `memory` show the loss
itself.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import torch
from contest import reason
from data_sets import images
from held import free
from options import Options
from rows import Target, value_row, without_rival

from hpcai500.comm.communicator import LocalCommunicator
from hpcai500.engine.measured_steps import ProfiledSteps
from hpcai500.engine.ranks import Ranks
from hpcai500.hosts import find_placement
from hpcai500.layers import Recipe
from hpcai500.measure.host import available_cores
from hpcai500.recipe import load_recipe

TARGET = Target(most=0.02)
_STEPS, _SMALL_STEPS = 60, 2
_BATCH, _SMALL_BATCH = 256, 4
_WARM_UP = 12
_PATIENCE_SECONDS = 600.0
# Who reads, and who normalises where the recipe can choose.
_INPUTS = (("memory", None), ("native", "host"), ("native", "device"), ("dali", None))
_SMALL = ("workload.width=4", "workload.image_size=32", "workload.evaluation_resize=36", "workload.depths=[1, 1, 1, 1]")


def measure(options: Options, data: Path | None = None) -> dict[str, object]:
    """Every pipeline in turn; `data` is a folder in ImageNet's layout instead of the made one."""
    rows: list[dict[str, Any]] = []
    with images(options, data) as folder:
        for loader, conversion in _INPUTS:
            row: dict[str, Any] = {"loader": loader, "conversion": conversion}
            settings = [f"accelerator.loader={loader}"]
            settings += [f"accelerator.conversion={conversion}"] if conversion else []
            try:
                rows.append({**row, **_run(folder, options, settings), "reason": None})
            except Exception as error:  # noqa: BLE001 - what one pipeline lacks is written down, and the others go on
                rows.append({**row, "reason": reason(error)})
            free(options.device)
    return {"tables": {"Image Classification from JPEG files": rows}, "ratios": list(_judged(rows, options))}


def _run(folder: Path, options: Options, settings: Sequence[str]) -> dict[str, Any]:
    recipe = _recipe(options, settings)
    torch.compiler.reset()
    count = _SMALL_STEPS if options.quick else _STEPS
    with closing(Ranks(find_placement({}), LocalCommunicator(), _PATIENCE_SECONDS)) as ranks:
        steps = ProfiledSteps(recipe, folder, ranks, options.device, available_cores(), world=ranks.world)
        with closing(steps):
            steps.warm_up(1 if options.quick else _WARM_UP)
            done = [steps.run(count) for _ in range(options.rounds)]
    shares = [one.data_wait_seconds / one.seconds for one in done]
    rates = [one.steps * recipe.hyperparameters.batch_size / one.seconds for one in done]
    return {
        "batch": recipe.hyperparameters.batch_size,
        "precision": recipe.accelerator.precision,
        "steps": count * options.rounds,
        "images_per_second": statistics.median(rates),
        "data_wait_share": statistics.median(shares),
        "least_share": min(shares),
        "greatest_share": max(shares),
    }


def _judged(rows: list[dict[str, Any]], options: Options) -> Iterator[dict[str, Any]]:
    memory = rows[0].get("images_per_second")
    for row in rows[1:]:
        name = f"{row['loader']}, converted by the {row['conversion']}" if row["conversion"] else row["loader"]
        case, rival = f"data wait, {name}", "the same step with images in memory"
        if row["reason"]:
            yield without_rival(case, rival, row["reason"], TARGET)
            continue
        interval = row["least_share"], row["greatest_share"]
        yield value_row(
            case,
            row["data_wait_share"],
            options,
            TARGET,
            rival=None,
            ours=name,
            interval=interval,
            rounds=options.rounds,
        )
        if memory:
            rate = row["images_per_second"] / memory
            yield value_row(f"images/s, {name}", rate, options, None, rival=rival, ours=name)


def _recipe(options: Options, settings: Sequence[str]) -> Recipe:
    on_gpu = options.device.type == "cuda"
    common = [
        f"accelerator.device={options.device.type}",
        "accelerator.precision=bf16",
        f"hyperparameters.batch_size={_SMALL_BATCH if options.quick else _BATCH}",
        "hyperparameters.base_learning_rate=1e-6",
        "framework.fused_optimizer=true",
        f"framework.cuda_graphs={str(on_gpu).lower()}",
    ]
    return load_recipe("ic/reference", (*common, *(_SMALL if options.quick else ()), *settings))
