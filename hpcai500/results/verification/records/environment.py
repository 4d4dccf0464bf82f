"""What changed the processes of a run from outside: variables and libraries that change arithmetic, clocks or code."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from hpcai500.results.verification.facts import nodes, values
from hpcai500.results.verification.finding import Finding
from hpcai500.results.verification.guard import note, skipped, warning
from hpcai500.results.verification.records.run import Run, judged
from hpcai500.system.describe.environment import effects, tuning

_NAME = "environment"
_MOST_HOSTS = 4
# Nearly every cluster sets it; it can put another library in the place of any that is loaded by name.
_CHOOSES = "LD_LIBRARY_PATH"


def check_environment(run: Run) -> Iterator[Finding]:
    """Variables and preloaded libraries of each node, at each start; `evidence` asks whether they are told at all."""
    silent: list[str] = []
    told: dict[str, list[str]] = {}
    tuned: set[str] = set()
    chosen = False
    for value in values(run.record, "system"):
        for node in nodes(replace(run.record, system=value)):
            host = str(node.get("host"))
            if "environment" not in node or "preloaded" not in node:
                silent.append(host)
                continue
            for what in _told(node["environment"], node["preloaded"]):
                told.setdefault(what, []).append(host)
            tuned |= tuning(node["environment"])
            chosen |= _CHOOSES in node["environment"]
    yield from judged(_NAME, [f"{what} on {_named(hosts)}" for what, hosts in told.items()], warning)
    if silent:
        yield skipped(_NAME, f"{_named(silent)} does not tell its variables and preloaded libraries")
    elif not told:
        others = f"; variables that tune: {', '.join(sorted(tuned))}" if tuned else ""
        libraries = f"; {_CHOOSES} chooses libraries" if chosen else ""
        yield note(
            _NAME, f"no library is preloaded, no known variable changes arithmetic, clocks or code{libraries}{others}"
        )


def _told(environment: Mapping[str, Any], preloaded: Any) -> list[str]:
    found = [f"{name}={environment[name]}, which {effect}," for name, effect in effects(environment).items()]
    if preloaded is None:
        found.append("unknown which libraries were preloaded")
    elif preloaded:
        found.append(f"{', '.join(preloaded)}, loaded before Python's own libraries,")
    return found


def _named(hosts: list[str]) -> str:
    names = list(dict.fromkeys(hosts))
    more = f" and {len(names) - _MOST_HOSTS} more" if len(names) > _MOST_HOSTS else ""
    return ", ".join(names[:_MOST_HOSTS]) + more
