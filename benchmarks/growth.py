"""How time grows with threads or ranks: `python benchmarks/growth.py [--rounds N] [--only NAME...] [--json FILE]`.

A row has the seconds of one unit of work at each size, and the exponent: the slope of log(seconds) over log(size). The
work is the same at each number of threads, so perfect scaling is -1. Each rank brings its own work to a collective, and
all ranks share this machine, so 1 means that time grows as the work does. In each round all sizes of a case run one
after the other; the medians of the rounds count.

A new case is a `Case` in CASES: its `prepare` makes what a size needs, and yields a function that does one unit of work
and returns its seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from subprocess import PIPE
from typing import Any

import climate_years as years
import numpy as np
import torch
from climate_reader import BATCH as CLIMATE_BATCH
from climate_reader import forget, reader_of
from input_rivals import Ours
from input_worker import images_of
from training_step import environments

from hpcai500 import _core
from hpcai500.comm.communicator import Communicator
from hpcai500.comm.connect import connect
from hpcai500.hosts import find_placement
from hpcai500.measure.host import available_cores
from hpcai500.recipe import load_recipe

Unit = Callable[[], float]


@dataclass(frozen=True)
class Case:
    """What grows; `what` names the work of one unit."""

    name: str
    what: str
    unit: str
    sizes: Callable[[], Sequence[int]]
    prepare: Callable[[int, Path], AbstractContextManager[Unit]]


def threads() -> Sequence[int]:
    """1, 2, 4, ... and all cores."""
    cores = available_cores()
    powers = [1 << shift for shift in range(cores.bit_length())]
    return sorted({*powers, cores})


COPIES = 4


@contextmanager
def jpeg_loader(size: int, folder: Path) -> Iterator[Unit]:
    """An epoch of the `plain` set by our loader, from files in the page cache."""
    del folder
    images = images_of("plain", COPIES)
    loader = Ours(images, size)
    batches = np.split(np.random.default_rng(0).permutation(len(images.paths)), len(images.paths) // images.batch)

    def seconds() -> float:
        began = time.perf_counter()
        for made, _ in loader.epoch(batches):
            float(made.flatten()[0])
        return (time.perf_counter() - began) / len(images.paths)

    yield seconds


CLIMATE_IMAGES = 16


@contextmanager
def climate_reader(size: int, folder: Path) -> Iterator[Unit]:
    """A contiguous year in the page cache, normalised to float16."""
    path = years.make_plain(folder / f"growth-{years.ROWS}.h5", CLIMATE_IMAGES, None)
    forget(path)()  # and read again in large pieces, as an epoch leaves it
    path.read_bytes()
    reader = reader_of(path, size)
    out = np.zeros((CLIMATE_BATCH, years.CHANNELS, years.ROWS, years.COLUMNS), np.float16)

    def seconds() -> float:
        began = time.perf_counter()
        for first in range(0, CLIMATE_IMAGES, CLIMATE_BATCH):
            reader.read(np.zeros(CLIMATE_BATCH, np.int64), np.arange(first, first + CLIMATE_BATCH), out)
        return (time.perf_counter() - began) / CLIMATE_IMAGES

    yield seconds


@contextmanager
def memory_copy(size: int, folder: Path) -> Iterator[Unit]:
    """What memory allows the climate reader: an image of its size, copied past the cache by the same threads."""
    copier = reader_of(years.make_plain(folder / f"growth-{years.ROWS}.h5", CLIMATE_IMAGES, None), size, "float32")
    source = np.ones((CLIMATE_BATCH, years.CHANNELS, years.ROWS, years.COLUMNS), np.float32)
    target = np.zeros_like(source)

    def seconds() -> float:
        began = time.perf_counter()
        for _ in range(CLIMATE_IMAGES // CLIMATE_BATCH):
            copier.take(source, np.arange(CLIMATE_BATCH), target)
        return (time.perf_counter() - began) / CLIMATE_IMAGES

    yield seconds


BUFFER_VALUES = 4 << 20


def collectives(size: int) -> dict[str, Callable[[Communicator], None]]:
    """Each collective of `size` ranks, over 16 MiB of float32 a rank."""
    whole, other = torch.zeros(BUFFER_VALUES), torch.zeros(BUFFER_VALUES)
    part = torch.zeros(BUFFER_VALUES // size)
    return {
        "all-reduce": lambda ranks: ranks.all_reduce(whole),
        "reduce": lambda ranks: ranks.reduce(whole, 0),
        "broadcast": lambda ranks: ranks.broadcast(whole, 0),
        "reduce-scatter": lambda ranks: ranks.reduce_scatter(whole, part),
        "all-gather": lambda ranks: ranks.all_gather(part, whole),
        "all-to-all": lambda ranks: ranks.all_to_all(whole, other),
    }


def run_rank(name: str, size: int) -> None:
    """What each rank does: the collective once for each line that rank 0 reads, which answers the slowest's seconds."""
    torch.set_num_threads(1)
    settings = ("communication.backend=torch", f"hardware.accelerators_per_node={size}", "accelerator.device=cpu")
    ranks = connect(load_recipe("ic/reference", settings), find_placement(os.environ))
    collective = collectives(size)[name]
    while ranks.broadcast_object(bool(sys.stdin.readline()) if ranks.rank == 0 else None):
        ranks.barrier()
        began = time.perf_counter()
        collective(ranks)
        slowest = max(ranks.gather_objects(time.perf_counter() - began))
        if ranks.rank == 0:
            print(slowest, flush=True)
    ranks.close()


