"""What summing the gradients cost: docs/timeline.md defines each number."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpcai500.results.report.blocks import Section, Table, Text
from hpcai500.results.report.reading import Subject
from hpcai500.results.report.words import count, duration, number, quantity, share, short, table


def communication_section(subject: Subject) -> Section | None:
    """Fractions, bytes and the stages of an all-reduce (V2.0 Table 12); None in the record of one rank."""
    value = subject.last("communication")
    if not value:
        return None
    sizes = table(value.get("bytes_per_step"))
    efficiency = subject.result.parallel_efficiency if subject.result else None
    unknown = subject.result.parallel_efficiency_note if subject.result else None
    said = (
        f"{share(value.get('communication_fraction'))} of step time is waiting for sums; "
        f"{share(value.get('overlap'))} of all-reduce time is hidden behind computation. "
        f"A rank has {quantity(sizes.get('gradient'), 'B')} of gradients a step "
        f"and sends {quantity(sizes.get('sent'), 'B')}."
    )
    if efficiency is not None:
        said += f" Parallel efficiency, estimated before the clock started: {efficiency:.2f}."
    elif unknown:
        said += f" Parallel efficiency is unknown: {short(unknown, 200)}."
    if (network := table(value.get("network"))).get("verdict"):
        said += f" Network counters: {short(network['verdict'], 200)}."
    stages = table(value.get("stages"))
    return Section("Communication", [Text(said), *([_stage_table(stages, value)] if stages else [])])


def _stage_table(stages: Mapping[str, Any], value: Mapping[str, Any]) -> Table:
    known = {name: times for name, times in stages.items() if isinstance(times, dict)}
    whole = sum(number(times.get("mean_seconds")) or 0.0 for times in known.values())
    rows = []
    for name, times in list(stages.items())[:20]:
        mean = number(times.get("mean_seconds")) if isinstance(times, dict) else None
        if mean is None:
            rows.append((_words(name), "not seen", "", "", ""))
            continue
        middle, late = duration(times.get("median_seconds")), duration(times.get("p95_seconds"))
        rows.append((_words(name), duration(mean), middle, late, share(mean / whole) if whole else ""))
    caption = (
        f"One all-reduce of a bucket, mean over {count(value.get('all_reduces'), 'all-reduce')} in "
        f"{count(value.get('steps'), 'step')} on each rank"
    )
    return Table(caption, ("stage", "mean", "median", "95 %", "share"), rows, numeric=(1, 2, 3, 4))


def _words(name: object) -> str:
    return "all-reduce" if name == "all_reduce" else short(name, 60).replace("_", " ")
