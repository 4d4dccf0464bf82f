"""Images per second of decode_crop against its rivals: `python benchmarks/decode_crop.py [--rounds N] [--json FILE]`.

Every contestant lives in its own process. In each round all of them run one after the other for about `--seconds`, so
that what else the machine does meets all alike; reported are the medians, and the median of the ratios of each round,
by wall time and by processor time (the steadier one where others use the machine too).
Rivals are optional: `pip install -e .[benchmark]` brings them, and one that is missing is named and left out.
`--rivals-python` runs them in another environment, which needs only them, NumPy and Pillow.
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
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from decode_images import SETS, ImageSet, paths_of
from decode_rivals import BATCH, CONTESTANTS

from hpcai500 import _core

HERE = Path(__file__).resolve().parent
# Those whose speed is compared with all: without an index, and with one.
OURS = ("ours", "ours, index")
# The least ratio (ours / rival) that we hold ourselves to, per set.
TARGETS: dict[tuple[str, str], dict[str, float]] = {
    ("ours", "dali"): {"plain": 3.8, "heavy": 2.8, "large": 2.0},
    ("ours, index", "dali"): {"plain": 4.8, "heavy": 3.6, "large": 2.6},
    ("ours", "ours, libjpeg-turbo"): {"plain": 1.3, "heavy": 1.3, "large": 1.3},
    ("ours", "pillow"): {"plain": 5.0, "heavy": 3.5, "large": 3.5},
    ("ours", "simplejpeg+opencv"): {"plain": 2.0, "heavy": 2.0, "large": 2.0},
}
INSTALL = "pip install -e '.[benchmark]'"


@dataclass
class Worker:
    """A contestant's process."""

    name: str
    process: subprocess.Popen[str]
    errors: IO[str]

    @classmethod
    def start(
        cls, name: str, set_name: str, threads: int | str, python: str, program: str = "decode_worker.py"
    ) -> Worker:
        """Start the process; ready() waits for it."""
        # Not with DALI's folder as the working directory: its types.py would hide the standard library's.
        command = [python, str(HERE / program), name, set_name, str(threads)]
        pipe = subprocess.PIPE
        # A file: nobody reads while it runs, and a full pipe would stop it.
        errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        process = subprocess.Popen(command, cwd=HERE, stdin=pipe, stdout=pipe, stderr=errors, text=True)
        return cls(name, process, errors)

    def ready(self) -> str:
        """Empty when the contestant runs, else why it does not."""
        if self.process.stdout.readline().strip() == "ready":
            return ""
        code = self.process.wait()
        self.errors.seek(0)
        lines = self.errors.read().strip().splitlines()
        return lines[-1] if lines else f"ended with exit code {code}"

    def measure(self, batches: int) -> tuple[float, float]:
        """Images per second of wall time, and per second of processor time, over `batches` batches."""
        wall, processor = map(float, self.ask(str(batches)).split())
        return wall, processor

    def ask(self, line: str) -> str:
        """Its answer to `line`; SystemExit where it has ended."""
        print(line, file=self.process.stdin, flush=True)
        if answer := self.process.stdout.readline():
            return answer
        raise SystemExit(f"{self.name} ended: {self.ready()}")

    def stop(self) -> None:
        """End the process."""
        self.process.stdin.close()
        self.process.wait()


def run_set(image_set: ImageSet, options: argparse.Namespace) -> dict[str, object]:
    """All rounds on one set: {contestant: {median, best, ratio, rounds}} and what was skipped."""
    paths = paths_of(image_set)
    workers, skipped = [], {}
    for name in CONTESTANTS:
        python = sys.executable if name.startswith("ours") else options.rivals_python
        worker = Worker.start(name, image_set.name, options.threads, python)
        reason = worker.ready()
        if reason and name == "ours":
            raise SystemExit(f"our own worker does not run: {reason}")
        if reason:
            skipped[name] = reason
        else:
            workers.append(worker)
    batches = {worker.name: max(4, round(worker.measure(6)[0] * options.seconds / BATCH)) for worker in workers}
    rates: dict[str, list[tuple[float, float]]] = {worker.name: [] for worker in workers}
    for _ in range(options.rounds):
        for worker in workers:
            rates[worker.name].append(worker.measure(batches[worker.name]))
    for worker in workers:
        worker.stop()
    contestants = {
        name: {
            "median": statistics.median(wall for wall, _ in values),
            "best": max(wall for wall, _ in values),
            "ours_to_it": _median_ratio(rates["ours"], values, 0),
            "ours_to_it_per_processor_second": _median_ratio(rates["ours"], values, 1),
            **_index_to_it(rates, values),
            "rounds": values,
        }
        for name, values in rates.items()
    }
    kilobytes = sum(path.stat().st_size for path in paths) / len(paths) / 1000
    return {"kilobytes_per_image": kilobytes, "contestants": contestants, "skipped": skipped}


