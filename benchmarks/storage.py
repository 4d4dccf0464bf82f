"""Compares `hpcai500 storage` with fio on the same patterns, on the same file system, interleaved.

    benchmarks/storage.py DIR [--rounds N] [--seconds S] [--threads T]

- random: pieces of 128 KiB in random order from a large file, O_DIRECT, T threads with one request each
- files: whole files of 112 KiB in random order, O_DIRECT, T threads: open, read, close
- save: one file, written in pieces of 4 MiB and synchronised at the end, one thread

Each round runs both, one after the other, in alternating order, on the same bytes and as many of them. The result is
the median of the rounds' ratios (ours / fio's).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hpcai500.files import GuardedFolder
from hpcai500.measure import file_system
from hpcai500.measure.file_system import Content, Piece, Store
from hpcai500.methodology.storage import Samples

BLOCK = 2**17
# As large as a JPEG file of ImageNet, and whole pages: fio reads no part of one around the page cache.
FILE = 28 * file_system.PAGE


def fio(*words: str) -> dict[str, Any]:
    """fio's account of its job."""
    ended = subprocess.run(["fio", *words], capture_output=True, text=True, check=False)
    if ended.returncode:
        sys.exit(f"fio: {ended.stderr.strip()[-500:]}")
    # fio prints warnings before its document.
    (job,) = json.loads(ended.stdout[ended.stdout.index("{") :])["jobs"]
    return job


def random_pieces(folder: Path, seconds: float, threads: int) -> tuple[Callable[[], float], Callable[[], float]]:
    path, content = folder / "large", Content(1)
    size = 2**31
    file_system.save(path, size, 1, content)
    offsets = np.random.default_rng(0).permutation(size // BLOCK) * BLOCK
    pieces = [Piece(path, int(offset), BLOCK, 1) for offset in offsets]

    def ours() -> float:
        done = file_system.read_samples(pieces, BLOCK, threads, seconds, direct=True, keep_open=True)
        assert not done.wrong, done.wrong[0]
        return done.size_bytes / done.seconds

    def theirs() -> float:
        # As ours: each block is read at most once, and all threads share one sequence of the file.
        job = fio(
            "--output-format=json", "--ioengine=psync", "--direct=1", "--group_reporting", "--name=random",
            f"--filename={path}", "--rw=randread", f"--bs={BLOCK}", f"--size={size}",
            f"--numjobs={threads}", "--thread", f"--runtime={seconds}", "--time_based", "--readonly",
        )  # fmt: skip
        return float(job["read"]["bw_bytes"])

    return ours, theirs


def whole_files(folder: Path, seconds: float, threads: int) -> tuple[Callable[[], float], Callable[[], float]]:
    samples = Samples(FILE, FILE, 1)
    store = Store(folder, 1)
    each = 6000 // threads
    room = threads * each * FILE
    counts = file_system.write_samples(store, "ic", samples, 0, threads, most_bytes=room, seconds=math.inf)
    pieces = [store.sample("ic", samples, 0, thread, number) for thread in range(threads) for number in range(each)]
    assert counts == [each] * threads
    order = np.random.default_rng(0).permutation(len(pieces))
    shuffled = [pieces[place] for place in order]
    # fio opens, reads and closes one file after the other; the names give it our order.
    links = folder / "links"
    links.mkdir()
    for place, piece in enumerate(shuffled):
        os.link(piece.path, links / f"{place % threads}.{place // threads}")

    def ours() -> float:
        done = file_system.read_samples(shuffled, samples.request_bytes, threads, math.inf, direct=True)
        assert not done.wrong, done.wrong[0]
        return done.size_bytes / done.seconds

    def theirs() -> float:
        job = fio(
            "--output-format=json", "--readonly", "--name=files", f"--directory={links}", "--rw=read", "--bs=112k",
            "--filename_format=$jobnum.$filenum", f"--nrfiles={each}", f"--filesize={samples.size_bytes}",
            "--openfiles=1", "--file_service_type=sequential", f"--numjobs={threads}", "--thread", "--direct=1",
            "--ioengine=psync", "--group_reporting",
        )  # fmt: skip
        return float(job["read"]["bw_bytes"])

    return ours, theirs


def saving(folder: Path, seconds: float, threads: int) -> tuple[Callable[[], float], Callable[[], float]]:
    del seconds, threads
    size, content = 2**30, Content(1)

    def ours() -> float:
        path = folder / "checkpoint"
        done = file_system.save(path, size, 1, content)
        path.unlink()
        return done.size_bytes / done.seconds

    def theirs() -> float:
        path = folder / "fio"
        job = fio(
            "--output-format=json", "--name=save", f"--filename={path}", "--rw=write", f"--bs={file_system.CHUNK}",
            f"--size={size}", "--ioengine=psync", "--end_fsync=1", "--fallocate=none",
        )  # fmt: skip
        path.unlink()
        # Of the whole job, its fsync included, as ours.
        return size / (job["job_runtime"] / 1e3)

    return ours, theirs


PATTERNS = {"random": random_pieces, "files": whole_files, "save": saving}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--pattern", choices=PATTERNS, action="append")
    options = parser.parse_args(arguments)
    version = subprocess.run(["fio", "--version"], capture_output=True, text=True, check=True).stdout.strip()
    print(f"{version}, {platform.processor() or platform.machine()}, {os.cpu_count()} cores, {options.threads} threads")
    failed = False
    for name in options.pattern or PATTERNS:
        with GuardedFolder(options.folder) as guarded:
            ours, theirs = PATTERNS[name](guarded.path, options.seconds, options.threads)
            ours(), theirs()
            ratios, rates = [], []
            for number in range(options.rounds):
                found = {one.__name__: one() for one in ((ours, theirs) if number % 2 else (theirs, ours))}
                ratios.append(found["ours"] / found["theirs"])
                rates.append((found["ours"], found["theirs"]))
        ratio = statistics.median(ratios)
        mine, other = (statistics.median(one) / 1e6 for one in zip(*rates, strict=True))
        print(
            f"{name:8} ours {mine:8.1f} MB/s, fio {other:8.1f} MB/s, ratio {ratio:.3f} "
            f"({min(ratios):.3f} to {max(ratios):.3f}, {options.rounds} rounds)",
            flush=True,
        )
        failed |= not 0.9 <= ratio <= 1.1
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