@contextmanager
def ranks_doing(name: str, size: int, folder: Path) -> Iterator[Unit]:
    """A collective over Gloo, or shared memory where it is used, between processes of this host."""
    del folder
    command = [sys.executable, __file__, "--as-rank", name, str(size)]
    with ExitStack() as stack:
        # Rank 0 last: it is the first to be stopped, and stops the others.
        for environment in reversed(environments(size)):
            process = stack.enter_context(
                subprocess.Popen(command, env=environment, stdin=PIPE, stdout=PIPE, text=True)
            )

        def seconds() -> float:
            print(file=process.stdin, flush=True)
            return float(process.stdout.readline())

        yield seconds


def rank_counts() -> Sequence[int]:
    return (2, 4, 8)


_HALF = "an image of half the rows and columns"
CASES = (
    Case("jpeg", "JPEG files, `plain`: an image", "threads", threads, jpeg_loader),
    Case("climate", f"climate reader, contiguous: {_HALF}", "threads", threads, climate_reader),
    Case("copy", f"non-temporal copy, the limit of that reader: {_HALF}", "threads", threads, memory_copy),
    *(
        Case(name, f"{name} of 16 MiB a rank, on one host", "ranks", rank_counts, partial(ranks_doing, name))
        for name in collectives(1)
    ),
)


def measure(case: Case, rounds: int, folder: Path) -> dict[str, Any]:
    """The row of one case."""
    sizes = case.sizes()
    with ExitStack() as stack:
        units = [stack.enter_context(case.prepare(size, folder)) for size in sizes]
        times: list[list[float]] = [[] for _ in sizes]
        for number in range(rounds + 1):
            for unit, its in zip(units, times, strict=True):
                spent = unit()
                if number > 0:  # the first warms up
                    its.append(spent)
    seconds = [statistics.median(its) for its in times]
    return {
        "what": case.what,
        "unit": case.unit,
        "sizes": list(sizes),
        "seconds": seconds,
        "exponent": exponent(sizes, seconds),
        "rounds": times,
    }


def exponent(sizes: Sequence[int], seconds: Sequence[float]) -> float | None:
    """The slope of log(seconds) over log(size), by least squares; None for a single size."""
    if len(sizes) < 2:
        return None
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])


def main() -> None:
    """Measure, print, and write JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [case.name for case in CASES]
    parser.add_argument("--rounds", type=int, default=9, help="default: %(default)s")
    parser.add_argument("--only", nargs="+", choices=names, default=names, help="default: all")
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    parser.add_argument("--as-rank", nargs=2, metavar=("COLLECTIVE", "RANKS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.as_rank:
        run_rank(options.as_rank[0], int(options.as_rank[1]))
        return
    years.shrink(2)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for case in CASES:
            if case.name in options.only:
                rows.append(measure(case, options.rounds, Path(folder)))
                row = rows[-1]
                times = ", ".join(
                    f"{size}: {1e3 * spent:.3f}" for size, spent in zip(row["sizes"], row["seconds"], strict=True)
                )
                slope = "-" if row["exponent"] is None else f"{row['exponent']:.2f}"
                print(f"{row['what']}\n  ms by {row['unit']}: {times}; exponent {slope}")
    if options.json:
        machine = {"machine": platform.machine(), "cores": available_cores(), "isa": _core.cpu_isa()}
        options.json.write_text(json.dumps({"machine": machine, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
