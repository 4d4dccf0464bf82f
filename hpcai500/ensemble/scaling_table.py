"""Tables of the weak scaling of ensembles beside data parallelism, and of quality against speed (V3.0 Fig. 5, 7, 9)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from hpcai500.ensemble.reading import DONE, RESULT, read_ensemble
from hpcai500.ensemble.result import EnsembleResult
from hpcai500.ensemble.scaling import ScaledRuns
from hpcai500.errors import RecordError
from hpcai500.methodology.ensemble import epoch_rate, overlap_reasons
from hpcai500.methodology.scaling import weak_scaling
from hpcai500.record import json_object
from hpcai500.results.columns import aligned
from hpcai500.results.scaling import Scaling, read_scaling
from hpcai500.results.show import scaled


@dataclass(frozen=True)
class EnsemblePoint:
    """One ensemble. Rates are those of the training steps (as `ScalingPoint`'s): no evaluation, no checkpoint.

    Attributes:
        folder: of the ensemble.
        members: base models (M).
        degree: ranks of each (P_degree).
        ranks: of all together.
        images_per_second: that all members train on together.
        flops: of all members together (Eq. 6).
        vflops: those, times the penalty coefficient of the vote; None where the target is not the edition's.
        member_images_per_second: how fast the slowest member goes through its epoch: the speed of V3.0 Fig. 7.
        quality: of the vote.
        at_once: most members that ran at the same moment.
        overlap: the slowest member's time as a part of that from the first start to the last stop.
        efficiency: rate of a rank as a part of that of the smallest point; None where it was not compared.
    """

    folder: str
    members: int
    degree: int
    ranks: int
    images_per_second: float
    flops: float
    vflops: float | None
    member_images_per_second: float
    quality: float
    at_once: int
    overlap: float
    efficiency: float | None = None


@dataclass(frozen=True)
class EnsembleScaling:
    """Both tables. `metric` names the quality; `data_parallel` has one model on as many ranks as each point."""

    benchmark: str
    metric: str
    degree: int
    points: tuple[EnsemblePoint, ...]
    data_parallel: Scaling
    trade_off: tuple[EnsemblePoint, ...]

    def lines(self) -> Iterator[str]:
        """The tables for people."""
        yield (
            f"weak scaling of {self.benchmark}: an ensemble of members of {self.degree} rank(s) (V3.0 Fig. 5), and one "
            "model on all ranks (Fig. 9)"
        )
        rows = [
            (
                "ranks",
                "members",
                "FLOPS",
                "VFLOPS",
                "efficiency",
                "side by side",
                "data parallel",
                "efficiency",
                "ratio",
            )
        ]
        for point, one in zip(self.points, self.data_parallel.points, strict=True):
            rows.append(
                (
                    str(point.ranks), str(point.members), scaled(point.flops, "FLOPS"),
                    "-" if point.vflops is None else scaled(point.vflops, "FLOPS"),
                    f"{point.efficiency:.3f}", f"{point.overlap:.0%}", scaled(one.flops, "FLOPS"),
                    f"{one.parallel_efficiency:.3f}", f"{point.flops / one.flops:.2f}",
                )
            )  # fmt: skip
        yield from aligned(rows, right=range(9))
        yield f"quality against speed on {self.trade_off[0].ranks} ranks (V3.0 Fig. 7): speed is that of one model"
        told = [("members", "ranks of each", self.metric, "speed, images/s")]
        told += [
            (str(one.members), str(one.degree), f"{one.quality:.4f}", f"{one.member_images_per_second:.1f}")
            for one in self.trade_off
        ]
        yield from aligned(told, right=range(4))

    def doubts(self) -> Iterator[str]:
        """Points whose rate was never there, because their members did not run side by side."""
        for point in {one.folder: one for one in (*self.points, *self.trade_off)}.values():
            for reason in overlap_reasons(point, point.members):
                yield f"{point.folder}: {reason}: train longer, as by --set problem.epochs=N, on an idle machine"

    def figure_of_merit_lines(self) -> Iterator[str]:
        """The stable lines for harnesses, of all points but the base; none of a rate that was never there."""
        for point, one in list(zip(self.points, self.data_parallel.points, strict=True))[1:]:
            if any(overlap_reasons(point, point.members)):
                continue
            yield f"HPCAI500 FOM ensemble_efficiency_{point.ranks}={point.efficiency:.6g} fraction"
            yield f"HPCAI500 FOM data_parallel_efficiency_{one.processes}={one.parallel_efficiency:.6g} fraction"
            yield f"HPCAI500 FOM ensemble_over_data_parallel_{point.ranks}={point.flops / one.flops:.6g} times"

    def document(self) -> dict[str, Any]:
        """The same for programs."""
        return {
            "benchmark": self.benchmark,
            "metric": self.metric,
            "degree": self.degree,
            "points": [asdict(point) for point in self.points],
            "data_parallel": self.data_parallel.document()["points"],
            "trade_off": [asdict(point) for point in self.trade_off],
        }


def read_ensemble_scaling(runs: ScaledRuns, degree: int) -> EnsembleScaling:
    """What was run, as tables.

    Raises:
        HpcAi500Error: a record or an ensemble is not complete, or was changed.
    """
    results = {folder: read_result(folder) for folder in {*runs.weak, *runs.trade_off}}
    points = {folder: point_of(folder, result) for folder, result in results.items()}
    first = results[runs.weak[0]]
    return EnsembleScaling(
        first.benchmark,
        first.quality.metric,
        degree,
        compared([points[folder] for folder in runs.weak]),
        read_scaling(runs.records),
        tuple(points[folder] for folder in runs.trade_off),
    )


def read_result(folder: Path) -> EnsembleResult:
    """The result of the collected ensemble in `folder`.

    Raises:
        RecordError: it was not collected, something has joined its journal since, or its result was changed.
    """
    ensemble = read_ensemble(folder)
    done, told = folder / DONE, ensemble.events[-1]
    if not done.is_file() or done.read_text(encoding="utf-8").strip() != ensemble.head or told["key"] != "collect":
        raise RecordError(f"{folder}: not collected as it is now: hpcai500 ensemble collect {folder}")
    if hashlib.sha256((folder / RESULT).read_bytes()).hexdigest() != told["value"].get("result_sha256"):
        raise RecordError(f"{folder / RESULT}: not the one that was collected: hpcai500 ensemble collect {folder}")
    try:
        return EnsembleResult.of_json(json_object(folder / RESULT))
    except ValidationError as error:
        raise RecordError(f"{folder / RESULT}: no result of an ensemble: {error.errors()[0]['msg']}") from error


def point_of(folder: Path, result: EnsembleResult) -> EnsemblePoint:
    """One ensemble as a point.

    Raises:
        RecordError: it has no quality.
    """
    if result.quality.achieved is None or result.penalty_coefficient is None or result.flops_per_image is None:
        raise RecordError(f"{folder}: its members have not voted: hpcai500 ensemble collect {folder}")
    # Images that fill up the last batch of an epoch are work as well; epochs are as many for all and cancel out.
    work = [float(one.images + one.padded_images) for one in result.member_results]
    seconds = [one.training_seconds for one in result.member_results]
    rate = epoch_rate(work, seconds)
    flops = rate * result.flops_per_image
    return EnsemblePoint(
        folder=str(folder),
        members=result.members_done,
        degree=result.degree,
        ranks=result.scale,
        images_per_second=rate,
        flops=flops,
        vflops=None if result.vflops is None else flops * result.penalty_coefficient,
        member_images_per_second=min(images / spent for images, spent in zip(work, seconds, strict=True)),
        quality=result.quality.achieved,
        at_once=result.at_once or 0,
        overlap=result.overlap or 0.0,
    )


def compared(points: Sequence[EnsemblePoint]) -> tuple[EnsemblePoint, ...]:
    """The points with their efficiencies against the smallest.

    Raises:
        UsageError: there are fewer than two.
    """
    found = weak_scaling({point.ranks: point.flops for point in points})
    return tuple(
        EnsemblePoint(**{**asdict(point), "efficiency": found[point.ranks].parallel_efficiency}) for point in points
    )
