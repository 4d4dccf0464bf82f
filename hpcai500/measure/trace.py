"""Shows from torch's profiler where the time of training steps goes (V2.0 section 7.3.2): kernels, layouts, network.

A trace is Google's Trace Event Format, as torch's profiler exports it. It becomes nested slices, the slices become
kernels by class and layout conversions, and these the table of V2.0 Fig. 10. Two things that the profiler does not see
are added: reorders inside oneDNN's convolutions, and the work of exchange threads. Times are seconds unless named
otherwise.
"""

from __future__ import annotations

import gzip
import json
import os
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from hpcai500.comm.timeline import BucketSpan, StepSpan
from hpcai500.errors import RunError
from hpcai500.files import write_atomically
from hpcai500.methodology.kernel_classes import (
    CLASSES,
    CONVOLUTION,
    ELEMENT_WISE,
    GEMM,
    HOST,
    MEMCPY,
    NORMALISATION,
    POOLING,
    TRANSFORMATION,
    Layout,
    copy_class,
    kernel_class,
    operator_class,
    stem,
)

# ----------------------------------------------------------------------------------------------------
# The trace as nested slices: which operator called which, and the own time of each.


# torch's categories: operators and marks of the host, work of a device.
_HOST = {"cpu_op", "user_annotation"}
DEVICE = {"kernel", "gpu_memcpy", "gpu_memset"}
# The host's calls into CUDA, which start that work or wait for it.
_CALLS = {"cuda_runtime", "cuda_driver"}
# Our category: the work of exchange threads on a CPU.
EXCHANGE = "exchange"
# Our marks: around each step, and around each wait for a batch, which is no operator.
STEP, INPUT = "hpcai500:step", "hpcai500:input"
# Names of collectives that are in progress, as torch's process groups mark them.
_ASYNCHRONOUS = ("gloo:", "nccl:", "mpi:")
_MICROSECOND = 1e-6
# Begin and length are each rounded to nanoseconds.
ROUNDING_SECONDS = 3e-9

Event = dict[str, Any]


@dataclass
class Slice:
    """An interval of the trace.

    Attributes:
        category: `cpu_op`, `kernel`, ….
        start: seconds since the first slice.
        arguments: shapes, strides, ids.
        thread: process and thread, or device and stream.
        parent: the operator that called it; of device work, the one that started it.
        inner_seconds: of the slices directly inside it.
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
        return self.start + self.seconds

    @property
    def self_seconds(self) -> float:
        """Its own time, without the slices inside it."""
        return max(0.0, self.seconds - self.inner_seconds)

    def ancestors(self) -> Iterator[Slice]:
        """Its callers, the nearest first."""
        above = self.parent
        while above is not None:
            yield above
            above = above.parent


@dataclass(frozen=True)
class Trace:
    """The slices of a trace by what they are.

    Attributes:
        host: operators and marks of the host's threads, with parents.
        device: work of the device, with the operator that started it as parent where that is known.
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

    Marks of asynchronous collectives are left out, since waits for them are in the trace too. So are host slices that
    overlap their neighbour without lying in it, for the same reason.
    """
    threads: dict[tuple[Any, Any], list[Slice]] = defaultdict(list)
    device, exchange, calls, inputs = [], [], [], []
    categories = _HOST | DEVICE | _CALLS | {EXCHANGE}
    kept = [event for event in events if event.get("ph") == "X" and event.get("cat") in categories]
    # A float of seconds since the machine's start would be too coarse for nanoseconds.
    origin = min((float(event["ts"]) for event in kept), default=0.0)
    for event in kept:
        start, seconds = (float(event["ts"]) - origin) * _MICROSECOND, float(event.get("dur", 0.0)) * _MICROSECOND
        thread = event["pid"], event["tid"]
        one = Slice(event["name"], event["cat"], start, seconds, event.get("args", {}), thread)
        if one.name.startswith(_ASYNCHRONOUS):
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
    operators = {one.arguments["External id"]: one for one in host if "External id" in one.arguments}
    for one in device:
        one.parent = operators.get(one.arguments.get("External id"))
    return Trace(host, device, exchange, calls, inputs)


def _nested(slices: list[Slice]) -> Iterator[Slice]:
    """The slices of one thread, outer before inner, each with its parent."""
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


def tensors_of(one: Slice) -> list[Layout]:
    """The tensor arguments of an operator, if the profiler recorded shapes."""
    columns = (one.arguments.get(name) or [] for name in ("Input Dims", "Input Strides", "Input type"))
    found = []
    for shape, strides, element in zip(*columns, strict=False):
        # An argument that is a list of tensors has a list of shapes.
        flat = all(isinstance(length, int) for length in [*shape, *strides])
        if flat and len(shape) == len(strides) and element not in ("", "Scalar", "ScalarList"):
            found.append(Layout(tuple(shape), tuple(strides), element))
    return found


# ----------------------------------------------------------------------------------------------------
# Recording: torch's profiler around some steps.


Document = dict[str, Any]
T = TypeVar("T")


def mark_of_step(number: int) -> record_function:
    """A context manager that marks a step in the trace."""
    return record_function(STEP, str(number))


def marked_input(batches: Iterator[T]) -> Iterator[T]:
    """`batches`, which must not end, with a mark around the wait for each."""
    while True:
        with record_function(INPUT):
            batch = next(batches)
        yield batch


def record(run: Callable[[], None], device: torch.device) -> Document:
    """Profile `run` with shapes and layouts of tensors; returns the document of torch's trace file."""
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]
    with profile(activities=activities, record_shapes=True, experimental_config=_without_objects()) as profiler:
        run()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        profiler.export_chrome_trace(str(path))
        document: Document = json.loads(path.read_bytes())
    return document


