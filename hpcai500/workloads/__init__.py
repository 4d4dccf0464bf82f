"""The benchmarks, by name: built-in ones and those of plug-ins. CONTRIBUTING.md lists the needs of a new one."""

from __future__ import annotations

from torch import Tensor, nn

from hpcai500.layers import ExtremeWeather, ImageClassification, Recipe
from hpcai500.plugins import function_of
from hpcai500.recipe import benchmark_rules
from hpcai500.workloads.base import WorkloadFactory


def factory(benchmark: str) -> WorkloadFactory:
    """The builder of `benchmark`, imported when it is needed.

    Raises:
        EnvironmentLacksError: the benchmark's plug-in cannot be used.
    """
    match benchmark:
        case "ic":
            from hpcai500.workloads.ic import ImageClassificationWorkload  # a run has one benchmark

            return ImageClassificationWorkload
        case "ewa":
            from hpcai500.workloads.ewa import ExtremeWeatherWorkload  # a run has one benchmark

            return ExtremeWeatherWorkload
        case _:
            built: WorkloadFactory = function_of(benchmark, "workload")
            return built


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
