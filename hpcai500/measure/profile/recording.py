"""torch's profiler around some steps, and what it wrote as plain events."""

from __future__ import annotations

import gzip
import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from hpcai500.errors import RunError
from hpcai500.files import write_atomically
from hpcai500.measure.profile.trace import INPUT, STEP, Event

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
    from torch._C._profiler import _ExperimentalConfig  # noqa: PLC0415 - not promised, so asked for here only

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
