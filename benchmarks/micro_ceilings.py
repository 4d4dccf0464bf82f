"""The ceilings of `hpcai500 micro` on the CPU against the best of rivals: GEMM against every library call, copy
against STREAM.

    python benchmarks/micro_ceilings.py [--rounds N] [--scale N] [--json FILE]

First, micro's own search chooses its call for each shape, as it does for users. Then it and all rivals take turns in
one process; in its turn each makes one call that is not counted, then three, the fastest of which is. Of each round the
ratio is taken to the rival that is the fastest over all rounds, and the median of the ratios printed: above 1, ours is
the faster. likwid-bench, where it is installed, takes its turns as a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from micro_rivals import FLAGS, Stream, gemm_rivals, likwid_copy

from hpcai500 import _core
from hpcai500.comm.communicator import LocalCommunicator
from hpcai500.measure.bandwidth import copy_bytes
from hpcai500.measure.host import available_cores
from hpcai500.measure.micro import (
    PRECISIONS,
    MeasuringJob,
    arithmetic,
    available_bytes,
    device_name,
    fastest,
    last_level_cache_bytes,
    operand,
)
from hpcai500.measure.products import Gemm
from hpcai500.progress import silent

CPU = torch.device("cpu")
# A square, and a convolution of ResNet-50 in its third stage written out, 32 images.
SHAPES = (Gemm(2048, 2048, 2048), Gemm(6272, 256, 2304))
REQUIRED = 0.95
Calls = dict[str, Callable[[], Any]]


def turns(calls: Calls, rounds: int) -> dict[str, list[float]]:
    """Seconds of each contestant in each round; each round begins with another one."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    names = list(calls)
    for turn in range(rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            call = calls[name]
            call()
            taken = []
            for _ in range(3):
                start = time.perf_counter()
                call()
                taken.append(time.perf_counter() - start)
            seconds[name].append(min(taken))
    return seconds


def compared(what: str, seconds: dict[str, list[float]], amount: float, unit: str, ours: str) -> dict[str, Any]:
    """A row: how much faster `ours` is than the fastest of the others."""
    rivals = {name: statistics.median(times) for name, times in seconds.items() if name != ours}
    best = min(rivals, key=lambda name: rivals[name])
    ratios = sorted(its / mine for its, mine in zip(seconds[best], seconds[ours], strict=True))
    return {
        "what": what,
        "call": ours,
        "best_rival": best,
        "median_ratio": statistics.median(ratios),
        "required": REQUIRED,
        "unit": unit,
        "ours": amount / statistics.median(seconds[ours]),
        "rivals": {name: amount / its for name, its in rivals.items()},
        "ratios": ratios,
    }


def that_work(calls: Calls) -> Calls:
    """Those of `calls` that this build of a library offers here; says which are left out."""
    work: Calls = {}
    for name, call in calls.items():
        try:
            call()
        except RuntimeError as error:
            print(f"{name} is left out: {str(error).splitlines()[0]}")
        else:
            work[name] = call
    return work


def compare_gemms(job: MeasuringJob, rounds: int, seconds: float, scale: int) -> list[dict[str, Any]]:
    """Each shape in each precision; each dimension of a shape is a `scale`-th."""
    rows = []
    for name in ("fp32", "bf16", "fp16"):
        precision = PRECISIONS[name]
        for shape in (Gemm(one.m // scale, one.n // scale, one.k // scale) for one in SHAPES):
            with silent(1, "", "") as bar:
                entry = fastest([shape], precision, job, seconds, bar)
            if entry is None:
                print(f"GEMM {name}, {shape.name}: does not end within {seconds:g} s here")
                continue
            with arithmetic(precision):
                left = operand((shape.m, shape.k), precision, CPU)
                right = operand((shape.k, shape.n), precision, CPU)
                calls: Calls = that_work({**shape.prepare(precision, CPU).calls, **gemm_rivals(left, right)})
                found = turns(calls, rounds)
            rows.append(compared(f"GEMM {name}, {shape.name}", found, shape.flops, "FLOPS", entry["call"]))
    return rows


def compare_copies(job: MeasuringJob, rounds: int, threads: int) -> list[dict[str, Any]]:
    """Our two copies, of which micro takes the faster, against STREAM's, and against likwid-bench's where it is."""
    size = copy_bytes(last_level_cache_bytes(), available_bytes(CPU, 1) // 2, 1)
    source = (torch.arange(size // 4, dtype=torch.int32) % 1_000_003).view(torch.uint8)
    target = torch.zeros_like(source)
    ours, theirs = source.numpy(), target.numpy()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        stream = Stream(Path(folder), size, threads)
        own: Calls = {
            "stream_copy": lambda: _core.stream_copy(ours, theirs, threads=threads),
            "torch copy_": lambda: target.copy_(source),
        }
        seconds = turns({**own, "STREAM": stream.copy}, rounds)
        stream.check()
    assert torch.equal(source, target)
    best = min(own, key=lambda name: statistics.median(seconds[name]))
    against = {best: seconds[best], "STREAM": seconds["STREAM"]}
    what = f"copy of {size} bytes against STREAM (gcc {' '.join(FLAGS)})"
    rows.append(compared(what, against, 2 * size, "bytes/s", best))
    if rate := likwid_copy(size, threads):
        pairs: dict[str, list[float]] = {best: [], "likwid-bench": []}
        for _ in range(max(3, rounds // 3)):
            pairs[best].append(turns({best: own[best]}, 1)[best][0])
            pairs["likwid-bench"].append(2 * size / rate())
        rows.append(compared(f"copy of {size} bytes against likwid-bench", pairs, 2 * size, "bytes/s", best))
    return rows


def others_since(begin: tuple[float, float]) -> float:
    """Cores that other processes used since `begin`, on average: they falsify what threads do together."""
    busy, now = processor_seconds()
    return max(0.0, (busy - begin[0]) / (now - begin[1]))


def processor_seconds() -> tuple[float, float]:
    """Of all but this process and its children, and the time."""
    user, nice, system = Path("/proc/stat").read_text(encoding="ascii").splitlines()[0].split()[1:4]
    busy = (int(user) + int(nice) + int(system)) / os.sysconf("SC_CLK_TCK")
    return busy - sum(os.times()[:4]), time.perf_counter()


def main() -> None:
    """Measure, print, and write JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9, help="turns of each contestant (default 9)")
    parser.add_argument("--scale", type=int, default=1, help="a SCALE-th of each dimension of the products")
    parser.add_argument("--seconds", type=float, default=4.0, help="of micro's search for its call (default 4)")
    parser.add_argument("--json", type=Path, help="write the numbers here as well")
    options = parser.parse_args()
    threads = available_cores()
    torch.set_num_threads(threads)
    torch.manual_seed(500)
    job = MeasuringJob(LocalCommunicator(), CPU, threads, say=print)
    begin = processor_seconds()
    rows = [
        *compare_gemms(job, options.rounds, options.seconds, options.scale),
        *compare_copies(job, options.rounds, threads),
    ]
    others = others_since(begin)
    print(f"{device_name(CPU)}, {threads} threads, torch {torch.__version__}, numpy {np.__version__}")
    if others > 0.1:
        print(f"  NOT TO BE QUOTED: other processes used {others:.1f} cores meanwhile")
    for row in rows:
        missed = "" if row["median_ratio"] >= REQUIRED else ", missed"
        print(f"  {row['what']}")
        print(f"    {row['call']} / {row['best_rival']}: {row['median_ratio']:.3f} (wanted {REQUIRED}{missed})")
    if options.json:
        machine = {
            "cores": threads,
            "machine": platform.machine(),
            "processor": device_name(CPU),
            "last_level_cache_bytes": last_level_cache_bytes(),
            "torch": torch.__version__,
            "numpy": np.__version__,
            "isa": _core.cpu_isa(),
            "cores_used_by_others": others,
        }
        options.json.write_text(json.dumps({"machine": machine, "results": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
