"""Collectives of `hpcai500 micro` beside programs that others trust: plain loops over torch's own calls, and Intel's
MPI benchmarks (IMB-MPI1), where they are installed.

    python benchmarks/micro_collectives.py [--ranks N] [--rounds N] [--seconds S] [--imb FILE] [--json FILE]

Over Gloo, micro and a plain loop over torch.distributed take turns in the same ranks. Over MPI, micro (by Horovod) and
IMB-MPI1 (github.com/intel/mpi-benchmarks, `make TARGET=MPI1 CXX=mpicxx` in src_cpp) take turns as programs of their
own: there the ratio is what Horovod adds to MPI, and not a matter of measuring. Sizes are counted as in the NCCL tests,
for both. A ratio is the rival's time divided by micro's: above 1, micro reports the shorter time.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))

from builders.ranks import clean_environment, run_ranks

from hpcai500.comm.communicator import Communicator
from hpcai500.comm.torch_backend import TorchCommunicator
from hpcai500.measure.collectives import COLLECTIVES, measure_collective
from hpcai500.measure.micro import MeasuringJob, device_name
from hpcai500.progress import silent

CPU = torch.device("cpu")
SIZES = (512, 32768, 2097152)
# Of a plain loop, at each size.
REPETITIONS = {512: 200, 32768: 100, 2097152: 20}

# Seconds by collective and size, of one turn.
Turn = dict[str, dict[int, float]]


def micro_turn(communicator: Communicator, seconds: float) -> Turn:
    """What micro reports for all ranks."""
    job = MeasuringJob(communicator, CPU, 1, say=lambda line: None)
    found: Turn = {}
    for word in COLLECTIVES:
        with silent(1, "", "") as bar:
            table = measure_collective(word, job, communicator, seconds, bar)[f"{word} system"]["table"]
        found[word] = {row["bytes"]: row["seconds"] for row in table if row["bytes"] in SIZES}
    return found


def plain_turn(communicator: Communicator) -> Turn:
    """A loop over torch's own call, timed as the NCCL tests do: all calls together, by the slowest rank."""
    assert isinstance(communicator, TorchCommunicator)
    found: Turn = {}
    for word in COLLECTIVES:
        found[word] = {}
        for size in SIZES:
            call, count = plain_call(word, size // 4, communicator), REPETITIONS[size]
            for _ in range(2):
                call()
            communicator.barrier()
            begin = time.perf_counter()
            for _ in range(count):
                call()
            found[word][size] = max(communicator.gather_objects((time.perf_counter() - begin) / count))
    return found


def plain_call(word: str, elements: int, communicator: TorchCommunicator) -> Callable[[], object]:
    """torch's own collective over a message of `elements`."""
    group, ranks = communicator.process_group, communicator.size
    whole, other, part = torch.zeros(elements), torch.zeros(elements), torch.zeros(elements // ranks)
    match word:
        case "allreduce":
            return lambda: dist.all_reduce(whole, group=group)
        case "allgather":
            return lambda: dist.all_gather_into_tensor(whole, part, group=group)
        case "reducescatter":
            return lambda: dist.reduce_scatter_tensor(part, whole, group=group)
        case "alltoall":
            return lambda: dist.all_to_all_single(other, whole, group=group)
        case "broadcast":
            return lambda: dist.broadcast(whole, 0, group=group)
    raise ValueError(word)


def in_turn(communicator: Communicator, rounds: int, seconds: float) -> list[tuple[Turn, Turn]]:
    """micro's and the plain loop's times of each round."""
    return [(micro_turn(communicator, seconds), plain_turn(communicator)) for _ in range(rounds)]


# IMB's names, and how many times its size the NCCL tests count for n ranks.
IMB = {
    "Allreduce": ("allreduce", lambda n: 1),
    "Allgather": ("allgather", lambda n: n),
    "Reduce_scatter": ("reducescatter", lambda n: 1),
    "Alltoall": ("alltoall", lambda n: n),
    "Bcast": ("broadcast", lambda n: 1),
}


def imb_turn(program: Path, ranks: int) -> Turn:
    """What IMB-MPI1 reports: its slowest rank's mean time."""
    command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-np", str(ranks)]
    command += ["--mca", "btl_vader_single_copy_mechanism", "none", str(program), *IMB]
    command += ["-npmin", str(ranks), "-msglog", "7:21", "-time", "2"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=clean_environment())
    found: Turn = {word: {} for word, _ in IMB.values()}
    name = ""
    for line in done.stdout.splitlines():
        if begin := re.match(r"# Benchmarking (\w+)", line):
            name = begin[1]
        elif row := re.match(r"\s+(\d+)\s+\d+\s+[\d.]+\s+([\d.]+)\s+[\d.]+", line):
            word, factor = IMB[name]
            if (size := int(row[1]) * factor(ranks)) in SIZES:
                found[word][size] = float(row[2]) / 1e6
    return found


def compared(over: str, rival: str, turns: list[tuple[Turn, Turn]]) -> Iterator[dict[str, Any]]:
    """A row for each collective and size that both have measured."""
    for word in COLLECTIVES:
        for size in SIZES:
            both = [
                (ours[word][size], its[word][size]) for ours, its in turns if size in ours[word] and size in its[word]
            ]
            if both:
                ratios = sorted(its / ours for ours, its in both)
                yield {
                    "what": f"{word} of {size} bytes over {over}",
                    "best_rival": rival,
                    "median_ratio": statistics.median(ratios),
                    "ratios": ratios,
                    "seconds": statistics.median(ours for ours, _ in both),
                    "rival_seconds": statistics.median(its for _, its in both),
                }


def main() -> None:
    """Measure, print, and write JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2, help="on this machine (default 2)")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each (default 5)")
    parser.add_argument("--seconds", type=float, default=1.0, help="of each of micro's measurements (default 1)")
    parser.add_argument("--imb", type=Path, help="IMB-MPI1 (default: the one on PATH)")
    parser.add_argument("--json", type=Path, help="write the numbers here as well")
    options = parser.parse_args()
    where = {"timeout": 3600}
    rows = list(
        compared(
            "Gloo", "torch.distributed", run_ranks(in_turn, options.ranks, options.rounds, options.seconds, **where)[0]
        )
    )
    program = options.imb or (Path(found) if (found := shutil.which("IMB-MPI1")) else None)
    if program:
        by_horovod = {"backend": "horovod", "launcher": "mpirun", **where}
        turns = []
        for _ in range(options.rounds):
            ours = run_ranks(micro_turn, options.ranks, options.seconds, **by_horovod)[0]
            turns.append((ours, imb_turn(program, options.ranks)))
        rows += compared("Open MPI by Horovod", "IMB-MPI1", turns)
    else:
        print("IMB-MPI1 is not on PATH (--imb FILE): no comparison with MPI's own collectives")
    print(f"{device_name(CPU)}, {options.ranks} ranks, torch {torch.__version__}")
    for row in rows:
        print(
            f"  {row['what']}: micro {row['seconds']:.3e} s, {row['best_rival']} {row['rival_seconds']:.3e} s, "
            f"ratio {row['median_ratio']:.3f} ({row['ratios'][0]:.2f} to {row['ratios'][-1]:.2f})"
        )
    if options.json:
        machine = {"cores": os.cpu_count(), "machine": platform.machine(), "processor": device_name(CPU)}
        machine |= {"ranks": options.ranks, "torch": torch.__version__}
        options.json.write_text(json.dumps({"machine": machine, "results": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
