"""The bucket kernels on the CPU: ResNet-50's gradients packed, quantised and measured, against torch and Horovod.

    python benchmarks/compression.py [--rounds N] [--json FILE]

All contestants live in one process and take turns. In its turn each makes one call that is not counted, so that the
cache holds its own data and not the previous one's, then three that are; the ratio of each round is taken, and the
median of the ratios printed. Before that, each must give what ours gives. Two threads.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from compression_rivals import compress_and_fuse, horovod_compress, padded, quantise_blocks, quantise_bucket

from hpcai500 import _core
from hpcai500.comm import kernels
from hpcai500.measure.host import available_cores
from hpcai500.workloads.models.resnet import Bottleneck, ResNet

THREADS = 2
STREAM_BYTES = 128 << 20
Calls = dict[str, Callable[[], Any]]


@dataclass(frozen=True)
class Comparison:
    """A row of the table: how many times as long `rivals` together take as `ours`, and what we want at least.

    With `required`, the ratio is required; where the rival is a stream of memory, it is the share of its rate.
    """

    name: str
    ours: str
    rivals: tuple[str, ...]
    required: float | None = None


class Bucket:
    """ResNet-50's gradients, the buffers that they go to, and what is called on them."""

    def __init__(self) -> None:
        torch.manual_seed(500)
        with torch.device("meta"):
            shapes = [parameter.shape for parameter in ResNet(Bottleneck, (3, 4, 6, 3)).parameters()]
        self.gradients = [torch.randn(shape) * 1e-2 for shape in shapes]
        self.count = sum(gradient.numel() for gradient in self.gradients)
        sizes = [gradient.numel() for gradient in self.gradients]
        self.out = {dtype: torch.empty(self.count, dtype=dtype) for dtype in (torch.float16, torch.bfloat16)}
        self.views = {
            dtype: [view.view_as(g) for view, g in zip(out.split(sizes), self.gradients, strict=True)]
            for dtype, out in self.out.items()
        }
        self.norms = torch.empty(len(sizes), dtype=torch.float64)
        self.targets = [torch.empty_like(gradient) for gradient in self.gradients]
        self.quantised = torch.empty(kernels.quantised_bytes(self.count), dtype=torch.uint8)
        self.residual = torch.zeros(self.count)
        self.torch_residuals = {name: padded(self.count) for name in ("eager", "compiled", "one tensor")}
        self.bucket = padded(self.count)
        self.lines = [_lines() for _ in range(2)]

    def calls(self, compress: Callable[[torch.Tensor], torch.Tensor]) -> Calls:
        """Every contestant by name."""
        half, brain = torch.float16, torch.bfloat16
        compiled = torch.compile(quantise_blocks)
        source, target = self.lines
        return {
            "pack fp16": partial(kernels.pack, self.gradients, self.out[half], scale=1.0),
            "_foreach_copy_ fp16": partial(torch._foreach_copy_, self.views[half], self.gradients),
            "horovod fp16": partial(compress_and_fuse, compress, self.gradients, self.views[half]),
            "pack fp16, norms": partial(kernels.pack, self.gradients, self.out[half], norms=self.norms),
            "_foreach_norm": partial(torch._foreach_norm, self.gradients),
            "norms": partial(kernels.layer_norms, self.gradients, self.norms),
            "pack bf16": partial(kernels.pack, self.gradients, self.out[brain]),
            "_foreach_copy_ bf16": partial(torch._foreach_copy_, self.views[brain], self.gradients),
            "unpack fp16": partial(kernels.unpack, self.out[half], self.targets),
            "_foreach_copy_ from fp16": partial(torch._foreach_copy_, self.targets, self.views[half]),
            "int8": partial(kernels.quantise, self.gradients, self.quantised, residual=self.residual),
            "int8 compiled": partial(
                quantise_bucket, self.gradients, self.torch_residuals["compiled"], self.bucket, compiled
            ),
            "int8 compiled, one tensor": partial(compiled, self.bucket, self.torch_residuals["one tensor"]),
            "int8 back": partial(kernels.dequantise, self.quantised, self.targets),
            "non-temporal copy": partial(_core.stream_copy, source, target, threads=THREADS),
            "read": partial(_core.stream_read, source, threads=THREADS),
        }

    def slow_calls(self) -> Calls:
        """What takes a second, measured in fewer rounds, beside ours."""
        residual = self.torch_residuals["eager"]
        return {
            "int8": partial(kernels.quantise, self.gradients, self.quantised, residual=self.residual),
            "int8 eager": partial(quantise_bucket, self.gradients, residual, self.bucket, quantise_blocks),
        }

    def check(self, calls: Calls) -> None:
        """Every contestant gives what ours gives."""
        for name, dtype in (("fp16", torch.float16), ("bf16", torch.bfloat16)):
            calls[f"pack {name}"]()
            ours = self.out[dtype].clone()
            calls[f"_foreach_copy_ {name}"]()
            assert ours.equal(self.out[dtype])
        self.out[torch.float16].zero_()
        calls["horovod fp16"]()
        assert self.out[torch.float16].equal(torch.cat([g.flatten() for g in self.gradients]).half())
        calls["norms"]()
        torch.testing.assert_close(torch.stack(calls["_foreach_norm"]()).double(), self.norms, rtol=1e-4, atol=0)
        # Two steps, so that residuals count. A compiler may fuse what we round twice: codes differ at ties.
        for _ in range(2):
            calls["int8"]()
            for name in ("int8 compiled", "int8 eager"):
                scales, codes = calls[name]()
                calls["int8 back"]()
                flat = torch.cat([t.flatten() for t in self.targets])
                theirs = (codes.float() * scales).flatten()[: self.count]
                assert (theirs - flat).abs().max() <= 1.01 * scales.max(), name
                assert (theirs != flat).float().mean() < 1e-3, name


