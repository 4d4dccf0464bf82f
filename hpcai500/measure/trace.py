"""What exchange threads did, as slices of the trace: torch's profiler watches the thread of the training loop only."""

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
from hpcai500.methodology.kernels import (
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
# Where the time of training steps goes (V2.0 section 7.3.2): kernels by class, layouts, device, network.


# ----------------------------------------------------------------------------------------------------
# The profiler's trace as slices that lie in each other: which operator called which, and what each did itself.
#
# The trace is Google's Trace Event Format, as torch's profiler exports it.


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


# ----------------------------------------------------------------------------------------------------
# torch's profiler around some steps, and what it wrote as plain events.


Document = dict[str, Any]
T = TypeVar("T")


def mark_of_step(number: int) -> record_function:
    """The context that marks a step in the trace."""
    return record_function(STEP, str(number))


def marked_input(batches: Iterator[T]) -> Iterator[T]:
    """`batches`, which has no end, with a mark around the wait for each."""
    while True:
        with record_function(INPUT):
            batch = next(batches)
        yield batch


def record(run: Callable[[], None], device: torch.device) -> Document:
    """What torch's profiler tells of `run`, with the shapes and layouts of tensors: the document of its trace file."""
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]
    with profile(activities=activities, record_shapes=True, experimental_config=_without_objects()) as profiler:
        run()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        profiler.export_chrome_trace(str(path))
        document: Document = json.loads(path.read_bytes())
    return document


def _without_objects() -> Any:
    """Settings that save the profiler an object for each event, which takes longer than the steps; None before 2.13."""
    from torch._C._profiler import _ExperimentalConfig  # not promised, so asked for here only

    return _ExperimentalConfig(trace_only=True) if hasattr(_ExperimentalConfig, "trace_only") else None


def base_nanoseconds(document: Document) -> int:
    """What the trace's times count from, in nanoseconds of `time.time`."""
    return int(document.get("baseTimeNanoseconds", 0))


def process_of(events: Sequence[Event]) -> Any:
    """The process whose operators were traced."""
    return next((event["pid"] for event in events if event.get("cat") == "cpu_op"), 0)


def write_trace(path: Path, document: Document) -> None:
    """Write the trace, compressed, as ui.perfetto.dev opens it.

    Raises:
        RunError: the disk is full.
    """
    content = json.dumps(document, separators=(",", ":")).encode()
    try:
        # Without the time of packing in it.
        write_atomically(path, gzip.compress(content, mtime=0))
    except OSError as error:
        raise RunError(
            f"{path}: the trace cannot be written: {error.strerror}; make space, or give another --out"
        ) from error


# ----------------------------------------------------------------------------------------------------
# From slices to kernels: what did work, of which class, and which of it only changed a layout.


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


# ----------------------------------------------------------------------------------------------------
# Layout changes that no operator shows: oneDNN reorders tensors inside its convolutions, and tells when it is asked.
#
# A convolution on a processor wants its channels in blocks; what comes as NCHW is rearranged on the way in, and back on
# the way out. For the profiler all of that is one convolution.


_PREFIX = "onednn_verbose"
_REORDER = "reorder"
# Kinds of primitives and the class of the operator around them.
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
    """One change of layout inside an operator.

    Attributes:
        owner: class of the operator.
        source: the format before, in oneDNN's letters, or its usual name.
        target: the format after.
        shape: as oneDNN writes it: `8x16x56x56`.
        seconds: how long it took.
    """

    owner: str
    source: str
    target: str
    shape: str
    seconds: float


@contextmanager
def listening() -> Iterator[list[str]]:
    """Inside, oneDNN tells what it does; afterwards the list holds its lines. Nothing else may print meanwhile.

    oneDNN knows no other way than this process's stdout, which goes to a file for that long.
    """
    lines: list[str] = []
    sys.stdout.flush()
    kept = os.dup(_STDOUT)
    with tempfile.TemporaryFile() as sink:
        os.dup2(sink.fileno(), _STDOUT)
        try:
            # torch annotates its levels as plain numbers.
            with torch.backends.mkldnn.verbose(torch.backends.mkldnn.VERBOSE_ON):
                yield lines
        finally:
            sys.stdout.flush()
            os.dup2(kept, _STDOUT)
            os.close(kept)
        sink.seek(0)
        lines += sink.read().decode(errors="replace").splitlines()


