"""The model and its operations are those of the reference, where the recipe's model is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hpcai500.methodology.integrity.values import Flops, Model
from hpcai500.results.verification.finding import Finding
from hpcai500.results.verification.guard import fail, skipped
from hpcai500.results.verification.records.run import Run, judged

_NAME = "model"
# Fields of layer 7 that parameters and operations follow from.
_SHAPE: dict[str, tuple[str, ...]] = {
    "ic": ("model", "block", "depths", "width", "image_size"),
    "ewa": (
        "model",
        "block",
        "depths",
        "width",
        "norm",
        "pyramid_channels",
        "head_width",
        "channels",
        "crop_width",
        "anchors",
        "detection_samples",
    ),
}
_ANALYTIC = "analytic"
# Forward and both backward products; the gradient of the first layer's input is not needed.
_LEAST_OF_FORWARD, _MOST_OF_FORWARD = 1.0, 3.0
_ROUNDING = 1e-9


def check_model(run: Run) -> Iterator[Finding]:
    """Parameters and operations of a sample with the edition's count of the reference model."""
    counted, model = run.log.values(Flops, "flops")[-1], run.log.values(Model, "model")[-1]
    yield from judged(_NAME, _own_faults(counted), fail)
    differs = next(_differences(run), None)
    if differs:
        yield skipped(
            _NAME, f"not the reference's ({differs}): {counted.per_sample:.6g} FLOPs a sample are the run's own count; "
            "`hpcai500 flops --recipe` counts again",
        )  # fmt: skip
        return
    found = {
        "reference_flops_per_sample": counted.per_sample,
        "reference_forward_flops": counted.forward,
        "reference_parameters": model.parameters,
    }
    wrong = (
        f"{name.removeprefix('reference_')} are {value:.12g}, expected {run.rules[name]:.12g}"
        for name, value in found.items()
        if name in run.rules and not abs(value - run.rules[name]) <= _ROUNDING * run.rules[name]
    )
    yield from judged(_NAME, wrong, fail)


def _own_faults(counted: Flops) -> Iterator[str]:
    if counted.convention != _ANALYTIC:
        yield f"operations were counted by the convention {counted.convention!r}, expected {_ANALYTIC}"
    ratio = counted.per_sample / counted.forward if counted.forward else float("inf")
    if not _LEAST_OF_FORWARD <= ratio <= _MOST_OF_FORWARD + _ROUNDING:
        yield f"training takes {counted.per_sample:.6g} FLOPs a sample, {ratio:.4g} of forward; expected up to 3"


def _differences(run: Run) -> Iterator[str]:
    """Fields that make another model of it; another data set has other classes and another grid."""
    reference: Mapping[str, Any] = run.rules.get("reference", {}).get("workload", {})
    if not reference:
        yield "the edition has no reference for it"
    workload = run.record.tables["workload"]
    for name in _SHAPE.get(str(run.record.tables.get("benchmark")), ()):
        if workload.get(name) != reference.get(name):
            yield f"workload.{name}"
    for event in run.record.events:
        if event["key"] == "dataset":
            for name in ("classes", "grid"):
                if name in run.rules and event["value"].get(name) != run.rules[name]:
                    yield f"the data set's {name}"
