"""On a CUDA device the operators give what they give on the CPU."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from hpcai500 import _core
from hpcai500.workloads.operators import batched_nms, nms, roi_align

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    pytest.mark.skipif(not _core.cuda_architectures(), reason="no CUDA device can be used by a build without CUDA"),
]


def random_boxes(count: int) -> tuple[Tensor, Tensor]:
    """Boxes of which many overlap, and scores with ties."""
    generator = torch.Generator().manual_seed(count)
    corners = torch.rand(count, 2, generator=generator) * 100
    boxes = torch.cat([corners, corners + torch.rand(count, 2, generator=generator) * 30], dim=1)
    return boxes, torch.randint(0, 1 + count // 2, (count,), generator=generator).float()


@pytest.mark.parametrize("count", [0, 1, 63, 64, 65, 4096, 4097, 9000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_same_boxes_stay(count: int, dtype: torch.dtype) -> None:
    boxes, scores = random_boxes(count)
    boxes, scores = boxes.to(dtype), scores.to(dtype)
    groups = torch.arange(count) % 3
    for threshold in (0.0, 0.3, 0.7):
        assert nms(boxes.cuda(), scores.cuda(), threshold).cpu().equal(nms(boxes, scores, threshold))
        grouped = batched_nms(boxes.cuda(), scores.cuda(), groups.cuda(), threshold)
        assert grouped.cpu().equal(batched_nms(boxes, scores, groups, threshold))


def test_numbers_that_are_none_meet_the_same_fate() -> None:
    nan, infinity = float("nan"), float("inf")
    boxes = torch.tensor(
        [[0.0, 0, 1, 1], [0, 0, 1, 1], [nan, 0, 1, 1], [0, 0, infinity, 1], [1, 1, 0, 0], [0, 0, 0, 0]]
    )
    scores = torch.tensor([0.9, nan, 1.0, 0.1, -0.0, 0.0])
    assert nms(boxes.cuda(), scores.cuda(), 0.0).cpu().equal(nms(boxes, scores, 0.0))


def pooled_and_gradient(features: Tensor, rois: Tensor, ratio: int, aligned: bool) -> tuple[Tensor, Tensor]:
    leaf = features.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    pooled = roi_align(leaf, rois, (3, 5), 0.5, ratio, aligned)
    pooled.nan_to_num().square().sum().backward()
    assert leaf.grad is not None
    return pooled.detach(), leaf.grad


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("ratio", "aligned"), [(2, False), (0, True)])
@pytest.mark.parametrize("channels", [70, 72], ids=["one by one", "16 bytes at once"])
def test_bins_and_gradients_agree(
    memory_format: torch.memory_format, dtype: torch.dtype, ratio: int, aligned: bool, channels: int
) -> None:
    generator = torch.Generator().manual_seed(3)
    features = torch.randn(2, channels, 21, 33, generator=generator).to(dtype).contiguous(memory_format=memory_format)
    places = torch.rand(60, 4, generator=generator) * 90 - 15
    rois = torch.cat([torch.arange(60)[:, None] % 2, places], dim=1)
    rois[0, 1], rois[1, 2], rois[2, 3] = float("nan"), float("inf"), 1e30
    ours = pooled_and_gradient(features.cuda(), rois.cuda(), ratio, aligned)
    expected = pooled_and_gradient(features, rois, ratio, aligned)
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-4}.get(dtype, 5e-2)
    for mine, cpu in zip(ours, expected, strict=True):
        torch.testing.assert_close(mine.cpu(), cpu, rtol=tolerance, atol=tolerance, equal_nan=True)
    assert ours[1].is_contiguous(memory_format=memory_format)


def test_a_roi_of_no_image_gives_nan_and_no_gradient() -> None:
    features = torch.ones(1, 2, 4, 4, device="cuda", requires_grad=True)
    rois = torch.tensor([[1.0, 0, 0, 3, 3], [-1, 0, 0, 3, 3], [float("nan"), 0, 0, 3, 3]], device="cuda")
    pooled = roi_align(features, rois, 2)
    assert pooled.isnan().all()
    pooled.sum().backward()
    assert features.grad is not None
    assert not features.grad.any()


def test_the_work_is_on_the_callers_stream() -> None:
    features, rois = torch.ones(1, 64, 64, 64, device="cuda"), torch.tensor([[0.0, 1, 1, 60, 60]], device="cuda")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        doubled = features * 2
        pooled = roi_align(doubled, rois, 7)
    assert not stream.query(), "the call waited for the device"
    stream.synchronize()
    assert pooled.eq(2).all()


def test_determinism_that_was_asked_for_is_not_feigned() -> None:
    features = torch.ones(1, 2, 8, 8, device="cuda", requires_grad=True)
    pooled = roi_align(features, torch.tensor([[0.0, 1, 1, 6, 6]], device="cuda"), 2)
    torch.use_deterministic_algorithms(True)
    try:
        with pytest.raises(RuntimeError, match="adds in no fixed order on a CUDA device"):
            pooled.sum().backward()
    finally:
        torch.use_deterministic_algorithms(False)


def test_the_operators_keep_torchs_contract_there() -> None:
    features = torch.randn(1, 3, 8, 8, device="cuda", requires_grad=True)
    rois = torch.tensor([[0.0, 1, 1, 6, 6]], device="cuda")
    torch.library.opcheck(torch.ops.hpcai500.roi_align.default, (features, rois, 1.0, 2, 2, 2, True))
    boxes, scores = random_boxes(30)
    torch.library.opcheck(torch.ops.hpcai500.nms.default, (boxes.cuda(), scores.cuda(), None, 0.5))
