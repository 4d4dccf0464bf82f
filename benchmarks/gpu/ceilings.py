"""The ceilings of `hpcai500 micro` against the vendor's libraries called directly, in the same run.

GEMM: cuBLAS through torch.matmul; CONV: cuDNN through torch.nn.functional.conv2d, in both layouts; copy: cudaMemcpy
through Tensor.copy_, and a kernel that reads and writes each element. micro's own search chooses its call first, as it
does for users; then that call and the direct ones take turns. micro has nothing under it but these libraries, so the
ratio is near 1 by construction: what it proves is that our ceilings are not slack, and that a fraction of a ceiling in
the other tables is a fraction of what the vendor's own libraries reach.
"""

from __future__ import annotations

import statistics
from typing import Any

import torch
from clock import Call, timed_all, turns
from options import Options
from rows import ratio_row, without_rival
from torch.nn import functional as F

from hpcai500.comm.communicator import LocalCommunicator
from hpcai500.measure.bandwidth import copy_bytes
from hpcai500.measure.host import available_cores
from hpcai500.measure.micro import (
    PRECISIONS,
    MeasuringJob,
    Precision,
    arithmetic,
    available_bytes,
    fastest,
    lacking,
    operand,
)
from hpcai500.measure.products import Convolution, Gemm
from hpcai500.progress import silent

# A square that fills any device, and a layer of ResNet-50's third stage written out, 128 images.
_GEMMS = (Gemm(8192, 8192, 8192), Gemm(25088, 256, 2304))
_SMALL_GEMMS = (Gemm(64, 64, 64),)
# The 3 x 3 layers of ResNet-50's first and third stage, 128 images.
_CONVOLUTIONS = (
    Convolution("forward", (128, 64, 56, 56), (64, 64, 3, 3), (1, 1), (1, 1)),
    Convolution("forward", (128, 256, 14, 14), (256, 256, 3, 3), (1, 1), (1, 1)),
)
_SMALL_CONVOLUTIONS = (Convolution("forward", (2, 8, 8, 8), (8, 8, 3, 3), (1, 1), (1, 1)),)
_SEARCH_SECONDS, _SMALL_SEARCH_SECONDS = 1.0, 0.05
# Beyond any device's caches.
_COPY_BYTES, _SMALL_COPY_BYTES = 1 << 30, 1 << 20

Row = dict[str, Any]


def measure(options: Options) -> dict[str, object]:
    """GEMM and CONV in each precision that the device has, and copy."""
    job = _job(options)
    rows: list[Row] = []
    ratios: list[Row] = []
    for precision in PRECISIONS.values():
        if why := lacking(precision, options.device):
            ratios.append(without_rival(f"GEMM and CONV, {precision.name}", "the vendor's libraries", why))
            continue
        for shape in _SMALL_GEMMS if options.quick else _GEMMS:
            _compare(f"GEMM {precision.name}, {shape.name}", shape, precision, job, options, rows, ratios)
        for layer in _SMALL_CONVOLUTIONS if options.quick else _CONVOLUTIONS:
            _compare(f"CONV {precision.name}, {layer.name}", layer, precision, job, options, rows, ratios)
    _compare_copies(options, rows, ratios)
    return {"tables": {"Ceilings": rows}, "ratios": ratios}


def gemm_ceiling(precision: str, options: Options) -> float | None:
    """FLOPS of the fastest large product in `precision`; None where the device has no such."""
    one = PRECISIONS.get(precision)
    if one is None or lacking(one, options.device):
        return None
    shapes = _SMALL_GEMMS if options.quick else _GEMMS[:1]
    entry = _search(shapes, one, _job(options), options)
    return float(entry["value"]) if entry else None


def _job(options: Options) -> MeasuringJob:
    return MeasuringJob(LocalCommunicator(), options.device, available_cores(), say=lambda line: None)


def _search(shapes: Any, precision: Precision, job: MeasuringJob, options: Options) -> dict[str, Any] | None:
    seconds = _SMALL_SEARCH_SECONDS if options.quick else _SEARCH_SECONDS
    with silent(1, "", "") as bar:
        return fastest(shapes, precision, job, seconds, bar)


def _compare(
    case: str,
    problem: Gemm | Convolution,
    precision: Precision,
    job: MeasuringJob,
    options: Options,
    rows: list[Row],
    ratios: list[Row],
) -> None:
    """One shape: the call that micro's search takes for it against the direct ones."""
    entry = _search([problem], precision, job, options)
    if entry is None:
        ratios.append(without_rival(case, "the vendor's libraries", "takes too long here to be a ceiling"))
        return
    with arithmetic(precision):
        prepared = problem.prepare(precision, options.device)
        ours = f"ours: {entry['call']}"
        calls: dict[str, Call] = {ours: prepared.calls[entry["call"]], **_direct(problem, precision, options.device)}
        seconds = turns(timed_all(calls, options.device), options)
    rate = problem.flops / statistics.median(seconds[ours])
    rows.append({"case": case, "call": entry["call"], "flops_per_second": rate, "bytes_per_second": None})
    ratios.append(ratio_row(case, seconds, ours, options))


def _direct(problem: Gemm | Convolution, precision: Precision, device: torch.device) -> dict[str, Call]:
    if isinstance(problem, Gemm):
        left, right = (operand(s, precision, device) for s in ((problem.m, problem.k), (problem.k, problem.n)))
        return {"torch.matmul": lambda: torch.matmul(left, right)}
    images, weight = operand(problem.images, precision, device), operand(problem.weight, precision, device)
    layouts = {"NCHW": torch.contiguous_format, "NHWC": torch.channels_last}

    def call(layout: torch.memory_format) -> Call:
        x, w = images.contiguous(memory_format=layout), weight.contiguous(memory_format=layout)
        return lambda: F.conv2d(x, w, stride=problem.stride, padding=problem.padding)

    return {f"F.conv2d, {name}": call(layout) for name, layout in layouts.items()}


def _compare_copies(options: Options, rows: list[Row], ratios: list[Row]) -> None:
    size = _SMALL_COPY_BYTES if options.quick else copy_bytes(_COPY_BYTES // 4, available_bytes(options.device, 1), 1)
    source = torch.arange(size // 4, dtype=torch.int32, device=options.device)
    target = torch.empty_like(source)
    ours = "ours: Tensor.copy_"
    calls: dict[str, Call] = {
        ours: lambda: target.copy_(source),
        "cudaMemcpy by Tensor.copy_ of bytes": lambda: target.view(torch.uint8).copy_(source.view(torch.uint8)),
        "torch.add into the target": lambda: torch.add(source, 0, out=target),
    }
    seconds = turns(timed_all(calls, options.device), options)
    case = f"copy of {size} bytes"
    rate = 2 * size / statistics.median(seconds[ours])
    rows.append({"case": case, "call": "Tensor.copy_", "flops_per_second": None, "bytes_per_second": rate})
    ratios.append(ratio_row(case, seconds, ours, options))
