"""Energy is what the samples of power give."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hpcai500.errors import RecordError, WrongAnswerError
from hpcai500.record import Record
from hpcai500.results.power import check_power
from hpcai500.results.verification.context import Context
from hpcai500.results.verification.facts import Facts, values
from hpcai500.results.verification.finding import Finding
from hpcai500.results.verification.guard import fail, note, skipped, warning
from hpcai500.system.power.node import METER

_NAME = "power-samples"
# What each source that we read ourselves sees: parts of its own node, or all of that.
_SCOPES = {"nvml": "device", "rapl": "device", "ipmi": "node"}
# The first node's clock is the one that the others' are told against.
_SAME_CLOCK_SECONDS = 1.0
_MOST_OFFSET_SECONDS = 60.0


def check_power_samples(context: Context) -> Iterator[Finding]:
    """Each done record: its samples, integrated again."""
    found, measured = [], 0
    for name, record in context.done.items():
        try:
            check_power(record)
        except (WrongAnswerError, RecordError) as error:
            found.append(fail(_NAME, str(error)))
        told = values(record, "power")
        measured += any(one.get("nodes") for one in told)
        if len(told) > 1:
            found.append(fail(_NAME, f"{name}: power is told {len(told)} times; a run tells it once, at its end"))
        found += [fail(_NAME, f"{name}: {fault}") for fault in _faults(record, told)]
        found += [warning(_NAME, f"{name}: {oddity}") for oddity in _oddities(told)]
    yield from found
    if not measured:
        yield skipped(_NAME, "no power was measured, and none is claimed")
    elif not found:
        yield note(_NAME, f"the samples of {measured} records give the energies that they tell")


def _faults(record: Record, told: Sequence[Facts]) -> Iterator[str]:
    """What no source can have told: of other nodes than its own, or by another clock than its node has."""
    last = [*values(record, "run_start"), *values(record, "run_resume")][-1]
    first = next(iter(last.get("hosts") or []), None)
    for node in _nodes(told):
        host, source = node["host"], node["source"]
        if source not in (None, METER, *_SCOPES):
            yield f"{host}: {source} is no source of power that hpcai500 reads"
        if source in _SCOPES and node["covers"] != [host]:
            yield f"{source} on {host} is told to measure {', '.join(map(str, node['covers']))}"
        if source in _SCOPES and node["scope"] != _SCOPES[source]:
            yield f"{source} on {host} is told to measure the scope {node['scope']}; it is {_SCOPES[source]}"
        if host == first and not abs(node["clock_offset_seconds"]) <= _SAME_CLOCK_SECONDS:
            offset = node["clock_offset_seconds"]
            yield f"the clock of {host}, where the events were written, is told to be {offset} s off"


def _oddities(told: Sequence[Facts]) -> Iterator[str]:
    for node in _nodes(told):
        if not abs(node["clock_offset_seconds"]) <= _MOST_OFFSET_SECONDS:
            offset = node["clock_offset_seconds"]
            yield f"the clock of {node['host']} is told to be {offset:.0f} s off: its samples are of another time"


def _nodes(told: Sequence[Facts]) -> Iterator[Facts]:
    return (node for event in told[-1:] for node in event.get("nodes") or [])
