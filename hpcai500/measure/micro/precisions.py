"""The arithmetics that products are measured in, and what each rounds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Precision:
    """How numbers are held and rounded.

    Attributes:
        name: the recipe's word.
        dtype: of operands and results.
        result: unit roundoff of a result: 2**-24 for fp32.
        operand: unit roundoff of an operand on its way into the product; 0 where it goes in as it is.
        sums: unit roundoff of the sums, which are in fp32 in all of them.
    """

    name: str
    dtype: torch.dtype
    result: float
    operand: float = 0.0
    sums: float = 2.0**-24


PRECISIONS = {
    one.name: one
    for one in (
        Precision("fp32", torch.float32, result=2.0**-24),
        # Operands lose 13 bits. Tensor cores cut sums off where a processor rounds them: twice the unit.
        Precision("tf32", torch.float32, result=2.0**-24, operand=2.0**-11, sums=2.0**-23),
        Precision("bf16", torch.bfloat16, result=2.0**-8, sums=2.0**-23),
        Precision("fp16", torch.float16, result=2.0**-11, sums=2.0**-23),
    )
}


def lacking(precision: Precision, device: torch.device) -> str | None:
    """Why `precision` cannot be measured on `device`; None where it can."""
    if precision.name != "tf32":
        return None
    if device.type != "cuda":
        return "tf32 exists on CUDA devices only"
    if torch.cuda.get_device_capability(device) < (8, 0):
        return "this device has no tf32: its generation came before it"
    return None


@contextmanager
def arithmetic(precision: Precision) -> Iterator[None]:
    """Products are computed in `precision` within this context, and gradients are not recorded."""
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark
    torch.set_float32_matmul_precision("high" if precision.name == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = precision.name == "tf32"
    # As in training: shapes never change there, so the search for the fastest algorithm is worth its time.
    torch.backends.cudnn.benchmark = True
    try:
        with torch.inference_mode():
            yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark = before[1:]