def _without_objects() -> Any:
    """Settings that keep the profiler from making an object for each event, which takes longer than the steps.

    None before torch 2.13.
    """
    from torch._C._profiler import _ExperimentalConfig  # no public interface, so imported here only

    return _ExperimentalConfig(trace_only=True) if hasattr(_ExperimentalConfig, "trace_only") else None


def base_nanoseconds(document: Document) -> int:
    """The origin of the trace's times, in nanoseconds of `time.time`."""
    return int(document.get("baseTimeNanoseconds", 0))


def process_of(events: Sequence[Event]) -> Any:
    """The process whose operators were traced."""
    return next((event["pid"] for event in events if event.get("cat") == "cpu_op"), 0)


def write_trace(path: Path, document: Document) -> None:
    """Write the trace as JSON in gzip, which ui.perfetto.dev opens; equal documents give equal bytes.

    Raises:
        RunError: the disk is full.
    """
    content = json.dumps(document, separators=(",", ":")).encode()
    try:
        # Without a time stamp.
        write_atomically(path, gzip.compress(content, mtime=0))
    except OSError as error:
        raise RunError(
            f"{path}: cannot write the trace: {error.strerror}; free some space, or give another --out"
        ) from error


# ----------------------------------------------------------------------------------------------------
# From slices to kernels: the class of each, and whether it only changed a layout.


# Operators that copy on behalf of their caller.
_MOVERS = {"copy", "clone", "contiguous", "to", "to_copy", "reshape", "_to_copy"}
# Arithmetic inside these counts as theirs: synchronised batch norm's backward pass consists of other torch operators.
_WHOLES = {"normalise": NORMALISATION}


