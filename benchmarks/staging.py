"""Staging against copying: many small JPEG files and large HDF5 years, onto this machine's storage.

    python benchmarks/staging.py [--rounds N] [--folder DIR] [--json FILE]

Ours takes SHA-256 of what it reads and waits for the disk; `cp -r`, copies in parallel and rsync do not. All take
turns, each from files that no cache holds (cold, as from a shared file system) and from files that the system's cache
holds (warm, which is memory against memory); the disk is idle when a turn begins. The ratio of each round is taken, and
the median of the ratios printed: above 1, ours is faster.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from compression import Company, processor, verdict

from hpcai500.data.imagenet.index import load_index
from hpcai500.data.staging import Order, stage
from hpcai500.measure.host import available_cores

IMAGES, IMAGE_BYTES, CLASSES = 3000, 110_000, 20  # the mean size of an ImageNet file
YEARS, IMAGES_A_YEAR, GRID = 2, 24, (384, 576)
THREADS = 4
REQUIRED = 0.8
Contestant = Callable[[Path, Path], None]
# Of one turn: seconds, and seconds of cores that it took.
Turn = tuple[float, float]


def make_images(root: Path) -> Path:
    """Files of random bytes in ImageNet's layout: staging looks into none of them."""
    random = np.random.default_rng(0)
    for number in range(IMAGES):
        split = "val" if number % (20 * CLASSES) < CLASSES else "train"
        folder = root / split / f"n{number % CLASSES:08d}"
        folder.mkdir(parents=True, exist_ok=True)
        size = int(random.integers(IMAGE_BYTES // 2, IMAGE_BYTES * 3 // 2))
        (folder / f"{number:08d}.JPEG").write_bytes(random.bytes(size))
    time.sleep(2.1)  # a set that has changed a moment ago is not cached
    load_index(root)
    return root


def make_years(root: Path) -> Path:
    """Years in one piece each."""
    random = np.random.default_rng(0)
    root.mkdir()
    for year in range(1979, 1979 + YEARS):
        boxes = np.full((IMAGES_A_YEAR, 15, 5), -1, np.int32)
        boxes[:, 0] = (10, 400, 20, 500, 0)
        with h5py.File(root / f"climo_{year}.h5", "w") as file:
            images = file.create_dataset("images", (IMAGES_A_YEAR, 16, *GRID), "<f4")
            for image in range(IMAGES_A_YEAR):
                images[image] = random.standard_normal((16, *GRID), np.float32)
            file.create_dataset("boxes", data=boxes)
    return root


def ours(benchmark: str, source: Path, target: Path) -> None:
    """All of `data stage`: the index, the claim, the copies, the check that it is the same set."""
    stage(Order(benchmark, source, target, "benchmark"))


def cp(source: Path, target: Path) -> None:
    """One `cp -r`."""
    subprocess.run(["cp", "-r", source, target], check=True)


def cp_in_parallel(source: Path, target: Path) -> None:
    """What people write who know that one `cp` waits: as many at a time as ours has threads."""
    # Copies that make the same folder at the same time fail.
    folders = f"find . -type d -exec mkdir -p {target}/{{}} ';'"
    files = f"find . -type f -print0 | xargs -0 -n 64 -P {THREADS} cp --parents -t {target}"
    subprocess.run(["sh", "-c", f"{folders} && {files}"], cwd=source, check=True)


def rsync(source: Path, target: Path) -> None:
    """`rsync -a`, which takes checksums on the way."""
    subprocess.run(["rsync", "-a", f"{source}/", target], check=True)


def cp_and_check(source: Path, target: Path) -> None:
    """`cp -r`, then both sides through sha256sum: the plain way to have what ours gives."""
    cp(source, target)
    sums = "find . -type f -not -name '.*' -print0 | sort -z | xargs -0 sha256sum"
    both = [subprocess.Popen(["sh", "-c", sums], cwd=root, stdout=subprocess.PIPE) for root in (source, target)]
    one, other = (process.communicate()[0] for process in both)
    assert one == other


def contestants(benchmark: str) -> dict[str, Contestant]:
    """Everyone by name."""
    found = {"ours": partial(ours, benchmark), "cp -r": cp, "cp in parallel": cp_in_parallel}
    if shutil.which("rsync"):
        found["rsync -a"] = rsync
    return {**found, "cp -r, sha256sum of both": cp_and_check}


def cool(source: Path) -> None:
    """Let the system forget what it holds of `source`."""
    for path in source.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def warm(source: Path) -> None:
    """Let the system hold `source`."""
    for path in source.rglob("*"):
        if path.is_file():
            path.read_bytes()


def measure(
    everyone: dict[str, Contestant], source: Path, work: Path, rounds: int, prepare: Callable[[Path], None]
) -> dict[str, list[Turn]]:
    """The turns of each contestant, one a round."""
    turns: dict[str, list[Turn]] = {name: [] for name in everyone}
    names = list(everyone)
    for turn in range(rounds):
        # Each round begins with another one, so that nobody always follows the same.
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            target = work / f"{source.name}-{prepare.__name__}-{turn}-{name}".replace(" ", "-")
            prepare(source)
            os.sync()
            start, cores = time.perf_counter(), sum(os.times()[:4])
            everyone[name](source, target)
            turns[name].append((time.perf_counter() - start, sum(os.times()[:4]) - cores))
            # Among names that were removed a moment ago, ext4 takes ten times as long to make a file: thousands stay.
            if source.name == "ewa":
                shutil.rmtree(target)
    return turns


def rows_of(what: str, turns: dict[str, list[Turn]], size: int) -> list[dict[str, Any]]:
    """Ours against each of the others."""
    rows = []
    median = {name: [statistics.median(column) for column in zip(*its, strict=True)] for name, its in turns.items()}
    for name, its_turns in turns.items():
        if name == "ours":
            continue
        ratios = sorted(its / mine for (its, _), (mine, _) in zip(its_turns, turns["ours"], strict=True))
        rows.append(
            {
                "comparison": f"{what}, against {name}",
                "median_ratio": statistics.median(ratios),
                "required": REQUIRED if name == "cp -r" else None,
                "ours_bytes_per_second": size / median["ours"][0],
                "rival_bytes_per_second": size / median[name][0],
                "ours_core_seconds_per_gigabyte": median["ours"][1] / size * 1e9,
                "rival_core_seconds_per_gigabyte": median[name][1] / size * 1e9,
                "ratios": ratios,
            }
        )
    return rows


def main() -> None:
    """Measure, print, and write JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7, help="turns of each contestant (default 7)")
    parser.add_argument(
        "--folder", type=Path, help="where to work: the storage that is measured (default: the system's)"
    )
    parser.add_argument("--json", type=Path, help="write the numbers here as well")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        work, company = Path(folder), Company()
        sets = {"JPEG files": ("ic", make_images(work / "ic")), "HDF5 years": ("ewa", make_years(work / "ewa"))}
        for what, (benchmark, source) in sets.items():
            size = sum(path.stat().st_size for path in source.rglob("*") if path.is_file())
            for state, prepare in (("cold", cool), ("warm", warm)):
                turns = measure(contestants(benchmark), source, work, options.rounds, prepare)
                rows += rows_of(f"{what}, {state}", turns, size)
        others = company.cores()
    print(f"{IMAGES} JPEG files, {YEARS} HDF5 years, on {available_cores()} cores")
    if others > 0.1:
        print(f"  NOT TO BE QUOTED: other processes used {others:.1f} cores meanwhile")
    for row in rows:
        mine, its = (row[f"{who}_bytes_per_second"] / 1e9 for who in ("ours", "rival"))
        cores = [row[f"{who}_core_seconds_per_gigabyte"] for who in ("ours", "rival")]
        rates = f"{mine:.2f} and {its:.2f} GB/s, {cores[0]:.2f} and {cores[1]:.2f} s of a core a GB"
        ratio = row["median_ratio"]
        print(f"  {row['comparison']:52s} {ratio:6.2f}  {rates}  {verdict(ratio, row['required'])}")
    if options.json:
        machine = {
            "cores": available_cores(),
            "machine": platform.machine(),
            "processor": processor(),
            "cores_used_by_others": others,
        }
        options.json.write_text(json.dumps({"machine": machine, "results": {"comparisons": rows}}, indent=2) + "\n")


if __name__ == "__main__":
    main()
