"""Comparisons of checks: the error has the number of values that differ, and the first of them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcai500.errors import WrongAnswerError

_FIX = "the library or this processor computes wrong results: do not measure with it; rebuild it, and try another node"


def require(holds: bool, what: str) -> None:
    """Raise WrongAnswerError with `what` unless `holds`."""
    if not holds:
        raise WrongAnswerError(f"{what}; {_FIX}")


def require_equal(what: str, found: Any, expected: Any) -> None:
    """Raise WrongAnswerError unless shape and all values are equal, bit for bit; NaN is equal to NaN."""
    found, expected = np.asarray(found), np.asarray(expected)
    _require_same_shape(what, found, expected)
    same = found == expected
    if found.dtype.kind == "f":
        same = np.where(np.isnan(expected), np.isnan(found), same & (np.signbit(found) == np.signbit(expected)))
    _require_all(what, same, found, expected, "exactly")


def require_close(what: str, found: NDArray[Any], expected: NDArray[Any], tolerance: float) -> None:
    """Raise WrongAnswerError unless shapes are equal and all values within `tolerance` (absolute)."""
    wide, exact = np.asarray(found).astype(np.float64), np.asarray(expected).astype(np.float64)
    _require_same_shape(what, wide, exact)
    _require_all(what, np.abs(wide - exact) <= tolerance, wide, exact, f"to {tolerance:g}")


def _require_same_shape(what: str, found: NDArray[Any], expected: NDArray[Any]) -> None:
    require(found.shape == expected.shape, f"{what}: shape {found.shape}, expected {expected.shape}")


def _require_all(what: str, same: Any, found: NDArray[Any], expected: NDArray[Any], how: str) -> None:
    same = np.asarray(same)
    if not same.all():
        first = tuple(int(axis) for axis in np.argwhere(~same)[0])
        require(
            False,
            f"{what}: {np.count_nonzero(~same)} of {same.size} values differ; at {first} it is {found[first]}, "
            f"expected {expected[first]} ({how})",
        )
