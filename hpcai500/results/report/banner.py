"""The verdict, and the numbers that a reader looks for first."""

from __future__ import annotations

from collections.abc import Iterator

from hpcai500.methodology.result import Result
from hpcai500.results.report.blocks import Banner, Tile, Tiles
from hpcai500.results.report.reading import Subject
from hpcai500.results.report.words import UNKNOWN, count, duration, is_number, number, plain, quantity, short, table


def banner(subject: Subject) -> Banner:
    """PASS, FAIL or INVALID, whether it can be ranked, and why."""
    result = subject.result
    return Banner(
        verdict=subject.verdict,
        rankable=result.rankable if result else None,
        sentence=_capital(short(subject.problem or _passed(result))),
        reasons=[short(reason) for reason in result.reasons] if result else [],
    )


def score_tiles(subject: Subject) -> Tiles:
    """VFLOPS, quality, time, FLOPS, energy; of a run without a result, how far it has come."""
    result = subject.result
    return Tiles(list(_of_result(subject, result) if result else _of_unfinished(subject)))


def _passed(result: Result | None) -> str:
    if result is None or result.quality.achieved is None:
        return ""
    quality = result.quality
    return f"The quality {quality.metric} is {quality.achieved:.4f}; the target is {quality.target:g}."


def _capital(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]


def _of_result(subject: Subject, result: Result) -> Iterator[Tile]:
    quality = result.quality
    reached = quality.achieved is not None and quality.achieved >= quality.target
    valid = f"valid FLOPS: penalty coefficient {plain(result.penalty_coefficient)}"
    yield Tile("VFLOPS", quantity(result.vflops, "FLOPS"), result.why_no_vflops or valid)
    yield Tile(
        f"Quality, {quality.metric}",
        plain(quality.achieved, ".4f"),
        f"target {quality.target:g}: {'reached' if reached else 'missed'}",
        "good" if reached else "bad",
    )
    to_quality = duration(result.time_to_quality_seconds) if result.time_to_quality_seconds is not None else "never"
    yield Tile("Time", duration(result.seconds), f"to target quality: {to_quality}")
    yield Tile(
        "FLOPS",
        quantity(result.flops, "FLOPS"),
        f"{quantity(result.flops_per_image, 'FLOP')} an image, {result.flops_convention}",
    )
    yield Tile("Rate", f"{plain(result.images_per_second)} images/s", count(result.images, "image"))
    yield _energy(subject, result)
    if result.vflops_per_watt is not None:
        yield Tile("Efficiency", quantity(result.vflops_per_watt, "FLOPS/W"), "VFLOPS per watt")
    yield _size(subject)


def _energy(subject: Subject, result: Result) -> Tile:
    if result.energy_joules is None:
        reason = result.power_note or subject.last("power").get("reason")
        return Tile("Energy", UNKNOWN, short(reason, 50) if reason else "power was not measured", "soft")
    source = f" by {result.power_source}" if result.power_source else ""
    watts = f"{quantity(result.watts, 'W')} mean{source}" if is_number(result.watts) else source.strip()
    return Tile("Energy", quantity(result.energy_joules, "J"), watts)


def _size(subject: Subject) -> Tile:
    start = subject.last("run_start")
    backend, library = start.get("backend"), start.get("library")
    talk = f"{backend} ({library})" if backend and library not in (None, "none") else backend
    nodes = start.get("nodes")
    detail = ", ".join(
        part for part in (count(nodes, "node") if nodes else "", short(talk, 40) if talk else "") if part
    )
    return Tile("Size", count(subject.world_size, "rank"), detail)


def _of_unfinished(subject: Subject) -> Iterator[Tile]:
    problem = table(subject.record.tables.get("problem"))
    target, epochs = problem.get("target_quality"), problem.get("epochs")
    done = max(
        (int(epoch) for value in subject.values("epoch_stop") if (epoch := number(value.get("epoch")))), default=0
    )
    last = subject.last("eval_accuracy")
    yield Tile("VFLOPS", UNKNOWN, "no score before the last epoch", "soft")
    metric = short(last.get("metric") or problem.get("metric") or "", 30)
    yield Tile(f"Quality so far, {metric}", plain(last.get("value"), ".4f"), f"target {plain(target)}")
    yield Tile("Epochs trained", f"{done} of {plain(epochs, '.0f')}", f"ended as: {subject.record.status}")
    yield _size(subject)
