"""Complete records of runs that nobody ran: real files, chained as ever, with the facts that a test gives."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcai500.methodology.result import derive
from hpcai500.recipe import load_recipe, recipe_hash, rulebook
from hpcai500.record import RecordWriter, read_record

STAGE = {"mean_seconds": 0.002, "median_seconds": 0.001, "p95_seconds": 0.004}
COSTS: dict[str, Any] = {
    "steps": 100,
    "all_reduces": 500,
    "communication_fraction": 0.125,
    "overlap": 0.75,
    "bytes_per_step": {"gradient": 4.0e6, "sent": 3.0e6},
    "stages": {
        "negotiation": None, "wait_for_data": STAGE, "wait_for_other_data": STAGE, "queuing": STAGE,
        "memcpy_in": STAGE, "all_reduce": STAGE, "memcpy_out": STAGE,
    },
    "buckets": [],
    "ranks": [
        {
            "rank": rank, "host": f"n{rank}", "steps": 100, "step_seconds": 1.0, "data_wait_seconds": 0.1,
            "compute_seconds": 0.5 + rank, "communication_wait_seconds": 0.4 - rank / 10, "own_seconds": 0.6 + rank,
            "all_reduce_seconds": 0.5, "sent_bytes": 3.0e6, "straggler": rank == 1,
        }
        for rank in range(2)
    ],
    "stragglers": ["rank 1 on n1"],
}  # fmt: skip


def write_record(
    path: Path,
    *settings: str,
    world: Mapping[str, Any] | None = None,
    costs: Mapping[str, Any] | None = None,
    seconds: float = 10.0,
    samples: int = 1000,
    cpu: str = "Zen 4",
    trace: bytes | None = None,
    finish: bool = True,
) -> Path:
    """A record of ic/smoke in one epoch, changed by `settings`.

    Args:
        path: its folder.
        settings: as given to --set.
        world: added to the event run_start.
        costs: the event communication, if there is one.
        seconds: of the epoch's training steps.
        samples: that it trained on.
        cpu: model of the node's processor.
        trace: content of trace/communication.json.
        finish: whether the run came to its end.
    """
    recipe = load_recipe("ic/smoke", ["problem.epochs=1", "hyperparameters.warmup_epochs=0", *settings])
    node = {"host": "n0", "cpu": {"Model name": cpu}, "accelerators": [], "software": {"torch": "2.13.0"}}
    done = {"samples": samples, "padded_samples": 0, "coverage": "all", "seconds": seconds, "data_wait_seconds": 0.0}
    with RecordWriter.create(path, recipe) as writer:
        writer.event("init_start", {"recipe_hash": recipe_hash(recipe), "boot_id": "boot"})
        writer.write_system({"nodes": [node]})
        writer.event("dataset", {"coverage": "all"})
        writer.event("flops", {"convention": "analytic", "per_sample": 1e9})
        world = {"world_size": recipe.world_size, "nodes": recipe.hardware.nodes, **(world or {})}
        writer.event("run_start", world)
        writer.event("epoch_stop", {"epoch": 1, **done})
        writer.event("eval_accuracy", {"epoch": 1, "value": 0.9, "seconds": 1.0})
        if costs:
            writer.event("communication", costs)
        if trace is not None:
            (path / "trace").mkdir()
            (path / "trace" / "communication.json").write_bytes(trace)
            value = {"file": "trace/communication.json", "sha256": hashlib.sha256(trace).hexdigest()}
            writer.event("trace", value)
        if finish:
            writer.event("run_stop", {"status": "success"})
            record = read_record(path)
            writer.finish(derive(record.tables, rulebook("v2.0", "ic"), record.events).as_json())
    return path


def ranks(number: int, *, backend: str = "torch", nodes: int = 1) -> Sequence[str]:
    """Settings of a recipe of `number` ranks on `nodes` nodes."""
    return (
        f"communication.backend={backend if number > 1 else 'local'}",
        f"hardware.nodes={nodes}",
        f"hardware.accelerators_per_node={number // nodes}",
    )
