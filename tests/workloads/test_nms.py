"""Non-maximum suppression: equal to the definition, for ties, groups, degenerate boxes and numbers that are none."""

from __future__ import annotations

import detection_reference as reference
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from hpcai500.workloads.operators import batched_nms, nms


@st.composite
def scenes(draw: st.DrawFn) -> tuple[Tensor, Tensor, Tensor, float]:
    """Boxes on a coarse grid, so that they coincide, touch, nest and vanish; scores with ties; groups; a threshold."""
    count = draw(st.integers(0, 24))
    corner = st.integers(-3, 9)
    rows = draw(st.lists(st.tuples(*[corner] * 4), min_size=count, max_size=count))
    boxes = torch.tensor(rows, dtype=torch.float32).reshape(-1, 4) * draw(st.sampled_from([1.0, 0.37, 1e-3, 1e4]))
    if draw(st.booleans()):
        boxes = torch.cat([boxes[:, :2], boxes[:, :2] + boxes[:, 2:].abs()], dim=1)
    scores = draw(st.lists(st.sampled_from([-1.0, -0.0, 0.0, 0.25, 0.5, 0.9]), min_size=count, max_size=count))
    groups = draw(st.lists(st.sampled_from([-(2**40), 0, 1, 2**40]), min_size=count, max_size=count))
    threshold = draw(st.sampled_from([0.0, 0.2, 1 / 3, 0.5, 0.7, 1.0]))
    return boxes, torch.tensor(scores), torch.tensor(groups, dtype=torch.int64), threshold


@settings(max_examples=60)
@given(scenes())
def test_the_boxes_that_the_definition_keeps_stay(scene: tuple[Tensor, Tensor, Tensor, float]) -> None:
    boxes, scores, groups, threshold = scene
    assert nms(boxes, scores, threshold).equal(reference.nms(boxes, scores, threshold))
    assert batched_nms(boxes, scores, groups, threshold).equal(reference.nms(boxes, scores, threshold, groups))
    wide = boxes.double(), scores.double()
    assert nms(*wide, threshold).equal(reference.nms(*wide, threshold))


