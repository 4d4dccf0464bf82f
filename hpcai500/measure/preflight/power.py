"""Which sources of power the nodes have: without one, a result has no FLOPS per watt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hpcai500.measure.preflight.everyone import Answer, failures, listed, values
from hpcai500.system.checks import Check
from hpcai500.system.power.finding import automatic_names, find_sources, openers
from hpcai500.system.preflight import POWER


@dataclass(frozen=True)
class Sources:
    """What can be read on one node, and why nothing else can.

    Attributes:
        readable: `nvml (devices)`, the widest scope first.
        missing: why the others cannot, in words.
    """

    readable: tuple[str, ...]
    missing: str


def look_for_sources(*, on_gpu: bool) -> Sources:
    """The sources of this node, each opened once."""
    found = find_sources(automatic_names(on_gpu=on_gpu), openers())
    readable = tuple(f"{name} ({source.scope})" for name, source in found.sources.items())
    found.take(None)
    return Sources(readable, found.words)


def judge_sources(answers: Sequence[Answer[Sources]]) -> Check:
    """Whether the nodes have the same sources; `answers` has one rank of each."""
    fix = "a meter's file can be given too: docs/power.md"
    if failed := failures(POWER, answers, "cannot look for sources of power", fix):
        return Check(POWER, "warn", failed.detail, fix)
    found = values(answers)
    having = [(answer.host, sources.readable) for answer, sources in found if sources.readable]
    if not having:
        return Check(POWER, "skip", f"no source of power: {found[0][1].missing}", fix)
    host, readable = having[0]
    told = ", ".join(readable)
    without = [(answer.host, sources) for answer, sources in found if not set(readable) & set(sources.readable)]
    if without:
        names = listed(name for name, _ in without)
        return Check(POWER, "warn", f"{host} has {told}, {names} not: {without[0][1].missing}", fix)
    return Check(POWER, "pass", told + (f", on {len(found)} nodes" if len(found) > 1 else ""))
