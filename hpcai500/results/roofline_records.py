"""Points of a roofline from records: FLOPS of the training steps, and FLOPs for each byte that went through a link."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcai500.errors import RecordError, UsageError
from hpcai500.machine import Machine, why_not_of
from hpcai500.methodology.result import Result, training_seconds
from hpcai500.methodology.roofline import Model, Workload
from hpcai500.methodology.sent_bytes import Topology, gradient_bytes
from hpcai500.record import Record, read_record
from hpcai500.results.roofline import Roofline, RooflinePoint, level_of, machine_roofline, make_roofline, place
from hpcai500.results.score import score_record


@dataclass(frozen=True)
class _Run:
    """One record and what it amounts to."""

    record: Record
    result: Result

    @property
    def path(self) -> Path:
        return self.record.path

    @property
    def stages(self) -> int:
        """Parts of its model: 1 in records that are older than they."""
        return int(self.record.tables["programming"].get("stages", 1))

    def setting(self, table: str, key: str) -> Any:
        return self.record.tables[table][key]


def roofline(records: Sequence[Path], machine: Machine, model: Model | None = None) -> Roofline:
    """The model of `machine` with the runs of `records` in it; without any, with those that were published for it.

    Args:
        records: folders of runs.
        machine: that they ran on.
        model: `node` for runs on one node, `system` for runs on several; by default what they are.

    Raises:
        UsageError: the model is not one for these runs, or the machine lacks a ceiling that one of them needs.
        RecordError: one is no complete record, or does not say what it communicated.
        WrongAnswerError: the `result.json` of one says something else than its events.
    """
    if not records:
        return machine_roofline(machine, model)
    runs = [_Run(read_record(path), score_record(path)) for path in records]
    chosen = _model(runs, model)
    return make_roofline(machine, chosen, [_point(run, machine, chosen) for run in runs])


def _model(runs: Sequence[_Run], wanted: Model | None) -> Model:
    for run in runs:
        fits: Model = "system" if run.result.nodes > 1 else "node"
        wanted = wanted or fits
        if fits != wanted:
            raise UsageError(
                f"{run.path}: a run on {run.result.nodes} node(s) has its place in --model {fits}, not {wanted}: "
                "draw runs on one node and on several apart"
            )
    assert wanted is not None
    return wanted


def _point(run: _Run, machine: Machine, model: Model) -> RooflinePoint:
    result = run.result
    per_node, rest = divmod(result.world_size, result.nodes)
    if rest:
        raise UsageError(f"{run.path}: {result.world_size} ranks on {result.nodes} nodes: the model is of equal nodes")
    if reason := why_not_of(machine, str(run.setting("accelerator", "device")), per_node):
        raise UsageError(f"{run.path}: {reason}")
    workload = _workload(run, model, per_node)
    seconds = training_seconds(run.record.events)
    return place(
        workload,
        level_of(machine, model),
        name=_name(run, workload),
        benchmark=result.benchmark,
        accelerators=result.world_size,
        flops=(result.images + result.padded_images) * result.flops_per_image / seconds,
        source=str(run.path),
    )


def _workload(run: _Run, model: Model, per_node: int) -> Workload:
    result, compression = run.result, str(run.setting("communication", "compression"))
    precision = str(run.setting("accelerator", "precision"))
    if result.world_size == 1:
        return Workload(model, precision, None)
    if run.stages > 1:
        raise UsageError(
            f"{run.path}: its model is cut into {run.stages} stages: the roofline is of data parallelism, in which "
            "ranks send gradients only"
        )
    if result.bytes_per_step is None or not result.bytes_per_step.sent:
        raise RecordError(f"{run.path}: its events do not tell what its ranks sent: no event communication")
    topology = _topology(run, per_node)
    sent = result.bytes_per_step.sent
    if model == "system":
        if topology is None:
            raise UsageError(
                f"{run.path}: rows of its torus are no nodes, so that what leaves a node is not known: "
                "communication.torus_columns = 0 for the model `system`"
            )
        shares = gradient_bytes(topology, 1.0, compression, result.nodes, per_node)
        sent *= shares.node / shares.rank
    coi = _flops_per_step(run) / sent
    return Workload(model, precision, coi, compression, topology, result.nodes, per_node)


def _flops_per_step(run: _Run) -> float:
    """Of all ranks: a step is an update, whose images no number of ranks changes."""
    images = run.setting("hyperparameters", "batch_size") * run.setting("hyperparameters", "accumulation_steps")
    ranks = run.setting("hardware", "nodes") * run.setting("hardware", "accelerators_per_node")
    return float(images * ranks * run.result.flops_per_image)


def _topology(run: _Run, per_node: int) -> Topology | None:
    """The recipe's word in those of the model; None for a torus whose rows are not the nodes."""
    match run.setting("communication", "topology"):
        case "hierarchical":
            return "hierarchical"
        case "parameter-server":
            return "parameter-server"
        case "torus":
            return "torus" if run.setting("communication", "torus_columns") in (0, per_node) else None
        case _:
            is_tree = run.setting("communication", "algorithm") == "double-binary-tree"
            return "tree" if is_tree else "ring"


def _name(run: _Run, workload: Workload) -> str:
    compressed = f", {workload.compression} compression" if workload.compression != "none" else ""
    return f"{run.result.benchmark.upper()} {workload.precision}{compressed} ({run.path.name})"
