"""The main ratios of the CPU's benchmarks, from the documents that they left in benchmarks/results/."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Row:
    """How many times as fast as `rival` ours is at `what`; `required` is what the benchmark asked for, if anything."""

    what: str
    rival: str
    ratio: float
    required: float | None = None


@dataclass(frozen=True)
class Source:
    """A benchmark: its document's name, the page that explains it, and how its rows are found."""

    document: str
    page: str | None
    rows: Callable[[dict[str, Any]], Iterator[Row]]


def _decode(document: dict[str, Any]) -> Iterator[Row]:
    for name, images in document["sets"].items():
        for rival in ("dali", "simplejpeg+opencv", "pillow"):
            if found := images["contestants"].get(rival):
                yield Row(f"JPEG to training image, set `{name}`", rival, found["ours_to_it"])
                if ratio := found.get("index_to_it"):
                    yield Row(f"the same, with a seek index, set `{name}`", rival, ratio)


def _climate(document: dict[str, Any]) -> Iterator[Row]:
    for name in ("contiguous", "image chunks", "shipped gzip", "contiguous, cold"):
        for rival, found in document["tables"].get(name, {}).items():
            if rival != "ours":
                yield Row(f"climate image, {name}", rival, found["to_ours"])


def _compression(document: dict[str, Any]) -> Iterator[Row]:
    for found in document["results"]["comparisons"]:
        what, _, rival = found["comparison"].partition(" against ")
        yield Row(f"gradients: {what.removesuffix(',')}", rival, found["median_ratio"], found["required"])


def _detection(document: dict[str, Any]) -> Iterator[Row]:
    for case in document["results"]:
        rivals = {name: one["seconds_to_ours"] for name, one in case["contestants"].items() if name != "ours"}
        best = min(rivals, key=lambda name: rivals[name])
        yield Row(case["case"], best, rivals[best])


def _engine(document: dict[str, Any]) -> Iterator[Row]:
    for case in document["results"]:
        yield Row(f"step of the engine: {case['case']}", "bare PyTorch loop", case["engine_over_bare_loop"])


def _ranks(document: dict[str, Any]) -> Iterator[Row]:
    for case in document["results"]:
        what = {"computes": "step on two ranks", "communicates": "step on two ranks, gradients alone"}[case["case"]]
        yield Row(what, case["rival"], case["rival_over_ours"])


def _ceilings(document: dict[str, Any]) -> Iterator[Row]:
    for case in document["results"]:
        what = f"ceiling: {case['what'].partition(' against ')[0]}"
        yield Row(what, case["best_rival"], case["median_ratio"], case["required"])


SOURCES = (
    Source("decode_crop", "input.md", _decode),
    Source("climate_reader", "climate-data.md", _climate),
    Source("compression", "communication.md", _compression),
    Source("detection_operators", None, _detection),
    Source("engine_step", "input.md", _engine),
    Source("training_step", "communication.md", _ranks),
    Source("micro_ceilings", "micro.md", _ceilings),
)
