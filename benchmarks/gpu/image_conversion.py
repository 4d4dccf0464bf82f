"""Normalising, casting and laying out batches of images on the device: one kernel against torch's expression of it.

Two ratios a case. One rival is torch's `((images - mean) / std).to(half).contiguous(memory_format=...)`. The other is a
copy: the share that ours reaches of the bandwidth of Tensor.copy_, which reads and writes as many bytes as the kernel.
Before they are timed, both must agree. What the whole input pipelines deliver is measured in input_alone.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from clock import Call, timed_all, turns
from contest import speed_rows
from options import Options
from rows import Target, ratio_row
from torch import Tensor

from hpcai500.data.device_batches import convert_images

_OURS, _TORCH, _COPY = "ours", "torch's expression", "copy of as many bytes"
_SHARE = Target(least=0.9)


@dataclass(frozen=True)
class Case:
    """A batch, and what it becomes."""

    name: str
    shape: tuple[int, int, int, int]
    source: torch.dtype
    source_format: torch.memory_format
    target: torch.dtype
    target_format: torch.memory_format


_FIRST, _LAST = torch.contiguous_format, torch.channels_last
# Larger than any cache.
_CLIMATE, _PICTURES = (4, 16, 768, 1152), (256, 3, 224, 224)
_CASES = (
    Case("16 channels, float32 to bf16, to channels last", _CLIMATE, torch.float32, _FIRST, torch.bfloat16, _LAST),
    Case("16 channels, float32 to fp16, to channels last", _CLIMATE, torch.float32, _FIRST, torch.float16, _LAST),
    Case("16 channels, float32 to bf16, channels first", _CLIMATE, torch.float32, _FIRST, torch.bfloat16, _FIRST),
    Case("16 channels, float32, to channels last", _CLIMATE, torch.float32, _FIRST, torch.float32, _LAST),
    Case("3 channels, uint8 to bf16, channels last", _PICTURES, torch.uint8, _LAST, torch.bfloat16, _LAST),
    Case("3 channels, uint8 to fp16, channels first", _PICTURES, torch.uint8, _FIRST, torch.float16, _FIRST),
    Case("3 channels, float32 to bf16, to channels last", _PICTURES, torch.float32, _FIRST, torch.bfloat16, _LAST),
)


def measure(options: Options) -> dict[str, object]:
    """Each case in turn."""
    rows: list[dict[str, Any]] = []
    ratios: list[dict[str, Any]] = []
    for case in _CASES:
        calls, moved = _contestants(case, options)
        seconds = turns(timed_all(calls, options.device), options)
        rows += speed_rows({"case": case.name, "bytes": moved}, seconds, {}, {"bytes": moved})
        ratios.append(ratio_row(case.name, seconds, _OURS, options, rival=_TORCH))
        ratios.append(ratio_row(f"{case.name}: share of copy bandwidth", seconds, _OURS, options, _SHARE, rival=_COPY))
    return {"tables": {"Conversion of images": rows}, "ratios": ratios}


def _contestants(case: Case, options: Options) -> tuple[dict[str, Call], int]:
    """The calls, and the bytes that a conversion reads and writes."""
    shape = (2, case.shape[1], 32, 48) if options.quick else case.shape
    images = _images(shape, case, options.device)
    out = torch.empty(shape, dtype=case.target, device=options.device, memory_format=case.target_format)
    mean, std = [100.0 + c for c in range(shape[1])], [50.0 + c for c in range(shape[1])]
    theirs_mean, theirs_std = (torch.tensor(v, device=options.device).view(1, -1, 1, 1) for v in (mean, std))

    def ours() -> Tensor:
        return convert_images(images, mean, std, out=out)

    def by_torch() -> Tensor:
        normalised = (images - theirs_mean) / theirs_std
        return normalised.to(case.target).contiguous(memory_format=case.target_format)

    _require_alike(case, ours(), by_torch())
    moved = images.numel() * images.element_size() + out.numel() * out.element_size()
    # Read once and written once.
    source = torch.zeros(moved // 2, dtype=torch.uint8, device=options.device)
    target = torch.empty_like(source)
    return {_OURS: ours, _TORCH: by_torch, _COPY: lambda: target.copy_(source)}, moved


def _images(shape: tuple[int, ...], case: Case, device: torch.device) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    levels = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
    return levels.to(case.source).contiguous(memory_format=case.source_format).to(device)


def _require_alike(case: Case, ours: Tensor, theirs: Tensor) -> None:
    """Torch rounds the difference and the quotient, and then to the short type; ours rounds once less."""
    # Of a short type: one step at the largest value, which is below 4.
    bound = {torch.float32: 1e-5, torch.float16: 2**-9, torch.bfloat16: 2**-6}[case.target]
    torch.testing.assert_close(ours.float(), theirs.float(), rtol=0, atol=bound)
