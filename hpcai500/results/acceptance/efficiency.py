"""Parallel efficiency on so many nodes: from runs on several numbers of nodes, or from `hpcai500 scale --json`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcai500.chain import last_hash
from hpcai500.errors import UsageError, WrongAnswerError
from hpcai500.methodology.scaling import weak_scaling
from hpcai500.methodology.trials import summarise
from hpcai500.results.acceptance.evidence import Run
from hpcai500.results.given_files import GivenFile
from hpcai500.results.report.words import number, tables
from hpcai500.results.scaling import read_scaling
from hpcai500.results.score import score_record

_ROUNDING = 1e-9

Points = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Efficiencies:
    """One value for each run on the number of nodes that was asked for, and what they are compared with.

    Attributes:
        values: parallel efficiency of each, as a fraction.
        sources: the runs, or the file.
        base_processes: the number of processes that they are compared with.
        note: what the reader must know of the source.
        word: why the values are only somebody's word; empty where they come from judged runs, or where the signer of
            the file is vouched for.
    """

    values: tuple[float, ...]
    sources: tuple[str, ...]
    base_processes: int
    note: str = ""
    word: str = ""


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


def efficiencies_of_file(source: GivenFile, nodes: int, judged: Sequence[Run]) -> Efficiencies | None:
    """What the file of `hpcai500 scale --json` says, computed again where its records are found; None if it has it not.

    Nodes, processes and efficiency are those of the records. They prove something where each record is one of the
    `judged` runs, whose copy is then read; else the figures are the word of whoever stands for the file.

    Raises:
        RecordError: it is no JSON.
        UsageError: it is something else, or a prediction.
        WrongAnswerError: it says something else than its records.
    """
    path = source.path
    points = _points(source)
    doubt = _doubt(path, points, judged)
    there = [point for point in points if point["nodes"] == nodes]
    if not there:
        return None
    point, base = max(there, key=lambda one: one["processes"]), min(points, key=lambda one: one["processes"])
    if point is base:
        return None
    value = number(point.get("parallel_efficiency"))
    if value is None:
        raise UsageError(f"{path}: the point of {nodes} node(s) has no parallel_efficiency")
    notes = [f"as {path} says: {doubt}", source.doubt] if doubt else []
    word = f"{path}: {doubt}" if doubt and source.doubt else ""
    return Efficiencies((value,), (str(path),), int(base["processes"]), "; ".join(filter(None, notes)), word)


def _rates(few: Run, many: Run) -> tuple[float, float]:
    one, other = read_scaling([few.record.path, many.record.path]).points
    return one.images_per_second, other.images_per_second


def _points(source: GivenFile) -> Points:
    path, document = source.path, source.tables()
    if document.get("kind") == "prediction":
        raise UsageError(f"{path}: a prediction, which is no evidence: hpcai500 scale … --json > scale.json")
    points = tables(document.get("points"))
    if not points or document.get("error") or any(not _is_point(point) for point in points):
        said = f": {document['error']}" if document.get("error") else ""
        raise UsageError(f"{path}: no result of `hpcai500 scale --json`{said}")
    return points


def _is_point(point: Mapping[str, Any]) -> bool:
    return all(isinstance(point.get(key), int) and point[key] > 0 for key in ("nodes", "processes"))


def _doubt(path: Path, points: Points, judged: Sequence[Run]) -> str:
    """Why the records of the points prove nothing; empty where each is one of the judged runs.

    Raises:
        WrongAnswerError: a point says something else than its record.
    """
    by_head = {run.head: run.record.path for run in judged}
    found = [_found(path, point.get("record")) for point in points]
    # A judged run is read where it was judged: what lies beside the file may change meanwhile.
    proven = [folder and by_head.get(_head(folder)) for folder in found]
    records = [one or other for one, other in zip(proven, found, strict=True)]
    here = [(point, record) for point, record in zip(points, records, strict=True) if record]
    for point, record in here:
        result = score_record(record)
        _check(path, point, {"nodes": result.nodes, "processes": result.world_size})
    if len(here) < len(points):
        return "the records that it names are not here"
    if len(here) > 1:
        computed = {one.processes: one.parallel_efficiency for one in read_scaling([one for _, one in here]).points}
        for point, _ in here:
            _check(path, point, {"parallel_efficiency": computed[point["processes"]]})
    return "" if all(proven) else "the records that it names are none of the runs that are judged"


def _check(path: Path, point: Mapping[str, Any], expected: Mapping[str, float]) -> None:
    for key, value in expected.items():
        told = number(point.get(key))
        if told is None or not math.isclose(told, value, rel_tol=_ROUNDING):
            what = f"{key.replace('_', ' ')} of {point['processes']} process(es) is {point.get(key)}"
            raise WrongAnswerError(f"{path}: {what}, but the records give {value}")


def _head(folder: Path) -> str:
    """Hash of the last event of the record, which stands for all of them; of no run where it cannot be read."""
    try:
        return last_hash((folder / "events.jsonl").read_bytes())
    except OSError:
        return ""


def _found(path: Path, name: object) -> Path | None:
    """The record that a point names, as it is named or beside the file."""
    if not isinstance(name, str) or "\0" in name:
        return None
    needed = ("DONE", "events.jsonl")
    folders = (Path(name), path.parent / name)
    return next((folder for folder in folders if all((folder / file).is_file() for file in needed)), None)
