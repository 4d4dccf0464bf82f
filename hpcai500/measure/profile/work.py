"""From slices to kernels: what did work, of which class, and which of it only changed a layout."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hpcai500.measure.profile.trace import EXCHANGE, Slice, Trace, tensors_of
from hpcai500.methodology.kernel_classes import (
    ELEMENT_WISE,
    HOST,
    MEMCPY,
    NORMALISATION,
    TRANSFORMATION,
    Layout,
    copy_class,
    kernel_class,
    operator_class,
    stem,
)

# They copy on behalf of whoever called them.
_MOVERS = {"copy", "clone", "contiguous", "to", "to_copy", "reshape", "_to_copy"}
# Arithmetic inside them is theirs: synchronised batch norm's backward pass is written out in torch's operators.
_WHOLES = {"normalise": NORMALISATION}


@dataclass(frozen=True)
class Work:
    """One run of one kernel.

    Attributes:
        name: of the operator or kernel.
        kind: its class; None where no rule knows it.
        start: seconds since the trace's first slice.
        seconds: its own.
        is_call: whether it counts as one call of its class: an operator that is a wrap around another of its class is
            none.
        origin: the operator on whose behalf a copy was made.
        change: where it changed a layout, the tensor that was written and the one that was read.
    """

    name: str
    kind: str | None
    start: float
    seconds: float
    is_call: bool = True
    origin: str = ""
    change: tuple[Layout, Layout] | None = None


@dataclass(frozen=True)
class Works:
    """All that was traced: kernels, and what of the host's operators is none (seconds)."""

    kernels: list[Work]
    host_seconds: float


def works_of(trace: Trace, device: str) -> Works:
    """What ran on `device`: on `cpu` operators by their own time and exchange threads, else the device's kernels."""
    if device != "cpu":
        return Works([_of_kernel(one) for one in trace.device], 0.0)
    wraps = {id(one.parent) for one in trace.host if one.parent and _same_class(one, one.parent)}
    found = [_of_operator(one, is_call=id(one) not in wraps) for one in trace.host]
    kernels = [work for work in found if work.kind != HOST]
    host_seconds = sum(work.seconds for work in found if work.kind == HOST)
    return Works([*kernels, *_of_exchange(trace)], host_seconds)


def _same_class(one: Slice, other: Slice) -> bool:
    return operator_class(one.name) == operator_class(other.name)


def _of_operator(one: Slice, *, is_call: bool) -> Work:
    kind, change = operator_class(one.name), None
    if stem(one.name) == "copy":
        kind, change = _copy(one)
    if kind == ELEMENT_WISE:
        kind = next((_WHOLES[word] for above in one.ancestors() if (word := stem(above.name)) in _WHOLES), kind)
    return Work(one.name, kind, one.start, one.self_seconds, is_call, _origin(one), change)


def _of_kernel(one: Slice) -> Work:
    kind, change = kernel_class(one.name), None
    launcher = one.parent
    if launcher and one.category == "kernel" and stem(launcher.name) == "copy":
        kind, change = _copy(launcher)
    return Work(one.name, kind, one.start, one.seconds, True, _origin(launcher) if launcher else "", change)


def _copy(operator: Slice) -> tuple[str, tuple[Layout, Layout] | None]:
    tensors = tensors_of(operator)
    if len(tensors) < 2:
        return MEMCPY, None
    target, source = tensors[:2]
    kind = copy_class(target, source)
    return kind, (target, source) if kind == TRANSFORMATION else None


def _origin(one: Slice) -> str:
    """The nearest operator that is no mere copy; empty for a copy that the program itself asked for."""
    for above in (one, *one.ancestors()):
        if above.category == "cpu_op" and stem(above.name) not in _MOVERS:
            return above.name.removeprefix("autograd::engine::evaluate_function: ")
    return ""


def _of_exchange(trace: Trace) -> Iterator[Work]:
    """Buckets overlap each other; of two at a time the time is counted once."""
    busy_until: dict[str, float] = {}
    for one in sorted(trace.exchange, key=lambda one: one.start):
        begin = max(one.start, busy_until.get(one.name, one.start))
        busy_until[one.name] = max(one.end, busy_until.get(one.name, one.end))
        yield Work(one.name, operator_class(one.name), begin, max(0.0, one.end - begin), True, EXCHANGE)
