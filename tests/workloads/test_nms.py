"""Non-maximum suppression, of one list and of many: equal to the definition, also for ties, groups and NaN."""

from __future__ import annotations

from typing import Any

import detector_twin as twin
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from hpcai500.workloads.operators import batched_nms, nms, sorted_nms

NAN, INFINITY = float("nan"), float("inf")


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
    assert nms(boxes, scores, threshold).equal(twin.nms(boxes, scores, threshold))
    assert batched_nms(boxes, scores, groups, threshold).equal(twin.nms(boxes, scores, threshold, groups))
    wide = boxes.double(), scores.double()
    assert nms(*wide, threshold).equal(twin.nms(*wide, threshold))


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
    boxes = torch.tensor([box, box, [NAN, 0.0, 1.0, 1.0], [0.0, 0.0, INFINITY, 1.0], [-INFINITY, 0.0, INFINITY, 1.0]])
    assert nms(boxes, torch.tensor([0.9, NAN, 1.0, 0.1, 0.2]), 0.0).tolist() == [1, 2, 4, 3]


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


BOXES, SCORES = torch.ones(3, 4), torch.ones(3)
WRONG = [
    (lambda: nms(BOXES, SCORES, 1.5), ValueError, r"iou_threshold must be in \[0, 1\], got 1.5"),
    (lambda: nms(BOXES, SCORES, NAN), ValueError, "iou_threshold"),
    (
        lambda: nms(torch.ones(3, 5), SCORES, 0.5),
        ValueError,
        r"boxes must have shape \(n, 4\) and type f4 or f8, got \(3, 5\)",
    ),
    (
        lambda: nms(BOXES, SCORES[:2], 0.5),
        ValueError,
        r"scores must have shape \(3,\) and type f4, one for each box, got \(2,\)",
    ),
    (
        lambda: batched_nms(BOXES, SCORES, torch.zeros(4, dtype=torch.int64), 0.5),
        ValueError,
        "groups must have shape",
    ),
    (lambda: nms(BOXES.long(), SCORES, 0.5), TypeError, r"boxes must be floating point, got torch.int64"),
    (lambda: batched_nms(BOXES, SCORES, SCORES, 0.5), TypeError, r"groups must be integers, got torch.float32"),
    (
        lambda: sorted_nms(BOXES[None], [1, 1], 0.5),
        ValueError,
        r"segments must add up to the 3 boxes, got \[1, 1\]",
    ),
    (lambda: sorted_nms(BOXES, [3], 0.5), ValueError, r"boxes must have shape \(N, n, 4\), got \(3, 4\)"),
    (lambda: sorted_nms(BOXES[None].long(), [3], 0.5), TypeError, r"boxes must be floating point, got torch\.int64"),
    (lambda: sorted_nms(BOXES[None], [3], 2.0), ValueError, r"iou_threshold must be in \[0, 1\]"),
]


@pytest.mark.parametrize(("call", "kind", "message"), WRONG, ids=[message for _, _, message in WRONG])
def test_wrong_arguments_are_named(call: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        call()


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


# --- many sorted lists at once, whose shape is fixed


@settings(max_examples=60, deadline=None)
@given(
    images=st.integers(0, 3),
    segments=st.lists(st.integers(0, 12), min_size=1, max_size=4),
    seed=st.integers(0, 1000),
    threshold=st.sampled_from([0.0, 0.3, 0.7, 1.0]),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
)
def test_each_segment_of_each_image_is_thinned_out_for_itself(
    images: int, segments: list[int], seed: int, threshold: float, dtype: torch.dtype
) -> None:
    """Against `nms` of one segment after the other, of which those with a NaN are left out."""
    boxes = sorted_boxes(images, sum(segments), seed).to(dtype)
    stays = sorted_nms(boxes, segments, threshold)
    assert stays.shape == boxes.shape[:2]
    for image in range(images):
        for of_segment, found in zip(boxes[image].split(segments), stays[image].split(segments), strict=True):
            expected = nms(of_segment, torch.arange(len(of_segment), 0, -1).to(of_segment.dtype), threshold)
            assert found.nonzero().flatten().tolist() == sorted(expected.tolist())


def sorted_boxes(images: int, count: int, seed: int) -> Tensor:
    """Boxes that overlap, of which some are no boxes."""
    generator = torch.Generator().manual_seed(seed)
    corners = torch.rand(images, count, 2, generator=generator) * 20
    boxes = torch.cat([corners, corners + torch.rand(images, count, 2, generator=generator) * 20], dim=2)
    boxes[torch.rand(images, count, generator=generator) < 0.2] = NAN
    return boxes


def test_boxes_that_are_none_stay_and_suppress_nothing() -> None:
    box = [0.0, 0, 9, 9]
    boxes = torch.tensor([[[NAN] * 4, box, [0, NAN, 9, 9], box]])
    assert sorted_nms(boxes, [4], 0.5).tolist() == [[True, True, True, False]]
    assert sorted_nms(boxes, [2, 2], 0.5).tolist() == [[True] * 4]


def test_lists_keep_torchs_contract() -> None:
    torch.library.opcheck(torch.ops.hpcai500.sorted_nms.default, (sorted_boxes(2, 9, 1), [4, 5], 0.5))


# --- where torchvision can be imported


def test_it_keeps_what_torchvision_keeps() -> None:
    try:
        from torchvision import ops
    except (ImportError, RuntimeError) as error:
        pytest.skip(f"torchvision does not import beside this torch: {str(error).splitlines()[0]}")
    generator = torch.Generator().manual_seed(4)
    corners = torch.randint(0, 40, (2000, 2), generator=generator).float()
    boxes = torch.cat([corners, corners + torch.randint(0, 12, (2000, 2), generator=generator)], dim=1)
    scores = torch.randint(0, 500, (2000,), generator=generator).float()
    groups = torch.randint(0, 4, (2000,), generator=generator)
    for threshold in (0.0, 1 / 3, 0.5, 0.7):
        assert nms(boxes, scores, threshold).equal(ops.nms(boxes, scores, threshold))
        theirs = ops.batched_nms(boxes, scores, groups, threshold)
        assert batched_nms(boxes, scores, groups, threshold).sort().values.equal(theirs.sort().values)
