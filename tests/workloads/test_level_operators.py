"""The operators of fixed shapes: NMS of many sorted lists at once, and RoIAlign over all levels of a pyramid."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from hpcai500 import _core
from hpcai500.workloads.models.detector import _uniform
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

NAN = float("nan")
SCALES = [0.5, 0.25, 0.125]


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


def test_wrong_lists_are_named() -> None:
    with pytest.raises(ValueError, match=r"segments must add up to the 3 boxes, got \[1, 1\]"):
        sorted_nms(torch.zeros(1, 3, 4), [1, 1], 0.5)
    with pytest.raises(ValueError, match=r"boxes must have shape \(N, n, 4\), got \(3, 4\)"):
        sorted_nms(torch.zeros(3, 4), [3], 0.5)
    with pytest.raises(TypeError, match=r"boxes must be floating point, got torch\.int64"):
        sorted_nms(torch.zeros(1, 3, 4, dtype=torch.int64), [3], 0.5)
    with pytest.raises(ValueError, match=r"iou_threshold must be in \[0, 1\]"):
        sorted_nms(torch.zeros(1, 3, 4), [3], 2.0)


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


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
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
    with pytest.raises(TypeError, match=r"level_of must be int64, got torch\.float32"):
        roi_align_levels(levels, rois, level_of.float(), 7, SCALES)
    with pytest.raises(ValueError, match=r"level_of must have shape \(40,\), got \(39,\)"):
        roi_align_levels(levels, rois, level_of[1:], 7, SCALES)
    with pytest.raises(ValueError, match="one type, one number of images and one number of channels"):
        roi_align_levels([*levels[:2], levels[2].double()], rois, level_of, 7, SCALES)


def test_both_keep_torchs_contract() -> None:
    levels, rois, level_of = pyramid()
    leaves = [level.requires_grad_() for level in levels]
    torch.library.opcheck(torch.ops.hpcai500.roi_align_levels.default, (leaves, rois, level_of, SCALES, 2, 3, 2, True))
    shapes = [[level.shape[axis] for level in levels] for axis in (2, 3)]
    backward = (torch.randn(40, 3, 2, 3), rois, level_of, 2, *shapes, [False] * 3, SCALES, 2, True)
    torch.library.opcheck(torch.ops.hpcai500.roi_align_levels_backward.default, backward)
    torch.library.opcheck(torch.ops.hpcai500.sorted_nms.default, (sorted_boxes(2, 9, 1), [4, 5], 0.5))
    torch.library.opcheck(_uniform, (torch.tensor([1, 2]), 5, torch.device("cpu")))


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


LAST = torch.channels_last
FIRST = torch.contiguous_format


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
