"""What is measured in several ways, of which the fastest counts: a product of matrices, a convolution."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from hpcai500.measure.micro.precisions import Precision

Call = Callable[[], Tensor]


@dataclass(frozen=True)
class Prepared:
    """A problem with its operands.

    Attributes:
        calls: the library calls that solve it, by name; each returns the result.
        complaint: what is wrong with a result; None for one that is right.
    """

    calls: Mapping[str, Call]
    complaint: Callable[[Tensor], str | None]


class Problem(Protocol):
    """Something to compute.

    Attributes:
        name: its shape, for people.
        flops: operations of solving it, two a multiply-add.
        elements: numbers that operands and result hold.
        check_flops: float64 operations, or numbers made float64, of looking whether a result is right; about.
    """

    @property
    def name(self) -> str: ...
    @property
    def flops(self) -> int: ...
    @property
    def elements(self) -> int: ...
    @property
    def check_flops(self) -> int: ...

    def prepare(self, precision: Precision, device: torch.device) -> Prepared:
        """Make operands and the calls."""
