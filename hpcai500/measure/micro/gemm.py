"""Matrix products, by every call that a library here has for them; and whether a product is right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from hpcai500.measure.micro.error_bound import entry_bound, operand, row_sum_bound
from hpcai500.measure.micro.precisions import Precision
from hpcai500.measure.micro.problem import Call, Prepared

_SAMPLES = 8
# Of a matrix that is looked at in float64: enough for speed, little beside the operands.
_BLOCK = 1 << 22
# oneDNN, as torch 2.13 has it, divides by zero on processors with AMX where the left operand of a product with a
# transposed one has so many numbers, in 12 to 32 rows, and the process dies. A layer of ic/smoke is one of them.
_FATAL = 3 << 19


@dataclass(frozen=True)
class Gemm:
    """(m, k) x (k, n) -> (m, n)."""

    m: int
    n: int
    k: int

    @property
    def name(self) -> str:
        """As BLAS orders its arguments."""
        return f"m {self.m}, n {self.n}, k {self.k}"

    @property
    def flops(self) -> int:
        """Two a multiply-add."""
        return 2 * self.m * self.n * self.k

    @property
    def elements(self) -> int:
        """Both operands, and both in other layouts, and two results."""
        return 2 * (self.m * self.k + self.k * self.n + self.m * self.n)

    @property
    def check_flops(self) -> int:
        """Some rows and columns, and all entries once."""
        return 2 * _SAMPLES * self.k * (self.m + self.n) + 2 * self.elements

    def prepare(self, precision: Precision, device: torch.device) -> Prepared:
        """Operands on `device`, and the calls that a library has there."""
        left = operand((self.m, self.k), precision, device)
        right = operand((self.k, self.n), precision, device)
        calls = _torch_calls(left, right)
        if device.type == "cpu":
            calls |= _packed_calls(left, right)
            if precision.dtype == torch.float32:
                calls |= _numpy_call(left, right)
        return Prepared(calls, lambda product: complaint(left, right, product, precision))


def _torch_calls(left: Tensor, right: Tensor) -> dict[str, Call]:
    out = torch.empty(left.shape[0], right.shape[1], dtype=left.dtype, device=left.device)
    right_turned, left_turned = right.t().contiguous(), left.t().contiguous()
    calls: dict[str, Call] = {
        "torch.mm": lambda: torch.mm(left, right, out=out),
        "torch.mm, left operand transposed": lambda: torch.mm(left_turned.t(), right, out=out),
    }
    if left.device.type == "cpu" and left.dtype != torch.float32 and left.numel() == _FATAL:
        return calls
    return calls | {
        "torch.mm, right operand transposed": lambda: torch.mm(left, right_turned.t(), out=out),
        "F.linear": lambda: F.linear(left, right_turned),
    }


def _packed_calls(left: Tensor, right: Tensor) -> dict[str, Call]:
    """Products whose right operand is brought into the library's own order once: what inference does."""
    found: dict[str, Call] = {}
    weight, rows = right.t().contiguous(), left.shape[0]
    # A processor without the instructions of a precision refuses to pack: that is the call's failure, not the shape's.
    if pack := _operator("mkldnn", "_reorder_linear_weight"):
        linear, packed = torch.ops.mkldnn._linear_pointwise, cache(partial(pack, weight, rows))
        found["oneDNN linear, packed"] = lambda: linear(left, packed(), None, "none", [], None)
    if left.dtype == torch.float32 and (pack := _operator("mkl", "_mkl_reorder_linear_weight")):
        mkl, in_order = torch.ops.mkl._mkl_linear, cache(partial(pack, weight, rows))
        found["MKL linear, packed"] = lambda: mkl(left, in_order(), weight, None, rows)
    return found


def _operator(library: str, name: str) -> Callable[..., Tensor] | None:
    """A part of torch that only some builds have."""
    return getattr(getattr(torch.ops, library), name, None) if torch.backends.mkldnn.is_available() else None


def _numpy_call(left: Tensor, right: Tensor) -> dict[str, Call]:
    """NumPy's own BLAS, mostly OpenBLAS: on some processors the faster one."""
    ours, theirs = left.numpy(), right.numpy()
    out = torch.empty(left.shape[0], right.shape[1])
    target = out.numpy()

    def multiply() -> Tensor:
        np.matmul(ours, theirs, out=target)
        return out

    return {"numpy.matmul": multiply}


def complaint(left: Tensor, right: Tensor, product: Tensor, precision: Precision) -> str | None:
    """What is wrong with `product`, against float64: some rows and columns, and every row by a sum of its entries.

    The sum has a random sign for each entry (Freivalds 1977), so that errors do not cancel out: a tile that was never
    written is found wherever it is.
    """
    if product.shape != (left.shape[0], right.shape[1]) or product.dtype != precision.dtype:
        return f"it has the shape {tuple(product.shape)} and type {product.dtype}"
    inner, wide = left.shape[1], torch.float64
    rows, columns = (_some(size, left.device) for size in product.shape)
    for exact, found, where in (
        (_multiplied(left[rows], right), product[rows].to(wide), "row"),
        (_multiplied(right.t()[columns], left.t()), product.t()[columns].to(wide), "column"),
    ):
        error, bound = (found - exact).abs(), entry_bound(exact, inner, precision)
        # Written so that what is no number is not below it.
        if not bool((error <= bound).all()):
            worst = float((error / bound).nan_to_num(torch.inf).max())
            return f"an entry of a sampled {where} is {worst:.3g} times as wrong as {precision.name} allows"
    signs = torch.randint(0, 2, (right.shape[1], 1), device=left.device).to(wide) * 2 - 1
    summed = _multiplied(left, _multiplied(right, signs))
    for first, block in _blocks(product):
        computed = block.to(wide)
        if not bool(torch.isfinite(computed).all()):
            return "it holds values that are no finite numbers"
        error = (computed @ signs - summed[first : first + len(block)]).squeeze(1).abs()
        if not bool((error <= row_sum_bound(computed, inner, precision)).all()):
            return f"the sum of a row's entries is further from the exact one than {precision.name} allows"
    return None


def _some(size: int, device: torch.device) -> Tensor:
    """The first, the last, and a few in between."""
    inside = torch.randint(0, size, (_SAMPLES - 2,), device=device)
    return torch.cat([torch.tensor([0, size - 1], device=device), inside])


def _blocks(matrix: Tensor) -> list[tuple[int, Tensor]]:
    """Its rows, some at a time, each with the number of its first."""
    step = max(1, _BLOCK // matrix.shape[1])
    return [(first, matrix[first : first + step]) for first in range(0, len(matrix), step)]


def _multiplied(left: Tensor, right: Tensor) -> Tensor:
    """The product in float64, without a float64 copy of a whole operand."""
    wide = torch.float64
    if right.shape[1] <= left.shape[0]:
        thin = right.to(wide)
        return torch.cat([block.to(wide) @ thin for _, block in _blocks(left)])
    thin = left.to(wide)
    return torch.cat([thin @ block.t().to(wide) for _, block in _blocks(right.t())], dim=1)
