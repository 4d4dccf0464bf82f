"""Metrics over the trials of a submission, and how near a written number must be to a computed one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from hpcai500.methodology.result import Result
from hpcai500.methodology.trials import TrialSummary
from hpcai500.results.score import summarise_trials

# Another Python or C library may round the last digit of a sum or a power otherwise.
_ROUNDING = 1e-9


def metrics_of(results: Mapping[str, Result]) -> dict[str, TrialSummary]:
    """Each metric over `results`; empty where there are none."""
    return summarise_trials(list(results.values())) if results else {}


def same_number(one: Any, other: Any) -> bool:
    """Whether both are the same number but for its rounding, or both unknown."""
    if one is None or other is None:
        return one is other
    return math.isclose(one, other, rel_tol=_ROUNDING)


def same_document(one: Any, other: Any) -> bool:
    """Whether two JSON values are equal but for the rounding of their numbers."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same_document(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same_document, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return same_number(one, other)
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)