def reorders(lines: Iterable[str]) -> list[Reorder]:
    """The layout changes in what oneDNN told; copies that keep the order are none.

    A reorder comes before the primitive that it is for, or right after it, when nothing comes any more.
    """
    primitives = [fields for fields in map(_fields, lines) if fields]
    owners = [_OWNERS.get(fields["kind"]) for fields in primitives]
    # Each reorder belongs to the next primitive that does something, the last ones to the one before.
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
    """The reorders of one step, from those of several: of each kind the median time, so that no hiccup counts."""
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
    """`f32::blocked:aBcd16b::f0` and `f32:a:blocked:abcd::f0` -> the letters."""
    words = descriptor.split(":")
    return words[words.index("blocked") + 1] if "blocked" in words[:-1] else ""


def _named(letters: str) -> str:
    blocks = [letter for letter in letters if letter.isdigit() or letter.isupper()]
    return f"blocks {letters}" if blocks else _FORMATS.get(letters, letters)


# ----------------------------------------------------------------------------------------------------
# Layout conversions called out: how long, from which operator, from which order of axes to which.


_NAMES = {(0, 1, 2, 3): "NCHW", (0, 2, 3, 1): "NHWC", (0, 1): "rows", (1, 0): "columns"}
_UNKNOWN = "?"

Conversion = dict[str, Any]


def conversions_of(works: Iterable[Work], hidden: Sequence[Reorder], steps: int) -> list[Conversion]:
    """What changed a layout in `steps` steps, the longest first; `hidden` are those of one step inside operators.

    Keys: `from` (operator or class), `source` and `target` (orders of axes), `shape`, `seconds`, `calls`, and `hidden`:
    whether it is a part of another kernel's time, which only the library knows.
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
    """Orders before and after, and the shape."""
    if change is None:
        return _UNKNOWN, _UNKNOWN, _UNKNOWN
    target, source = change
    return _order(source), _order(target), "x".join(map(str, target.shape))


def _order(layout: Layout) -> str:
    """Axes of length 1 are nowhere: each is taken to be where the usual layouts have it."""
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
    """The parts of profile.json that tell of kernels: `classes`, `unclassified`, `top`, `layout`, `kernel_seconds`.

    Args:
        works: all kernels of `steps` steps.
        hidden: layout changes of one step inside them; counted as transformation, and no more in their owner's class.
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
    """`hidden`, which was measured in another step, no longer than the operators that it lies in."""
    inside: dict[str, float] = defaultdict(float)
    for one in hidden:
        inside[one.owner] += one.seconds * steps
    factors = {owner: min(1.0, seconds[owner] / inside[owner]) if inside[owner] else 0.0 for owner in inside}
    return [replace(one, seconds=one.seconds * factors[one.owner]) for one in hidden]


def _top(works: Sequence[Work], total: float) -> list[dict[str, Any]]:
    """All kernels by name and class, the longest first."""
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
# What exchange threads did, as slices of the trace: torch's profiler watches the thread of the training loop only.


_MICROSECONDS = 1e6


class Spans:
    """Keeps the spans of buckets, of one rank."""

    def __init__(self) -> None:
        self.buckets: list[BucketSpan] = []

    def bucket(self, span: BucketSpan) -> None:
        """A bucket is done."""
        self.buckets.append(span)

    def step(self, span: StepSpan) -> None:
        """A step is done: its parts are in the trace already."""


def clock_offset() -> float:
    """What is added to `time.perf_counter` to get the seconds of `time.time`, which traces tell."""
    return time.time() - time.perf_counter()


def exchange_events(buckets: Sequence[BucketSpan], offset: float, base_nanoseconds: int, process: Any) -> list[Event]:
    """Events of `buckets` for the trace of `process` whose times count from `base_nanoseconds`; `offset` as above."""
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