def _index_to_it(rates: dict[str, list[tuple[float, float]]], values: list[tuple[float, float]]) -> dict[str, float]:
    """The ratios of ours with an index, where it was measured."""
    if OURS[1] not in rates:
        return {}
    return {
        "index_to_it": _median_ratio(rates[OURS[1]], values, 0),
        "index_to_it_per_processor_second": _median_ratio(rates[OURS[1]], values, 1),
    }


def _median_ratio(ours: list[tuple[float, float]], its: list[tuple[float, float]], clock: int) -> float:
    return statistics.median(a[clock] / b[clock] for a, b in zip(ours, its, strict=True))


def print_set(image_set: ImageSet, result: dict) -> None:
    """One table."""
    size = f"{image_set.width}x{image_set.height} quality {image_set.quality}"
    print(f"\n{image_set.name}: {size}, {result['kilobytes_per_image']:.0f} KB an image")
    columns = f"{'ours/it':>8s} {'by CPU':>8s} {'index/it':>8s} {'by CPU':>8s}"
    print(f"  {'':20s} {'images/s':>9s} {'best':>9s} {columns}  targets")
    for name, row in result["contestants"].items():
        ratios = [
            row.get(f"{kind}_to_it{clock}") for kind in ("ours", "index") for clock in ("", "_per_processor_second")
        ]
        shown = " ".join("       -" if ratio is None else f"{ratio:8.2f}" for ratio in ratios)
        verdicts = _verdicts(name, image_set.name, dict(zip(OURS, (ratios[0], ratios[2]), strict=True)))
        print(f"  {name:20s} {row['median']:9.0f} {row['best']:9.0f} {shown}  {verdicts}")
    for name, reason in result["skipped"].items():
        print(f"  {name:20s} skipped: {reason} ({INSTALL})")


def _verdicts(rival: str, set_name: str, ratios: dict[str, float | None]) -> str:
    """What is asked of each of ours beside a rival, and whether it is reached."""
    verdicts = []
    for name, ratio in ratios.items():
        target = TARGETS.get((name, rival), {}).get(set_name)
        if target is not None and ratio is not None:
            verdicts.append(f"{target:.2f} {'reached' if ratio >= target else 'MISSED'}")
    return ", ".join(verdicts)


def write_results(options: argparse.Namespace, results: dict[str, object]) -> None:
    """Write them where asked, with what made them."""
    if options.json:
        document = {
            "threads": options.threads,
            "rounds": options.rounds,
            "machine": platform.machine(),
            "isa": _core.cpu_isa(),
            "build": _core.build_info(),
            **results,
        }
        options.json.write_text(json.dumps(document, indent=1) + "\n")


def main() -> None:
    """Measure, print, and write JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9, help="default: %(default)s")
    parser.add_argument("--seconds", type=float, default=1.0, help="of each contestant in a round; default: 1")
    parser.add_argument("--threads", type=int, default=2, help="of each contestant; default: 2")
    parser.add_argument("--sets", nargs="+", choices=[s.name for s in SETS], default=[s.name for s in SETS])
    parser.add_argument(
        "--rivals-python",
        type=os.path.abspath,
        default=sys.executable,
        help="interpreter of the rivals; default: this one",
    )
    parser.add_argument("--json", type=Path, help="also write all rounds to this file")
    options = parser.parse_args()
    print(f"decode_crop: random-resized crop to 224, float32 NCHW, {options.threads} threads, {options.rounds} rounds")
    results = {}
    for image_set in SETS:
        if image_set.name in options.sets:
            results[image_set.name] = run_set(image_set, options)
            print_set(image_set, results[image_set.name])
    write_results(options, {"sets": results})


if __name__ == "__main__":
    main()
