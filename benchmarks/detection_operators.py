"""NMS and RoIAlign on the CPU against plain torch.

    python benchmarks/detection_operators.py [--rounds N] [--scale N] [--json FILE]

All contestants live in one process with one pool of threads and take turns; the ratio of each round is taken, and the
median of the ratios printed. Before that, each must give what ours gives. Peak memory is that of one call in a fresh
process, above what the process holds before it, results included.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from detection_rivals import nms_matrix, nms_shrinking, roi_align_gather, roi_align_grid_sample
from torch import Tensor

from hpcai500 import _core
from hpcai500.measure.host import available_cores
from hpcai500.workloads.operators import nms, roi_align

HEIGHT, WIDTH = 768, 1152
STRIDES = (4, 8, 16, 32)
CHANNELS, ROIS, SIZE, RATIO = 256, 512, 7, 2


def clustered_boxes(count: int) -> tuple[Tensor, Tensor]:
    """Proposals as a region proposal network makes them: clusters around objects, sizes over two octaves."""
    generator = torch.Generator().manual_seed(count)
    centres = (torch.rand(count // 20, 2, generator=generator) * torch.tensor([WIDTH, HEIGHT])).repeat(20, 1)
    centres = centres + torch.randn(centres.shape, generator=generator) * 12
    sides = 32 * 4 ** torch.rand(len(centres), 2, generator=generator)
    return torch.cat([centres - sides / 2, centres + sides / 2], dim=1), torch.rand(len(centres), generator=generator)


def pyramid(memory_format: torch.memory_format, channels: int) -> tuple[list[Tensor], list[Tensor]]:
    """Feature maps at four strides, and 512 rois, each with the level of its size (Lin et al. 2017, equation 1)."""
    generator = torch.Generator().manual_seed(7)
    shapes = [(1, channels, HEIGHT // stride, WIDTH // stride) for stride in STRIDES]
    maps = [torch.randn(s, generator=generator).contiguous(memory_format=memory_format) for s in shapes]
    sides = 24 * 25 ** torch.rand(ROIS, 2, generator=generator)
    free = torch.tensor([WIDTH - 40.0, HEIGHT - 40.0]) - sides
    corners = torch.rand(ROIS, 2, generator=generator) * free.clamp(min=0)
    ends = torch.minimum(corners + sides, torch.tensor([WIDTH - 40.0, HEIGHT - 40.0]))
    rois = torch.cat([torch.zeros(ROIS, 1), corners, ends], dim=1)
    level = (4 + (sides.prod(1).sqrt() / 224).log2()).floor().clamp(2, 5) - 2
    return [features.requires_grad_() for features in maps], [rois[level == i] for i in range(len(STRIDES))]


Pool = Callable[[Tensor, Tensor, int, float, int], Tensor]


def ours(features: Tensor, rois: Tensor, size: int, scale: float, ratio: int) -> Tensor:
    """Our operator with the rivals' arguments."""
    return roi_align(features, rois, size, scale, ratio)


def forward(pool: Pool, memory_format: torch.memory_format, channels: int) -> Callable[[], list[Tensor]]:
    """A call that pools all levels."""
    maps, rois = pyramid(memory_format, channels)

    def call() -> list[Tensor]:
        with torch.no_grad():
            return [pool(f, r, SIZE, 1 / s, RATIO) for f, r, s in zip(maps, rois, STRIDES, strict=True)]

    return call


def forward_backward(pool: Pool, memory_format: torch.memory_format, channels: int) -> Callable[[], list[Tensor]]:
    """A call that pools all levels and returns the gradients by the maps."""
    maps, rois = pyramid(memory_format, channels)
    weights = [torch.randn(len(r), channels, SIZE, SIZE, generator=torch.Generator().manual_seed(8)) for r in rois]

    def call() -> list[Tensor]:
        pooled = [pool(f, r, SIZE, 1 / s, RATIO) for f, r, s in zip(maps, rois, STRIDES, strict=True)]
        return list(torch.autograd.grad(pooled, maps, weights))

    return call


def suppress(function: Callable[[Tensor, Tensor, float], Tensor], count: int) -> Callable[[], list[Tensor]]:
    """A call that suppresses among `count` boxes."""
    boxes, scores = clustered_boxes(count)
    return lambda: [function(boxes, scores, 0.7)]


@dataclass(frozen=True)
class Case:
    """What is done, and by whom: each contestant builds its call, ours first."""

    name: str
    contestants: dict[str, Callable[[], Callable[[], list[Tensor]]]]


