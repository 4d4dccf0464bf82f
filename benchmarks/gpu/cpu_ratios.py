"""The main ratios of the CPU's benchmarks, from the documents that they left in benchmarks/results/."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

# What is wanted at least, by row and rival.
WANTED = {
    ("JPEG, `plain`", "dali"): 5.0,
    ("JPEG, `heavy`", "dali"): 4.0,
    ("JPEG, `large`", "dali"): 3.0,
    ("climate image, contiguous", "h5py + NumPy"): 25.0,
    ("climate image, contiguous", "h5py read_direct + torch"): 5.0,
    ("climate image, image chunks", "h5py + NumPy"): 25.0,
    ("climate image, image chunks", "h5py read_direct + torch"): 5.0,
    ("climate image, shipped gzip", "h5py, whole windows + torch"): 4.0,
    ("step on two ranks", "DistributedDataParallel"): 1.15,
    ("step on two ranks, gradients alone", "DistributedDataParallel"): 1.15,
    ("step on two ranks, gradients alone", "hvd.DistributedOptimizer"): 1.5,
}


@dataclass(frozen=True)
class Row:
    """How many times as fast as `rival` ours is at `what`: `ratio`, the median of `ratios`, of rounds or of visits.

    `required` is what is wanted at least, if anything. `share` is how near ours is to `limit`, what the machine can do
    at most, where that was measured beside it.
    """

    what: str
    rival: str
    ratio: float
    ratios: Sequence[float]
    required: float | None = None
    limit: str | None = None
    share: float | None = None

    @property
    def key(self) -> tuple[str, str]:
        return self.what, self.rival


@dataclass(frozen=True)
class Source:
    """A benchmark: what it measures, its document's name, the page that explains it, and how its rows are found."""

    work: str
    document: str
    page: str | None
    rows: Callable[[dict[str, Any]], Iterator[Row]]


def rows_of(source: Source, document: dict[str, Any]) -> list[Row]:
    """The rows of a document. Of several visits, a row's ratios are those of the visits, each a median of rounds."""
    visits: dict[tuple[str, str], list[Row]] = {}
    for one in visits_of(document):
        for row in source.rows(one):
            visits.setdefault(row.key, []).append(row)
    return [_joined(rows) for rows in visits.values()]


def visits_of(document: dict[str, Any]) -> list[dict[str, Any]]:
    """The documents of several runs of one benchmark; a document alone is one visit."""
    visits: list[dict[str, Any]] = document.get("visits", [document])
    return visits


def _joined(visits: Sequence[Row]) -> Row:
    row = visits[0]
    if len(visits) > 1:
        ratios = [one.ratio for one in visits]
        share = None if row.share is None else statistics.median(one.share for one in visits if one.share is not None)
        row = replace(row, ratio=statistics.median(ratios), ratios=ratios, share=share)
    return replace(row, required=WANTED.get(row.key, row.required))


def machine(document: dict[str, Any]) -> str:
    """The processor that the document names; its architecture where it names none."""
    document = visits_of(document)[0]
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


# The rivals of input_loaders, as the page names them.
_LOADERS = {
    "torchvision v2, DataLoader": "torchvision v2 in a DataLoader",
    "simplejpeg + OpenCV, DataLoader": "simplejpeg + OpenCV in a DataLoader",
    "records, threads": "records and threads, as FFCV",
    "DALI": "DALI",
}


def _loaders(document: dict[str, Any]) -> Iterator[Row]:
    for name, images in document["sets"].items():
        for temperature, rows in images["tables"].items():
            what = f"JPEG files, `{name}`" + (", cold" if temperature == "cold" else "")
            limit = min(("decoding alone", "reading alone"), key=lambda kind: rows[kind]["median"])
            share = rows[limit]["ours_to_it"]["median"]
            for kind, rival in _LOADERS.items():
                if found := rows.get(kind):
                    ratio, indexed = found["ours_to_it"], found["index_to_it"]
                    yield Row(what, rival, ratio["median"], ratio["rounds"], 3.0, limit, share)
                    yield Row(f"{what}, index", rival, indexed["median"], indexed["rounds"], 3.0)


