"""NMS and RoIAlign on the device against torchvision's operators where it imports, else against plain torch.

Shapes are those of a step of Extreme Weather Analytics: proposals in clusters, 512 regions over four levels of 256
channels. Before they are timed, contestants must agree with ours; one that does not is written down as wrong.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

import torch
from clock import Call, timed_all, turns
from contest import reason
from cpu_modules import cpu_module
from options import Options
from rows import ratio_row, without_rival
from torch import Tensor
from torchvision_here import why_not

from hpcai500.workloads.operators import nms, roi_align

_THRESHOLD = 0.7
_SIZE, _RATIO = 7, 2
_RIVAL = "torchvision"


def measure(options: Options) -> dict[str, object]:
    """NMS of growing numbers of boxes; RoIAlign forward, and with its backward pass."""
    ratios: list[dict[str, Any]] = []
    rows: list[dict[str, Any]] = []
    for count in (100,) if options.quick else (1000, 2000, 8000):
        boxes, scores = _clustered(count, options.device)
        calls = {name: _suppressing(one, boxes, scores) for name, one in _suppressors().items()}
        _compare(f"NMS of {count} boxes", calls, options, rows, ratios)
    for name, layout in {"channels last": torch.channels_last, "channels first": torch.contiguous_format}.items():
        maps, regions, strides = _pyramid(options, layout)
        for what, make in (("forward", _forward), ("forward and backward", _forward_backward)):
            pooling = {pooler: make(pool, maps, regions, strides) for pooler, pool in _poolers().items()}
            _compare(f"RoIAlign {what}, {name}", pooling, options, rows, ratios)
    return {"tables": {"Detection's operators": rows}, "ratios": ratios}


Suppress = Callable[[Tensor, Tensor, float], Tensor]
Pool = Callable[[Tensor, Tensor, int, float, int], Tensor]
Results = Callable[[], Sequence[Tensor]]


def _suppressors() -> dict[str, Suppress]:
    if why_not() is None:
        from torchvision import ops

        return {"ours": nms, _RIVAL: ops.nms}
    return {"ours": nms, "torch, matrix": cpu_module("detection_rivals").nms_matrix}


def _poolers() -> dict[str, Pool]:
    def ours(features: Tensor, regions: Tensor, size: int, scale: float, ratio: int) -> Tensor:
        return roi_align(features, regions, size, scale, ratio)

    if why_not() is None:
        from torchvision import ops

        return {"ours": ours, _RIVAL: ops.roi_align}
    return {"ours": ours, "torch, grid_sample": cpu_module("detection_rivals").roi_align_grid_sample}


def _suppressing(suppress: Suppress, boxes: Tensor, scores: Tensor) -> Results:
    return lambda: [suppress(boxes, scores, _THRESHOLD)]


def _forward(pool: Pool, maps: list[Tensor], regions: list[Tensor], strides: Sequence[int]) -> Results:
    def call() -> list[Tensor]:
        with torch.no_grad():
            return [pool(f, r, _SIZE, 1 / s, _RATIO) for f, r, s in zip(maps, regions, strides, strict=True)]

    return call


def _forward_backward(pool: Pool, maps: list[Tensor], regions: list[Tensor], strides: Sequence[int]) -> Results:
    weights = [
        torch.ones(len(r), f.shape[1], _SIZE, _SIZE, device=f.device) for f, r in zip(maps, regions, strict=True)
    ]

    def call() -> Sequence[Tensor]:
        pooled = [pool(f, r, _SIZE, 1 / s, _RATIO) for f, r, s in zip(maps, regions, strides, strict=True)]
        return torch.autograd.grad(pooled, maps, weights)

    return call


def _compare(
    case: str,
    calls: dict[str, Results],
    options: Options,
    rows: list[dict[str, Any]],
    ratios: list[dict[str, Any]],
) -> None:
    rival = next(name for name in calls if name != "ours")
    try:
        for mine, its in zip(calls["ours"](), calls[rival](), strict=True):
            torch.testing.assert_close(its, mine, rtol=1e-3, atol=1e-3)
    except (AssertionError, RuntimeError) as error:
        ratios.append(without_rival(case, rival, reason(error)))
        return
    plain: dict[str, Call] = dict(calls)
    seconds = turns(timed_all(plain, options.device), options)
    rows += [{"case": case, "contestant": name, "median_seconds": statistics.median(s)} for name, s in seconds.items()]
    ratios.append(ratio_row(case, seconds, "ours", options))


def _clustered(count: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Boxes in clusters around objects, as proposals lie, and a score each."""
    generator = torch.Generator().manual_seed(count)
    centres = (torch.rand(count // 20, 2, generator=generator) * torch.tensor([1152.0, 768.0])).repeat(20, 1)
    centres = centres + torch.randn(centres.shape, generator=generator) * 12
    sides = 32 * 4 ** torch.rand(len(centres), 2, generator=generator)
    boxes = torch.cat([centres - sides / 2, centres + sides / 2], dim=1)
    return boxes.to(device), torch.rand(len(centres), generator=generator).to(device)


def _pyramid(options: Options, layout: torch.memory_format) -> tuple[list[Tensor], list[Tensor], list[int]]:
    """Feature maps, the regions of each, and its stride."""
    height, width, channels, count = (256, 384, 8, 16) if options.quick else (768, 1152, 256, 512)
    strides = [4, 8, 16, 32]
    generator = torch.Generator().manual_seed(7)
    maps, regions = [], []
    for stride in strides:
        shape = (1, channels, height // stride, width // stride)
        features = torch.randn(shape, generator=generator).to(options.device).contiguous(memory_format=layout)
        maps.append(features.requires_grad_())
        sides = torch.full((count // len(strides), 2), 3.5 * stride)
        # Away from the border, where implementations differ by design.
        free = (torch.tensor([width, height]) - sides - 2 * stride).clamp(min=0)
        corners = stride + torch.rand(sides.shape, generator=generator) * free
        image = torch.zeros(len(sides), 1)
        regions.append(torch.cat([image, corners, corners + sides], dim=1).to(options.device))
    return maps, regions, strides