def random_boxes(count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Boxes of which many overlap, and distinct scores."""
    generator = torch.Generator().manual_seed(seed)
    corners = torch.rand(count, 2, generator=generator) * 100
    boxes = torch.cat([corners, corners + torch.rand(count, 2, generator=generator) * 30], dim=1)
    return boxes, torch.randperm(count, generator=generator).float()


def vectorised(boxes: Tensor, scores: Tensor, threshold: float) -> Tensor:
    """The same definition over the matrix of all ratios, for numbers of boxes that the loop takes too long for."""
    order = scores.argsort(descending=True)
    x1, y1, x2, y2 = boxes[order].unbind(1)
    width = (torch.minimum(x2[:, None], x2) - torch.maximum(x1[:, None], x1)).clamp(min=0)
    height = (torch.minimum(y2[:, None], y2) - torch.maximum(y1[:, None], y1)).clamp(min=0)
    area = (x2 - x1) * (y2 - y1)
    above = width * height / (area[:, None] + area - width * height) > threshold
    stays = torch.ones(len(boxes), dtype=torch.bool)
    for i in range(len(boxes)):
        if stays[i]:
            stays[i + 1 :] &= ~above[i, i + 1 :]
    return order[stays]


@pytest.mark.parametrize("count", [63, 64, 65, 129, 3000])
@pytest.mark.parametrize("threshold", [0.0, 0.3, 0.9])
def test_any_number_of_blocks_of_boxes(count: int, threshold: float) -> None:
    boxes, scores = random_boxes(count)
    assert nms(boxes, scores, threshold).equal(vectorised(boxes, scores, threshold))


def test_the_number_of_threads_changes_nothing() -> None:
    boxes, scores = random_boxes(9000)
    groups = torch.arange(9000) % 3
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            results.append((nms(boxes, scores, 0.95), batched_nms(boxes, scores, groups, 0.95)))
    finally:
        torch.set_num_threads(before)
    assert all(one.equal(results[0][0]) and grouped.equal(results[0][1]) for one, grouped in results)


def test_groups_far_apart_in_number_keep_the_coordinates_precision() -> None:
    # An offset of group x (largest coordinate + 1) would move the second pair to where float32 counts in 8s.
    box = torch.tensor([[0.0, 0.0, 1.0, 1.0], [0.4, 0.0, 1.4, 1.0]])
    boxes = torch.cat([box, box])
    groups = torch.tensor([0, 0, 50_000_000, 50_000_000])
    scores = torch.tensor([0.9, 0.8, 0.7, 0.6])
    assert batched_nms(boxes, scores, groups, 0.5).tolist() == [0, 1, 2, 3]
    assert batched_nms(boxes, scores, groups, 0.4).tolist() == [0, 2]


def test_a_ratio_equal_to_the_threshold_suppresses_nothing() -> None:
    boxes = torch.tensor([[0.0, 0.0, 2.0, 1.0], [0.0, 0.0, 1.0, 1.0]])
    scores = torch.tensor([0.9, 0.8])
    assert nms(boxes, scores, 0.5).tolist() == [0, 1]
    assert nms(boxes, scores, 0.5 - 1e-9).tolist() == [0]


def test_a_nan_score_counts_as_the_highest_and_a_nan_box_neither_suppresses_nor_goes() -> None:
    box = [0.0, 0.0, 1.0, 1.0]
    nan, infinity = float("nan"), float("inf")
    boxes = torch.tensor([box, box, [nan, 0.0, 1.0, 1.0], [0.0, 0.0, infinity, 1.0], [-infinity, 0.0, infinity, 1.0]])
    scores = torch.tensor([0.9, nan, 1.0, 0.1, 0.2])
    assert nms(boxes, scores, 0.0).tolist() == [1, 2, 4, 3]


def test_half_precision_is_compared_in_float32_and_types_may_differ() -> None:
    boxes, scores = random_boxes(50)
    for dtype in (torch.float16, torch.bfloat16):
        rounded = boxes.to(dtype)
        assert nms(rounded, scores, 0.5).equal(nms(rounded.float(), scores, 0.5))
    assert nms(boxes, scores.double(), 0.5).equal(nms(boxes.double(), scores.double(), 0.5))


def test_no_boxes_give_no_indices_and_any_memory_order_will_do() -> None:
    empty = nms(torch.empty(0, 4), torch.empty(0), 0.5)
    assert (empty.dtype, tuple(empty.shape)) == (torch.int64, (0,))
    boxes, scores = random_boxes(100)
    strided = boxes.t().contiguous().t()
    assert nms(strided, scores.repeat_interleave(2)[::2], 0.5).equal(nms(boxes, scores, 0.5))


def test_wrong_arguments_are_named() -> None:
    boxes, scores = torch.rand(3, 4), torch.rand(3)
    with pytest.raises(ValueError, match=r"iou_threshold must be in \[0, 1\], got 1.5"):
        nms(boxes, scores, 1.5)
    with pytest.raises(ValueError, match="iou_threshold"):
        nms(boxes, scores, float("nan"))
    with pytest.raises(ValueError, match=r"boxes must have shape \(n, 4\) and type f4 or f8, got \(3, 5\)"):
        nms(torch.rand(3, 5), scores, 0.5)
    with pytest.raises(ValueError, match=r"scores must have shape \(3,\) and type f4, one for each box, got \(2,\)"):
        nms(boxes, scores[:2], 0.5)
    with pytest.raises(ValueError, match="groups must have shape"):
        batched_nms(boxes, scores, torch.zeros(4, dtype=torch.int64), 0.5)
    with pytest.raises(TypeError, match=r"boxes must be floating point, got torch.int64"):
        nms(boxes.long(), scores, 0.5)
    with pytest.raises(TypeError, match=r"groups must be integers, got torch.float32"):
        batched_nms(boxes, scores, scores, 0.5)


@pytest.mark.parametrize("grouped", [False, True])
def test_the_operator_keeps_torchs_contract(grouped: bool) -> None:
    boxes, scores = random_boxes(20)
    groups = torch.arange(20) % 3 if grouped else None
    torch.library.opcheck(torch.ops.hpcai500.nms.default, (boxes, scores, groups, 0.5))
    torch.library.opcheck(torch.ops.hpcai500.nms.default, (boxes.requires_grad_(), scores, groups, 0.5))


@torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True)
def test_it_compiles_whole_though_nobody_knows_how_many_stay() -> None:
    boxes, scores = random_boxes(200)

    def best(boxes: Tensor, scores: Tensor) -> Tensor:
        return boxes[nms(boxes, scores, 0.3)] * 2

    compiled = torch.compile(best, backend="aot_eager", fullgraph=True)
    assert compiled(boxes, scores).equal(best(boxes, scores))
    assert len(best(boxes, scores)) not in (0, 200)
