"""Non-maximum suppression and RoIAlign: equal to their definitions, in every type, layout and number of threads."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import detector_twin as twin
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from hpcai500 import _core
from hpcai500.workloads.operators import (
    _pool_on_cuda,
    _sorted_nms_on_cuda,
    _spread_on_cuda,
    batched_nms,
    nms,
    roi_align,
    roi_align_levels,
    sorted_nms,
)

# --- Non-maximum suppression, of one list and of many: also for ties, groups and NaN.


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
def test_wrong_arguments_of_nms_are_named(call: Any, kind: type[Exception], message: str) -> None:
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


# --- RoIAlign, of one map and of a pyramid.


Case = tuple[Tensor, Tensor, tuple[int, int], float, int, bool]
FIRST, LAST = torch.contiguous_format, torch.channels_last
in_both_formats = pytest.mark.parametrize("memory_format", [FIRST, LAST])


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Small maps; rois inside, across the edges, outside, empty and inverted."""
    images, channels = draw(st.integers(1, 3)), draw(st.sampled_from([1, 3, 16, 19, 70]))
    height, width = draw(st.integers(1, 9)), draw(st.integers(1, 9))
    count = draw(st.integers(0, 4))
    place = st.floats(-12, 24, width=32)
    rows = [[draw(st.integers(0, images - 1)), *(draw(place) for _ in range(4))] for _ in range(count)]
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1000)))
    features = torch.randn(images, channels, height, width, generator=generator)
    output = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    rois = torch.tensor(rows, dtype=torch.float32).reshape(-1, 5)
    return (
        features,
        rois,
        output,
        draw(st.sampled_from([1.0, 0.5, 0.25])),
        draw(st.integers(-1, 3)),
        draw(st.booleans()),
    )


def value_and_gradient(function: object, features: Tensor, *arguments: object) -> tuple[Tensor, Tensor]:
    """The pooled rois, and the gradient of a weighted sum of them."""
    leaf = features.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    pooled = function(leaf, *arguments)  # type: ignore[operator]
    weights = torch.linspace(-1, 1, pooled.numel(), dtype=torch.float64).reshape(pooled.shape).to(pooled.dtype)
    pooled.backward(weights)
    assert leaf.grad is not None
    return pooled.detach(), leaf.grad


def channels_last(features: Tensor) -> Tensor:
    return features.contiguous(memory_format=torch.channels_last)


@settings(max_examples=60)
@given(cases())
def test_bins_and_gradients_are_those_of_the_definition(case: Case) -> None:
    features, *arguments = case
    if len(case[1]) == 0:
        assert roi_align(*case).shape == (0, features.shape[1], *case[2])
        return
    expected = value_and_gradient(twin.roi_align, *case)
    ours = value_and_gradient(roi_align, *case)
    torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-5)
    for dtype in (torch.float16, torch.bfloat16):
        expected = value_and_gradient(twin.roi_align, features.to(dtype), *arguments)
        ours = value_and_gradient(roi_align, features.to(dtype), *arguments)
        torch.testing.assert_close(ours[0], expected[0], rtol=0, atol=3e-2)
        torch.testing.assert_close(ours[1], expected[1], rtol=1e-2, atol=3e-2)


@settings(max_examples=30)
@given(cases())
def test_memory_formats_agree_and_the_gradient_has_the_features(case: Case) -> None:
    features, *arguments = case
    for dtype in (torch.float32, torch.bfloat16):
        first = value_and_gradient(roi_align, features.to(dtype), *arguments)
        last = value_and_gradient(roi_align, channels_last(features.to(dtype)), *arguments)
        tolerance = 1e-5 if dtype == torch.float32 else 3e-2
        torch.testing.assert_close(last, first, rtol=tolerance, atol=tolerance)
        assert last[0].is_contiguous()
        assert last[1].is_contiguous(memory_format=torch.channels_last)
        assert first[1].is_contiguous()


def example(dtype: torch.dtype = torch.float32, channels: int = 5) -> tuple[Tensor, Tensor]:
    """Two images of 11 x 13 and rois of every kind."""
    features = torch.randn(2, channels, 11, 13, dtype=dtype, generator=torch.Generator().manual_seed(1))
    rois = torch.tensor([[0, 1.3, 2.1, 9.7, 8.8], [1, -4, -4, 30, 30], [0, 5, 5, 5, 5], [1, 9, 8, 3, 2]])
    return features, rois


