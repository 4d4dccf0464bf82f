"""The input pipelines alone: images a second that a consumer gets which takes them at once.

`host` delivers into memory of the host; `device` also copies each batch to the device, and waits for it. This is the
measurement of `hpcai500 micro input`, which also checks that the same epoch gives the same images twice.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from contest import reason
from data_sets import images, years
from options import Options

from hpcai500.comm.communicator import LocalCommunicator
from hpcai500.engine.precision import Precision
from hpcai500.layers import Recipe
from hpcai500.measure.bandwidth import measure_input
from hpcai500.measure.host import available_cores
from hpcai500.measure.micro import MeasuringJob
from hpcai500.progress import silent
from hpcai500.recipe import load_recipe
from hpcai500.workloads import factory
from hpcai500.workloads.base import Place, TrainingBatch, Workload

_SECONDS, _SMALL_SECONDS = 4.0, 0.05
_SMALL_IMAGES = ("workload.width=4", "workload.image_size=32", "workload.evaluation_resize=36")
_YEARS = ("problem.training_years=[1979, 1979]", "problem.evaluation_years=[1980, 1980]")
_SMALL_NET = ("workload.width=8", "workload.pyramid_channels=8", "workload.head_width=16")


@dataclass(frozen=True)
class Case:
    """A pipeline: whose, and by which settings; `to` is where its images end."""

    benchmark: str
    name: str
    to: str
    settings: tuple[str, ...]


def measure(options: Options, data: Path | None = None) -> dict[str, object]:
    """Every pipeline in turn; `data` is a folder in ImageNet's layout instead of the made one."""
    rows: list[dict[str, Any]] = []
    with images(options, data) as pictures, years(options) as weather:
        for case in _cases(options):
            folder = pictures if case.benchmark == "ic" else weather
            row: dict[str, Any] = {"benchmark": case.benchmark, "loader": case.name, "to": case.to}
            try:
                rows.append({**row, **_measured(case, folder, options), "reason": None})
            except Exception as error:  # noqa: BLE001 - what one pipeline lacks is written down, and the others go on
                rows.append({**row, "images_per_second": None, "reason": reason(error)})
    return {"tables": {"Input alone": rows}, "ratios": []}


def _cases(options: Options) -> list[Case]:
    host, device = ("accelerator.device=cpu",), (f"accelerator.device={options.device.type}",)
    native, dali = ("accelerator.loader=native",), ("accelerator.loader=dali",)
    cases = [
        Case("ic", "native", "host", (*host, *native)),
        Case("ic", "dali", "host", (*host, *dali)),
        Case("ewa", "native", "host", (*host, *native)),
    ]
    if options.device.type == "cuda":
        cases += [
            Case("ic", "native, converted by the host", "device", (*device, *native, "accelerator.conversion=host")),
            Case(
                "ic", "native, converted by the device", "device", (*device, *native, "accelerator.conversion=device")
            ),
            Case("ic", "dali", "device", (*device, *dali)),
            Case("ewa", "native, converted by the host", "device", (*device, *native, "accelerator.conversion=host")),
            Case(
                "ewa", "native, converted by the device", "device", (*device, *native, "accelerator.conversion=device")
            ),
        ]
    return cases


def _recipe(case: Case, options: Options) -> Recipe:
    is_ic = case.benchmark == "ic"
    batch = (4 if options.quick else 256) if is_ic else 1
    settings = [f"hyperparameters.batch_size={batch}", "accelerator.precision=bf16", *case.settings]
    settings += () if is_ic else _YEARS
    if options.quick:
        settings += _SMALL_IMAGES if is_ic else _SMALL_NET
    return load_recipe(f"{case.benchmark}/reference", tuple(settings))


def _measured(case: Case, folder: Path, options: Options) -> dict[str, Any]:
    recipe = _recipe(case, options)
    device = torch.device("cpu") if case.to == "host" else options.device
    threads = recipe.os.input_threads or available_cores()
    place = Place(device, Precision(recipe.accelerator.precision, device).input_dtype, threads)
    job = MeasuringJob(LocalCommunicator(), device, available_cores(), say=lambda line: None)
    workload = factory(recipe.benchmark)(recipe, folder, place)
    try:
        with silent(1, "", "") as bar:
            entry = measure_input(
                recipe.benchmark,
                job,
                lambda epoch: _delivered(workload, epoch, device),
                ring=recipe.accelerator.prefetch_batches,
                steps=workload.steps_per_epoch,
                seconds=_SMALL_SECONDS if options.quick else _SECONDS,
                bar=bar,
            )
    finally:
        workload.close()
    return {
        "images_per_second": entry["value"],
        "least": entry["interval"][0],
        "greatest": entry["interval"][1],
        "batch": recipe.hyperparameters.batch_size,
        "threads": threads,
    }


def _delivered(workload: Workload, epoch: int, device: torch.device) -> Generator[TrainingBatch]:
    """Batches of `epoch`, each on the device before the next is asked for."""
    for batch in workload.training_batches(epoch, 0):
        if device.type != "cuda":
            yield batch
            continue
        images, *rest = batch.payload
        moved = images.to(device, non_blocking=True)
        # Not of all streams: the loader's own already copies the next one.
        torch.cuda.current_stream(device).synchronize()
        yield replace(batch, payload=(moved, *rest))
