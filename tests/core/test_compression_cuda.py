"""On a CUDA device the bucket functions give what they give on the CPU, to the bit, on the caller's stream."""

from __future__ import annotations

import pytest
import torch
from bucket_reference import some_tensors
from torch import Tensor

from hpcai500 import _core
from hpcai500.comm import kernels

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    pytest.mark.skipif(not _core.cuda_architectures(), reason="no CUDA device can be used by a build without CUDA"),
]


def hostile_tensors(count: int) -> list[Tensor]:
    """Odd sizes and layouts, then `count` small tensors, one of which has any bits."""
    generator = torch.Generator().manual_seed(count)
    tensors = [torch.from_numpy(t) for t in some_tensors(4)]
    tensors += [torch.randn(1 + i % 700, generator=generator) for i in range(count)]
    tensors.append(torch.randint(-(2**31), 2**31, (9000,), generator=generator, dtype=torch.int32).view(torch.float32))
    return tensors


def on_device(tensors: list[Tensor]) -> list[Tensor]:
    """Copies with the layout of the originals."""
    return [torch.empty_strided(t.shape, t.stride(), device="cuda").copy_(t) for t in tensors]


def assert_same_bits(device: Tensor, cpu: Tensor) -> None:
    """Equal, subnormal numbers and signs of zero included; a NaN may be any NaN."""
    device = device.cpu()
    if cpu.dtype.is_floating_point:
        nan = cpu.isnan()
        assert device.isnan().equal(nan)
        bits = torch.int16 if cpu.element_size() == 2 else torch.int32
        device, cpu = device[~nan].view(bits), cpu[~nan].view(bits)
    assert device.equal(cpu)


