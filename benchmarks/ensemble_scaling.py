"""Weak scaling of ensemble FLOPS beside data parallelism on the same cores: M = 1, 2, … members, one core a member.

Every point is a real run of the package: members by `ensemble run`, one model by `--procs`, each rank with one core and
one thread, at every size of the point. Rounds are interleaved (one rank, many; ensemble, one model), each round gives
one ratio, and the median of the ratios is printed, with how busy others kept the cores meanwhile (Linux's count of all
work less that of our processes): rounds in which that is more than --most-other-work are measured again. Rates are
those of the training steps, an ensemble's by V3.0 Eq. 6: all members' operations by the slowest member's epoch.

    python benchmarks/ensemble_scaling.py [--rounds N] [--most RANKS] [--most-other-work SHARE] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcai500.data.imagenet.synthetic import SyntheticSet, make_images
from hpcai500.ensemble.collect import read_members
from hpcai500.ensemble.local import RunOrder, run_ensemble
from hpcai500.ensemble.planning import PlanRequest, plan_ensemble
from hpcai500.ensemble.scaling import cores_of
from hpcai500.launch.scale import ScaleRequest, run_point, settle
from hpcai500.methodology.ensemble import ensemble_numbers, epoch_rate
from hpcai500.methodology.result import training_seconds
from hpcai500.recipe import rulebook
from hpcai500.record import read_record


@dataclass(frozen=True)
class Case:
    """A model and a batch of each rank, and the images and epochs of the measurement."""

    name: str
    recipe: str
    settings: tuple[str, ...]
    images: SyntheticSet
    epochs: int


CASES = (
    Case(
        "smoke model, 64 x 64, batch 64", "ic/smoke", (),
        SyntheticSet(classes=20, train_per_class=160, val_per_class=2), 10,
    ),
    Case(
        "ResNet-50, 224 x 224, batch 8", "ic/reference", ("accelerator.device=cpu", "hyperparameters.batch_size=8"),
        SyntheticSet(classes=2, train_per_class=32, val_per_class=1, smallest_side=375, largest_side=500), 3,
    ),
)  # fmt: skip
# A rate of nearly nothing keeps every loss finite; the work is the same.
FIXED = ("hyperparameters.warmup_epochs=0", "hyperparameters.base_learning_rate=1e-6", "os.threads=1",
         "os.input_threads=1", "problem.target_quality=0.01")  # fmt: skip


@dataclass(frozen=True)
class Measured:
    """One round: images a second of the training steps by number of ranks, and how far members ran side by side.

    `other_work` is the part of all cores' time that processes of others had.
    """

    ensemble: Mapping[int, float]
    one_model: Mapping[int, float]
    overlap: float
    other_work: float

    def efficiencies(self, ranks: int) -> tuple[float, float]:
        """Of the ensemble and of one model: rate by `ranks` times that of one rank."""
        return self.ensemble[ranks] / ranks / self.ensemble[1], self.one_model[ranks] / ranks / self.one_model[1]


def measure_round(case: Case, data: Path, folder: Path, most: int) -> Measured:
    """Each size once, as an ensemble and as one model."""
    settings = [*case.settings, *FIXED, f"problem.epochs={case.epochs}"]
    points = settle(ScaleRequest("ic", f"1,{most}", case.recipe, data, folder, settings))
    ensemble: dict[int, float] = {}
    one_model: dict[int, float] = {}
    overlap = 1.0
    folder.mkdir()
    start = time.monotonic(), own_seconds(), all_seconds()
    for ranks in (1, most):
        with cores_of(ranks, most):
            outcome = run_point(points, folder, ranks)
            if outcome.exit_code:
                raise SystemExit(f"{outcome.record}: the run failed: nothing was measured")
            ensemble[ranks], overlap = run_members(case, settings, data, folder / f"ensemble-{ranks}", ranks)
        events = read_record(outcome.record).events
        trained = sum(e["value"]["samples"] + e["value"]["padded_samples"] for e in events if e["key"] == "epoch_stop")
        one_model[ranks] = trained / training_seconds(events)
    wall, own, everyone = (
        now - before for now, before in zip((time.monotonic(), own_seconds(), all_seconds()), start, strict=True)
    )
    other = max(0.0, everyone - own) / (wall * (os.cpu_count() or 1))
    return Measured(ensemble, one_model, overlap, other)


def own_seconds() -> float:
    """Processor time of this process and of those that it has waited for."""
    return sum(resource.getrusage(who).ru_utime + resource.getrusage(who).ru_stime for who in (0, -1))


def all_seconds() -> float:
    """Processor time of everyone on this machine: all but idle and waiting for disks."""
    words = Path("/proc/stat").read_text(encoding="ascii").splitlines()[0].split()[1:9]
    busy = [int(word) for place, word in enumerate(words) if place not in (3, 4)]
    return sum(busy) / os.sysconf("SC_CLK_TCK")


def run_members(case: Case, settings: list[str], data: Path, folder: Path, members: int) -> tuple[float, float]:
    """Images a second of all members by Eq. 6, and the part of the time in which they ran side by side."""
    own = [*settings, "ensemble.out_of_bag_samples=0"]
    plan_ensemble(PlanRequest(folder, case.recipe, members, degree=1, per_node=members, data=data, overrides=own))
    end = run_ensemble(RunOrder(folder, power="none"))
    found, missing = read_members(end.ensemble, rulebook("v3.0", "ic"))
    if end.stopped or missing:
        raise SystemExit(f"{folder}: {missing[0].reason if missing else 'stopped'}: nothing was measured")
    work = [float(one.result.images + one.result.padded_images) for one in found]
    rate = epoch_rate(work, [one.times.training_seconds for one in found])
    return rate, ensemble_numbers([one.times for one in found]).overlap


def measure(case: Case, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Medians of one case; rates in images a second, ratios without unit."""
    data, most = folder / "images", options.most
    make_images(data, case.images)
    tried = 0
    measured: list[Measured] = []
    while len(measured) < options.rounds and tried < 3 * options.rounds:
        tried += 1
        found = measure_round(case, data, folder / f"round-{tried}", most)
        efficiencies = ", ".join(f"{one:.3f}" for one in found.efficiencies(most))
        print(f"  round {tried}: {efficiencies}, other work {found.other_work:.1%}", file=sys.stderr)
        if found.other_work <= options.most_other_work:
            measured.append(found)
    if not measured:
        raise SystemExit(f"{case.name}: others have kept the machine busy in all {tried} rounds: end them first")
    ratios = [one.efficiencies(most) for one in measured]

    def median(values: list[float]) -> float:
        return statistics.median(values)

    return {
        "case": case.name,
        "ranks": most,
        "ensemble_images_per_second": {n: median([one.ensemble[n] for one in measured]) for n in (1, most)},
        "one_model_images_per_second": {n: median([one.one_model[n] for one in measured]) for n in (1, most)},
        "ensemble_efficiency": median([ratio[0] for ratio in ratios]),
        "data_parallel_efficiency": median([ratio[1] for ratio in ratios]),
        "ensemble_efficiencies": sorted(ratio[0] for ratio in ratios),
        "data_parallel_efficiencies": sorted(ratio[1] for ratio in ratios),
        "ensemble_over_data_parallel": median([one.ensemble[most] / one.one_model[most] for one in measured]),
        "rounds": len(measured),
        "rounds_tried": tried,
        "other_work": median([one.other_work for one in measured]),
        "least_overlap": min(one.overlap for one in measured),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds of each case (default 5)")
    parser.add_argument("--most", type=int, default=len(os.sched_getaffinity(0)), help="ranks (default: the cores)")
    parser.add_argument(
        "--most-other-work", type=float, default=0.05, help="part of the cores that others may have (default 0.05)"
    )
    parser.add_argument("--json", type=Path, help="write the numbers here as well")
    options = parser.parse_args()
    results = []
    for case in CASES:
        with tempfile.TemporaryDirectory() as folder:
            results.append(measure(case, options, Path(folder)))
        row = results[-1]
        many = f"{options.most} ranks / {options.most} x one rank"
        print(row["case"])
        print(f"  ensemble, {many}       {row['ensemble_efficiency']:.3f}   (at least 0.9)")
        print(f"  one model, {many}      {row['data_parallel_efficiency']:.3f}")
        print(f"  ensemble / one model on {options.most} ranks      {row['ensemble_over_data_parallel']:.3f}")
        print(
            f"  other work on the machine             {row['other_work']:.1%} of the cores, in {row['rounds']} rounds"
        )
        print(f"  members side by side, worst round     {row['least_overlap']:.1%}")
    if options.json:
        machine = {"cores": len(os.sched_getaffinity(0)), "machine": platform.machine()}
        options.json.write_text(json.dumps({"machine": machine, "results": results}, indent=2) + "\n")


if __name__ == "__main__":
    main()