def _lines() -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Memory of whole cache lines that has been touched."""
    memory = np.ones(STREAM_BYTES + 64, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + STREAM_BYTES]


def measure(calls: Calls, rounds: int) -> dict[str, list[float]]:
    """Seconds of each contestant in each round."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    names = list(calls)
    for turn in range(rounds):
        # Each round begins with another one, so that nobody always follows the same.
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            call = calls[name]
            # Idle threads of OpenMP spin for a while, on the cores of whoever comes next.
            time.sleep(0.02)
            call()
            start = time.perf_counter()
            for _ in range(3):
                call()
            seconds[name].append((time.perf_counter() - start) / 3)
    return seconds


COMPARISONS = (
    Comparison("fp16 pack against _foreach_copy_ into the bucket's views", "pack fp16", ("_foreach_copy_ fp16",), 1.4),
    Comparison("fp16 pack against Horovod's fp16 and the fusion copy", "pack fp16", ("horovod fp16",), 3.0),
    Comparison(
        "fp16 pack and norms against _foreach_copy_ and _foreach_norm",
        "pack fp16, norms",
        ("_foreach_copy_ fp16", "_foreach_norm"),
        2.6,
    ),
    Comparison("int8 with error feedback against torch.compile", "int8", ("int8 compiled",), 1.3),
    Comparison("int8 with error feedback against eager torch", "int8", ("int8 eager",), 20),
    # What it would be for gradients that lie in one tensor already; ours gathers them.
    Comparison("int8, gathering, against torch.compile without gathering", "int8", ("int8 compiled, one tensor",)),
    Comparison("all norms against _foreach_norm", "norms", ("_foreach_norm",), 1.0),
    Comparison("bf16 pack against _foreach_copy_ into the bucket's views", "pack bf16", ("_foreach_copy_ bf16",)),
    Comparison("fp16 unpack against _foreach_copy_ from the views", "unpack fp16", ("_foreach_copy_ from fp16",)),
)


def compare(row: Comparison, seconds: dict[str, list[float]]) -> dict[str, Any]:
    """The ratios of a row."""
    rivals = [sum(times) for times in zip(*(seconds[name] for name in row.rivals), strict=True)]
    ratios = sorted(its / mine for its, mine in zip(rivals, seconds[row.ours], strict=True))
    return {
        "comparison": row.name,
        "median_ratio": statistics.median(ratios),
        "required": row.required,
        "ours_median_seconds": statistics.median(seconds[row.ours]),
        "rivals_median_seconds": statistics.median(rivals),
        "ratios": ratios,
    }


