"""The count of a model by its recipe alone is that of the walk over the model which torch builds."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcai500.layers import ExtremeWeather, ImageClassification
from hpcai500.measure.flops import FlopsCount, count_flops
from hpcai500.methodology.model_count import ModelCount, model_count
from hpcai500.recipe import load_recipe
from hpcai500.workloads import ewa, ic
from hpcai500.workloads.models.detector import CountedDetector

IC = load_recipe("ic/reference").workload.model_dump(mode="json")
EWA = load_recipe("ewa/reference").workload.model_dump(mode="json")


def same(counted: ModelCount | None, walked: FlopsCount) -> bool:
    assert counted
    return (counted.parameters, counted.forward, counted.training) == (
        walked.parameters,
        walked.forward_flops,
        walked.training_flops,
    )


def test_the_reference_models_have_the_operations_of_the_editions() -> None:
    assert model_count("ic", IC, 1000, (0, 0)) == ModelCount(25_557_032, 8_178_368_512, 24_299_077_632)
    assert model_count("ewa", EWA, 4, (768, 1152)) == ModelCount(41_408_424, 364_098_588_672, 1_070_099_509_248)


def test_a_plug_ins_model_cannot_be_counted() -> None:
    assert model_count("digits", {"width": 8}, 10, (0, 0)) is None


@settings(max_examples=25, deadline=None)
@given(
    block=st.sampled_from(["basic", "bottleneck"]),
    depths=st.lists(st.integers(1, 2), min_size=4, max_size=4),
    width=st.integers(1, 9),
    norm=st.sampled_from(["batch", "sync-batch"]),
    image_size=st.integers(8, 70),
    classes=st.integers(1, 20),
)
def test_any_classifier_is_counted_as_torch_walks_it(classes: int, **changes: Any) -> None:
    options = ImageClassification.model_validate({**IC, **changes, "evaluation_resize": 70})
    walked = count_flops(ic.build_model(options, classes), ic.example_images(options))
    assert same(model_count("ic", options.model_dump(mode="json"), classes, (0, 0)), walked)


@settings(max_examples=25, deadline=None)
@given(
    block=st.sampled_from(["basic", "bottleneck"]),
    depths=st.lists(st.integers(1, 2), min_size=1, max_size=4),
    width=st.integers(1, 9),
    norm=st.sampled_from(["group", "batch", "frozen-batch"]),
    pyramid_channels=st.integers(1, 9),
    head_width=st.integers(1, 9),
    channels=st.lists(st.sampled_from(EWA["channels"]), min_size=1, unique=True),
    crop_width=st.sampled_from([0, 65, 96]),
    anchors=st.integers(1, 4),
    detection_samples=st.integers(1, 40),
    grid=st.tuples(st.integers(33, 100), st.integers(96, 120)),
)
def test_any_detector_is_counted_as_torch_walks_it(grid: tuple[int, int], anchors: int, **changes: Any) -> None:
    shapes = [[[8, 8 + number] for number in range(anchors)]] * (len(changes["depths"]) + 1)
    options = ExtremeWeather.model_validate({**EWA, **changes, "anchors": shapes})
    height, width = grid[0], options.crop_width or grid[1]
    detector = CountedDetector(ewa.build_model(options))
    walked = count_flops(detector, *ewa.example_inputs(options, height, width))
    assert same(model_count("ewa", options.model_dump(mode="json"), 4, grid), walked)


@pytest.mark.parametrize("field", ["block", "depths", "width", "norm"])
def test_a_table_without_a_field_of_the_model_is_no_recipes(field: str) -> None:
    with pytest.raises(KeyError, match=field):
        model_count("ic", {name: value for name, value in IC.items() if name != field}, 10, (0, 0))


@pytest.mark.parametrize("depths", [[], [1] * 5, [0, 1], [10**9, -(10**9), 1, 1], [10**9]])
def test_stages_that_no_recipe_may_have_are_refused_before_they_are_counted(depths: list[int]) -> None:
    with pytest.raises(ValueError, match="expected 1 to 4 stages of 1 to 10000 blocks"):
        model_count("ic", {**IC, "depths": depths}, 10, (0, 0))