def assert_same_norms(device: Tensor, cpu: Tensor) -> None:
    torch.testing.assert_close(device.cpu(), cpu, rtol=1e-12, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("count", [3, 400])
def test_pack_and_unpack_are_the_cpus(dtype: torch.dtype, count: int) -> None:
    tensors = hostile_tensors(count)
    there, size = on_device(tensors), sum(t.numel() for t in tensors)
    out, norms = torch.empty(size, dtype=dtype), torch.empty(len(tensors), dtype=torch.float64)
    cuda_out, cuda_norms = torch.empty_like(out, device="cuda"), torch.empty_like(norms, device="cuda")
    kernels.pack(tensors, out, scale=0.3, norms=norms)
    kernels.pack(there, cuda_out, scale=0.3, norms=cuda_norms)
    assert_same_bits(cuda_out, out)
    assert_same_norms(cuda_norms, norms)
    kernels.unpack(out, tensors, scale=3.0, norms=norms)
    kernels.unpack(cuda_out, there, scale=3.0, norms=cuda_norms)
    for mine, cpu in zip(there, tensors, strict=True):
        assert_same_bits(mine, cpu)
    assert_same_norms(cuda_norms, norms)


@pytest.mark.parametrize("count", [3, 400])
def test_the_int8_form_and_its_residual_are_the_cpus(count: int) -> None:
    tensors = hostile_tensors(count)
    there, size = on_device(tensors), sum(t.numel() for t in tensors)
    out = torch.empty(kernels.quantised_bytes(size), dtype=torch.uint8)
    residual, norms = torch.full((size,), 1e-3), torch.empty(len(tensors), dtype=torch.float64)
    cuda_out, cuda_norms = torch.full_like(out, 77, device="cuda"), torch.empty_like(norms, device="cuda")
    cuda_residual = residual.cuda()
    for _ in range(2):
        kernels.quantise(tensors, out, scale=0.7, residual=residual, norms=norms)
        kernels.quantise(there, cuda_out, scale=0.7, residual=cuda_residual, norms=cuda_norms)
        assert_same_bits(cuda_out, out)
        assert_same_bits(cuda_residual, residual)
        assert_same_norms(cuda_norms, norms)
    for accumulate in (False, True):
        kernels.dequantise(out, tensors, scale=1.1, accumulate=accumulate, norms=norms)
        kernels.dequantise(cuda_out, there, scale=1.1, accumulate=accumulate, norms=cuda_norms)
        for mine, cpu in zip(there, tensors, strict=True):
            assert_same_bits(mine, cpu)
        assert_same_norms(cuda_norms, norms)


@pytest.mark.parametrize("ahead", range(4))
@pytest.mark.parametrize("before", range(4))
def test_addresses_may_be_of_any_alignment(ahead: int, before: int) -> None:
    tensors = [torch.randn(n + ahead)[ahead:] for n in (3, 9000, 4096, 1)]
    there = [torch.cat([t.new_zeros(ahead), t]).cuda()[ahead:] for t in tensors]
    size, norms = sum(t.numel() for t in tensors), torch.empty(4, dtype=torch.float64)
    cuda_norms = torch.empty_like(norms, device="cuda")
    for dtype in (torch.float32, torch.float16):
        out = torch.empty(size, dtype=dtype)
        cuda_out = torch.zeros(size + before, dtype=dtype, device="cuda")
        kernels.pack(tensors, out, norms=norms)
        kernels.pack(there, cuda_out[before:], norms=cuda_norms)
        assert_same_bits(cuda_out[before:], out)
        assert not cuda_out[:before].any()
        assert_same_norms(cuda_norms, norms)
        kernels.unpack(out, tensors)
        kernels.unpack(cuda_out[before:], there)
        for mine, cpu in zip(there, tensors, strict=True):
            assert_same_bits(mine, cpu)
    residual, coded = torch.zeros(size), torch.empty(kernels.quantised_bytes(size), dtype=torch.uint8)
    cuda_residual, cuda_coded = torch.zeros(size + before, device="cuda"), torch.empty_like(coded, device="cuda")
    kernels.quantise(tensors, coded, residual=residual, norms=norms)
    kernels.quantise(there, cuda_coded, residual=cuda_residual[before:], norms=cuda_norms)
    assert_same_bits(cuda_coded, coded)
    assert_same_bits(cuda_residual[before:], residual)
    assert_same_norms(cuda_norms, norms)


def test_a_call_can_be_captured_in_a_graph() -> None:
    gradient, out = torch.ones(9000, device="cuda"), torch.zeros(9000, dtype=torch.float16, device="cuda")
    norms, graph = torch.zeros(1, dtype=torch.float64, device="cuda"), torch.cuda.CUDAGraph()
    # A kernel is loaded by its first launch, which is none that a graph could hold.
    kernels.pack([gradient], out, norms=norms)
    with torch.cuda.graph(graph):
        kernels.pack([gradient], out, norms=norms)
    for value in (2.0, 3.0):
        gradient.fill_(value)
        graph.replay()
        assert out.eq(value).all()
        assert norms.item() == pytest.approx(value * 9000**0.5, rel=1e-12)


def test_norms_are_the_cpus_and_the_same_each_time() -> None:
    tensors = [torch.randn(3_000_000), torch.empty(0), torch.full((10_000,), 1e30), torch.full((10_000,), 1e-30)]
    norms = torch.empty(4, dtype=torch.float64)
    kernels.layer_norms(tensors, norms)
    there, runs = on_device(tensors), [torch.empty_like(norms, device="cuda") for _ in range(5)]
    for run in runs:
        kernels.layer_norms(there, run)
    assert_same_norms(runs[0], norms)
    assert all(run.equal(runs[0]) for run in runs)


def test_a_bucket_without_values_has_norms_of_zero() -> None:
    norms = torch.full((2,), 7.0, dtype=torch.float64, device="cuda")
    kernels.pack([torch.empty(0, device="cuda")] * 2, torch.empty(0, device="cuda"), norms=norms)
    assert norms.tolist() == [0, 0]


def test_the_work_is_on_the_callers_stream() -> None:
    gradient, out = torch.ones(4096, device="cuda"), torch.empty(4096, dtype=torch.float16, device="cuda")
    kernels.pack([gradient], out)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        gradient.mul_(2)
        kernels.pack([gradient], out)
    assert not stream.query(), "the call waited for the device"
    stream.synchronize()
    assert out.eq(2).all()


def test_more_tensors_than_a_table_has_are_refused() -> None:
    most = _core.compression_cuda_most_tensors()
    tensor = torch.ones(1, device="cuda")
    with pytest.raises(ValueError, match=f"at most {most} tensors with this build and driver, got {most + 1}"):
        kernels.pack([tensor] * (most + 1), torch.empty(most + 1, device="cuda"))
