"""On how many ranks a run really ran, and who moved its bytes: what results must have in common to be put together."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from hpcai500.chain import iterate
from hpcai500.record import Record

# What a run tells of its ranks when it starts, and how that reads.
_FACTS = {"world_size": "{} rank(s)", "nodes": "{} node(s)", "backend": "the backend {}", "library": "{}"}


def company(record: Record) -> Mapping[str, Any]:
    """The ranks, nodes, backend and library of a run; empty before it has started."""
    start = next(iterate(record.events, "run_start"), None)
    value = start["value"] if start else {}
    return value if isinstance(value, dict) else {}


def company_difference(one: Record, other: Record, ignored: Collection[str] = ()) -> str | None:
    """A sentence that says where `other` did not really run as `one` did, whatever their recipes asked for, or None.

    Args:
        one: a record.
        other: another one.
        ignored: facts of `run_start` that may differ.
    """
    left, right = company(one), company(other)
    for key, form in _FACTS.items():
        # Records that are older than one of these words do not know it.
        if key not in ignored and key in left and key in right and left[key] != right[key]:
            return f"{other.path} ran on {form.format(right[key])}, {one.path} on {form.format(left[key])}"
    return None
