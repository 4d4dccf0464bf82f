"""Weak scaling of ensembles on this machine, compared with one model on the same ranks (V3.0 Fig. 5, 7 and 9).

FOLDER/
    scale.json                     what is run, so that an interrupted scaling can be resumed
    procs-1/ procs-2/ …            records of one model by data parallelism
    ensemble-1x1/ ensemble-2x1/ …  ensembles, members x accelerators of each
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from hpcai500.drawing import figure_files
from hpcai500.ensemble.collect import CollectOrder, collect_ensemble
from hpcai500.ensemble.journal import DONE, RESULT, is_ensemble, read_ensemble
from hpcai500.ensemble.local import RunOrder, run_ensemble
from hpcai500.ensemble.planning import PlanRequest, plan_ensemble
from hpcai500.ensemble.result import EnsembleResult
from hpcai500.ensemble.status import Live
from hpcai500.errors import ExitCode, RecordError, RunError, UsageError
from hpcai500.launch.layout import neighbours_together
from hpcai500.launch.scale import Points, ScaleRequest, keep_plan, run_point, settle
from hpcai500.methodology.ensemble import epoch_rate, overlap_reasons
from hpcai500.methodology.samples import samples_of
from hpcai500.methodology.weak_scaling import weak_scaling
from hpcai500.recipe import ENSEMBLE, load_recipe
from hpcai500.record import json_object
from hpcai500.results.scaling import Scaling, read_scaling
from hpcai500.streams import say
from hpcai500.text import aligned, count, prefix_of, scaled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


# ----------------------------------------------------------------------------------------------------
# Running them.


_TABLE = f"{ENSEMBLE}."


@dataclass(frozen=True)
class EnsembleScaleRequest:
    """What the user asked for.

    Attributes:
        scaling: for one model; overrides of `[ensemble]` apply to the ensembles alone.
        degree: ranks of a member in the weak scaling.
    """

    scaling: ScaleRequest
    degree: int = 1


@dataclass(frozen=True)
class ScaledRuns:
    """The folders of what was run.

    Attributes:
        records: of one model, by number of ranks ascending.
        weak: ensembles of members of one degree, by number of members ascending.
        trade_off: ensembles on the ranks of the largest point, by number of members descending (V3.0 Fig. 7).
    """

    records: Sequence[Path]
    weak: Sequence[Path]
    trade_off: Sequence[Path]


def run_ensemble_scaling(
    request: EnsembleScaleRequest, folder: Path, run_one: Callable[[Points, Path, int], None] | None = None
) -> ScaledRuns:
    """Run what is not finished in `folder`: one model and an ensemble on each number of ranks, then the trade-off.

    The trade-off has ensembles of fewer and larger members on the ranks of the largest point. A rank has as many cores
    at every point as at the largest one, which uses all cores. Tests replace `run_one`, which runs one model.

    Raises:
        HpcAi500Error: the request makes no sense, `folder` holds another scaling, or a run failed.
    """
    own = [text for text in request.scaling.overrides if text.strip().startswith(_TABLE)]
    alone = replace(request.scaling, overrides=[text for text in request.scaling.overrides if text not in own])
    points = _points(alone, request.degree)
    keep_plan(folder, {**points.plan(), "degree": request.degree, "ensemble": own})
    most = points.processes[-1]
    records, weak = [], []
    for ranks in points.processes:
        with cores_of(ranks, most):
            (run_one or _run_one)(points, folder, ranks)
            records.append(folder / f"procs-{ranks}")
            weak.append(_run_ensemble(points, folder, own, ranks // request.degree, request.degree))
    trade_off = [
        _run_ensemble(points, folder, own, members, most // members)
        for members in fewer_members(most // request.degree)
    ]
    return ScaledRuns(records, weak, trade_off)


def fewer_members(most: int) -> list[int]:
    """Numbers of members that share the same ranks: halves of `most`, down to one (V3.0 section 4.3: 8, 4, 1)."""
    found = [most]
    while found[-1] % 2 == 0:
        found.append(found[-1] // 2)
    return found if found[-1] == 1 else [*found, 1]


@contextmanager
def cores_of(ranks: int, most: int) -> Iterator[None]:
    """Restrict processes started within the block to the share of this process's cores that `ranks` of `most` have.

    Otherwise a rank of a smaller point would have more of the machine, as idle cores for its input.
    """
    before = os.sched_getaffinity(0)
    each = max(1, len(before) // most)
    os.sched_setaffinity(0, neighbours_together(before)[: ranks * each])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _points(request: ScaleRequest, degree: int) -> Points:
    if load_recipe(request.recipe_name).ensemble is not None:
        raise UsageError(
            f"{request.recipe_name}: a recipe of an ensemble; give that of one member, as in --recipe "
            f"{request.benchmark}/reference"
        )
    points = settle(request)
    if request.procs is None:
        points = replace(points, processes=[ranks for ranks in points.processes if ranks % degree == 0])
        if len(points.processes) < 2:
            raise UsageError(f"--degree {degree}: this machine is too small for two multiples of it: give --procs")
    odd = [str(ranks) for ranks in points.processes if ranks % degree]
    if odd:
        raise UsageError(f"--procs: {', '.join(odd)}: members of {degree} ranks (--degree) need multiples of {degree}")
    return points


def _run_one(points: Points, folder: Path, ranks: int) -> None:
    outcome = run_point(points, folder, ranks)
    if outcome.exit_code != ExitCode.PASS:
        path = outcome.record / "ERROR"
        why = path.read_text(encoding="utf-8").strip() if path.is_file() else "the run failed (see above)"
        raise RunError(f"{outcome.record}: {why}")


def _run_ensemble(points: Points, folder: Path, own: Sequence[str], members: int, degree: int) -> Path:
    """Plan, run and collect one ensemble, unless it is done."""
    place = folder / f"ensemble-{members}x{degree}"
    if not is_ensemble(place):
        request = points.request
        plan_ensemble(
            PlanRequest(
                folder=place,
                recipe=request.recipe_name,
                members=members,
                degree=degree,
                per_node=points.processes[-1],
                data=request.data,
                overrides=[*request.overrides, *own],
            )
        )
    if (place / DONE).is_file():
        return place
    say(f"{place}: {count(members, 'member')} of {count(degree, 'rank')}")
    ensemble = read_ensemble(place)
    with Live(ensemble, members) as live:
        end = run_ensemble(RunOrder(place, power="none"), lambda _, jobs: live.update(jobs))
    if end.stopped:
        raise RunError("stopped; nothing is lost: the same command with the same --out continues")
    result = collect_ensemble(CollectOrder(place)).result
    if not result.complete:
        first = result.missing[0]
        raise RunError(f"{place}: {result.reasons[0]}; member {first.member}: {first.reason}")
    return place


# ----------------------------------------------------------------------------------------------------
# The tables: weak scaling of ensembles and of data parallelism, and quality against speed.


@dataclass(frozen=True)
class EnsemblePoint:
    """One ensemble. As in `ScalingPoint`, rates are of the training steps alone, without evaluation and checkpoints.

    Attributes:
        members: base models (M).
        degree: ranks of each (P_degree).
        ranks: of all members together.
        images_per_second: of all members together.
        flops: of all members together (Eq. 6).
        vflops: `flops` times the penalty coefficient of the vote; None as in the ensemble's result.
        member_images_per_second: of the slowest member in its epoch: the speed of V3.0 Fig. 7.
        at_once: most members that ran at the same moment.
        overlap: the slowest member's time as a fraction of that from the first start to the last stop.
        efficiency: FLOPS of a rank relative to the smallest point; None if it was not compared.
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
    """Both tables; `metric` names the quality, and `data_parallel` has one model on the ranks of each point."""

    benchmark: str
    metric: str
    degree: int
    points: tuple[EnsemblePoint, ...]
    data_parallel: Scaling
    trade_off: tuple[EnsemblePoint, ...]

    def lines(self) -> Iterator[str]:
        """The tables for people."""
        yield (
            f"weak scaling of {self.benchmark}: an ensemble of members of {count(self.degree, 'rank')} (V3.0 Fig. 5), "
            "and one model on all ranks (Fig. 9)"
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
        trade_off = [("members", "ranks of each", self.metric, f"speed, {samples_of(self.benchmark).names}/s")]
        trade_off += [
            (str(one.members), str(one.degree), f"{one.quality:.4f}", f"{one.member_images_per_second:.1f}")
            for one in self.trade_off
        ]
        yield from aligned(trade_off, right=range(4))

    def doubts(self) -> Iterator[str]:
        """Points whose rate was never reached, because their members did not run at the same time."""
        for point in {one.folder: one for one in (*self.points, *self.trade_off)}.values():
            for reason in overlap_reasons(point.members, point.at_once, point.overlap):
                yield f"{point.folder}: {reason}: train longer (--set problem.epochs=N) on an idle machine"

    def figure_of_merit_lines(self) -> Iterator[str]:
        """The stable lines for harnesses, for all points but the base and those in doubt."""
        for point, one in list(zip(self.points, self.data_parallel.points, strict=True))[1:]:
            if any(overlap_reasons(point.members, point.at_once, point.overlap)):
                continue
            yield f"HPCAI500 FOM ensemble_efficiency_{point.ranks}={point.efficiency:.6g} fraction"
            yield f"HPCAI500 FOM data_parallel_efficiency_{one.processes}={one.parallel_efficiency:.6g} fraction"
            yield f"HPCAI500 FOM ensemble_over_data_parallel_{point.ranks}={point.flops / one.flops:.6g} times"

    def document(self) -> dict[str, Any]:
        """For programs."""
        return {
            "benchmark": self.benchmark,
            "metric": self.metric,
            "degree": self.degree,
            "points": [asdict(point) for point in self.points],
            "data_parallel": self.data_parallel.document()["points"],
            "trade_off": [asdict(point) for point in self.trade_off],
        }


def read_ensemble_scaling(runs: ScaledRuns, degree: int) -> EnsembleScaling:
    """The tables of what was run.

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
        RecordError: it was not collected, its journal has a later event, or its result was changed.
    """
    ensemble = read_ensemble(folder)
    done, last = folder / DONE, ensemble.events[-1]
    if not done.is_file() or done.read_text(encoding="utf-8").strip() != ensemble.head or last["key"] != "collect":
        raise RecordError(f"{folder}: not collected in its current state: hpcai500 ensemble collect {folder}")
    if hashlib.sha256((folder / RESULT).read_bytes()).hexdigest() != last["value"].get("result_sha256"):
        raise RecordError(f"{folder / RESULT}: changed since it was collected: hpcai500 ensemble collect {folder}")
    try:
        return EnsembleResult.of_json(json_object(folder / RESULT))
    except ValidationError as error:
        raise RecordError(f"{folder / RESULT}: not the result of an ensemble: {error.errors()[0]['msg']}") from error


def point_of(folder: Path, result: EnsembleResult) -> EnsemblePoint:
    """One ensemble as a point.

    Raises:
        RecordError: its members did not vote.
    """
    if result.quality.achieved is None or result.flops_per_image is None:
        raise RecordError(f"{folder}: its members have not voted: hpcai500 ensemble collect {folder}")
    # Images that pad the last batch of an epoch are work, too. The number of epochs is the same for all and cancels
    # out.
    work = [float(one.images + one.padded_images) for one in result.member_results]
    seconds = [one.training_seconds for one in result.member_results]
    rate, coefficient = epoch_rate(work, seconds), result.penalty_coefficient
    flops = rate * result.flops_per_image
    return EnsemblePoint(
        folder=str(folder),
        members=result.members_done,
        degree=result.degree,
        ranks=result.scale,
        images_per_second=rate,
        flops=flops,
        vflops=None if result.vflops is None or coefficient is None else flops * coefficient,
        member_images_per_second=min(images / spent for images, spent in zip(work, seconds, strict=True)),
        quality=result.quality.achieved,
        at_once=result.at_once or 0,
        overlap=result.overlap or 0.0,
    )


def compared(points: Sequence[EnsemblePoint]) -> tuple[EnsemblePoint, ...]:
    """The points with their efficiencies relative to the smallest.

    Raises:
        UsageError: there are fewer than two.
    """
    found = weak_scaling({point.ranks: point.flops for point in points})
    return tuple(
        EnsemblePoint(**{**asdict(point), "efficiency": found[point.ranks].parallel_efficiency}) for point in points
    )


# ----------------------------------------------------------------------------------------------------
# The pictures: FLOPS over ranks, compared with data parallelism, and quality against speed.


_ENSEMBLE, _ONE, _VALID, _IDEAL = "#0072b2", "#d55e00", "#56b4e9", "#999999"
# VFLOPS are drawn if they are within this factor of FLOPS.
_MOST_PENALTY = 4.0


def draw_ensemble_scaling(scaling: EnsembleScaling) -> dict[str, bytes]:
    """`ensemble-scaling.svg` and `.png`, `trade-off.svg` and `.png`."""
    return {
        **figure_files(lambda figure: _draw_scaling(figure, scaling), "ensemble-scaling", (7.5, 4.8)),
        **figure_files(lambda figure: _draw_trade_off(figure, scaling), "trade-off", (6.5, 4.2)),
    }


def _draw_scaling(figure: Figure, scaling: EnsembleScaling) -> None:
    axes = figure.subplots()
    points, others = scaling.points, scaling.data_parallel.points
    factor, prefix = prefix_of(points[-1].flops)
    ranks = [point.ranks for point in points]
    flops, valid = [one.flops / factor for one in points], [one.vflops / factor for one in points if one.vflops]
    alone = [one.flops / factor for one in others]
    ideal = [flops[0] / ranks[0] * count for count in ranks]
    axes.plot(ranks, ideal, "--", color=_IDEAL, label="ideal", zorder=1)
    axes.plot(ranks, flops, "o-", color=_ENSEMBLE, label="ensemble", zorder=4)
    # Far from the target, VFLOPS would squeeze the curves that are compared.
    if len(valid) == len(flops) and all(
        height / _MOST_PENALTY <= one <= height * _MOST_PENALTY for one, height in zip(valid, flops, strict=True)
    ):
        axes.plot(ranks, valid, "^:", color=_VALID, label="ensemble, VFLOPS", zorder=2)
    axes.plot(ranks, alone, "s-", color=_ONE, label="data parallelism", zorder=3)
    for point, height in list(zip(points, flops, strict=True))[1:]:
        _number(axes, point.ranks, height, point.efficiency or 0.0, 8, _ENSEMBLE)
    for one, height in list(zip(others, alone, strict=True))[1:]:
        _number(axes, one.processes, height, one.parallel_efficiency, -15, _ONE)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_xticks(ranks, [str(count) for count in ranks])
    axes.set_yticks(ideal, [f"{value:.3g}" for value in ideal])
    axes.minorticks_off()
    axes.margins(x=0.14, y=0.16)
    axes.set_xlabel(f"ranks (members of {scaling.degree} each, the same batch on each rank)")
    axes.set_ylabel(f"{prefix}FLOPS of the training steps")
    axes.set_title(f"Weak scaling of the {scaling.benchmark} ensemble; numbers: efficiency", loc="left", fontsize=11)
    axes.grid(alpha=0.3)
    axes.legend(loc="upper left", frameon=False)


def _number(axes: Axes, x: int, y: float, efficiency: float, offset: int, colour: str) -> None:
    axes.annotate(
        f"{efficiency:.2f}", (x, y), xytext=(14, offset), textcoords="offset points", ha="center", color=colour
    )


def _draw_trade_off(figure: Figure, scaling: EnsembleScaling) -> None:
    axes = figure.subplots()
    points = scaling.trade_off
    speeds, qualities = [one.member_images_per_second for one in points], [one.quality for one in points]
    axes.plot(speeds, qualities, "o-", color=_ENSEMBLE)
    for point in points:
        axes.annotate(
            f"M = {point.members}\n{point.degree} rank{'s' * (point.degree > 1)} each",
            (point.member_images_per_second, point.quality), xytext=(0, 9), textcoords="offset points",
            ha="center", fontsize=9, bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.5, "alpha": 0.8},
        )  # fmt: skip
    axes.margins(x=0.2, y=0.3)
    axes.set_xlabel(f"speed of one model, {samples_of(scaling.benchmark).names}/s")
    axes.set_ylabel(f"{scaling.metric} of the vote")
    axes.set_title(f"Quality against speed of {scaling.benchmark} on {points[0].ranks} ranks", loc="left", fontsize=11)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
