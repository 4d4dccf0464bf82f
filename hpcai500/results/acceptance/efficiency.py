"""Parallel efficiency on so many nodes: from runs on several numbers of nodes, or from `hpcai500 scale --json`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcai500.errors import UsageError, WrongAnswerError
from hpcai500.methodology.scaling import weak_scaling
from hpcai500.methodology.trials import summarise
from hpcai500.record import json_object
from hpcai500.results.acceptance.evidence import Run
from hpcai500.results.given_files import GivenFile
from hpcai500.results.report.words import number, tables
from hpcai500.results.scaling import read_scaling

_ROUNDING = 1e-9


@dataclass(frozen=True)
class Efficiencies:
    """One value for each run on the number of nodes that was asked for, and what they are compared with.

    Attributes:
        values: parallel efficiency of each, as a fraction.
        sources: the runs, or the file.
        base_processes: the number of processes that they are compared with.
        note: what the reader must know of the source.
    """

    values: tuple[float, ...]
    sources: tuple[str, ...]
    base_processes: int
    note: str = ""


def efficiencies_of_runs(runs: Sequence[Run], nodes: int) -> Efficiencies | None:
    """Weak scaling from the smallest number of processes to the largest on `nodes` nodes; None where one is missing.

    Rates are those of the training steps (results/scaling.py). Several runs of the smallest number count with their
    mean, without the highest and the lowest of three or more.

    Raises:
        UsageError: the runs do not belong into one table.
        RecordError, WrongAnswerError: a record does not hold together.
    """
    there = [run for run in runs if run.result.nodes == nodes]
    if not there:
        return None
    processes, base = max(run.result.world_size for run in there), min(run.result.world_size for run in runs)
    if base == processes:
        return None
    many = [run for run in there if run.result.world_size == processes]
    few = [run for run in runs if run.result.world_size == base]
    base_rate = summarise([_rates(run, many[0])[0] for run in few]).mean
    rates = [_rates(few[0], run)[1] for run in many]
    values = (weak_scaling({base: base_rate, processes: rate})[processes].parallel_efficiency for rate in rates)
    return Efficiencies(tuple(values), tuple(run.name for run in many), base)


def efficiencies_of_file(source: GivenFile, nodes: int) -> Efficiencies | None:
    """What the file of `hpcai500 scale --json` says, computed again where its records are found; None if it has it not.

    Where they are not, its figures are the word of whoever stands for the file.

    Raises:
        RecordError: it is no JSON.
        UsageError: it is something else, or a prediction.
        WrongAnswerError: it says something else than its records.
    """
    path = source.path
    points = _points(path)
    there = [point for point in points if point["nodes"] == nodes]
    if not there:
        return None
    point, base = max(there, key=lambda one: one["processes"]), min(points, key=lambda one: one["processes"])
    if point is base:
        return None
    value = number(point.get("parallel_efficiency"))
    if value is None:
        raise UsageError(f"{path}: the point of {nodes} node(s) has no parallel_efficiency")
    notes: list[str] = []
    if not _check_with_records(path, points):
        notes = [f"as {path} says: the records that it names are not here", source.doubt]
    return Efficiencies((value,), (str(path),), int(base["processes"]), "; ".join(filter(None, notes)))


def _rates(few: Run, many: Run) -> tuple[float, float]:
    one, other = read_scaling([few.record.path, many.record.path]).points
    return one.images_per_second, other.images_per_second


def _points(path: Path) -> list[Mapping[str, Any]]:
    document = json_object(path)
    if document.get("kind") == "prediction":
        raise UsageError(f"{path}: a prediction, which is no evidence: hpcai500 scale … --json > scale.json")
    points = tables(document.get("points"))
    if not points or document.get("error") or any(not _is_point(point) for point in points):
        said = f": {document['error']}" if document.get("error") else ""
        raise UsageError(f"{path}: no result of `hpcai500 scale --json`{said}")
    return points


def _is_point(point: Mapping[str, Any]) -> bool:
    return all(isinstance(point.get(key), int) and point[key] > 0 for key in ("nodes", "processes"))


def _check_with_records(path: Path, points: Sequence[Mapping[str, Any]]) -> bool:
    """Whether its records are here; what they say must be what it says."""
    folders = [_found(path, point.get("record")) for point in points]
    records = [folder for folder in folders if folder]
    if len(records) < len(points) or len(points) < 2:
        return False
    computed = {point.processes: point.parallel_efficiency for point in read_scaling(records).points}
    for point in points:
        told, found = number(point.get("parallel_efficiency")), computed.get(point["processes"])
        if told is None or found is None or not math.isclose(told, found, rel_tol=_ROUNDING):
            raise WrongAnswerError(
                f"{path}: the parallel efficiency of {point['processes']} process(es) is {told}, but the records give "
                f"{found}"
            )
    return True


def _found(path: Path, name: object) -> Path | None:
    """The record that a point names, as it is named or beside the file."""
    if not isinstance(name, str) or "\0" in name:
        return None
    return next((folder for folder in (Path(name), path.parent / name) if (folder / "DONE").is_file()), None)
