"""Ensembles of more and more members on this machine, beside one model on the same ranks (V3.0 Fig. 5, 7 and 9).

FOLDER/
    scale.json                     what is run, so that an interrupted scaling can be gone on with
    procs-1/ procs-2/ …            records of one model by data parallelism
    ensemble-1x1/ ensemble-2x1/ …  ensembles, members x accelerators of each
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from hpcai500.ensemble.collect import CollectOrder, collect_ensemble
from hpcai500.ensemble.live import Live
from hpcai500.ensemble.planning import PlanRequest, plan_ensemble
from hpcai500.ensemble.reading import DONE, is_ensemble, read_ensemble
from hpcai500.ensemble.running import RunOrder, run_ensemble
from hpcai500.errors import ExitCode, RunError, UsageError
from hpcai500.launch.affinity import neighbours_together
from hpcai500.launch.scale import Points, ScaleRequest, keep_plan, run_point, settle
from hpcai500.recipe import ENSEMBLE, load_recipe
from hpcai500.streams import say

_TABLE = f"{ENSEMBLE}."


@dataclass(frozen=True)
class EnsembleScaleRequest:
    """What the user asked for.

    Attributes:
        scaling: benchmark, numbers of ranks, recipe of one model, data, folder, overrides: those of `[ensemble]` are
            for the ensembles alone.
        degree: ranks of a member in the weak scaling.
    """

    scaling: ScaleRequest
    degree: int = 1


@dataclass(frozen=True)
class ScaledRuns:
    """What was run, as folders.

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
    """Run what is not finished yet in `folder`: one model and an ensemble on each number of ranks, then trade-offs.

    Those are ensembles of fewer and larger members on the ranks of the largest point. Every rank has as many cores at
    every point as it has at the largest one, where all of them are taken.

    Args:
        request: what the user asked for.
        folder: where all of it lies.
        run_one: runs one model; tests put something else there.

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
    """Let what is started within run on the share of this process's cores that `ranks` of `most` ranks have.

    Else, a point of fewer ranks would have more of the machine for each: idle cores for its input, say.
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
            f"{request.recipe_name}: a recipe of an ensemble; give that of one model, as in --recipe "
            f"{request.benchmark}/reference: the ensembles are made of it"
        )
    points = settle(request)
    if request.procs is None:
        points = replace(points, processes=[ranks for ranks in points.processes if ranks % degree == 0])
        if len(points.processes) < 2:
            raise UsageError(f"--degree {degree}: this machine has no two multiples of it: name some with --procs")
    odd = [str(ranks) for ranks in points.processes if ranks % degree]
    if odd:
        raise UsageError(f"--procs: {', '.join(odd)}: members of {degree} ranks (--degree) need multiples of that")
    return points


def _run_one(points: Points, folder: Path, ranks: int) -> None:
    outcome = run_point(points, folder, ranks)
    if outcome.exit_code != ExitCode.PASS:
        path = outcome.record / "ERROR"
        why = path.read_text(encoding="utf-8").strip() if path.is_file() else "the run failed (see above)"
        raise RunError(f"{outcome.record}: {why}")


def _run_ensemble(points: Points, folder: Path, own: Sequence[str], members: int, degree: int) -> Path:
    """Plan, run and collect one ensemble, or what is not done of it."""
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
    say(f"{place}: {members} member(s) of {degree} rank(s)")
    ensemble = read_ensemble(place)
    with Live(ensemble, members) as live:
        end = run_ensemble(RunOrder(place, power="none"), lambda _, jobs: live.update(jobs))
    if end.stopped:
        raise RunError("stopped; nothing is lost: the same command with the same --out goes on")
    result = collect_ensemble(CollectOrder(place)).result
    if not result.complete:
        first = result.missing[0]
        raise RunError(f"{place}: {result.reasons[0]}; member {first.member}: {first.reason}")
    return place
