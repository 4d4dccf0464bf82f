"""The torch face: views without copies, torch's types, and tensors that want gradients."""

from __future__ import annotations

import pytest
import torch

from hpcai500.comm import kernels


def gradients() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    tensors = [torch.randn(shape, generator=generator) for shape in ((64, 3, 7, 7), (64,), (), (0,), (5, 300))]
    tensors[0] = tensors[0].contiguous(memory_format=torch.channels_last)
    return tensors


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_bucket_goes_there_and_back(dtype: torch.dtype) -> None:
    sources = gradients()
    out = torch.empty(sum(t.numel() for t in sources) + 3, dtype=dtype)
    norms = torch.empty(len(sources), dtype=torch.float64)
    kernels.pack(sources, out, scale=8.0, norms=norms)
    torch.testing.assert_close(norms, torch.stack([t.double().norm() for t in sources]), rtol=1e-12, atol=0)
    first = sources[0].permute(0, 2, 3, 1).reshape(-1)
    assert out[: first.numel()].equal((first * 8).to(dtype))
    targets = [torch.full_like(t, 9) for t in sources]
    kernels.unpack(out, targets, scale=0.125, threads=1)
    for source, target in zip(sources, targets, strict=True):
        assert target.equal((source * 8).to(dtype).float() * 0.125)


def test_int8_feeds_back_what_it_lost() -> None:
    sources = gradients()
    count = sum(t.numel() for t in sources)
    out = torch.empty(kernels.quantised_bytes(count), dtype=torch.uint8)
    residual, norms = torch.zeros(count), torch.empty(len(sources), dtype=torch.float64)
    kernels.quantise(sources, out, residual=residual, norms=norms)
    targets = [torch.zeros_like(t) for t in sources]
    kernels.dequantise(out, targets)
    kernels.dequantise(out, targets, scale=-1.0, accumulate=True, norms=norms)
    assert not any(t.any() for t in targets)
    assert not norms.any()
    kernels.dequantise(out, targets)
    at = 0
    for source, target in zip(sources, targets, strict=True):
        order = (0, 2, 3, 1) if source.dim() == 4 else tuple(range(source.dim()))
        rest = residual[at : at + source.numel()]
        assert (target.permute(order).reshape(-1) + rest).allclose(source.permute(order).reshape(-1), atol=1e-6)
        at += source.numel()


def test_parameters_that_want_gradients_have_norms() -> None:
    weight = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
    norms = torch.empty(1, dtype=torch.float64)
    kernels.layer_norms([weight], norms)
    assert norms.item() == 5


def test_a_chunk_is_what_the_core_says() -> None:
    assert kernels.quantised_bytes(1) == kernels.quantised_bytes(kernels.QUANTISED_CHUNK)
    assert kernels.quantised_bytes(3 * kernels.QUANTISED_CHUNK) == 3 * kernels.QUANTISED_CHUNK_BYTES


def test_a_type_that_is_no_wire_is_refused() -> None:
    with pytest.raises(ValueError, match=r"out must be float32, float16 or bfloat16, got torch\.float64"):
        kernels.pack([torch.ones(2)], torch.empty(2, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"sources\[0\] must be dense"):
        kernels.pack([torch.ones(4)[::2]], torch.empty(2))