def cases(scale: int = 1) -> list[Case]:
    """All of them, with a `scale`-th of the boxes and channels."""
    suppressors = {"ours": nms, "torch, matrix": nms_matrix, "torch, shrinking": nms_shrinking}
    poolers: dict[str, Pool] = {
        "ours": ours,
        "torch, grid_sample": roi_align_grid_sample,
        "torch, gather": roi_align_gather,
    }
    found = []
    for count in (1000, 2000, 8000):
        if count > 2000:
            del suppressors["torch, shrinking"]  # takes most of a minute
        found.append(
            Case(f"nms of {count} boxes", {n: partial(suppress, f, count // scale) for n, f in suppressors.items()})
        )
    formats = {"channels last": torch.channels_last, "channels first": torch.contiguous_format}
    for what, make in (("forward", forward), ("forward and backward", forward_backward)):
        for name, memory_format in formats.items():
            builders = {
                pooler: partial(make, pool, memory_format, CHANNELS // scale) for pooler, pool in poolers.items()
            }
            found.append(Case(f"roi_align {what}, {name}", builders))
    return found


def _held_bytes(field: str) -> int:
    """VmRSS or VmHWM of this process."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    found = re.search(rf"{field}:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) * 1024


def print_peak(case: str, contestant: str) -> None:
    """In a process of its own: the most that one call holds above what was held before."""
    # torch's own machinery around an operator is loaded at the first call, and is not the operator's.
    nms(torch.rand(1, 4), torch.rand(1), 0.5)
    roi_align(torch.rand(1, 1, 2, 2, requires_grad=True), torch.zeros(1, 5), 1).sum().backward()
    call = next(c for c in cases() if c.name == case).contestants[contestant]()
    before = _held_bytes("VmRSS")
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # VmHWM starts anew
    call()
    print(_held_bytes("VmHWM") - before)


def peak_bytes(case: str, contestant: str) -> int:
    """print_peak's number, from a fresh process."""
    command = [sys.executable, str(Path(__file__).resolve()), "--peak", case, contestant]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def measure(case: Case, rounds: int, *, with_peaks: bool) -> dict[str, Any]:
    """Medians of one case: seconds, ratios of each rival to ours, peak bytes where asked."""
    calls = {name: build() for name, build in case.contestants.items()}
    expected = calls["ours"]()
    for name, call in calls.items():
        for mine, its in zip(expected, call(), strict=True):
            torch.testing.assert_close(its, mine, rtol=1e-3, atol=1e-3, msg=lambda text, n=name: f"{n}: {text}")
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            seconds[name].append(time.perf_counter() - start)
    rows = {}
    for name, values in seconds.items():
        ratios = sorted(its / mine for its, mine in zip(values, seconds["ours"], strict=True))
        rows[name] = {
            "median_seconds": statistics.median(values),
            "seconds_to_ours": statistics.median(ratios),
            "ratios": ratios,
            "peak_bytes": peak_bytes(case.name, name) if with_peaks else None,
        }
    return {"case": case.name, "contestants": rows}


def main() -> None:
    """Measure, print, and write JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9, help="turns of each contestant (default 9)")
    parser.add_argument(
        "--scale", type=int, default=1, help="a SCALE-th of the boxes and channels, without peak memory"
    )
    parser.add_argument("--json", type=Path, help="write the numbers here as well")
    parser.add_argument("--peak", nargs=2, metavar=("CASE", "CONTESTANT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(available_cores())
    if options.peak:
        print_peak(*options.peak)
        return
    results = []
    for case in cases(options.scale):
        results.append(measure(case, options.rounds, with_peaks=options.scale == 1))
        print(f"{case.name}\n  {'':20s} {'ms':>9s} {'it/ours':>8s} {'peak MB':>8s}")
        for name, row in results[-1]["contestants"].items():
            megabytes = "" if row["peak_bytes"] is None else f"{row['peak_bytes'] / 1e6:8.1f}"
            print(
                f"  {name:20s} {row['median_seconds'] * 1e3:9.2f} {row['seconds_to_ours']:8.2f} {megabytes}", flush=True
            )
    if options.json:
        machine = {
            "cores": available_cores(),
            "machine": platform.machine(),
            "torch": torch.__version__,
            "isa": _core.cpu_isa(),
        }
        options.json.write_text(json.dumps({"machine": machine, "results": results}, indent=2) + "\n")


if __name__ == "__main__":
    main()
