"""`python -m hpcai500.measure.micro_command`: one rank of `hpcai500 micro`, which measures a machine's ceilings."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from hpcai500.engine.measurement import Bench, run_measurement
from hpcai500.job_options import COLLECTIVES, MICRO_KINDS, Measurement, MicroOptions
from hpcai500.layers import ExtremeWeather, ImageClassification, Recipe
from hpcai500.methodology.roofline import arithmetic_of
from hpcai500.progress import Progress
from hpcai500.recipe import load_recipe
from hpcai500.streams import say

if TYPE_CHECKING:
    from torch import Tensor

    from hpcai500.measure.micro import MeasuringJob, Problem
    from hpcai500.measure.products import ProductsOfStep

# How many of the workloads' heaviest shapes are tried, besides squares.
_SHAPES = 8
# Squares for a first estimate of this machine's speed.
_PROBES = (64, 128, 256)
_SQUARES = (512, 1024, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure on this rank; returns the exit code."""
    return run_measurement(Measurement[MicroOptions], _measure, arguments)


def _measure(bench: Bench[MicroOptions]) -> Mapping[str, Any]:
    from hpcai500.measure.micro import MeasuringJob  # torch, after OpenMP's variables are set

    kinds, data = [kind for kind in MICRO_KINDS if kind in bench.options.kinds], bench.options.data
    now = ["starting"]

    def doing(what: str) -> None:
        now[0] = what
        bench.doing(what)

    show: Callable[[str], None] = say if bench.ranks.leads else lambda line: None
    job = MeasuringJob(bench.ranks.world, bench.device, bench.cores, show, doing)
    found: dict[str, Any] = {}
    walks: dict[str, _Walk] = {}
    if {"gemm", "conv", "input"} & set(kinds):
        doing("walking a training step of both models")
        walks = _walks(bench.recipe)
    if job.world.size == 1 and (alone := [kind for kind in kinds if kind in (*COLLECTIVES, "pairs")]):
        job.say(f"{', '.join(alone)}: left out: there is only one rank; start more with --procs N or a launcher")
    with bench.ranks.tracker(lambda: now[0])(_count(kinds, data, job), "micro", "measurements") as bar:
        for kind in kinds:
            match kind:
                case "gemm" | "conv":
                    found |= _products(kind, list(walks.values()), job, bench.options.seconds, bar)
                case "copy":
                    doing("copy")
                    from hpcai500.measure.bandwidth import measure_copy

                    found["copy"] = measure_copy(job, bench.options.seconds, bar)
                case "allreduce" | "allgather" | "reducescatter" | "alltoall" | "broadcast":
                    found |= _collective(kind, bench, job, bar)
                case "pairs":
                    found |= _pairs(bench, job, bar)
                case "device":
                    from hpcai500.measure.links import measure_devices

                    found |= measure_devices(job, bench.ranks.unwatched, bench.options.seconds, bar)
                case "input":
                    for benchmark, folder in data.items():
                        doing(f"input {benchmark}: reading {folder}")
                        found[f"input {benchmark}"] = _input(bench, job, folder, walks[benchmark], found, bar)
    # When and where, so that `hpcai500 track` can follow the ceilings of each node over months.
    measured = {"time_ms": time.time_ns() // 1_000_000, "hosts": list(bench.ranks.world.hosts)}
    return {name: {**entry, **measured} for name, entry in found.items()}


def _count(kinds: Sequence[str], data: Mapping[str, Path], job: MeasuringJob) -> int:
    """Number of measurements, for progress."""
    from hpcai500.measure.collectives import partitions
    from hpcai500.measure.micro import PRECISIONS

    places = max(1, len(partitions(job.world.hosts)))
    each = {"gemm": len(PRECISIONS), "conv": len(PRECISIONS), **dict.fromkeys(COLLECTIVES, places), "input": len(data)}
    return sum(each.get(kind, 1) for kind in kinds)


class _Walk:
    def __init__(self, recipe: Recipe, products: ProductsOfStep) -> None:
        self.recipe, self.products = recipe, products

    @property
    def training_flops(self) -> float:
        """Operations of training on one sample; `gemms` has each convolution too."""
        total = sum(shape.flops * count for shape, count in self.products.gemms.items())
        return total / self.recipe.hyperparameters.batch_size


def _walks(recipe: Recipe) -> dict[str, _Walk]:
    """The products of the recipe and of its sibling, by benchmark."""
    import torch

    from hpcai500.measure.products import products_of_step
    from hpcai500.workloads import model_of

    found = {}
    for one in (recipe, sibling(recipe)):
        model, _ = model_of(one)
        with torch.device("meta"):
            inputs = _inputs(one)
        found[one.benchmark] = _Walk(one, products_of_step(model, *inputs))
    return found


def sibling(recipe: Recipe) -> Recipe:
    """The other benchmark's recipe of the same kind (smoke or reference), on the same machine and ranks."""
    other = "ewa" if recipe.benchmark == "ic" else "ic"
    kind = "smoke" if recipe.problem.is_synthetic else "reference"
    base = load_recipe(f"{other}/{kind}", ())
    same = ("accelerator", "communication", "os", "hardware")
    return base.model_copy(update={layer: getattr(recipe, layer) for layer in same})


def _inputs(recipe: Recipe) -> tuple[Tensor, ...]:
    """Inputs of a training step of one rank, of which only shapes count."""
    import torch

    from hpcai500.data.climate.synthetic import SyntheticYears
    from hpcai500.workloads.ewa import REFERENCE_GRID

    batch, options = recipe.hyperparameters.batch_size, recipe.workload
    if isinstance(options, ImageClassification):
        return (torch.empty(batch, 3, options.image_size, options.image_size),)
    assert isinstance(options, ExtremeWeather)
    synthetic = SyntheticYears()
    height, width = (synthetic.height, synthetic.width) if recipe.problem.is_synthetic else REFERENCE_GRID
    images = torch.empty(batch, len(options.channels), height, options.crop_width or width)
    return images, torch.empty(batch * options.detection_samples, 5)


def _products(
    kind: str, walks: Sequence[_Walk], job: MeasuringJob, seconds: float, bar: Progress
) -> Iterator[tuple[str, Any]]:
    """Entries of `gemm` or `conv` in each precision."""
    from hpcai500.measure.micro import PRECISIONS, fastest, lacking
    from hpcai500.measure.products import Gemm, Product, heaviest

    problems: list[Problem]
    probes: list[Problem]
    if kind == "gemm":
        shapes = heaviest([walk.products.gemms for walk in walks], _SHAPES)
        # The lightest first: each predicts the time of the next, and large squares do not use up the shapes' time.
        problems = sorted([*shapes, *(Gemm(side, side, side) for side in _SQUARES)], key=lambda shape: shape.flops)
        probes = [Gemm(side, side, side) for side in _PROBES]
    else:
        layers = heaviest([walk.products.convolutions for walk in walks], _SHAPES)
        # The lightest first: each predicts the time of the next.
        problems = sorted(layers, key=lambda layer: layer.flops)
        lightest = sorted(layers, key=lambda layer: layer.flops)[:1]
        every_product = get_args(Product)
        probes = [
            one for layer in lightest for product in every_product for one in replace(layer, product=product).smaller()
        ]
    # CUDA libraries tune themselves for each new shape, which takes so long that small products give no estimate.
    if job.device.type == "cuda":
        probes = []
    for name, precision in PRECISIONS.items():
        if reason := lacking(precision, job.device):
            job.say(f"{kind} {name}: left out: {reason}")
            bar.advance()
            continue
        entry = fastest(problems, precision, job, seconds, bar, probes)
        if entry is None:
            job.say(f"{kind} {name}: left out: no product ends within {seconds:g} s on this device")
        else:
            yield f"{kind} {name}", entry


def _collective(word: str, bench: Bench[MicroOptions], job: MeasuringJob, bar: Progress) -> dict[str, Any]:
    from hpcai500.measure.collectives import measure_collective

    if job.world.size == 1:
        bar.advance()
        return {}
    # Without the monitor, whose messages would add to the latency of small messages.
    return measure_collective(word, job, bench.ranks.unwatched, bench.options.seconds, bar)


def _pairs(bench: Bench[MicroOptions], job: MeasuringJob, bar: Progress) -> dict[str, Any]:
    from hpcai500.measure.links import measure_hosts

    if job.world.size == 1:
        bar.advance()
        return {}
    return measure_hosts(job, bench.ranks.unwatched, bench.options.seconds, bar)


def _input(
    bench: Bench[MicroOptions], job: MeasuringJob, folder: Path, walk: _Walk, found: Mapping[str, Any], bar: Progress
) -> dict[str, Any]:
    from hpcai500.engine.precision import Precision
    from hpcai500.measure.bandwidth import measure_input
    from hpcai500.workloads import factory
    from hpcai500.workloads.base import Place

    recipe, world = walk.recipe, job.world
    threads = recipe.os.input_threads or job.cores
    shares = tuple(range(world.rank, recipe.shards, world.size))
    place = Place(
        job.device,
        Precision(recipe.accelerator.precision, job.device).input_dtype,
        threads,
        communicator=world,
        total_shares=recipe.shards,
        shares=shares,
        tracker=bench.ranks.tracker(),
    )
    workload = factory(recipe.benchmark)(recipe, folder, place)
    try:
        entry = measure_input(
            recipe.benchmark,
            job,
            partial(workload.training_batches, first_step=0),
            ring=recipe.accelerator.prefetch_batches,
            steps=workload.steps_per_epoch * len(shares),
            seconds=bench.options.seconds,
            bar=bar,
            shape=f"batches of {recipe.hyperparameters.batch_size}, {threads} threads a rank",
            call=f"{recipe.accelerator.loader} loader",
            precision=recipe.accelerator.precision,
            data=str(folder.resolve()),
            synthetic=workload.dataset()["synthetic"],
        )
    finally:
        workload.close()
    return entry | _enough(entry["value"], recipe, walk, found)


def _enough(rate: float, recipe: Recipe, walk: _Walk, found: Mapping[str, Any]) -> dict[str, Any]:
    """Whether input is faster than training can be, since no step is faster than the ceiling of its products."""
    precision = arithmetic_of(recipe.accelerator.precision)
    names = (f"gemm {precision}", f"conv {precision}")
    ceilings = [found[name]["value"] for name in names if name in found]
    needed = max(ceilings) / walk.training_flops if ceilings else None
    return {"needed_at_most": needed, "enough": None if needed is None else rate >= needed}


if __name__ == "__main__":
    sys.exit(main())
