"""Records of a machine over months, made up: a run a week, with noise, and on request a node that gets slower."""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from builders.campaigns import rewrite_record, values
from builders.events import STARTED_S, Story, write_story
from hpcai500.layers import Recipe
from hpcai500.recipe import load_recipe, to_toml
from hpcai500.record import Event

HOSTS = ("node-1", "node-2", "node-3", "node-4")
WEEK_SECONDS = 7 * 86_400.0
FIRST_S = STARTED_S + 86_400.0
RATE = 40_000.0

# Changes the events of a record before they are chained; gets the number of the run (from 0).
Change = Callable[[int, list[Event]], object]


def recipe_of(hosts: Sequence[str], *settings: str) -> Recipe:
    """Image Classification in two epochs, eight ranks on each host."""
    return load_recipe(
        "ic/reference",
        [
            "problem.epochs=2", "hyperparameters.warmup_epochs=1", "hyperparameters.batch_size=256",
            "communication.backend=torch", f"hardware.nodes={len(hosts)}", "hardware.accelerators_per_node=8",
            *settings,
        ],
    )  # fmt: skip


def write_months(
    folder: Path,
    runs: int = 24,
    *settings: str,
    hosts: Sequence[str] = HOSTS,
    noise: float = 0.004,
    slow: Mapping[str, tuple[int, float]] | None = None,
    change: Change = lambda run, events: None,
    start_s: float = FIRST_S,
    apart_s: float = WEEK_SECONDS,
    seed: int = 1,
) -> list[Path]:
    """Write a record a week.

    Args:
        folder: gets run-000, run-001, ...
        settings: as given to --set.
        noise: relative standard deviation of a node's step time.
        slow: host -> from which run (from 0) on it takes how much longer, as a share.
        change: what else differs.
        start_s: of the first run, UNIX time.
        apart_s: from one run to the next.
        seed: of the noise.
    """
    chance, paths = random.Random(seed), []
    for run in range(runs):
        own = {host: 1 + noise * chance.gauss(0, 1) for host in hosts}
        for host, (first, more) in (slow or {}).items():
            own[host] *= 1 + more if run >= first else 1
        recipe = recipe_of(hosts, f"hyperparameters.seed={1 + run}", *settings)
        # All wait for the slowest node.
        story = Story(recipe, hosts, RATE / max(own.values()), quality=0.7, start_s=start_s + run * apart_s)
        paths.append(write_run(folder / f"run-{run:03d}", story, own, lambda events, run=run: change(run, events)))  # type: ignore[misc]
    return paths


def write_run(
    path: Path, story: Story, own: Mapping[str, float], change: Callable[[list[Event]], object] = lambda events: None
) -> Path:
    """One record, in which each host's own time of a step is in proportion to `own`."""
    events = write_story(story).events
    boot = str(uuid.uuid5(uuid.NAMESPACE_URL, str(path)))
    for value in values(events, "init_start"):
        value["boot_id"] = boot
    for value in values(events, "communication"):
        for rank in value["ranks"]:
            rank["own_seconds"] *= own[rank["host"]]
    change(events)
    path.mkdir(parents=True)
    (path / "recipe.toml").write_text(to_toml(story.recipe), encoding="utf-8")
    rewrite_record(path, events)
    return path


def nodes_of(events: Sequence[Event]) -> list[dict[str, Any]]:
    """The documents of the nodes, to be changed in place; those of different records are different objects."""
    (system,) = values(events, "system")
    return list(system["nodes"])


def update_of(field: str, value: str, first: int, hosts: Sequence[str] = HOSTS) -> Change:
    """A maintenance before run `first`: `field` of each host's document gets another value."""

    def change(run: int, events: list[Event]) -> None:
        for node in nodes_of(events):
            if run >= first and node["host"] in hosts:
                *way, last = field.split(".")
                table = node
                for name in way:
                    table = table[name]
                table[last] = value

    return change


def write_micro(
    path: Path,
    time_ms: int,
    rates: Mapping[str, float],
    ranks_per_host: int = 2,
    pairs: Mapping[str, tuple[float, str]] | None = None,
) -> Path:
    """A file of `hpcai500 micro` with the products of each host: FLOPS of all its ranks.

    `pairs`: further measurements, (value, unit) by name.
    """
    per_rank = [rate / ranks_per_host for rate in rates.values() for _ in range(ranks_per_host)]
    hosts = [host for host in rates for _ in range(ranks_per_host)]
    entry = {
        "value": sum(per_rank), "unit": "FLOPS", "interval": [sum(per_rank)] * 2, "spread": 0.01, "repetitions": 9,
        "accelerators": len(hosts), "nodes": len(rates), "device": "NVIDIA H100", "per_rank": per_rank,
        "slowest": {"rank": 0, "host": hosts[0], "value": per_rank[0]}, "shape": "4096", "call": "mm",
        "precision": "bf16", "verified": True, "time_ms": time_ms, "hosts": hosts,
    }  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    shared = {name: entry[name] for name in ("device", "nodes", "verified", "time_ms", "hosts")}
    links = {
        name: {"value": value, "unit": unit, "interval": [value] * 2, "spread": 0.01, **shared}
        for name, (value, unit) in (pairs or {}).items()
    }
    path.write_text(json.dumps({"gemm bf16": entry, **links}), encoding="utf-8")
    return path
