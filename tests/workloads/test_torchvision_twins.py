"""Where torchvision can be imported, its operators and ours agree."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch

from hpcai500.workloads.operators import batched_nms, nms, roi_align


@pytest.fixture(scope="module")
def ops() -> ModuleType:
    try:
        from torchvision import ops
    except (ImportError, RuntimeError) as error:
        pytest.skip(f"torchvision does not import beside this torch: {str(error).splitlines()[0]}")
    return ops


def test_nms_keeps_what_torchvision_keeps(ops: ModuleType) -> None:
    generator = torch.Generator().manual_seed(4)
    corners = torch.randint(0, 40, (2000, 2), generator=generator).float()
    boxes = torch.cat([corners, corners + torch.randint(0, 12, (2000, 2), generator=generator)], dim=1)
    scores = torch.randint(0, 500, (2000,), generator=generator).float()
    groups = torch.randint(0, 4, (2000,), generator=generator)
    for threshold in (0.0, 1 / 3, 0.5, 0.7):
        assert nms(boxes, scores, threshold).equal(ops.nms(boxes, scores, threshold))
        theirs = ops.batched_nms(boxes, scores, groups, threshold)
        assert batched_nms(boxes, scores, groups, threshold).sort().values.equal(theirs.sort().values)


@pytest.mark.parametrize("ratio", [-1, 1, 2, 3])
@pytest.mark.parametrize("aligned", [False, True])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_roi_align_pools_what_torchvision_pools(
    ops: ModuleType, ratio: int, aligned: bool, memory_format: torch.memory_format
) -> None:
    generator = torch.Generator().manual_seed(5)
    features = torch.randn(2, 37, 25, 30, generator=generator)
    places = torch.rand(80, 4, generator=generator) * 140 - 20
    if ratio < 1:
        # torchvision itself fails where only one side of a roi is negative.
        places[:, 2:] = places[:, :2] + (places[:, 2:] - places[:, :2]).abs()
    rois = torch.cat([torch.arange(80)[:, None] % 2, places], dim=1)
    results = []
    for function, given in ((roi_align, features.contiguous(memory_format=memory_format)), (ops.roi_align, features)):
        leaf = given.clone(memory_format=torch.preserve_format).requires_grad_()
        pooled = function(leaf, rois, (7, 5), 0.25, ratio, aligned)
        pooled.square().sum().backward()
        results.append((pooled.detach(), leaf.grad))
    torch.testing.assert_close(results[0], results[1], rtol=1e-4, atol=1e-4)
