"""RoIAlign and its gradient: equal to the definition, in every type, layout and number of threads."""

from __future__ import annotations

from pathlib import Path

import detection_reference as reference
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from hpcai500.workloads.operators import roi_align

Case = tuple[Tensor, Tensor, tuple[int, int], float, int, bool]


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
    expected = value_and_gradient(reference.roi_align, *case)
    ours = value_and_gradient(roi_align, *case)
    torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-5)
    for dtype in (torch.float16, torch.bfloat16):
        expected = value_and_gradient(reference.roi_align, features.to(dtype), *arguments)
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

    def pool(features: Tensor) -> Tensor:
        return roi_align(features, rois, (3, 2), 0.5, sampling_ratio, aligned)

    assert torch.autograd.gradcheck(pool, features.requires_grad_())
    assert torch.autograd.gradcheck(pool, channels_last(features.detach()).requires_grad_())
    assert torch.autograd.gradgradcheck(pool, features)


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
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


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_the_operators_keep_torchs_contract(memory_format: torch.memory_format) -> None:
    features, rois = example()
    leaf = features.contiguous(memory_format=memory_format).requires_grad_()
    torch.library.opcheck(torch.ops.hpcai500.roi_align.default, (leaf, rois, 0.5, 2, 3, 2, True))
    gradient = torch.randn(4, 5, 2, 3, requires_grad=True)
    last = memory_format == torch.channels_last
    arguments = (gradient, rois, 2, 11, 13, last, 0.5, 2, True)
    torch.library.opcheck(torch.ops.hpcai500.roi_align_backward.default, arguments)


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
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


def test_wrong_arguments_are_named() -> None:
    features, rois = example()
    misplaced = rois.clone()
    misplaced[2, 0] = 2
    cases = [
        (
            ValueError,
            r"rois\[2\] is of image 2.*the features are of 2 images",
            (features, misplaced),
        ),
        (ValueError, r"rois must have shape \(k, 5\)", (features, rois[:, :4])),
        (ValueError, "features must have 4 axes, got shape", (features[0], rois)),
        (ValueError, "sampling_ratio must be at most 1024", (features, rois, 2, 1.0, 10**6)),
        (ValueError, "output_size must be in", (features, rois, (0, 2))),
        (ValueError, "output_size must be in", (features, rois[:1], (2000, 1))),
        (ValueError, "spatial_scale must be finite and above 0, got nan", (features, rois, 2, float("nan"))),
        (TypeError, "features must be float32, float16, bfloat16 or float64, got torch.int64", (features.long(), rois)),
        (TypeError, "rois must be floating point, got torch.int64", (features, rois.long())),
    ]
    for kind, message, arguments in cases:
        with pytest.raises(kind, match=message):
            roi_align(*(arguments if len(arguments) > 2 else (*arguments, 2)))  # type: ignore[arg-type]