@dataclass(frozen=True)
class Work:
    """One run of one kernel, or of one operator on a CPU.

    Attributes:
        kind: its class; None if no rule knows it.
        start: seconds since the trace's first slice.
        is_call: whether it counts as a call of its class; a wrapper around another operator of its class does not.
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
    """All kernels of a trace, and the time of host operators that are no kernels."""

    kernels: list[Work]
    host_seconds: float


def works_of(trace: Trace, device: str) -> Works:
    """The kernels on `device`; for `cpu`, operators by their own time, and the work of exchange threads."""
    if device != "cpu":
        return Works([_of_kernel(one) for one in trace.device], 0.0)
    wraps = {
        id(one.parent)
        for one in trace.host
        if one.parent and operator_class(one.name) == operator_class(one.parent.name)
    }
    found = [_of_operator(one, is_call=id(one) not in wraps) for one in trace.host]
    kernels = [work for work in found if work.kind != HOST]
    host_seconds = sum(work.seconds for work in found if work.kind == HOST)
    return Works([*kernels, *_of_exchange(trace)], host_seconds)


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
    """The nearest operator that is not a copy; empty for a copy that the program itself called."""
    for above in (one, *one.ancestors()):
        if above.category == "cpu_op" and stem(above.name) not in _MOVERS:
            return above.name.removeprefix("autograd::engine::evaluate_function: ")
    return ""


def _of_exchange(trace: Trace) -> Iterator[Work]:
    """The work of exchange threads; time in which stages of one name overlap is counted once."""
    busy_until: dict[str, float] = {}
    for one in sorted(trace.exchange, key=lambda one: one.start):
        begin = max(one.start, busy_until.get(one.name, one.start))
        busy_until[one.name] = max(one.end, busy_until.get(one.name, one.end))
        yield Work(one.name, operator_class(one.name), begin, max(0.0, one.end - begin), True, EXCHANGE)


# ----------------------------------------------------------------------------------------------------
# Hidden layout changes: oneDNN reorders tensors inside its convolutions, and reports them in its verbose mode.
#
# A convolution on a CPU needs its channels in blocks, so NCHW tensors are reordered before it and back after it. The
# profiler shows all of that as one convolution.


_PREFIX = "onednn_verbose"
_REORDER = "reorder"
# The class of the operator around each kind of primitive.
_OWNERS = {
    "convolution": CONVOLUTION,
    "deconvolution": CONVOLUTION,
    "matmul": GEMM,
    "inner_product": GEMM,
    "batch_normalization": NORMALISATION,
    "layer_normalization": NORMALISATION,
    "group_normalization": NORMALISATION,
    "pooling": POOLING,
}
_FORMATS = {"abcd": "NCHW", "acdb": "NHWC", "ab": "rows", "ba": "columns"}
_STDOUT = 1


@dataclass(frozen=True)
class Reorder:
    """One change of layout inside an operator of the class `owner`.

    Formats have their usual names or oneDNN's letters; `shape` is as oneDNN writes it: `8x16x56x56`.
    """

    owner: str
    source: str
    target: str
    shape: str
    seconds: float


@contextmanager
def onednn_lines() -> Iterator[list[str]]:
    """Collect oneDNN's verbose lines; they are in the list after the block. Nothing else may print inside it.

    oneDNN can only write to this process's stdout, which is redirected to a file inside the block.
    """
    lines: list[str] = []
    sys.stdout.flush()
    kept = os.dup(_STDOUT)
    with tempfile.TemporaryFile() as sink:
        os.dup2(sink.fileno(), _STDOUT)
        try:
            # The level is a plain number for torch's type hints.
            with torch.backends.mkldnn.verbose(torch.backends.mkldnn.VERBOSE_ON):
                yield lines
        finally:
            sys.stdout.flush()
            os.dup2(kept, _STDOUT)
            os.close(kept)
        sink.seek(0)
        lines += sink.read().decode(errors="replace").splitlines()


def reorders(lines: Iterable[str]) -> list[Reorder]:
    """The layout changes in oneDNN's lines; copies that keep the order are left out.

    A reorder comes before the primitive that it is for, or after it where no other primitive follows.
    """
    primitives = [fields for fields in map(_fields, lines) if fields]
    owners = [_OWNERS.get(fields["kind"]) for fields in primitives]
    # Each reorder belongs to the next primitive that is no reorder, the last ones to the one before them.
    for index in range(len(owners) - 2, -1, -1):
        if primitives[index]["kind"] == _REORDER:
            owners[index] = owners[index + 1]
    for before, after in pairwise(range(len(owners))):
        if primitives[after]["kind"] == _REORDER and owners[after] is None:
            owners[after] = owners[before]
    found = []
    for fields, owner in zip(primitives, owners, strict=True):
        source, target = fields["source"], fields["target"]
        if fields["kind"] == _REORDER and owner and source != target:
            found.append(Reorder(owner, _named(source), _named(target), fields["shape"], float(fields["ms"]) / 1e3))
    return found


def typical(steps: Sequence[Sequence[Reorder]]) -> list[Reorder]:
    """The reorders of one step, from those of several: the median time of each kind, which outliers do not change."""
    times: dict[tuple[str, str, str, str], list[float]] = defaultdict(list)
    for one in (one for step in steps for one in step):
        times[one.owner, one.source, one.target, one.shape].append(one.seconds)
    found = []
    for kind, seconds in times.items():
        of_one_step = round(len(seconds) / len(steps))
        found += [Reorder(*kind, statistics.median(seconds))] * of_one_step
    return found


def _fields(line: str) -> dict[str, str] | None:
    """Kind, formats, shape and milliseconds of one executed primitive; None for any other line."""
    words = line.split(",")
    if not line.startswith(_PREFIX) or "exec" not in words or len(words) < words.index("exec") + 9:
        return None
    rest = words[words.index("exec") + 1 :]
    tensors = dict(word.split(":", 1) for word in rest[4].split() if ":" in word)
    return {
        "kind": rest[1],
        "source": _format(tensors.get("src", "")),
        "target": _format(tensors.get("dst", "")),
        "shape": rest[-2],
        "ms": rest[-1],
    }


def _format(descriptor: str) -> str:
    """The letters of a descriptor such as `f32::blocked:aBcd16b::f0` or `f32:a:blocked:abcd::f0`."""
    words = descriptor.split(":")
    return words[words.index("blocked") + 1] if "blocked" in words[:-1] else ""


def _named(letters: str) -> str:
    blocks = [letter for letter in letters if letter.isdigit() or letter.isupper()]
    return f"blocks {letters}" if blocks else _FORMATS.get(letters, letters)


# ----------------------------------------------------------------------------------------------------
# Layout conversions: how long they take, for which operator, from which order of axes to which.


_NAMES = {(0, 1, 2, 3): "NCHW", (0, 2, 3, 1): "NHWC", (0, 1): "rows", (1, 0): "columns"}
_UNKNOWN = "?"

Conversion = dict[str, Any]


def conversions_of(works: Iterable[Work], hidden: Sequence[Reorder], steps: int) -> list[Conversion]:
    """The layout conversions of `steps` steps, the longest first; `hidden` are those of one step inside operators.

    Keys: `from` (operator or class), `source` and `target` (orders of axes), `shape`, `seconds`, `calls`, and `hidden`:
    whether it is a part of another kernel's time, as oneDNN reports.
    """
    sums: dict[tuple[str, str, str, str, bool], list[float]] = defaultdict(lambda: [0.0, 0])
    for work in works:
        if work.kind == TRANSFORMATION:
            _add(sums, (work.origin or "the training step", *_described(work.change), False), work.seconds, 1)
    for one in hidden:
        _add(sums, (one.owner, one.source, one.target, one.shape, True), one.seconds * steps, steps)
    rows = [
        {
            "from": origin,
            "source": source,
            "target": target,
            "shape": shape,
            "hidden": inside,
            "seconds": seconds,
            "calls": int(calls),
        }
        for (origin, source, target, shape, inside), (seconds, calls) in sums.items()
    ]
    return sorted(rows, key=lambda row: -float(row["seconds"]))


def _add(sums: dict[Any, list[float]], key: Any, seconds: float, calls: int) -> None:
    sums[key][0] += seconds
    sums[key][1] += calls


def _described(change: tuple[Layout, Layout] | None) -> tuple[str, str, str]:
    if change is None:
        return _UNKNOWN, _UNKNOWN, _UNKNOWN
    target, source = change
    return _order(source), _order(target), "x".join(map(str, target.shape))


def _order(layout: Layout) -> str:
    """The name of a layout. An axis of length 1 has no place: it is taken to be where the usual layouts have it."""
    order = layout.order()
    for full, name in _NAMES.items():
        if len(full) == len(layout.shape) and tuple(axis for axis in full if axis in order) == order:
            return name
    return f"axes {','.join(map(str, order))}"


# ----------------------------------------------------------------------------------------------------
# The table of V2.0 Fig. 10: time of each class of kernels, its share and calls, and the kernels that take most.


_MOST_KERNELS = 25
_MOST_CONVERSIONS = 40


def breakdown(works: Sequence[Work], hidden: Sequence[Reorder], steps: int) -> dict[str, Any]:
    """The parts of profile.json about kernels: `classes`, `unclassified`, `top`, `layout`, `kernel_seconds`.

    Args:
        works: all kernels of `steps` steps.
        hidden: layout changes of one step inside them; they count as transformation, not in their owner's class.
        steps: at least 1.
    """
    total = sum(work.seconds for work in works)
    seconds: dict[str | None, float] = defaultdict(float)
    calls: dict[str | None, int] = defaultdict(int)
    for work in works:
        seconds[work.kind] += work.seconds
        calls[work.kind] += work.is_call
    moved = _scaled(hidden, seconds, steps)
    for one in moved:
        seconds[one.owner] -= one.seconds * steps
        seconds[TRANSFORMATION] += one.seconds * steps
        calls[TRANSFORMATION] += steps
    conversions = conversions_of(works, moved, steps)
    return {
        "kernel_seconds": total,
        "classes": {name: _row(seconds[name], total, calls[name]) for name in CLASSES},
        "unclassified_share": _share(seconds[None], total),
        "unclassified": [row for row in _top(works, total) if row["class"] is None],
        "top": _top(works, total)[:_MOST_KERNELS],
        "layout": {
            "seconds": seconds[TRANSFORMATION],
            "share": _share(seconds[TRANSFORMATION], total),
            "hidden_share": _share(sum(one.seconds for one in moved) * steps, total),
            "conversions": [{**row, "share": _share(row["seconds"], total)} for row in conversions[:_MOST_CONVERSIONS]],
        },
    }


def _scaled(hidden: Sequence[Reorder], seconds: dict[str | None, float], steps: int) -> list[Reorder]:
    """`hidden`, which was measured in other steps, shortened to at most the time of the operators around it."""
    inside: dict[str, float] = defaultdict(float)
    for one in hidden:
        inside[one.owner] += one.seconds * steps
    factors = {owner: min(1.0, seconds[owner] / inside[owner]) if inside[owner] else 0.0 for owner in inside}
    return [replace(one, seconds=one.seconds * factors[one.owner]) for one in hidden]


def _top(works: Sequence[Work], total: float) -> list[dict[str, Any]]:
    sums: dict[tuple[str, str | None], list[float]] = defaultdict(lambda: [0.0, 0])
    for work in works:
        sums[work.name, work.kind][0] += work.seconds
        sums[work.name, work.kind][1] += 1
    rows = [
        {"name": name, "class": kind, **_row(seconds, total, int(calls))}
        for (name, kind), (seconds, calls) in sums.items()
    ]
    return sorted(rows, key=lambda row: -float(row["seconds"]))


def _row(seconds: float, total: float, calls: int) -> dict[str, Any]:
    return {"seconds": seconds, "share": _share(seconds, total), "calls": calls}


def _share(seconds: float, total: float) -> float:
    return seconds / total if total else 0.0


# ----------------------------------------------------------------------------------------------------
# Exchange threads as events of the trace: torch's profiler only sees the thread of the training loop.


_MICROSECONDS = 1e6


class Spans:
    """Keeps the spans of one rank's buckets (a `SpanSink`)."""

    def __init__(self) -> None:
        self.buckets: list[BucketSpan] = []

    def bucket(self, span: BucketSpan) -> None:
        self.buckets.append(span)

    def step(self, span: StepSpan) -> None:
        """Ignore a step, since its parts are in the trace already."""


