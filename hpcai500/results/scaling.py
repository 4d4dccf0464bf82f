"""Records of the same work on more and more processes, as one table: V2.0 Fig. 12."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from hpcai500.campaign.company import company_difference
from hpcai500.errors import UsageError
from hpcai500.methodology.result import Result, training_seconds
from hpcai500.methodology.scaling import weak_scaling
from hpcai500.record import Record, read_record
from hpcai500.results.score import score_record
from hpcai500.results.show import scaled

# What a weak scaling varies, and what does not matter to its rates.
_VARIED = {("hardware", "nodes"), ("hardware", "accelerators_per_node"), ("hyperparameters", "seed")}


@dataclass(frozen=True)
class ScalingPoint:
    """One number of processes. Rates are those of the training steps: no evaluation, no checkpoint.

    `estimated_efficiency` is what the run itself measured before its clock started (docs/timeline.md).
    """

    record: str
    processes: int
    nodes: int
    backend: str
    library: str | None
    images_per_second: float
    flops: float
    speedup: float
    parallel_efficiency: float
    communication_fraction: float | None
    estimated_efficiency: float | None


@dataclass(frozen=True)
class Scaling:
    """All points of one benchmark, by number of processes; the first is the base."""

    benchmark: str
    points: tuple[ScalingPoint, ...]

    def lines(self) -> Iterator[str]:
        """The table for people."""
        base = self.points[0].processes
        yield f"weak scaling of {self.benchmark}, the same batch a process; efficiency against {base} process(es)"
        yield (
            f"{'processes':>9} {'nodes':>5} {'images/s':>10} {'FLOPS':>12} {'speed-up':>9} {'efficiency':>10} "
            f"{'comm wait':>9}  backend"
        )
        for point in self.points:
            wait = "-" if point.communication_fraction is None else f"{point.communication_fraction:.1%}"
            backend = f"{point.backend} ({point.library})" if point.library else point.backend
            yield (
                f"{point.processes:>9} {point.nodes:>5} {point.images_per_second:>10.1f} "
                f"{scaled(point.flops, 'FLOPS'):>12} {point.speedup:>9.2f} {point.parallel_efficiency:>10.2f} "
                f"{wait:>9}  {backend}"
            )

    def figure_of_merit_lines(self) -> Iterator[str]:
        """The stable lines for harnesses, of all points but the base."""
        for point in self.points[1:]:
            yield f"HPCAI500 FOM speedup_{point.processes}={point.speedup:.6g} times"
            yield f"HPCAI500 FOM parallel_efficiency_{point.processes}={point.parallel_efficiency:.6g} fraction"

    def document(self) -> dict[str, Any]:
        """The same for programs."""
        return {"benchmark": self.benchmark, "points": [asdict(point) for point in self.points]}


def read_scaling(paths: Sequence[Path]) -> Scaling:
    """The weak scaling that the records at `paths` show.

    Raises:
        UsageError: fewer than two, two with as many processes, or some that must not be put together: other work a
            process, another backend or library, another machine.
        RecordError: one is no complete record.
        WrongAnswerError: the `result.json` of one says something else than its events.
    """
    if len(paths) < 2:
        raise UsageError(f"scaling: expected records of two numbers of processes or more, got {len(paths)}")
    runs = sorted(((score_record(path), read_record(path)) for path in paths), key=lambda run: run[0].world_size)
    _check_alike(runs)
    rates = {result.world_size: _training_rate(result, record) for result, record in runs}
    compared = weak_scaling(rates)
    return Scaling(
        runs[0][0].benchmark,
        tuple(
            ScalingPoint(
                record=str(record.path),
                processes=result.world_size,
                nodes=result.nodes,
                backend=result.backend,
                library=result.communication_library,
                images_per_second=rates[result.world_size],
                flops=rates[result.world_size] * result.flops_per_image,
                speedup=compared[result.world_size].speedup,
                parallel_efficiency=compared[result.world_size].parallel_efficiency,
                communication_fraction=result.communication_fraction,
                estimated_efficiency=result.parallel_efficiency,
            )
            for result, record in runs
        ),
    )


def _training_rate(result: Result, record: Record) -> float:
    """Images a second in the training steps alone (V2.0 section 7.2: images a process and second x processes).

    Evaluations and checkpoints take nearly as long on many processes as on few, while the same epochs are fewer steps:
    with them in it, it would be no weak scaling. Images that fill up the last batch of an epoch are work as well.
    """
    return (result.images + result.padded_images) / training_seconds(record.events)


def _check_alike(runs: Sequence[tuple[Result, Record]]) -> None:
    """Refuse records of which a table would compare what cannot be compared.

    Where one process has no backend, what others talk by is compared among those that talk.
    """
    for (one, first), (other, second) in pairwise(runs):
        if one.world_size == other.world_size:
            raise UsageError(
                f"{second.path}: {other.world_size} process(es), as {first.path}: give one record for each"
            )
    first, first_of_many = runs[0][1], next((record for result, record in runs if result.world_size > 1), None)
    for result, record in runs[1:]:
        talking = first_of_many if result.world_size > 1 and first_of_many else first
        problem = (
            _other_work(first, record, everything=False)
            or _other_work(talking, record, everything=True)
            or company_difference(talking, record, ignored=("world_size", "nodes"))
            or _other_machine(first, record)
        )
        if problem:
            raise UsageError(f"scaling: these do not belong into one table: {problem}")


def _other_work(one: Record, other: Record, *, everything: bool) -> str | None:
    """The field in which two recipes differ that have to agree; without `everything`, communication is left out."""
    left, right = _fields(one), _fields(other)
    for field in sorted({*left, *right} - _VARIED):
        if left.get(field) != right.get(field) and (everything or field[0] != "communication"):
            return f"{other.path} differs from {one.path} in {'.'.join(field)}"
    is_cpu = left.get(("accelerator", "device")) == "cpu"
    per_node = ("hardware", "accelerators_per_node")
    if is_cpu and left.get(("os", "threads")) == 0 and left.get(per_node) != right.get(per_node):
        return (
            f"{one.path} and {other.path} share the cores of a node among {left.get(per_node)} and "
            f"{right.get(per_node)} processes, so each had another number of threads: make them with --set os.threads=N"
        )
    return None


def _fields(record: Record) -> dict[tuple[str, str], Any]:
    """Every value of the recipe by (table, key)."""
    return {
        (table, key): value
        for table, values in record.tables.items()
        for key, value in (values.items() if isinstance(values, dict) else [("", values)])
    }


def _other_machine(one: Record, other: Record) -> str | None:
    if _machines(one) != _machines(other):
        return f"{other.path} was made on other processors, accelerators or versions of torch than {one.path}"
    return None


def _machines(record: Record) -> set[tuple[Any, ...]]:
    """Each kind of node that the record names."""
    return {
        (
            (node.get("cpu") or {}).get("Model name"),
            *sorted({device.get("name") for device in node.get("accelerators", [])}),
            node.get("software", {}).get("torch"),
        )
        for node in record.system.get("nodes", [])
    }