def rates(seconds: dict[str, list[float]], count: int) -> list[dict[str, Any]]:
    """Bytes that each kernel must move per second, and the share of what a plain stream moves in the same round."""
    moved = {
        # Kernel, bytes for each value, the stream that it is judged by, the share that is required.
        "pack fp16": (6, "non-temporal copy", 0.75),
        "pack fp16, norms": (6, "non-temporal copy", None),
        "pack bf16": (6, "non-temporal copy", None),
        "unpack fp16": (6, "non-temporal copy", None),
        "int8": (4 + 4 + 4 + 4160 / 4096, "non-temporal copy", None),
        "int8 back": (4 + 4160 / 4096, "non-temporal copy", None),
        "norms": (4, "read", None),
    }
    stream_bytes = {"non-temporal copy": 2 * STREAM_BYTES, "read": STREAM_BYTES}
    rows = []
    for name, (bytes_of_value, stream, required) in moved.items():
        own = [bytes_of_value * count / s for s in seconds[name]]
        limits = [stream_bytes[stream] / s for s in seconds[stream]]
        rows.append(
            {
                "kernel": name,
                "median_gigabytes_per_second": statistics.median(own) / 1e9,
                "stream": stream,
                "stream_gigabytes_per_second": statistics.median(limits) / 1e9,
                "median_share": statistics.median(mine / limit for mine, limit in zip(own, limits, strict=True)),
                "required": required,
            }
        )
    return rows


def call_overhead(count: int) -> float:
    """Median seconds of a call for `count` tensors of one value each: checks and views."""
    tensors, out = [torch.ones(1) for _ in range(count)], torch.empty(count, dtype=torch.bfloat16)
    seconds = []
    for _ in range(300):
        start = time.perf_counter()
        kernels.pack(tensors, out)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


class Company:
    """What other processes take of the cores meanwhile: torch's threads wait for each other, so it falsifies ratios."""

    def __init__(self) -> None:
        self._start = self._now()

    @staticmethod
    def _now() -> tuple[float, float]:
        user, nice, system = Path("/proc/stat").read_text(encoding="ascii").splitlines()[0].split()[1:4]
        busy = (int(user) + int(nice) + int(system)) / os.sysconf("SC_CLK_TCK")
        return busy - sum(os.times()[:4]), time.perf_counter()

    def cores(self) -> float:
        """Cores that others used since the beginning, on average."""
        others, now = self._now()
        return max(0.0, (others - self._start[0]) / (now - self._start[1]))


def verdict(value: float, required: float | None) -> str:
    """What is printed behind a number that had something to reach."""
    if required is None:
        return ""
    return f"(wanted {required:g}{'' if value >= required else ', missed'})"


def processor() -> str:
    """Its name, as the kernel has it."""
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return "unknown"


def main() -> None:
    """Measure, print, and write JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=21, help="turns of each contestant (default 21)")
    parser.add_argument("--json", type=Path, help="write the numbers here as well")
    options = parser.parse_args()
    torch.set_num_threads(THREADS)
    which, compress = horovod_compress()
    bucket = Bucket()
    calls, slow = bucket.calls(compress), bucket.slow_calls()
    bucket.check(calls | slow)
    company = Company()
    seconds = measure(calls, options.rounds)
    slow_seconds = measure(slow, max(3, options.rounds // 4))
    rows = [compare(row, slow_seconds if "int8 eager" in row.rivals else seconds) for row in COMPARISONS]
    shares = rates(seconds, bucket.count)
    overhead = call_overhead(len(bucket.gradients))
    others = company.cores()
    print(f"{len(bucket.gradients)} tensors, {bucket.count} values, {THREADS} threads; Horovod: {which}")
    if others > 0.1:
        print(f"  NOT TO BE QUOTED: other processes used {others:.1f} cores meanwhile")
    for row in rows:
        print(f"  {row['comparison']:62s} {row['median_ratio']:6.2f} {verdict(row['median_ratio'], row['required'])}")
    for row in shares:
        rate, share = row["median_gigabytes_per_second"], row["median_share"]
        text = f"{row['kernel']}: {rate:.1f} GB/s, of the {row['stream']}"
        print(f"  {text:62s} {share:6.2f} {verdict(share, row['required'])}")
    print(f"  a call for {len(bucket.gradients)} tensors of one value: {overhead * 1e6:.0f} us")
    if options.json:
        machine = {
            "cores": available_cores(),
            "machine": platform.machine(),
            "processor": processor(),
            "torch": torch.__version__,
            "isa": _core.cpu_isa(),
            "threads": THREADS,
            "cores_used_by_others": others,
        }
        results = {
            "tensors": len(bucket.gradients),
            "values": bucket.count,
            "horovod_compression": which,
            "comparisons": rows,
            "memory": shares,
            "call_overhead_seconds": overhead,
        }
        options.json.write_text(json.dumps({"machine": machine, "results": results}, indent=2) + "\n")


if __name__ == "__main__":
    main()