_INFLATE = "inflate of libdeflate on all threads"
_READ = "read() alone"


def _climate(document: dict[str, Any]) -> Iterator[Row]:
    for name in ("contiguous", "image chunks", "shipped gzip", "contiguous, cold"):
        contestants = document["tables"].get(name, {})
        for rival, found in contestants.items():
            if rival not in ("ours", _INFLATE, _READ):
                ratios = _each(found["rounds"], contestants["ours"]["rounds"])
                row = Row(f"climate image, {name}", rival, found["to_ours"], ratios)
                for limit in (_INFLATE, _READ):
                    if limit in contestants:
                        row = replace(row, limit=limit, share=contestants[limit]["to_ours"])
                yield row


# Of the rows of compression, whose kernel they measure.
_KERNELS = {
    "fp16 pack": "pack fp16",
    "fp16 pack and norms": "pack fp16, norms",
    "bf16 pack": "pack bf16",
    "fp16 unpack": "unpack fp16",
    "int8 with error feedback": "int8",
    "all norms": "norms",
}


def _compression(document: dict[str, Any]) -> Iterator[Row]:
    kernels = {one["kernel"]: one for one in document["results"]["memory"]}
    for found in document["results"]["comparisons"]:
        what, _, rival = found["comparison"].partition(" against ")
        row = Row(
            f"gradients: {what.removesuffix(',')}", rival, found["median_ratio"], found["ratios"], found["required"]
        )
        if kernel := kernels.get(_KERNELS.get(what, "")):
            row = replace(row, limit=kernel["stream"], share=kernel["median_share"])
        yield row


def _detection(document: dict[str, Any]) -> Iterator[Row]:
    for case in document["results"]:
        rivals = {name: one for name, one in case["contestants"].items() if name != "ours"}
        best = min(rivals, key=lambda name: rivals[name]["seconds_to_ours"])
        yield Row(case["case"], best, rivals[best]["seconds_to_ours"], rivals[best]["ratios"])


def _engine(document: dict[str, Any]) -> Iterator[Row]:
    for case in document["results"]:
        if "bare_loops" in case:
            yield from _epochs(case)
            continue
        what = f"engine's step: {case['case']}"
        yield Row(what, "bare PyTorch loop", case["engine_over_bare_loop"], case["ratios"])


def _epochs(case: dict[str, Any]) -> Iterator[Row]:
    if found := case["bare_loops"].get(case["fastest_loader"]):
        share = case["bare_loops"]["step alone, engine's settings"]["engine_over_it"]
        rival = "bare PyTorch loop with the fastest rival loader"
        yield Row(case["case"], rival, found["engine_over_it"], found["ratios"], 1.3, "the steps alone", share)


def _ranks(document: dict[str, Any]) -> Iterator[Row]:
    for case in document["results"]:
        what = {"computes": "step on two ranks", "communicates": "step on two ranks, gradients alone"}[case["case"]]
        row = Row(what, case["rival"], case["rival_over_ours"], case["ratios"])
        if "alone_seconds" in case:
            share = case["alone_seconds"] / case["ours_seconds"]
            row = replace(row, limit="the step without an exchange", share=share)
        yield row


def _ceilings(document: dict[str, Any]) -> Iterator[Row]:
    for case in document["results"]:
        what = f"ceiling: {case['what'].partition(' against ')[0]}"
        yield Row(what, case["best_rival"], case["median_ratio"], case["ratios"], case["required"])


SOURCES = (
    Source("JPEG to training image", "decode_crop", "input.md", _decode),
    Source("JPEG files to batches", "input_loaders", "input.md", _loaders),
    Source("climate image", "climate_reader", "climate-data.md", _climate),
    Source("gradients", "compression", "communication.md", _compression),
    Source("NMS and RoIAlign", "detection_operators", None, _detection),
    Source("engine's step", "engine_step", "input.md", _engine),
    Source("step on two ranks", "training_step", "communication.md", _ranks),
    Source("ceilings", "micro_ceilings", "micro.md", _ceilings),
)
