"""Wires by the names of a recipe."""

from __future__ import annotations

from hpcai500.comm.fp32_wire import Fp32Wire
from hpcai500.comm.quantised_wire import QuantisedWire
from hpcai500.comm.wires import PlainWire, Wire
from hpcai500.comm.working_memory import Buffers, Residuals


def make_wire(compression: str, buffers: Buffers, residuals: Residuals | None, threads: int | None) -> Wire:
    """The wire of `communication.compression`.

    Args:
        compression: the recipe's word.
        buffers: to work in.
        residuals: error feedback, if any.
        threads: of the processor for the kernels; torch's number by default.
    """
    if compression == "none":
        return Fp32Wire(buffers, threads)
    if compression == "int8":
        return QuantisedWire(buffers, residuals, threads)
    return PlainWire(compression, buffers, residuals, threads)
