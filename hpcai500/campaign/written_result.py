"""Whether the `result.json` of a record is what its events give: of two numbers for one run, one was made by hand."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from hpcai500.campaign.outcome import ODD, Outcome
from hpcai500.errors import HpcAi500Error
from hpcai500.methodology.result import derive
from hpcai500.record import json_object

RESULT = "result.json"
# Another Python or C library may round the last digit of a sum or a power otherwise.
_ROUNDING = 1e-9
# What a hand wrote may be of any length.
_MOST_SHOWN = 100


def differing_keys(written: Mapping[str, Any], computed: Mapping[str, Any]) -> list[str]:
    """Keys of `written` that say something else than `computed`, in order.

    A file of an older version lacks keys that are derived today, and says nothing wrong by that.
    """
    older = {*_judged_by_fewer_rules(written, computed), *_held_against_any_target(written, computed)}
    if "parallel_efficiency_note" not in written:
        # An older version made an estimate of its fastest steps, whatever came out.
        older.add("parallel_efficiency")
    return sorted(key for key in written if key not in older and not _same(computed.get(key), written[key]))


def written_result_reasons(outcome: Outcome, rules: Mapping[str, Any]) -> Iterator[str]:
    """What `result.json` of a complete record says against its events.

    Args:
        outcome: of an attempt.
        rules: of the edition that it was run under: those that the file was written by.
    """
    name, record = outcome.attempt.name, outcome.record
    if record is None or record.status != "done":
        return
    place = f"{name}: {outcome.attempt.record}/{RESULT}"
    if not (record.path / RESULT).is_file():
        yield f"{place} is missing"
        return
    try:
        written, computed = json_object(record.path / RESULT), derive(record.tables, rules, record.events).as_json()
        keys = differing_keys(written, computed)
    except HpcAi500Error as error:
        # What is wrong with the events is said of the outcome itself.
        if outcome.error is None:
            yield f"{name}: {error}"
        return
    except (RecursionError, *ODD) as error:
        if outcome.error is None:
            yield f"{place} is of no known form: {type(error).__name__} {error}"
        return
    if keys:
        more = f" ({len(keys)} keys differ)" if len(keys) > 1 else ""
        key = keys[0]
        yield f"{place} says {key} is {_shown(written[key])}; its events give {_shown(computed.get(key))}{more}"


def _shown(value: Any) -> str:
    return repr(value)[:_MOST_SHOWN]


def _judged_by_fewer_rules(written: Mapping[str, Any], computed: Mapping[str, Any]) -> Iterator[str]:
    """Keys that say something else only because an older version had fewer rules, or did not judge levels yet."""
    if "level_changes" not in written and written.get("level") is None:
        yield "level"
    reasons = written.get("reasons")
    if isinstance(reasons, list) and all(reason in computed["reasons"] for reason in reasons):
        yield "reasons"
        if written.get("rankable") is (not reasons):
            yield "rankable"


def _held_against_any_target(written: Mapping[str, Any], computed: Mapping[str, Any]) -> Iterator[str]:
    """Keys of VFLOPS that an older version computed for a target that is not the edition's."""
    for valid, rate in (("vflops", "flops"), ("vflops_per_watt", "flops_per_watt")):
        withheld = computed[valid] is None and computed[rate] is not None
        if withheld and _same(computed[rate] * computed["penalty_coefficient"], written.get(valid)):
            yield valid


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=_ROUNDING)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    return bool(one == other)
