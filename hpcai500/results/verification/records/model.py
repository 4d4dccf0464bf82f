"""Parameters and operations of a sample are those of the model that the recipe describes."""

from __future__ import annotations

from collections.abc import Iterator

from hpcai500.methodology.integrity.values import Dataset, Flops, Model
from hpcai500.methodology.model_count import model_count
from hpcai500.results.verification.finding import Finding
from hpcai500.results.verification.guard import fail, skipped
from hpcai500.results.verification.records.run import Run, judged

_NAME = "model"
_ANALYTIC = "analytic"
# Forward and both backward products; the gradient of the first layer's input is not needed.
_LEAST_OF_FORWARD, _MOST_OF_FORWARD = 1.0, 3.0
_ROUNDING = 1e-9


def check_model(run: Run) -> Iterator[Finding]:
    """What the run counted, with a count of the recipe's model; that of a plug-in cannot be made."""
    counted, model = run.log.values(Flops, "flops")[-1], run.log.values(Model, "model")[-1]
    yield from judged(_NAME, _own_faults(counted), fail)
    dataset = run.log.values(Dataset, "dataset")[-1]
    # Fields that a recipe of an older version does not have are those of the reference.
    workload = {**run.rules.get("reference", {}).get("workload", {}), **run.record.tables["workload"]}
    classes = len(run.rules.get("class_names", [])) or dataset.classes or run.rules.get("classes", 0)
    height, width = dataset.grid or run.rules.get("grid") or (0, 0)
    if workload.get("crop_width", 0) > width:
        yield fail(_NAME, f"workload.crop_width is {workload['crop_width']}; the images have {width} columns")
    expected = model_count(str(run.record.tables.get("benchmark")), workload, classes, (height, width))
    if expected is None:
        yield skipped(_NAME, f"a plug-in's model: {counted.per_sample:.6g} FLOPs a sample are the run's own count")
        return
    found = {
        "FLOPs of a sample": (counted.per_sample, expected.training),
        "FLOPs of its forward pass": (counted.forward, expected.forward),
        "parameters": (model.parameters, expected.parameters),
    }
    wrong = (
        f"{name} are {told:.12g}; those of the recipe's model {right:.12g}"
        for name, (told, right) in found.items()
        if not abs(told - right) <= _ROUNDING * right
    )
    yield from judged(_NAME, wrong, fail)


def _own_faults(counted: Flops) -> Iterator[str]:
    if counted.convention != _ANALYTIC:
        yield f"operations were counted by the convention {counted.convention!r}, expected {_ANALYTIC}"
    ratio = counted.per_sample / counted.forward if counted.forward else float("inf")
    if not _LEAST_OF_FORWARD <= ratio <= _MOST_OF_FORWARD + _ROUNDING:
        yield f"training takes {counted.per_sample:.6g} FLOPs a sample, {ratio:.4g} of forward; expected up to 3"
