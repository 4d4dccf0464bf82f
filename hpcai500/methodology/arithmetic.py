"""In which arithmetic the precision of a recipe is computed: what ceilings of a machine it is compared with."""

from __future__ import annotations

# Training in int8 rounds values to 8 bits and multiplies them in float32: torch has no 8-bit kernels that learn.
_ARITHMETIC = {"int8": "fp32"}


def arithmetic_of(precision: str) -> str:
    """The precision of the products that are computed, for a recipe's `accelerator.precision`."""
    return _ARITHMETIC.get(precision, precision)
