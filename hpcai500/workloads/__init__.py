"""The benchmarks, by name: built-in ones and those of plug-ins. CONTRIBUTING.md lists the needs of a new one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from inspect import isfunction, signature
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from torch import Tensor, nn

from hpcai500.layers import ExtremeWeather, ImageClassification, Recipe
from hpcai500.methodology.events import Dataset
from hpcai500.plugins import broken_workload, function_of
from hpcai500.recipe import benchmark_rules
from hpcai500.text import mistake
from hpcai500.workloads.base import Graphable, OwnOptimizer, Place, Workload, WorkloadFactory

# ----------------------------------------------------------------------------------------------------
# Functions of benchmarks.


def factory(benchmark: str) -> WorkloadFactory:
    """The builder of `benchmark`, imported when it is needed.

    Raises:
        EnvironmentLacksError: the benchmark's plug-in cannot be used; that of a plug-in also, if its workload lacks a
            member.
    """
    match benchmark:
        case "ic":
            from hpcai500.workloads.ic import ImageClassificationWorkload  # a run has one benchmark

            return ImageClassificationWorkload
        case "ewa":
            from hpcai500.workloads.ewa import ExtremeWeatherWorkload  # a run has one benchmark

            return ExtremeWeatherWorkload
        case _:
            return partial(_checked, benchmark, function_of(benchmark, "workload"))


def model_of(recipe: Recipe, classes: int | None = None) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """The model of `recipe` and example inputs, without any data: for counting operations.

    `classes` are those of the data; by default those of the edition's data set.

    Raises:
        EnvironmentLacksError: the benchmark's plug-in cannot be used, or provides no model.
    """
    match recipe.benchmark:
        case "ic":
            from hpcai500.workloads.ic import build_model, example_images  # a run has one benchmark

            assert isinstance(recipe.workload, ImageClassification)
            outputs = classes or benchmark_rules(recipe.edition, "ic")["classes"]
            return build_model(recipe.workload, outputs), (example_images(recipe.workload),)
        case "ewa":
            from hpcai500.workloads import ewa  # a run has one benchmark
            from hpcai500.workloads.models.detector import CountedDetector

            assert isinstance(recipe.workload, ExtremeWeather)
            detector = CountedDetector(ewa.build_model(recipe.workload))
            return detector, ewa.example_inputs(recipe.workload, *ewa.REFERENCE_GRID)
        case _:
            model, inputs = function_of(recipe.benchmark, "model")(recipe, classes)
            return model, tuple(inputs)


# ----------------------------------------------------------------------------------------------------
# What the workload of a plug-in must have: checked before training, against the definitions of the interface.


def dataset_of(benchmark: str, workload: Workload) -> dict[str, Any]:
    """The facts of the workload's data set.

    Raises:
        EnvironmentLacksError: one is missing, or has another type than records have.
    """
    facts = workload.dataset()
    given = facts if isinstance(facts, Mapping) else {}
    lacking = [name for name in Dataset.model_fields if name not in {*given, *Dataset.sometimes}]
    if lacking:
        raise broken_workload(benchmark, f"its workload's dataset() lacks {', '.join(lacking)}")
    try:
        Dataset.model_validate(facts)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise broken_workload(benchmark, f"its workload's dataset(): {where}: {mistake(first)}") from error
    return facts


def _checked(benchmark: str, build: Callable[..., Workload], recipe: Recipe, data: Path, place: Place) -> Workload:
    _require_arguments(benchmark, "function", build, WorkloadFactory.__call__)
    workload = build(recipe, data, place)
    required = _methods(Workload)
    if lacking := [name for name in (*Workload.__annotations__, *required) if not hasattr(workload, name)]:
        raise broken_workload(benchmark, f"its workload, a {type(workload).__name__}, lacks {', '.join(lacking)}")
    for name, method in (required | _methods(Graphable) | _methods(OwnOptimizer)).items():
        if hasattr(workload, name):
            _require_arguments(benchmark, name, getattr(workload, name), method)
    return workload


def _methods(protocol: type) -> dict[str, Callable[..., Any]]:
    return {name: one for name, one in vars(protocol).items() if isfunction(one) and not name.startswith("_")}


def _require_arguments(benchmark: str, name: str, found: Any, like: Callable[..., Any]) -> None:
    """Refuse a function that cannot be called as `like`, a method of the interface."""
    arguments = list(signature(like).parameters)[1:]
    try:
        signature(found).bind(*arguments)
    except (TypeError, ValueError) as error:
        expected = f"its workload's {name}: expected a function with the arguments ({', '.join(arguments)})"
        raise broken_workload(benchmark, f"{expected}: {error}") from error
