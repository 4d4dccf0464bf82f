"""Complete records of runs that nobody ran: real files, chained as ever, with the facts that a test gives."""

from __future__ import annotations

import hashlib
import io
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from PIL import Image

from builders.campaigns import derived, power_entry
from builders.events import STAGES
from hpcai500.layers import Recipe
from hpcai500.methodology.energy import Window, window_of
from hpcai500.methodology.kernel_classes import CLASSES
from hpcai500.recipe import load_recipe, recipe_hash
from hpcai500.record import RecordWriter, read_record
from hpcai500.system.power_samples import Row, file_name, format_samples

COSTS: dict[str, Any] = {
    "steps": 100,
    "all_reduces": 500,
    "overlap": 0.75,
    "bytes_per_step": {"gradient": 4.0e6, "sent": 3.0e6},
    "stages": STAGES,
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
    trace: bytes | None = None,
    cpu: str = "Zen 4",
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
        trace: content of trace/communication.json.
        cpu: model of the node's processor.
        finish: whether the run came to its end.
    """
    recipe = load_recipe("ic/smoke", ["problem.epochs=1", "hyperparameters.warmup_epochs=0", *settings])
    node = {"host": "n0", "cpu": {"Model name": cpu}, "accelerators": [], "software": {"torch": "2.13.0"}}
    done = {"samples": samples, "padded_samples": 0, "coverage": "all", "seconds": seconds, "data_wait_seconds": 0.0}
    if costs:
        done |= {"compute_seconds": 0.8 * seconds, "communication_wait_seconds": 0.125 * seconds}
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
            writer.finish(derived(path))
    return path


def settings_of_ranks(number: int, *, backend: str = "torch", nodes: int = 1) -> Sequence[str]:
    """Settings of a recipe of `number` ranks on `nodes` nodes."""
    return (
        f"communication.backend={backend if number > 1 else 'local'}",
        f"hardware.nodes={nodes}",
        f"hardware.accelerators_per_node={number // nodes}",
    )


# ----------------------------------------------------------------------------------------------------
PROFILE = {
    "schema": "hpcai500-profile-1", "benchmark": "ic", "device": "cpu", "seconds": 2.0, "steps": 10,
    "classes": {
        "convolution": {"seconds": 1.5, "share": 0.75, "calls": 100},
        "element-wise": {"seconds": 0.5, "share": 0.25, "calls": 50},
    },
    "unclassified_share": 0.004,
    "top": [{"name": "mkldnn_convolution", "class": "convolution", "seconds": 1.5, "share": 0.75, "calls": 100}],
    "layout": {"seconds": 0.1, "share": 0.05, "conversions": [{"name": "reorder nchw to nChw16c", "seconds": 0.1}]},
    "utilisation": [[0.0, 0.5], [1.0, 0.9], [2.0, 0.7]],
    "bandwidth": [
        {"t_s": float(t), "sent_bytes_per_second": 1e8 * t, "received_bytes_per_second": 9e7 * t} for t in range(4)
    ],
}  # fmt: skip


class MovedClock:
    """Stands in for the machine's clocks: a run of a minute is written in no time."""

    CLOCK_BOOTTIME = time.CLOCK_BOOTTIME

    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def time_ns(self) -> int:
        return int(self.now * 1e9)

    def clock_gettime(self, _: int) -> float:
        return self.now - 1_799_990_000.0


def write_reported(
    path: Path,
    *settings: str,
    ranks: int = 4,
    nodes: int = 2,
    epochs: int = 3,
    hosts: str = "n{}",
    seed: int = 1,
    step_seconds: float = 1.0,
    quality: float = 0.9,
    fail: str | None = None,
    is_silent: bool = False,
) -> Path:
    """A record of ic/smoke with steps, communication, power, a picture and a profile.

    Args:
        path: its folder.
        settings: as given to --set.
        ranks: of the run, the last of which is a straggler.
        nodes: that they are on; the last one has another driver.
        epochs: of the run.
        hosts: form of the hosts' names.
        seed: of the recipe.
        step_seconds: by which all times are multiplied.
        quality: after the last epoch.
        fail: what ended the run before its end.
        is_silent: whether the meters missed some seconds.
    """
    recipe = _reported_recipe(*settings, ranks=ranks, nodes=nodes, epochs=epochs, seed=seed)
    backend = recipe.communication.backend
    names = [hosts.format(index) for index in range(nodes)]
    clock = MovedClock()
    with mock.patch("hpcai500.record.time", clock), RecordWriter.create(path, recipe) as writer:
        writer.event("init_start", {"recipe_hash": recipe_hash(recipe), "boot_id": "boot", "process": hash(path)})
        writer.write_system({"nodes": [_node(name, name == names[-1]) for name in names], "installation": {}})
        writer.event("dataset", {"coverage": "all", "fingerprint": "f" * 64})
        writer.event("flops", {"convention": "analytic", "per_sample": 1e9})
        world = {"world_size": ranks, "nodes": nodes, "hosts": names, "backend": backend, "library": "Gloo"}
        clock.now += 3
        writer.event("run_start", world)
        for epoch in range(1, epochs + 1):
            writer.event("epoch_start", {"epoch": epoch})
            clock.now += 10 * step_seconds
            writer.event("epoch_stop", {"epoch": epoch, **_epoch(epoch, step_seconds)})
            if fail is not None:
                writer.fail(fail)
                return path
            writer.event("eval_start", {"epoch": epoch})
            clock.now += 0.5
            said = {"epoch": epoch, "metric": "top1", "value": quality * epoch / epochs, "seconds": 0.5}
            writer.event("eval_accuracy", said)
            writer.event("eval_stop", {"epoch": epoch})
        writer.event("run_stop", {"status": "success"})
        of_ranks = [_rank(rank, ranks, names, step_seconds) for rank in range(ranks)]
        writer.event("steps", {"ranks": [{**one, "seconds": sum(list(one.values())[3:])} for one in of_ranks]})
        if ranks > 1:
            writer.event("communication", _communication(of_ranks))
        writer.event("power", _power(path, names, window_of(read_record(path).events), is_silent=is_silent))
        writer.write_picture("detections.png", _picture())
        writer.finish(derived(path))
    write_reported_profile(path / "profile", {**PROFILE, **profile_facts(recipe)})
    return path


def _reported_recipe(*settings: str, ranks: int = 4, nodes: int = 2, epochs: int = 3, seed: int = 1) -> Recipe:
    return load_recipe(
        "ic/smoke",
        [
            f"problem.epochs={epochs}", "hyperparameters.warmup_epochs=0", f"hyperparameters.seed={seed}",
            f"communication.backend={'torch' if ranks > 1 else 'local'}", f"hardware.nodes={nodes}",
            f"hardware.accelerators_per_node={ranks // nodes}", *settings,
        ],
    )  # fmt: skip


def profile_facts(recipe: Recipe) -> dict[str, Any]:
    """What a profile says of its recipe and machine: of those of `write_reported`."""
    return {
        "fields": recipe.model_dump(mode="json"), "ranks": recipe.world_size, "nodes": recipe.hardware.nodes,
        "device": "cpu", "device_name": "Zen 4",
    }  # fmt: skip


def write_reported_profile(folder: Path, document: Mapping[str, Any] = PROFILE) -> Path:
    """A profile in `folder`, of the recipe and machine of `write_reported` unless `document` says others."""
    folder.mkdir(parents=True, exist_ok=True)
    whole = {**profile_facts(_reported_recipe()), **document}
    (folder / "profile.json").write_text(json.dumps(whole), encoding="utf-8")
    return folder


def _node(host: str, is_odd: bool) -> dict[str, Any]:
    return {
        "host": host,
        "cpu": {"Model name": "Zen 4"},
        "memory_bytes": 64 * 2**30,
        "accelerators": [{"name": "H100"}],
        "kernel": "6.1.0",
        "software": {"torch": "2.13.0", "cuda": "13.1" if is_odd else "13.0"},
    }


def _epoch(epoch: int, seconds: float) -> dict[str, Any]:
    return {
        "steps": 10, "samples": 1000, "padded_samples": 0, "coverage": "all", "warnings": 0, "loss": 3 / epoch,
        "seconds": 10 * seconds, "data_wait_seconds": seconds, "compute_seconds": 6 * seconds,
        "communication_wait_seconds": 2 * seconds,
    }  # fmt: skip


def _rank(rank: int, ranks: int, names: list[str], seconds: float) -> dict[str, Any]:
    slow = 8 if rank == ranks - 1 else 0
    return {
        "rank": rank, "host": names[rank * len(names) // ranks], "steps": 30, "data_wait_seconds": 3 * seconds,
        "compute_seconds": (12 + slow) * seconds, "communication_wait_seconds": (14 - slow) * seconds,
        "other_seconds": 1 * seconds,
    }  # fmt: skip


def _communication(of_ranks: list[dict[str, Any]]) -> dict[str, Any]:
    rows = [
        {
            **rank,
            "step_seconds": 1.0,
            "own_seconds": rank["data_wait_seconds"] / 30 + rank["compute_seconds"] / 30,
            "straggler": rank is of_ranks[-1],
        }
        for rank in of_ranks
    ]
    return {
        "steps": 30,
        "all_reduces": 60,
        "overlap": 0.5,
        "bytes_per_step": {"gradient": 4.0e6, "sent": 3.0e6},
        "stages": STAGES,
        "buckets": [],
        "ranks": rows,
        "stragglers": [f"rank {rows[-1]['rank']} on {rows[-1]['host']}"],
    }


def _power(record: Path, names: list[str], window: Window, is_silent: bool) -> dict[str, Any]:
    """Samples of each node, and their integral as the sampler tells it; a silent meter misses four seconds."""
    nodes = []
    (record / "power").mkdir()
    for number, host in enumerate(names):
        times = [at for at in range(-1, round(window.seconds) + 3) if not (is_silent and 10 < at < 15)]
        rows = [Row(100.0 + at, window.start_s + at, 300.0 + 20 * number + at % 7) for at in times]
        (record / file_name(host)).write_bytes(format_samples((), rows))
        nodes.append(power_entry(record, host, window))
    return {"nodes": nodes, "reason": None, "note": None}


def _picture() -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (64, 48), (10, 120, 60)).save(stream, "PNG")
    return stream.getvalue()


# ----------------------------------------------------------------------------------------------------
SHARES = (0.5, 0.125, 0.125, 0.125, 0.0, 0.0, 0.125, 0.0)


def profile(**changes: Any) -> dict[str, Any]:
    """Four steps of a second each, on two ranks; `changes` replace parts of it."""
    rows = {
        name: {"seconds": 4 * share, "share": share, "calls": 8 if share else 0}
        for name, share in zip(CLASSES, SHARES, strict=True)
    }
    sampled = {"steps": 2, "seconds": 2.0, "data_wait_seconds": 0.5, "compute_seconds": 1.0}
    return {
        "schema": 1, "benchmark": "ic", "device": "cpu", "device_name": "processor", "precision": "fp32",
        "batch_size": 8, "channels_last": False, "compiled": False, "compression": "fp16", "input": "real",
        "ranks": 2, "nodes": 1, "library": "Gloo", "cores": 1, "torch": "2.13.0",
        "seconds": 4.0, "steps": 4, "kernel_seconds": 4.0, "host_seconds": 0.5,
        "classes": rows, "unclassified_share": 0.0, "unclassified": [],
        "top": [{"name": "aten::mkldnn_convolution", "class": "convolution", "seconds": 2.0, "share": 0.5, "calls": 8}],
        "layout": {"seconds": 0.2, "share": 0.05, "hidden_share": 0.04, "conversions": [
            {"from": "convolution", "source": "NCHW", "target": "blocks aBcd16b", "shape": "8x3x4x4", "hidden": True,
             "seconds": 0.16, "share": 0.04, "calls": 8},
            {"from": "aten::conv2d", "source": "NHWC", "target": "NCHW", "shape": "8x3x4x4", "hidden": False,
             "seconds": 0.04, "share": 0.01, "calls": 4},
        ]},
        "utilisation": [[0.5, 0.5], [1.0, 1.0]], "utilisation_of": "this rank's cores", "driver_utilisation": [],
        "bandwidth": [
            {"t_s": 0.5, "sent_bytes_per_second": 1e6, "received_bytes_per_second": 1e6},
            {"t_s": 1.0, "sent_bytes_per_second": 3e6, "received_bytes_per_second": 3e6},
        ],
        "bandwidth_of": "loopback of a", "bandwidth_nodes": [],
        "sampled": {**sampled, "communication_wait_seconds": 0.5, "step_seconds": 1.0},
        "overhead": {"step_seconds": 1.0, "profiled_step_seconds": 1.25, "fraction": 0.25},
        **changes,
    }  # fmt: skip


def write_profile(folder: Path, **changes: Any) -> Path:
    """A folder that holds such a profile."""
    folder.mkdir()
    (folder / "profile.json").write_text(json.dumps(profile(**changes)))
    return folder
