"""Records beside a prediction: what was measured, and the step that it began from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcai500.chain import iterate
from hpcai500.errors import UsageError
from hpcai500.machine import Machine, why_not_of
from hpcai500.methodology.result import Result, training_seconds
from hpcai500.record import Record, read_record
from hpcai500.results.score import score_record


@dataclass(frozen=True)
class MeasuredPoint:
    """One record.

    Attributes:
        record: its folder.
        ranks: of the run.
        nodes: of the run.
        flops: of its training steps, without evaluation.
        flops_per_sample: by the record's count.
        step_seconds_alone: of a step without communication: what the run measured before its clock started, or, of one
            rank, its mean step.
    """

    record: str
    ranks: int
    nodes: int
    flops: float
    flops_per_sample: float
    step_seconds_alone: float


def read_measured(paths: Sequence[Path]) -> list[MeasuredPoint]:
    """The records at `paths`, those with the fewest ranks first.

    Raises:
        UsageError: they are of different recipes.
        RecordError: one is no complete record.
        WrongAnswerError: the `result.json` of one says something else than its events.
    """
    runs = sorted(((score_record(path), read_record(path)) for path in paths), key=lambda run: run[0].world_size)
    for _, record in runs[1:]:
        first = runs[0][1]
        for table in ("problem", "hyperparameters", "workload", "accelerator"):
            if _without_seed(record, table) != _without_seed(first, table):
                raise UsageError(f"{record.path}: another [{table}] than {first.path}: one prediction is of one recipe")
    return [_point(result, record) for result, record in runs]


def require_fit(paths: Sequence[Path], machine: Machine) -> None:
    """Refuse records that were not made as `machine`'s ceilings were: their step says nothing of it.

    Raises:
        UsageError: with the reason.
    """
    for path in paths:
        record = read_record(path)
        result = score_record(path)
        device = str(record.tables["accelerator"]["device"])
        if reason := why_not_of(machine, device, result.world_size // result.nodes):
            raise UsageError(f"{path}: {reason}")


def classes_of(path: Path) -> int | None:
    """Classes of the data that the record's run was trained on, where it is a classifier's."""
    dataset: dict[str, Any] = next((event["value"] for event in iterate(read_record(path).events, "dataset")), {})
    classes = dataset.get("classes")
    return int(classes) if classes and "grid" not in dataset else None


def _point(result: Result, record: Record) -> MeasuredPoint:
    seconds, images = training_seconds(record.events), result.images + result.padded_images
    rehearsed = [event["value"] for event in iterate(record.events, "parallel_efficiency")]
    alone = rehearsed[-1]["step_seconds_alone"] if rehearsed else None
    if alone is None:
        if result.world_size > 1:
            raise UsageError(
                f"{record.path}: what a step takes without communication was not measured in it (batch norm over all "
                "ranks talks within each step): give a record of one rank"
            )
        alone = seconds / (images / record.recipe().global_batch)
    flops = images / seconds * result.flops_per_image
    return MeasuredPoint(str(record.path), result.world_size, result.nodes, flops, result.flops_per_image, alone)


def _without_seed(record: Record, table: str) -> dict[str, object]:
    return {key: value for key, value in record.tables[table].items() if key != "seed"}
