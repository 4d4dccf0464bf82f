"""What changed the processes of a run from outside: variables and libraries that change arithmetic, clocks or code."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from hpcai500.record import Record
from hpcai500.results.verification.context import Context
from hpcai500.results.verification.facts import nodes, values
from hpcai500.results.verification.finding import Finding
from hpcai500.results.verification.guard import note, skipped, warning
from hpcai500.results.verification.records.run import judged
from hpcai500.system.describe.environment import effects

_NAME = "environment"
_MOST_HOSTS = 4


def check_environment(context: Context) -> Iterator[Finding]:
    """Variables and preloaded libraries of each node, at each start of each done record."""
    for name, record in context.done.items():
        silent, told, tuning = _seen(record)
        yield from judged(_NAME, [f"{name}: {what} on {_named(hosts)}" for what, hosts in told.items()], warning)
        if silent:
            # Of a record of this version `evidence` refuses that.
            yield skipped(_NAME, f"{name}: {_named(silent)} does not tell its variables and preloaded libraries")
        elif not told:
            others = f"; variables that tune: {', '.join(tuning)}" if tuning else ""
            yield note(_NAME, f"{name}: no variable and no library changes arithmetic, clocks or code{others}")


def _seen(record: Record) -> tuple[list[str], Mapping[str, list[str]], list[str]]:
    """Hosts that do not tell, what is to be looked at with its hosts, and names of the other variables."""
    silent: list[str] = []
    told: dict[str, list[str]] = {}
    tuning: set[str] = set()
    for value in values(record, "system"):
        for node in nodes(replace(record, system=value)):
            host = str(node.get("host"))
            environment, preloaded = node.get("environment"), node.get("preloaded")
            if not {"environment", "preloaded"} <= set(node):
                silent.append(host)
            for what in _told(environment or {}, preloaded if "preloaded" in node else []):
                told.setdefault(what, []).append(host)
            tuning |= set(environment or {}) - set(effects(environment or {}))
    return silent, told, sorted(tuning)


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