def clock_offset() -> float:
    """Seconds to add to `time.perf_counter` to get `time.time`, by which traces count."""
    return time.time() - time.perf_counter()


def exchange_events(buckets: Sequence[BucketSpan], offset: float, base_nanoseconds: int, process: Any) -> list[Event]:
    """Events of `buckets` for the trace of `process`; `offset` is `clock_offset`'s, `base_nanoseconds` the trace's."""
    shift = offset - base_nanoseconds / 1e9
    numbers = sorted({span.bucket for span in buckets})
    names = [
        {"ph": "M", "name": "thread_name", "pid": process, "tid": _thread(number), "args": {"name": _thread(number)}}
        for number in numbers
    ]
    return [*names, *(event for span in buckets for event in _events(span, shift, process))]


def _thread(bucket: int) -> str:
    return f"exchange, bucket {bucket}"


def _events(span: BucketSpan, shift: float, process: Any) -> Iterator[Event]:
    arguments = {"step": span.step, "gradient_bytes": span.gradient_bytes, "sent_bytes": span.sent_bytes}
    stages = (
        ("hpcai500:pack", span.copy_start, span.sent),
        ("hpcai500:all_reduce", span.sent, span.received),
        ("hpcai500:unpack", span.received, span.done),
    )
    for name, begin, end in stages:
        start = (begin + shift) * _MICROSECONDS
        yield {
            "ph": "X",
            "cat": EXCHANGE,
            "name": name,
            "pid": process,
            "tid": _thread(span.bucket),
            "ts": round(start, 3),
            "dur": round((end - begin) * _MICROSECONDS, 3),
            "args": arguments,
        }
