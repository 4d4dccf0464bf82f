"""On a CUDA device, operators and detector give what they give on the CPU, and a step waits for nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

import pytest
import torch
from tiny_detector import bright_squares, tiny_detector
from torch import Tensor

from hpcai500 import _core
from hpcai500.workloads.models.detector import Targets
from hpcai500.workloads.operators import batched_nms, nms, roi_align, roi_align_levels, sorted_nms

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    pytest.mark.skipif(not _core.cuda_architectures(), reason="no CUDA device can be used by a build without CUDA"),
]
in_both_formats = pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])


# --- operators


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


@in_both_formats
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
    torch.testing.assert_close(pooled, torch.full_like(pooled, 2))


def test_determinism_that_was_asked_for_is_not_feigned() -> None:
    features = torch.ones(1, 2, 8, 8, device="cuda", requires_grad=True)
    pooled = roi_align(features, torch.tensor([[0.0, 1, 1, 6, 6]], device="cuda"), 2)
    torch.use_deterministic_algorithms(True)
    try:
        with pytest.raises(RuntimeError, match="sums in no fixed order on a CUDA device"):
            pooled.sum().backward()
    finally:
        torch.use_deterministic_algorithms(False)


def test_the_operators_keep_torchs_contract_there() -> None:
    features = torch.randn(1, 3, 8, 8, device="cuda", requires_grad=True)
    rois = torch.tensor([[0.0, 1, 1, 6, 6]], device="cuda")
    torch.library.opcheck(torch.ops.hpcai500.roi_align.default, (features, rois, 1.0, 2, 2, 2, True))
    boxes, scores = random_boxes(30)
    torch.library.opcheck(torch.ops.hpcai500.nms.default, (boxes.cuda(), scores.cuda(), None, 0.5))


@contextmanager
def no_waiting() -> Iterator[None]:
    """Whatever makes the host wait for the device raises."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize(
    ("images", "lists", "thresholds"),
    [(3, [2000, 0, 2000, 1000], (0.0, 0.7)), (2, [4500, *[40] * 150], (0.5,))],
    ids=["lists", "more and longer ones than one launch takes"],
)
def test_lists_are_thinned_out_as_on_the_cpu(images: int, lists: list[int], thresholds: tuple[float, ...]) -> None:
    generator = torch.Generator().manual_seed(3)
    corners = torch.rand(images, sum(lists), 2, generator=generator) * 200
    boxes = torch.cat([corners, corners + torch.rand(images, sum(lists), 2, generator=generator) * 30], dim=2)
    boxes[:, ::7] = torch.nan
    on_device = boxes.cuda()
    for threshold in thresholds:
        with no_waiting():
            there = sorted_nms(on_device, lists, threshold)
        assert there.cpu().equal(sorted_nms(boxes, lists, threshold))
    assert sorted_nms(on_device[:0], lists, 0.5).shape == (0, sum(lists))


def kernels_of(run: Callable[[], object]) -> list[str]:
    """The names of our kernels that `run` starts."""
    run()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        run()
        torch.cuda.synchronize()
    names = [event.name for event in profile.events()]
    return [name for name in names if "hpcai500::" in name]


def test_all_images_and_levels_are_one_launch() -> None:
    boxes = torch.rand(4, 300, 4, device="cuda")
    started = kernels_of(lambda: sorted_nms(boxes, [100, 150, 50], 0.5))
    assert ["mark_overlaps" in started[0], "decide" in started[1], len(started)] == [True, True, 2]
    levels = [torch.rand(2, 8, 32 >> k, 32 >> k, device="cuda") for k in range(4)]
    rois = torch.tensor([[0.0, 1, 1, 20, 20]] * 4, device="cuda")
    started = kernels_of(lambda: roi_align_levels(levels, rois, torch.arange(4, device="cuda"), 7, [1.0] * 4))
    assert len(started) == 1
    assert "pool_channels_first" in started[0]


@in_both_formats
def test_a_roi_of_no_level_gives_nan_and_no_gradient(memory_format: torch.memory_format) -> None:
    levels = [torch.ones(1, 4, side, side, device="cuda") for side in (8, 4)]
    levels = [level.contiguous(memory_format=memory_format).requires_grad_() for level in levels]
    rois = torch.tensor([[0.0, 0, 0, 3, 3]] * 4, device="cuda")
    level_of = torch.tensor([-1, 0, 2, 2**32], device="cuda")
    pooled = roi_align_levels(levels, rois, level_of, 2, [1.0, 0.5])
    assert pooled.isnan().flatten(1).all(dim=1).tolist() == [True, False, True, True]
    assert pooled[1].eq(1).all()
    pooled[[0, 2, 3]].sum().backward()
    assert not any(level.grad is None or level.grad.any() for level in levels)


@in_both_formats
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_rois_are_pooled_from_their_levels_as_on_the_cpu(
    memory_format: torch.memory_format, dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(9)
    levels = [torch.randn(2, 5, 24 // 2**k, 32 // 2**k, generator=generator).to(dtype) for k in range(3)]
    corners = torch.rand(40, 2, generator=generator) * 50
    rois = torch.cat([corners, corners + torch.rand(40, 2, generator=generator) * 30], dim=1)
    rois = torch.cat([torch.arange(40)[:, None] % 2, rois], dim=1)
    level_of = torch.randint(0, 3, (40,), generator=generator)
    results = []
    for device in ("cpu", "cuda"):
        leaves = [level.to(device).clone(memory_format=memory_format).requires_grad_() for level in levels]
        pooled = roi_align_levels(leaves, rois.to(device), level_of.to(device), 7, [0.5, 0.25, 0.125], 2)
        pooled.square().sum().backward()
        results.append([pooled.detach().cpu(), *(leaf.grad.cpu() for leaf in leaves if leaf.grad is not None)])
    tolerance = 5e-2 if dtype == torch.bfloat16 else 1e-4
    for found, expected in zip(results[1], results[0], strict=True):
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


# --- the detector


@pytest.mark.parametrize("images", [1, 4])
def test_a_training_step_waits_for_nothing(images: int) -> None:
    model = tiny_detector().cuda().train()
    batch, targets = bright_squares(images)
    batch = batch.cuda()
    for warm in (False, True):
        with no_waiting() if warm else nullcontext():
            sum(model(batch, targets.to(batch.device)).values()).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_losses_and_gradients_are_those_of_the_cpu() -> None:
    """With the same keys, as those of a device are others; the convolutions differ in their last bits."""
    model = tiny_detector().train()
    batch, targets = bright_squares(3)
    keys = targets.keys(600)
    results = []
    for device in ("cpu", "cuda"):
        model.zero_grad()
        model.to(device)
        *levels, logits, codes = model.dense(batch.to(device))
        there = targets.to(torch.device(device))
        found = model.losses(levels, logits, codes, (48, 64), there, keys.to(device))
        sum(found.values()).backward()
        gradients = {name: parameter.grad.cpu() for name, parameter in model.named_parameters()}
        results.append({**{name: loss.detach().cpu() for name, loss in found.items()}, **gradients})
    for name, expected in results[0].items():
        torch.testing.assert_close(results[1][name], expected, rtol=2e-2, atol=1e-3)


def test_an_images_keys_do_not_depend_on_how_many_are_drawn() -> None:
    """In the reference an image has 220,968 anchors, and some 2,000 candidates beside them."""
    place = torch.zeros(1, 1, 4, device="cuda"), torch.zeros(1, 1, dtype=torch.int64, device="cuda")
    few, many = (Targets(*place, torch.tensor([5])).keys(count) for count in (2010, 220_968))
    assert torch.equal(few, many[:, :2010])