@pytest.mark.parametrize("sampling_ratio", [-1, 2])
@pytest.mark.parametrize("aligned", [False, True])
def test_the_gradient_is_the_derivative(sampling_ratio: int, aligned: bool) -> None:
    features, rois = example(torch.float64, channels=2)
    # A corner holds every kind of roi, too.
    features = features[:, :, :7, :8].contiguous()

    def pool(features: Tensor) -> Tensor:
        return roi_align(features, rois, (3, 2), 0.5, sampling_ratio, aligned)

    assert torch.autograd.gradcheck(pool, features.requires_grad_())
    assert torch.autograd.gradcheck(pool, channels_last(features.detach()).requires_grad_())
    assert torch.autograd.gradgradcheck(pool, features)


@in_both_formats
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_the_number_of_threads_changes_no_bit(memory_format: torch.memory_format, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(2)
    features = torch.randn(2, 100, 60, 90, generator=generator).to(dtype).contiguous(memory_format=memory_format)
    corners = torch.rand(300, 2, generator=generator) * 60
    sizes = torch.rand(300, 2, generator=generator) * 40
    rois = torch.cat([torch.arange(300)[:, None] % 2, corners, corners + sizes], dim=1)
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2, 7):
            torch.set_num_threads(threads)
            results.append(value_and_gradient(roi_align, features, rois, 7, 1.0, 2, True))
    finally:
        torch.set_num_threads(before)
    assert all(value.equal(results[0][0]) and gradient.equal(results[0][1]) for value, gradient in results)


def test_a_constant_map_pools_to_its_constant_wherever_the_grid_is_inside() -> None:
    features = torch.full((1, 17, 12, 12), 3.25)
    rois = torch.tensor([[0.0, 1, 1, 10, 10], [0, 2.5, 0.1, 7.3, 11]])
    for ratio in (-1, 1, 5, 1000):
        torch.testing.assert_close(roi_align(features, rois, 3, 1.0, ratio), torch.full((2, 17, 3, 3), 3.25))


def test_a_linear_map_pools_to_its_value_at_the_middle_of_each_bin() -> None:
    features = torch.arange(20.0).expand(1, 1, 20, 20).contiguous()
    pooled = roi_align(features, torch.tensor([[0.0, 2, 3, 14, 9]]), (2, 3), 1.0, 4, aligned=True)
    assert pooled[0, 0].tolist() == [[3.5, 7.5, 11.5], [3.5, 7.5, 11.5]]


def test_features_of_neither_format_are_copied_and_empty_ones_pool_to_nothing() -> None:
    features, rois = example()
    expected = roi_align(features, rois, 2)
    padded = torch.zeros(2, 5, 11, 20)
    padded[..., :13] = features
    assert roi_align(padded[..., :13], rois, 2).equal(expected)
    assert roi_align(features[:, :0], rois, 2).shape == (4, 0, 2, 2)
    empty = torch.empty(0, 5)
    leaf = features.clone().requires_grad_()
    roi_align(leaf, empty, 2).sum().backward()
    assert leaf.grad is not None
    assert not leaf.grad.any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_under_autocast_the_features_keep_their_type(dtype: torch.dtype) -> None:
    features, rois = example(dtype)
    with torch.autocast("cpu", torch.bfloat16):
        pooled = roi_align(features, rois.to(torch.bfloat16), 2)
    assert pooled.dtype == dtype
    assert pooled.equal(roi_align(features, rois.to(torch.bfloat16).float(), 2))


