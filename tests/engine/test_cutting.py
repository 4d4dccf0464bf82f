"""Where a chain is cut: each stage has about as much to do, by the operations that results are told by."""

from __future__ import annotations

from itertools import combinations

import pytest
from torch import nn

from hpcai500.engine.pipeline import cut, work_of
from hpcai500.errors import RecipeError
from hpcai500.measure.flops import count_flops
from hpcai500.recipe import load_recipe
from hpcai500.workloads import ewa, ic
from hpcai500.workloads.models.detector import CountedDetector
from hpcai500.workloads.models.parts import Part, classifier_parts, detector_parts


def largest(work: list[float], ranges: list[range]) -> float:
    return max(sum(work[part] for part in one) for one in ranges)


@pytest.mark.parametrize("stages", range(1, 7))
def test_no_other_cut_has_a_smaller_largest_stage(stages: int) -> None:
    work = [4.0, 1.0, 7.0, 3.0, 3.0, 2.0]
    found = cut(work, stages)
    assert [part for one in found for part in one] == list(range(len(work)))
    assert all(len(one) for one in found)
    every = (
        [range(a, b) for a, b in zip((0, *ends), (*ends, len(work)), strict=True)]
        for ends in combinations(range(1, len(work)), stages - 1)
    )
    assert largest(work, found) == min(largest(work, one) for one in every)


def test_more_stages_than_parts_are_refused() -> None:
    with pytest.raises(RecipeError, match="at most 2 parts, got 3"):
        cut([1.0, 1.0], 3)


def named(model: nn.Module) -> set[str]:
    return {name for name, _ in [*model.named_parameters(), *model.named_buffers()]}


def holders(name: str, parts: tuple[Part, ...]) -> int:
    return sum(any(f"{name}.".startswith(f"{one}.") for one in part.names) for part in parts)


def test_the_parts_of_resnet_50_have_all_of_its_work_and_halves_are_nearly_halves() -> None:
    options = load_recipe("ic/reference").workload
    model = ic.build_model(options, 1000)
    parts, count = classifier_parts(model), count_flops(model, ic.example_images(options))
    work = work_of(parts, count)
    assert sum(work) == pytest.approx(count.training_flops)
    assert {holders(name, parts) for name in named(model)} == {1}
    for stages, share in ((2, 0.54), (4, 0.28), (8, 0.17)):
        assert largest(work, cut(work, stages)) < share * sum(work)


def test_the_parts_of_the_detector_have_all_of_its_work() -> None:
    options = load_recipe("ewa/reference").workload
    model = ewa.build_model(options)
    parts = detector_parts(model)
    count = count_flops(CountedDetector(model), *ewa.example_inputs(options, *ewa.REFERENCE_GRID))
    work = work_of(parts, count)
    assert sum(work) == pytest.approx(count.training_flops)
    assert {holders(name, parts) for name in named(model)} == {1}
    assert largest(work, cut(work, 2)) < 0.57 * sum(work)
