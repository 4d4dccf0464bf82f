"""Energy, power and efficiency of a run from its event `power` (docs/power.md)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hpcai500.methodology.energy import Window
from hpcai500.methodology.timeline import Timeline

Event = Mapping[str, Any]
Node = Mapping[str, Any]

# What an old record says of power.
_NOTHING: dict[str, Any] = {
    "energy_joules": None,
    "watts": None,
    "power_source": None,
    "power_scope": None,
    "power_note": None,
    "flops_per_watt": None,
    "vflops_per_watt": None,
}


def window_of(events: Sequence[Event]) -> Window:
    """From `run_start` to `run_stop` in UNIX seconds, as the wall clock of rank 0 would have gone without corrections.

    Its length is the run's time: what a restart took is in it.

    Raises:
        StopIteration: the run has not come to its end.
    """
    start = next(event for event in events if event["key"] == "run_start")
    stop = next(event for event in reversed(events) if event["key"] == "run_stop")
    begin = start["time_ms"] / 1000
    return Window(begin, begin + Timeline(events).between(start, stop))


def hosts_of(events: Sequence[Event]) -> list[str]:
    """All hosts that the run was on; empty in an old record."""
    companies = [event["value"] for event in events if event["key"] in ("run_start", "run_resume")]
    return sorted({host for company in companies for host in company.get("hosts", ())})


def why_unknown(nodes: Sequence[Node], hosts: Iterable[str]) -> str | None:
    """Why the energy of all `hosts` is not the sum over `nodes`, or None."""
    for node in nodes:
        if node["energy_joules"] is None:
            return f"{node['host']}: {node['reason']}"
    covered = {host for node in nodes for host in node["covers"]}
    missing = [host for host in hosts if host not in covered]
    if missing:
        return f"{missing[0]}: no power was measured" + (f" (and on {len(missing) - 1} more)" if missing[1:] else "")
    scopes = sorted({node["scope"] for node in nodes})
    return f"scopes differ between nodes: {', '.join(scopes)}" if len(scopes) > 1 else None


def power_of_run(events: Sequence[Event], seconds: float, flops: float, vflops: float | None) -> dict[str, Any]:
    """The fields of `result.json` that tell of power; unknown is None.

    Args:
        events: of a complete run.
        seconds: that it took.
        flops: that it attained.
        vflops: the same, times its penalty coefficient.
    """
    told = next((event["value"] for event in reversed(events) if event["key"] == "power"), None)
    if told is None:
        return _NOTHING
    nodes = told["nodes"]
    reason = why_unknown(nodes, hosts_of(events)) if nodes else told["reason"]
    joules = None if reason else math.fsum(node["energy_joules"] for node in nodes)
    watts = joules / seconds if joules is not None and seconds > 0 else None
    return {
        "energy_joules": joules,
        "watts": watts,
        "power_source": ", ".join(sorted({node["source"] for node in nodes})) or None,
        "power_scope": ", ".join(sorted({node["scope"] for node in nodes})) or None,
        "power_note": reason or told.get("note"),
        "flops_per_watt": flops / watts if watts else None,
        "vflops_per_watt": vflops / watts if watts and vflops is not None else None,
    }


def first_note(notes: Sequence[str]) -> str | None:
    """The first of `notes`, and how many more there are."""
    return notes[0] + (f" (and {len(notes) - 1} more)" if notes[1:] else "") if notes else None
