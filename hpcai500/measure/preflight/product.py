"""A matrix product on the device of a rank: whether its numbers are right, and how fast it is."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from hpcai500.measure.repetition import Effort, repeat
from hpcai500.methodology.arithmetic import arithmetic_of

Multiply = Callable[[Tensor, Tensor], Tensor]
# Large enough for the speed that large layers reach, small enough for a second.
SIDES = {"cpu": 2048, "cuda": 8192}
_EFFORT = Effort(width=0.02, least=5, seconds=1.5, warm_up=2)
_AT_ONCE = {"cpu": 1, "cuda": 8}
_TYPES = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
# Three of four elements are 0, the others -1 or 1: of thousands of them, every partial sum is a whole number that
# bfloat16 holds, so that the result is exact whatever the order of summation.
_SEED = 500
_ROWS = 1024


@dataclass(frozen=True)
class Product:
    """What a rank's matrix product came to.

    Attributes:
        side: of the square matrices.
        flops: a second.
        spread: interquartile range over median of its times.
        wrong_rows: rows with a wrong element.
        best_flops: a second, in the fastest repetition.
    """

    side: int
    flops: float
    spread: float
    wrong_rows: int
    best_flops: float


def measure_product(
    device: torch.device, precision: str, side: int, multiply: Multiply = torch.matmul, effort: Effort = _EFFORT
) -> Product:
    """Check `multiply` on `device` in the `precision` of a recipe, then time it."""
    dtype = _TYPES[arithmetic_of(precision)]
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    wrong_rows = count_wrong_rows(device, dtype, side, multiply)
    generator = torch.Generator().manual_seed(_SEED)
    left, right = (torch.randn(side, side, generator=generator).to(device, dtype) for _ in range(2))
    at_once = _AT_ONCE[device.type]

    def run() -> float:
        _finish(device)
        start = time.perf_counter()
        for _ in range(at_once):
            multiply(left, right)
        _finish(device)
        return (time.perf_counter() - start) / at_once

    timing = repeat(run, effort)
    flops = 2 * side**3
    return Product(side, flops / timing.median, timing.spread, wrong_rows, flops / min(timing.seconds))


def count_wrong_rows(device: torch.device, dtype: torch.dtype, side: int, multiply: Multiply) -> int:
    """How many rows of a product of whole numbers are not exactly right, judged by the CPU.

    For a vector x, (A B) x must be A (B x), which takes a thousandth of the time of a second product (R. Freivalds,
    "Probabilistic machines can use less running time", 1977). In float64 all of it is exact.
    """
    generator = torch.Generator().manual_seed(_SEED)
    left, right = (_whole_numbers(side, generator) for _ in range(2))
    result = multiply(left.to(device, dtype), right.to(device, dtype)).cpu()
    vector = (torch.randint(1, 1000, (side,), generator=generator)).double()
    expected = _times(left, _times(right, vector))
    # What is infinite or no number is not equal to anything.
    return int((_times(result, vector) != expected).sum())


def _whole_numbers(side: int, generator: torch.Generator) -> Tensor:
    eighths = torch.randint(0, 8, (side, side), generator=generator, dtype=torch.int8)
    return (eighths == 1).to(torch.float32) - (eighths == 2).to(torch.float32)


def _times(matrix: Tensor, vector: Tensor) -> Tensor:
    """In float64, some rows at a time."""
    return torch.cat([rows.double() @ vector for rows in matrix.split(_ROWS)])


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
