"""The main ratios of the CPU's benchmarks, from the documents that they left in benchmarks/results/."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Row:
    """How many times as fast as `rival` ours is at `what`: `ratio`, the median of the rounds' `ratios`.

    `required` is what the benchmark asked for, if anything.
    """

    what: str
    rival: str
    ratio: float
    ratios: Sequence[float]
    required: float | None = None


@dataclass(frozen=True)
class Source:
    """A benchmark: what it measures, its document's name, the page that explains it, and how its rows are found."""

    work: str
    document: str
    page: str | None
    rows: Callable[[dict[str, Any]], Iterator[Row]]


def machine(document: dict[str, Any]) -> str:
    """The processor that the document names; its architecture where it names none."""
    facts = document["machine"] if isinstance(document["machine"], dict) else document
    return str(facts.get("processor") or facts["machine"]).replace("(R)", "").removesuffix(" Processor")


def _each(over: Sequence[Sequence[float]], under: Sequence[Sequence[float]]) -> list[float]:
    """The ratio of each round; rounds are pairs of wall-clock and processor time or rate."""
    return [one[0] / other[0] for one, other in zip(over, under, strict=True)]


def _decode(document: dict[str, Any]) -> Iterator[Row]:
    for name, images in document["sets"].items():
        contestants = images["contestants"]
        for rival in ("dali", "simplejpeg+opencv", "pillow"):
            if found := contestants.get(rival):
                ratios = _each(contestants["ours"]["rounds"], found["rounds"])
                yield Row(f"JPEG, `{name}`", rival, found["ours_to_it"], ratios)
                if ratio := found.get("index_to_it"):
                    ratios = _each(contestants["ours, index"]["rounds"], found["rounds"])
                    yield Row(f"JPEG, `{name}`, index", rival, ratio, ratios)


def _climate(document: dict[str, Any]) -> Iterator[Row]:
    for name in ("contiguous", "image chunks", "shipped gzip", "contiguous, cold"):
        contestants = document["tables"].get(name, {})
        for rival, found in contestants.items():
            if rival != "ours":
                ratios = _each(found["rounds"], contestants["ours"]["rounds"])
                yield Row(f"climate image, {name}", rival, found["to_ours"], ratios)


def _compression(document: dict[str, Any]) -> Iterator[Row]:
    for found in document["results"]["comparisons"]:
        what, _, rival = found["comparison"].partition(" against ")
        what = f"gradients: {what.removesuffix(',')}"
        yield Row(what, rival, found["median_ratio"], found["ratios"], found["required"])


def _detection(document: dict[str, Any]) -> Iterator[Row]:
    for case in document["results"]:
        rivals = {name: one for name, one in case["contestants"].items() if name != "ours"}
        best = min(rivals, key=lambda name: rivals[name]["seconds_to_ours"])
        yield Row(case["case"], best, rivals[best]["seconds_to_ours"], rivals[best]["ratios"])


def _engine(document: dict[str, Any]) -> Iterator[Row]:
    for case in document["results"]:
        what = f"engine's step: {case['case']}"
        yield Row(what, "bare PyTorch loop", case["engine_over_bare_loop"], case["ratios"])


def _ranks(document: dict[str, Any]) -> Iterator[Row]:
    for case in document["results"]:
        what = {"computes": "step on two ranks", "communicates": "step on two ranks, gradients alone"}[case["case"]]
        yield Row(what, case["rival"], case["rival_over_ours"], case["ratios"])


def _ceilings(document: dict[str, Any]) -> Iterator[Row]:
    for case in document["results"]:
        what = f"ceiling: {case['what'].partition(' against ')[0]}"
        yield Row(what, case["best_rival"], case["median_ratio"], case["ratios"], case["required"])


SOURCES = (
    Source("JPEG to training image", "decode_crop", "input.md", _decode),
    Source("climate image", "climate_reader", "climate-data.md", _climate),
    Source("gradients", "compression", "communication.md", _compression),
    Source("NMS and RoIAlign", "detection_operators", None, _detection),
    Source("engine's step", "engine_step", "input.md", _engine),
    Source("step on two ranks", "training_step", "communication.md", _ranks),
    Source("ceilings", "micro_ceilings", "micro.md", _ceilings),
)
