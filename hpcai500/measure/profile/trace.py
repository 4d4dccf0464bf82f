"""The profiler's trace as slices that lie in each other: which operator called which, and what each did itself.

The trace is Google's Trace Event Format, as torch's profiler exports it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from hpcai500.methodology.kernel_classes import Layout

# torch's: operators and marks of the host, work of a device.
_HOST = {"cpu_op", "user_annotation"}
DEVICE = {"kernel", "gpu_memcpy", "gpu_memset"}
# The host's calls into CUDA: they start that work, or wait for it.
_CALLS = {"cuda_runtime", "cuda_driver"}
# Ours: what exchange threads did on a processor.
EXCHANGE = "exchange"
# Our marks: around each step, and around each wait for a batch, which is no operator.
STEP, INPUT = "hpcai500:step", "hpcai500:input"
# Collectives on their way, as torch's process groups mark them.
_BESIDE = ("gloo:", "nccl:", "mpi:")
_MICROSECOND = 1e-6
# Begin and length are rounded to nanoseconds, each by itself.
ROUNDING_SECONDS = 3e-9

Event = dict[str, Any]


@dataclass
class Slice:
    """Something that took time; seconds since the first of them.

    Attributes:
        name: as the profiler gives it.
        category: `cpu_op`, `kernel`, ….
        start: begin.
        seconds: from begin to end.
        arguments: shapes, strides, ids.
        thread: process and thread, or device and stream.
        parent: the operator that called it, on the same thread.
        inner_seconds: of the slices right inside it.
    """

    name: str
    category: str
    start: float
    seconds: float
    arguments: Mapping[str, Any]
    thread: tuple[Any, Any] = (None, None)
    parent: Slice | None = None
    inner_seconds: float = field(default=0.0, repr=False)

    @property
    def end(self) -> float:
        """When it ended."""
        return self.start + self.seconds

    @property
    def self_seconds(self) -> float:
        """Without what lies in it."""
        return max(0.0, self.seconds - self.inner_seconds)

    def ancestors(self) -> Iterator[Slice]:
        """Who called it, the nearest first."""
        above = self.parent
        while above is not None:
            yield above
            above = above.parent


@dataclass(frozen=True)
class Trace:
    """What was traced.

    Attributes:
        host: operators and marks of the host's threads, with parents.
        device: work of the device; its parent is the operator that started it, where that is known.
        exchange: what exchange threads did.
        calls: of the host into CUDA.
        inputs: waits for batches.
    """

    host: list[Slice]
    device: list[Slice]
    exchange: list[Slice]
    calls: list[Slice]
    inputs: list[Slice]


def read_trace(events: Iterable[Event]) -> Trace:
    """The slices among `traceEvents`.

    Marks of collectives that go on beside the thread that began them are left out: whoever waits for one is in the
    trace too. So are host slices that only overlap their neighbour, for the same reason.
    """
    threads: dict[tuple[Any, Any], list[Slice]] = defaultdict(list)
    device, exchange, calls, inputs = [], [], [], []
    categories = _HOST | DEVICE | _CALLS | {EXCHANGE}
    wanted = [event for event in events if event.get("ph") == "X" and event.get("cat") in categories]
    # Seconds since the machine's start have no room for nanoseconds.
    origin = min((float(event["ts"]) for event in wanted), default=0.0)
    for event in wanted:
        one = _slice(event, origin)
        if one.name.startswith(_BESIDE):
            continue
        if one.name == INPUT:
            inputs.append(one)
        elif one.category in _HOST:
            threads[one.thread].append(one)
        elif one.category in _CALLS:
            calls.append(one)
        elif one.category in DEVICE:
            device.append(one)
        else:
            exchange.append(one)
    host = [one for slices in threads.values() for one in _nested(slices)]
    _link(device, host)
    return Trace(host, device, exchange, calls, inputs)


def _slice(event: Event, origin: float) -> Slice:
    start, seconds = (float(event["ts"]) - origin) * _MICROSECOND, float(event.get("dur", 0.0)) * _MICROSECOND
    return Slice(event["name"], event["cat"], start, seconds, event.get("args", {}), (event["pid"], event["tid"]))


def _nested(slices: list[Slice]) -> Iterator[Slice]:
    """The slices of one thread, the outer before the inner, each with its parent."""
    open_slices: list[Slice] = []
    for one in sorted(slices, key=lambda one: (one.start, -one.seconds)):
        while open_slices and open_slices[-1].end <= one.start + ROUNDING_SECONDS:
            open_slices.pop()
        if open_slices:
            if one.end > open_slices[-1].end + ROUNDING_SECONDS:
                continue
            one.parent = open_slices[-1]
            one.parent.inner_seconds += one.seconds
        open_slices.append(one)
        yield one


def _link(device: Iterable[Slice], host: Iterable[Slice]) -> None:
    """Give each piece of device work the operator that started it."""
    operators = {one.arguments["External id"]: one for one in host if "External id" in one.arguments}
    for one in device:
        one.parent = operators.get(one.arguments.get("External id"))


def tensors_of(one: Slice) -> list[Layout]:
    """The tensors that an operator was given, where the profiler recorded shapes."""
    columns = (one.arguments.get(name) or [] for name in ("Input Dims", "Input Strides", "Input type"))
    found = []
    for shape, strides, element in zip(*columns, strict=False):
        # Lists of tensors have lists of shapes.
        flat = all(isinstance(length, int) for length in [*shape, *strides])
        if flat and len(shape) == len(strides) and element not in ("", "Scalar", "ScalarList"):
            found.append(Layout(tuple(shape), tuple(strides), element))
    return found
