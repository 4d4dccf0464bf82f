"""A result as people read it, and as the stable lines that test harnesses read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hpcai500.methodology.result import Result
from hpcai500.methodology.trials import TrialSummary
from hpcai500.system.container import short_image

PREFIXES = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
INPUTS = {
    "real": "real data",
    "synthetic": "synthetic data, made by `hpcai500 data make`",
    "memory": "none: a few batches repeated from memory",
}
# What a terminal shows in a line; `hpcai500 timeline` names all of them.
_MOST_NAMES = 4


def scaled(value: float, unit: str) -> str:
    """`24299077632, "FLOP"` -> `24.3 GFLOP`: for people only, never for machines."""
    for factor, prefix in PREFIXES:
        if abs(value) >= factor:
            return f"{value / factor:.3g} {prefix}{unit}"
    return f"{value:.3g} {unit}"


def summary_lines(result: Result) -> Iterator[str]:
    """The result for a person."""
    quality = result.quality
    achieved = "unknown" if quality.achieved is None else f"{quality.achieved:.4f}"
    backend = f"{result.backend} ({result.communication_library})" if result.communication_library else result.backend
    yield f"benchmark   {result.benchmark}, edition {result.edition}, {result.world_size} process(es), {backend}"
    yield from _level_line(result)
    yield f"quality     {quality.metric} {achieved} (target {quality.target:g})"
    for name, value in (quality.per_class or {}).items():
        yield f"  {name:22} " + ("does not occur" if value is None else f"{value:.4f}")
    yield f"time        {result.seconds:.1f} s ({result.evaluation_seconds:.1f} s of it evaluation)"
    if result.time_to_quality_seconds is not None:
        yield f"to quality  {result.time_to_quality_seconds:.1f} s"
    yield f"rate        {result.images_per_second:.1f} images/s"
    yield f"input       {INPUTS[result.input]}"
    if result.step_split is not None:
        split = result.step_split
        yield (
            f"steps       {split.data_wait:.1%} data wait, {split.compute:.1%} compute, "
            f"{split.communication:.1%} communication, {split.other:.1%} other"
        )
    elif result.data_wait_fraction is not None:
        yield f"data wait   {result.data_wait_fraction:.1%} of training time"
    yield from _communication_lines(result)
    per_image = scaled(result.flops_per_image, "FLOP")
    yield f"FLOPS       {scaled(result.flops, 'FLOPS')} ({per_image} an image, {result.flops_convention})"
    if result.vflops is not None:
        yield f"VFLOPS      {scaled(result.vflops, 'FLOPS')} (penalty coefficient {result.penalty_coefficient:.4f})"
    else:
        yield f"VFLOPS      not shown: {result.why_no_vflops}"
    yield from _power_lines(result)
    if result.restarts:
        yield f"restarts    {result.restarts}, {result.downtime_seconds:.1f} s down, counted as run time"
    if not result.rankable:
        yield f"NOT RANKABLE: {result.reasons[0]}" + (
            f" (and {len(result.reasons) - 1} more)" if result.reasons[1:] else ""
        )


def _level_line(result: Result) -> Iterator[str]:
    """The recipe's level, and what forces it; nothing where the edition does not know the benchmark."""
    if result.level_changes is None:
        return
    more = len(result.level_changes) - _MOST_NAMES
    named = ", ".join(result.level_changes[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
    yield f"level       {result.level or 'none'} by its recipe" + (f" ({named})" if named else "")


def _power_lines(result: Result) -> Iterator[str]:
    """Energy and what was had for it, or why it is not known."""
    if result.energy_joules is None or result.watts is None:
        yield f"energy      unknown: {result.power_note or 'the record says nothing of it'}"
        return
    source = f"{result.power_source}, scope {result.power_scope}"
    yield f"energy      {scaled(result.energy_joules, 'J')}, mean {scaled(result.watts, 'W')} ({source})"
    if result.power_note:
        yield f"  {result.power_note}"
    if result.flops_per_watt is not None:
        valid = result.vflops_per_watt
        also = f", {scaled(valid, 'VFLOPS')}/W" if valid is not None else ""
        yield f"per watt    {scaled(result.flops_per_watt, 'FLOPS')}/W{also}"


def image_lines(system: Mapping[str, Any]) -> Iterator[str]:
    """The image that a record's run was made with, of its system.json; nothing for an installation."""
    image = (system.get("installation") or {}).get("image")
    if image:
        yield f"image       {short_image(image)}"


def _communication_lines(result: Result) -> Iterator[str]:
    """What many ranks cost; nothing for one process."""
    if result.communication_fraction is not None and result.step_split is None:
        yield f"comm wait   {result.communication_fraction:.1%} of training time"
    if result.parallel_efficiency is not None and result.parallel_efficiency_interval is not None:
        low, high = result.parallel_efficiency_interval
        estimate = f"{result.parallel_efficiency:.2f} ({low:.2f} to {high:.2f})"
        yield f"efficiency  {estimate}: an estimate, by steps without and with communication"
    elif result.parallel_efficiency_note:
        yield f"efficiency  unknown: {result.parallel_efficiency_note}"
    sizes = result.bytes_per_step
    if sizes is not None and sizes.gradient is not None and sizes.sent is not None:
        yield f"bytes       {scaled(sizes.gradient, 'B')} of gradients a rank and step, {scaled(sizes.sent, 'B')} sent"
    if result.stragglers:
        yield f"stragglers  {', '.join(result.stragglers[:_MOST_NAMES])}" + (
            f" and {len(result.stragglers) - _MOST_NAMES} more" if len(result.stragglers) > _MOST_NAMES else ""
        )


def figure_of_merit_lines(result: Result) -> Iterator[str]:
    """`HPCAI500 FOM <name>=<value> <unit>` for each number that is known, then `HPCAI500 RESULT …`."""
    sizes = result.bytes_per_step
    figures: dict[str, tuple[float | None, str]] = {
        "vflops": (result.vflops, "FLOPS"),
        "flops": (result.flops, "FLOPS"),
        "images_per_second": (result.images_per_second, "images/s"),
        result.quality.metric: (result.quality.achieved, "fraction"),
        **{
            f"{result.quality.metric}_{name.replace(' ', '_')}": (value, "fraction")
            for name, value in (result.quality.per_class or {}).items()
        },
        "seconds": (result.seconds, "s"),
        "time_to_quality_seconds": (result.time_to_quality_seconds, "s"),
        "data_wait_fraction": (result.data_wait_fraction, "fraction"),
        "compute_fraction": (result.step_split.compute if result.step_split else None, "fraction"),
        "communication_fraction": (result.communication_fraction, "fraction"),
        "gradient_bytes_per_step": (sizes.gradient if sizes else None, "B"),
        "sent_bytes_per_step": (sizes.sent if sizes else None, "B"),
        "stragglers": (None if result.stragglers is None else len(result.stragglers), "ranks"),
        "energy_joules": (result.energy_joules, "J"),
        "watts": (result.watts, "W"),
        "flops_per_watt": (result.flops_per_watt, "FLOPS/W"),
        "vflops_per_watt": (result.vflops_per_watt, "FLOPS/W"),
    }
    for name, (value, unit) in figures.items():
        if value is not None:
            yield f"HPCAI500 FOM {name}={value:.6g} {unit}"


_UNITS = {
    "vflops": "FLOPS",
    "flops": "FLOPS",
    "images_per_second": "images/s",
    "energy_joules": "J",
    "watts": "W",
    "flops_per_watt": "FLOPS/W",
    "vflops_per_watt": "FLOPS/W",
}


def _unit(name: str) -> str:
    return _UNITS.get(name, "s" if name.endswith("seconds") else "fraction")


def with_unit(name: str, value: float) -> str:
    """The value of the metric `name` as people read it: `"vflops", 1.066e9` -> `1.07 GFLOPS`."""
    unit = _unit(name)
    if unit == "fraction":
        return f"{value:.4f}"
    return f"{value:.1f} {unit}" if unit in ("s", "images/s") else scaled(value, unit)


def mean_lines(summaries: Mapping[str, TrialSummary]) -> Iterator[str]:
    """The metrics over all trials."""
    yield "all trials  mean without the highest and the lowest run; variation is that of all"
    for name, summary in summaries.items():
        variation = "unknown" if summary.variation is None else f"{summary.variation:.2%}"
        yield f"  {name:24} {with_unit(name, summary.mean):16}  variation {variation}  ({summary.runs} runs)"


def trial_lines(summaries: Mapping[str, TrialSummary]) -> Iterator[str]:
    """The metrics over all trials, then their means and variations as figures of merit."""
    yield from mean_lines(summaries)
    for name, summary in summaries.items():
        unit = _unit(name)
        yield f"HPCAI500 FOM {name}={summary.mean:.6g} {unit}"
        if summary.variation is not None:
            yield f"HPCAI500 FOM {name}_variation={summary.variation:.6g} fraction"