@in_both_formats
def test_the_operators_keep_torchs_contract(memory_format: torch.memory_format) -> None:
    features, rois = example()
    leaf = features.contiguous(memory_format=memory_format).requires_grad_()
    torch.library.opcheck(torch.ops.hpcai500.roi_align.default, (leaf, rois, 0.5, 2, 3, 2, True))
    gradient = torch.randn(4, 5, 2, 3, requires_grad=True)
    last = memory_format == torch.channels_last
    arguments = (gradient, rois, 2, 11, 13, last, 0.5, 2, True)
    torch.library.opcheck(torch.ops.hpcai500.roi_align_backward.default, arguments)


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
@in_both_formats
def test_it_compiles_with_its_gradient(
    memory_format: torch.memory_format, backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    features, rois = example()
    features = features.contiguous(memory_format=memory_format)

    def step(features: Tensor, rois: Tensor) -> Tensor:
        return roi_align(torch.relu(features), rois, 2, 1.0, 2).square()

    compiled = torch.compile(step, backend=backend, fullgraph=True)
    assert all(map(torch.equal, value_and_gradient(compiled, features, rois), value_and_gradient(step, features, rois)))


MISPLACED = torch.tensor([[0.0, 1, 1, 9, 9], [1, 1, 1, 9, 9], [2, 1, 1, 9, 9]])
FEATURES, ROIS = torch.ones(2, 5, 11, 13), torch.tensor([[0.0, 1, 1, 9, 9], [1, 1, 1, 9, 9]])


@pytest.mark.parametrize(
    ("kind", "message", "arguments"),
    [
        (ValueError, r"rois\[2\] is of image 2.*the features are of 2 images", (FEATURES, MISPLACED, 2)),
        (ValueError, r"is of image 0\.5.*, which is not a whole number", (FEATURES, ROIS * 0.5, 2)),
        (ValueError, r"rois must have shape \(k, 5\)", (FEATURES, ROIS[:, :4], 2)),
        (ValueError, "features must have 4 axes, got shape", (FEATURES[0], ROIS, 2)),
        (ValueError, "sampling_ratio must be at most 1024", (FEATURES, ROIS, 2, 1.0, 10**6)),
        (ValueError, "output_size must be in", (FEATURES, ROIS, (0, 2))),
        (ValueError, "output_size must be in", (FEATURES, ROIS[:1], (2000, 1))),
        (ValueError, "spatial_scale must be finite and above 0, got nan", (FEATURES, ROIS, 2, NAN)),
        (
            TypeError,
            "features must be float32, float16, bfloat16 or float64, got torch.int64",
            (FEATURES.long(), ROIS, 2),
        ),
        (TypeError, "rois must be floating point, got torch.int64", (FEATURES, ROIS.long(), 2)),
    ],
)
def test_wrong_arguments_of_roi_align_are_named(kind: type[Exception], message: str, arguments: Any) -> None:
    with pytest.raises(kind, match=message):
        roi_align(*arguments)


# --- over all levels of a pyramid

SCALES = [0.5, 0.25, 0.125]


def pyramid(dtype: torch.dtype = torch.float32, memory_format: torch.memory_format = torch.contiguous_format) -> Any:
    """Three levels of two images, rois (40, 5) in both, and the level of each; none is on the coarsest."""
    generator = torch.Generator().manual_seed(9)
    levels = [torch.randn(2, 3, 24 // 2**k, 32 // 2**k, generator=generator).to(dtype) for k in range(3)]
    levels = [level.contiguous(memory_format=memory_format) for level in levels]
    corners = torch.rand(40, 2, generator=generator) * 60 - 8
    rois = torch.cat([corners, corners + torch.rand(40, 2, generator=generator) * 30], dim=1)
    rois = torch.cat([torch.arange(40)[:, None] % 2, rois], dim=1)
    return levels, rois, torch.randint(0, 2, (40,), generator=generator)


def pooled_and_gradients(pool: Any, levels: list[Tensor]) -> list[Tensor]:
    leaves = [level.clone(memory_format=torch.preserve_format).requires_grad_() for level in levels]
    pooled = pool(leaves)
    slopes = torch.randn(pooled.shape, generator=torch.Generator().manual_seed(1)).to(pooled.dtype)
    (pooled * slopes).sum().backward()
    assert all(leaf.grad is not None for leaf in leaves)
    return [pooled.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)]


@in_both_formats
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_each_roi_is_pooled_from_its_level(memory_format: torch.memory_format, dtype: torch.dtype) -> None:
    """To the bit what `roi_align` gives of the rois of each level, and so the gradients, in the levels' layout."""
    levels, rois, level_of = pyramid(dtype, memory_format)

    def one_by_one(leaves: list[Tensor]) -> Tensor:
        rows = [level_of.eq(level).nonzero().flatten() for level in range(3)]
        parts = [
            roi_align(leaf, rois[row], (3, 5), scale, 2) for leaf, row, scale in zip(leaves, rows, SCALES, strict=True)
        ]
        return torch.cat(parts)[torch.cat(rows).argsort()]

    ours = pooled_and_gradients(lambda leaves: roi_align_levels(leaves, rois, level_of, (3, 5), SCALES, 2), levels)
    theirs = pooled_and_gradients(one_by_one, levels)
    for found, expected in zip(ours, theirs, strict=True):
        assert torch.equal(found, expected)
        assert found.stride() == expected.stride()
    assert not ours[3].any(), "a level without a roi has no gradient"


def test_without_rois_there_is_nothing_and_no_gradient() -> None:
    levels, rois, level_of = pyramid()
    found = pooled_and_gradients(lambda leaves: roi_align_levels(leaves, rois[:0], level_of[:0], 7, SCALES), levels)
    assert found[0].shape == (0, 3, 7, 7)
    assert not any(gradient.any() for gradient in found[1:])


def test_wrong_levels_are_named() -> None:
    levels, rois, level_of = pyramid()
    with pytest.raises(ValueError, match="a spatial scale for each level, got 3 levels and 2 scales"):
        roi_align_levels(levels, rois, level_of, 7, SCALES[:2])
    with pytest.raises(ValueError, match=r"level_of must be in \[0, 3\), got 0 to 3"):
        roi_align_levels(levels, rois, level_of.index_fill(0, torch.tensor([4]), 3), 7, SCALES)
    with pytest.raises(ValueError, match=r"is of image 0\.5.*, which is not a whole number"):
        roi_align_levels(levels, rois * 0.5, level_of, 7, SCALES)
    with pytest.raises(TypeError, match=r"level_of must be int64, got torch\.float32"):
        roi_align_levels(levels, rois, level_of.float(), 7, SCALES)
    with pytest.raises(ValueError, match=r"level_of must have shape \(40,\), got \(39,\)"):
        roi_align_levels(levels, rois, level_of[1:], 7, SCALES)
    with pytest.raises(ValueError, match="one type, one number of images and one number of channels"):
        roi_align_levels([*levels[:2], levels[2].double()], rois, level_of, 7, SCALES)


def test_levels_keep_torchs_contract() -> None:
    levels, rois, level_of = pyramid()
    leaves = [level.requires_grad_() for level in levels]
    torch.library.opcheck(torch.ops.hpcai500.roi_align_levels.default, (leaves, rois, level_of, SCALES, 2, 3, 2, True))
    shapes = [[level.shape[axis] for level in levels] for axis in (2, 3)]
    backward = (torch.randn(40, 3, 2, 3), rois, level_of, 2, *shapes, [False] * 3, SCALES, 2, True)
    torch.library.opcheck(torch.ops.hpcai500.roi_align_levels_backward.default, backward)


# --- what surrounds the CUDA kernels, where no device is


@pytest.fixture
def pretended_device(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A mock of the CUDA kernels, by those of the CPU: no device is here, and what is called around them is checked.

    As the kernels do, a roi of no level gives NaN and no gradient, and sums are kept in the rois' type. Returns what
    was called.
    """
    called: list[str] = []

    def pool(
        levels: list[Tensor],
        rois: Tensor,
        level_of: Tensor,
        out: Tensor,
        *,
        spatial_scales: list[float],
        device: int,
        stream: int,
        **sampling: Any,
    ) -> None:
        called.append("roi_align_levels_cuda")
        assert have_one_format(levels)
        out.fill_(NAN)
        for level, (features, scale) in enumerate(zip(levels, spatial_scales, strict=True)):
            rows = level_of.eq(level).numpy()
            part = np.empty((rows.sum(), *out.shape[1:]), np.float32)
            _core.roi_align(features.numpy(), rois.numpy()[rows], part, spatial_scale=scale, **sampling, threads=1)
            out.numpy()[rows] = part

    def spread(
        gradient: Tensor,
        rois: Tensor,
        level_of: Tensor,
        out: list[Tensor],
        *,
        spatial_scales: list[float],
        device: int,
        stream: int,
        **sampling: Any,
    ) -> None:
        called.append("roi_align_levels_backward_cuda")
        assert have_one_format(out)
        for level, (result, scale) in enumerate(zip(out, spatial_scales, strict=True)):
            rows = level_of.eq(level).numpy()
            _core.roi_align_backward(
                gradient.numpy()[rows],
                rois.numpy()[rows],
                result.numpy(),
                spatial_scale=scale,
                **sampling,
                threads=1,
            )

    def thin_out(
        boxes: Tensor,
        segments: list[int],
        keep: Tensor,
        workspace: Tensor,
        *,
        iou_threshold: float,
        device: int,
        stream: int,
    ) -> None:
        called.append("nms_segments_cuda")
        assert len(workspace) == len(boxes) == sum(segments)
        groups = torch.arange(len(segments)).repeat_interleave(torch.tensor(segments))
        keep.zero_()
        keep[batched_nms(boxes, torch.arange(len(boxes), 0.0, -1), groups, iou_threshold)] = 1

    mocks = {"roi_align_levels_cuda": pool, "roi_align_levels_backward_cuda": spread, "nms_segments_cuda": thin_out}
    for name, mock in mocks.items():
        monkeypatch.setattr(_core, name, mock)
    monkeypatch.setattr(_core, "cuda_architectures", lambda: ["80"])
    monkeypatch.setattr(_core, "nms_segments_cuda_workspace", sum)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=0))
    return called


def have_one_format(levels: list[Tensor]) -> bool:
    formats = torch.contiguous_format, torch.channels_last
    return any(all(level.is_contiguous(memory_format=one) for level in levels) for one in formats)


@pytest.mark.parametrize("formats", [[FIRST] * 3, [LAST] * 3, [FIRST, LAST, FIRST]], ids=["first", "last", "mixed"])
def test_what_surrounds_the_cuda_kernels_gives_the_same_by_one_call(
    pretended_device: list[str], formats: list[torch.memory_format]
) -> None:
    levels, rois, level_of = pyramid()
    # Of one pixel: both formats at once.
    levels.append(torch.randn(2, 3, 1, 1))
    scales = [*SCALES, 1 / 64]
    level_of[::5] = 3
    levels = [level.contiguous(memory_format=one) for level, one in zip(levels, [*formats, FIRST], strict=True)]
    sampling = (2, False)
    expected = pooled_and_gradients(
        lambda leaves: roi_align_levels(leaves, rois, level_of, (3, 5), scales, *sampling), levels
    )
    pooled = _pool_on_cuda(levels, rois, level_of, scales, 3, 5, *sampling)
    # Layouts differ in the order of sums.
    bound = 0 if len(set(formats)) == 1 else 1e-5
    torch.testing.assert_close(pooled, expected[0], rtol=bound, atol=bound)
    slopes = torch.randn(pooled.shape, generator=torch.Generator().manual_seed(1))
    shapes = [[level.shape[axis] for level in levels] for axis in (2, 3)]
    last = [one == LAST for one in formats] + [False]
    gradients = _spread_on_cuda(slopes, rois, level_of, 2, *shapes, last, scales, *sampling)
    for found, gradient in zip(gradients, expected[1:], strict=True):
        torch.testing.assert_close(found, gradient, rtol=bound, atol=bound)
        assert found.stride() == gradient.stride()
    boxes = sorted_boxes(3, 20, 2)
    assert torch.equal(_sorted_nms_on_cuda(boxes, [7, 0, 13], 0.3), sorted_nms(boxes, [7, 0, 13], 0.3))
    assert pretended_device == ["roi_align_levels_cuda", "roi_align_levels_backward_cuda", "nms_segments_cuda"]


# --- where torchvision can be imported


@pytest.mark.parametrize("ratio", [-1, 1, 2, 3])
@pytest.mark.parametrize("aligned", [False, True])
@in_both_formats
def test_it_pools_what_torchvision_pools(ratio: int, aligned: bool, memory_format: torch.memory_format) -> None:
    try:
        from torchvision import ops
    except (ImportError, RuntimeError) as error:
        pytest.skip(f"torchvision does not import beside this torch: {str(error).splitlines()[0]}")
    generator = torch.Generator().manual_seed(5)
    features = torch.randn(2, 37, 25, 30, generator=generator)
    places = torch.rand(80, 4, generator=generator) * 140 - 20
    if ratio < 1:
        # torchvision itself fails where only one side of a roi is negative.
        places[:, 2:] = places[:, :2] + (places[:, 2:] - places[:, :2]).abs()
    rois = torch.cat([torch.arange(80)[:, None] % 2, places], dim=1)
    results = []
    for function, kept in ((roi_align, features.contiguous(memory_format=memory_format)), (ops.roi_align, features)):
        leaf = kept.clone(memory_format=torch.preserve_format).requires_grad_()
        pooled = function(leaf, rois, (7, 5), 0.25, ratio, aligned)
        pooled.square().sum().backward()
        results.append((pooled.detach(), leaf.grad))
    torch.testing.assert_close(results[0], results[1], rtol=1e-4, atol=1e-4)
