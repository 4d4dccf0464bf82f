"""Images per second of DALI with our operator: `python benchmarks/dali_loader.py [--rounds N] [--json FILE]`.

Against DALI's own strongest pipeline on a CPU, and against our native loader. Every contestant lives in its own
process, and in each round all of them run one after the other; reported are medians, and the medians of the ratios of
each round. `make dali` brings DALI and the operator.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

from dali_rivals import DALI_CONTESTANTS
from decode_crop import Worker, write_results
from decode_images import SETS, ImageSet, paths_of
from decode_rivals import BATCH

# What is divided by what: our operator in their pipeline, the recipe's loader against theirs, and against ours.
RATIOS = (
    ("operator", "dali"),
    ("operator", "dali-antialiased"),
    ("loader-dali", "dali"),
    ("loader-dali", "loader-native"),
)


def run_set(image_set: ImageSet, options: argparse.Namespace) -> dict[str, object]:
    """All rounds on one set: images/s of each, and the ratios."""
    paths = paths_of(image_set)
    workers = [Worker.start(name, image_set.name, options.threads, sys.executable) for name in DALI_CONTESTANTS]
    for worker in workers:
        if reason := worker.ready():
            raise SystemExit(f"{worker.name} does not run: {reason} (make dali)")
    batches = {worker.name: max(4, round(worker.measure(6)[0] * options.seconds / BATCH)) for worker in workers}
    rates: dict[str, list[tuple[float, float]]] = {worker.name: [] for worker in workers}
    for _ in range(options.rounds):
        for worker in workers:
            rates[worker.name].append(worker.measure(batches[worker.name]))
    for worker in workers:
        worker.stop()
    ratios = {
        f"{ours} / {theirs}": {
            clock: statistics.median(a[which] / b[which] for a, b in zip(rates[ours], rates[theirs], strict=True))
            for which, clock in enumerate(("wall", "processor"))
        }
        for ours, theirs in RATIOS
    }
    kilobytes = sum(path.stat().st_size for path in paths) / len(paths) / 1000
    medians = {name: statistics.median(wall for wall, _ in values) for name, values in rates.items()}
    return {"kilobytes_per_image": kilobytes, "images_per_second": medians, "ratios": ratios, "rounds": rates}


def print_set(image_set: ImageSet, result: dict) -> None:
    """One table."""
    print(f"\n{image_set.name}: {image_set.width}x{image_set.height}, {result['kilobytes_per_image']:.0f} KB an image")
    for name, rate in result["images_per_second"].items():
        print(f"  {name:32s} {rate:9.0f} images/s")
    for name, ratio in result["ratios"].items():
        print(f"  {name:32s} {ratio['wall']:9.2f} by wall time, {ratio['processor']:.2f} by processor time")


def main() -> None:
    """Measure, print, and write JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9, help="default: %(default)s")
    parser.add_argument("--seconds", type=float, default=1.0, help="of each contestant in a round; default: 1")
    parser.add_argument("--threads", type=int, default=2, help="of each contestant; default: 2")
    parser.add_argument("--sets", nargs="+", choices=[s.name for s in SETS], default=[s.name for s in SETS])
    parser.add_argument("--json", type=Path, help="also write all rounds to this file")
    options = parser.parse_args()
    print(f"dali_loader: random-resized crop to 224, float32 NCHW, {options.threads} threads, {options.rounds} rounds")
    results = {}
    for image_set in SETS:
        if image_set.name in options.sets:
            results[image_set.name] = run_set(image_set, options)
            print_set(image_set, results[image_set.name])
    write_results(options, {"sets": results})


if __name__ == "__main__":
    main()
