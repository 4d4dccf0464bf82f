"""JPEG files to batches on the training process, as people do it: our loader against torchvision v2 and simplejpeg with
OpenCV in torch's DataLoader, records and threads as of FFCV, and DALI.

    python benchmarks/input_loaders.py [--rounds N] [--sets NAME...] [--json FILE]

Batches of 64 random-resized crops to 224, flipped, normalised, float32 NCHW; the consumer reads one value of each.
"warm": the files are in the page cache; "cold": they are thrown out before each epoch, and that is checked. Each kind
of contestant lives in its own process, and makes a whole epoch in its turn: nothing is prefetched before it begins.
Rivals try several numbers of workers: all in the first round, and the two best in the others; the best by its median
is compared. Beside them are two limits: reading the files alone, and decoding alone by our decoder, from memory.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from climate_reader import forget
from decode_crop import INSTALL, Worker, write_results
from decode_images import SETS, ImageSet
from decode_rivals import BATCH
from input_worker import images_of

from hpcai500.measure.host import available_cores

OURS, INDEXED = "ours", "ours, index"
RIVALS = (
    "torchvision v2, DataLoader",
    "simplejpeg + OpenCV, DataLoader",
    "records, threads",
    "DALI",
)
READING, DECODING = "reading alone", "decoding alone"
# More requests than cores are what a disk needs.
READERS = 8
# With workers, the start and the end of an epoch, when few of them are busy, are then a small part of it.
LEAST_BATCHES, LEAST_WITHOUT_WORKERS = 10, 4
PAUSE_SECONDS = 0.02


@dataclass
class Entrant:
    """A contestant on a set with a number of workers, and its images a second in each round, by temperature."""

    set_name: str
    kind: str
    workers: int
    process: Worker
    batches: int = 0
    rates: dict[str, list[float]] = field(default_factory=dict)

    def run(self, batches: int) -> float:
        """Images a second of an epoch."""
        return float(self.process.ask(f"{self.set_name} {self.workers} {batches}"))

    def median(self, temperature: str) -> float:
        return statistics.median(self.rates[temperature])


@dataclass(frozen=True)
class Cache:
    """What the page cache holds of a set, for all contestants."""

    files: Sequence[str]

    def fill(self) -> None:
        for file in self.files:
            Path(file).read_bytes()

    def empty(self) -> None:
        """Throw all files out; SystemExit where they stay, as on a file system in memory."""
        for file in self.files:
            forget(Path(file))()
        probes = random.sample(self.files, min(16, len(self.files)))
        # A few may be back already: DALI's reader goes on for a moment after its epoch.
        if sum(map(_in_cache, probes)) > len(probes) / 4:
            raise SystemExit(f"{self.files[0]} and its like cannot be thrown out of the page cache")


def _in_cache(file: str) -> bool:
    descriptor = os.open(file, os.O_RDONLY)
    try:
        return os.preadv(descriptor, [bytearray(1)], 0, os.RWF_NOWAIT) > 0
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)


def start(options: argparse.Namespace) -> tuple[dict[str, Worker], dict[str, str]]:
    """A process of each kind that runs, and why the others do not."""
    processes = {
        kind: Worker.start(kind, options.sets[0], options.copies, sys.executable, "input_worker.py")
        for kind in (OURS, INDEXED, *RIVALS, READING, DECODING)
    }
    skipped = {kind: reason for kind, process in processes.items() if (reason := process.ready())}
    if OURS in skipped:
        raise SystemExit(f"our own worker does not run: {skipped[OURS]}")
    return {kind: process for kind, process in processes.items() if kind not in skipped}, skipped


def _numbers_of_workers(kind: str, options: argparse.Namespace) -> Sequence[int]:
    if "DataLoader" in kind:
        return list(options.workers)
    if kind in RIVALS:
        return sorted({max(workers, 1) for workers in options.workers})
    return [READERS if kind == READING else options.threads]


def run_set(image_set: ImageSet, processes: dict[str, Worker], options: argparse.Namespace) -> dict[str, Any]:
    """All rounds on one set."""
    images = images_of(image_set.name, options.copies)
    cache = Cache([*images.files, str(images.records)])
    os.sync()  # what was just written cannot be thrown out
    cache.fill()
    found = [
        Entrant(image_set.name, kind, workers, process)
        for kind, process in processes.items()
        for workers in _numbers_of_workers(kind, options)
    ]
    most = len(images.paths) // BATCH
    for one in found:
        least = LEAST_BATCHES if one.workers else LEAST_WITHOUT_WORKERS
        one.batches = min(most, max(least, round(one.run(4) * options.seconds / BATCH)))
    temperatures = ("warm", "cold") if options.cold else ("warm",)
    for number in range(options.rounds):
        for temperature in temperatures:
            cache.fill()
            chosen = [one for one in found if number == 0 or _goes_on(one, found, temperature)]
            for one in chosen[number % len(chosen) :] + chosen[: number % len(chosen)]:
                time.sleep(PAUSE_SECONDS)
                if temperature == "cold":
                    cache.empty()
                one.rates.setdefault(temperature, []).append(one.run(one.batches))
    return {
        "files": len(images.paths),
        "kilobytes_per_image": sum(Path(file).stat().st_size for file in images.files) / len(images.paths) / 1000,
        "tables": {temperature: table(found, temperature) for temperature in temperatures},
    }


def _goes_on(one: Entrant, found: Sequence[Entrant], temperature: str) -> bool:
    """Whether it is among the two best of its kind."""
    kind = sorted((other.median(temperature) for other in found if other.kind == one.kind), reverse=True)
    return one.median(temperature) >= kind[:2][-1]


def table(found: Sequence[Entrant], temperature: str) -> dict[str, Any]:
    """By kind: images a second by number of workers, the best number, and how many times as fast ours are."""
    ours, indexed = (next(one for one in found if one.kind == kind).rates[temperature] for kind in (OURS, INDEXED))
    rows = {}
    for kind in dict.fromkeys(one.kind for one in found):
        of_kind = [one for one in found if one.kind == kind]
        # One that ran in the first round alone was slower there than two others.
        best = max(
            (one for one in of_kind if len(one.rates[temperature]) == len(ours)),
            key=lambda one: one.median(temperature),
        )
        rows[kind] = {
            "median": best.median(temperature),
            "workers": best.workers,
            "ours_to_it": _ratios(ours, best.rates[temperature]),
            "index_to_it": _ratios(indexed, best.rates[temperature]),
            "images_per_second": {str(one.workers): one.rates[temperature] for one in of_kind},
        }
    return rows


def _ratios(ours: Sequence[float], its: Sequence[float]) -> dict[str, Any]:
    rounds = [mine / other for mine, other in zip(ours, its, strict=True)]
    return {"median": statistics.median(rounds), "rounds": rounds}


def print_set(image_set: ImageSet, result: dict[str, Any]) -> None:
    """A table for each temperature."""
    for temperature, rows in result["tables"].items():
        print(f"\n{image_set.name}, {temperature}: {result['kilobytes_per_image']:.0f} KB an image")
        print(f"  {'':38s} {'images/s':>9s} {'workers':>8s} {'ours/it':>8s} {'index/it':>8s}  by number of workers")
        for kind, row in rows.items():
            numbers = ", ".join(f"{n}: {statistics.median(v):.0f}" for n, v in row["images_per_second"].items())
            shown = [row[ratio]["median"] for ratio in ("ours_to_it", "index_to_it")]
            print(f"  {kind:38s} {row['median']:9.0f} {row['workers']:8d} {shown[0]:8.2f} {shown[1]:8.2f}  {numbers}")


def main() -> None:
    """Measure, print, and write JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [image_set.name for image_set in SETS]
    parser.add_argument("--rounds", type=int, default=2, help="default: %(default)s")
    parser.add_argument("--seconds", type=float, default=0.3, help="of each epoch, at least; default: %(default)s")
    parser.add_argument("--sets", nargs="+", choices=names, default=["plain", "heavy"], help="default: plain heavy")
    parser.add_argument("--threads", type=int, default=available_cores(), help="of ours; default: as many as cores")
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 2, 4, 8], help="of the rivals; default: 0 2 4 8")
    parser.add_argument("--copies", type=int, default=16, help="of each set: an epoch reads no file twice; default: 16")
    parser.add_argument("--no-cold", dest="cold", action="store_false", help="only with files in the page cache")
    parser.add_argument("--json", type=Path, help="also write all rounds to this file")
    options = parser.parse_args()
    print(f"input_loaders: files to batches of {BATCH}, {options.threads} threads, {options.rounds} rounds")
    for image_set in SETS:
        if image_set.name in options.sets:
            images_of(image_set.name, options.copies)  # made once, before all need it
    processes, skipped = start(options)
    for kind, reason in skipped.items():
        print(f"  {kind:38s} skipped: {reason} ({INSTALL}; make bench installs all)")
    results = {}
    for image_set in SETS:
        if image_set.name in options.sets:
            results[image_set.name] = run_set(image_set, processes, options)
            print_set(image_set, results[image_set.name])
    for process in processes.values():
        process.stop()
    write_results(options, {"skipped": skipped, "sets": results})


if __name__ == "__main__":
    main()
