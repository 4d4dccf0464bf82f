"""Horovod's own timeline file (HOROVOD_TIMELINE=FILE) as the table of V2.0 Table 12.

Horovod's first rank writes a trace of its tensors, each a "process". An all-reduce of one tensor is a slice
NEGOTIATE_ALLREDUCE, then a slice ALLREDUCE with its activities inside. Tensors that are fused have the same activities
at the same time; each counts, as in the paper's table, which was made from such a file (V2.0 section 7.3.2).
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from hpcai500.errors import DataError
from hpcai500.methodology.stages import STAGES, StageTable, StageTally, stage_table
from hpcai500.results.json_events import Event, JsonEvents

# A file's median is then within a percent of the truth.
_SAMPLES = 4096
_ALL_REDUCE, _NEGOTIATION = "ALLREDUCE", "NEGOTIATE_ALLREDUCE"
# Horovod 0.28's names (its common.h), whole or by their beginning or end.
_STAGE_OF = {
    "WAIT_FOR_DATA": "wait_for_data",
    "WAIT_FOR_OTHER_TENSOR_DATA": "wait_for_other_data",
    "QUEUE": "queuing",
}
_COPIES = {"MEMCPY_IN_": "memcpy_in", "MEMCPY_OUT_": "memcpy_out"}
# A hierarchical all-reduce is made of several collectives.
_COLLECTIVES = ("_ALLREDUCE", "_REDUCESCATTER", "_REDUCE", "_ALLGATHER", "_BCAST")


@dataclass(frozen=True)
class HorovodTimeline:
    """What a file tells.

    Attributes:
        tensors: tensors that were all-reduced.
        all_reduces: complete all-reduces of one tensor each.
        stages: their stages; None for one that does not occur (data is waited for, and queued, on a GPU only).
        other: seconds of activities that are no stage (setting up buffers and communicators), by name.
        cut_off: the file ends inside an event: its writer was killed.
    """

    tensors: int
    all_reduces: int
    stages: StageTable
    other: dict[str, float]
    cut_off: bool


@dataclass
class _Tensor:
    """What is known of a tensor while the file is read; times in microseconds."""

    open: list[tuple[str, float]] = field(default_factory=list)
    stages: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    all_reduces: int = 0


class _Reader:
    def __init__(self) -> None:
        self.tensors: dict[object, _Tensor] = defaultdict(_Tensor)
        self.rows = StageTally(STAGES, samples=_SAMPLES)
        self.other: dict[str, float] = defaultdict(float)
        self.seen: set[str] = set()

    def take(self, event: Event, events: JsonEvents) -> None:
        """The next event of the file `events`."""
        phase = event.get("ph")
        if phase not in ("B", "E"):
            return
        moment, process = event.get("ts"), event.get("pid")
        if not isinstance(moment, int | float) or not isinstance(process, int | str):
            raise DataError(
                f"{events.place()}: not an event of Horovod's timeline: ts or pid is missing or of a wrong type"
            )
        tensor = self.tensors[process]
        if phase == "B":
            tensor.open.append((str(event.get("name")), moment))
        elif tensor.open:
            # A timeline that is started in mid-run begins with the ends of what was open.
            name, begin = tensor.open.pop()
            if moment < begin:
                raise DataError(f"{events.place()}: {name} ends before it begins")
            self._end(tensor, name, (moment - begin) / 1e6)

    def _end(self, tensor: _Tensor, name: str, seconds: float) -> None:
        if name == _NEGOTIATION and not tensor.open:
            tensor.stages.clear()
            tensor.stages["negotiation"] = seconds
        elif name == _ALL_REDUCE and not tensor.open:
            self.seen |= tensor.stages.keys()
            self.rows.add(tuple(tensor.stages[stage] for stage in STAGES))
            tensor.stages.clear()
            tensor.all_reduces += 1
        elif tensor.open and tensor.open[0][0] == _ALL_REDUCE:
            stage = _stage_of(name)
            if stage:
                tensor.stages[stage] += seconds
            else:
                self.other[name] += seconds


def read_horovod_timeline(path: Path) -> HorovodTimeline:
    """The stages of all all-reduces in Horovod's timeline file at `path`; other operations are passed over.

    Of each stage the mean is over all all-reduces, those without it included, so that the means add up to the time from
    the first rank's request to the result. An array without its end, and a last event that was cut off, are what a
    killed job leaves, and no damage.

    Raises:
        DataError: the file cannot be read, is damaged (with line and character), or has no all-reduce in it.
    """
    events, reader = JsonEvents(path), _Reader()
    for event in events:
        reader.take(event, events)
    if not reader.rows.count:
        raise DataError(
            f"{path}: no complete all-reduce in it: expected a file that Horovod wrote with HOROVOD_TIMELINE=FILE (or "
            "horovodrun --timeline-filename FILE) while it trained"
        )
    table = stage_table([reader.rows])
    return HorovodTimeline(
        tensors=sum(tensor.all_reduces > 0 for tensor in reader.tensors.values()),
        all_reduces=reader.rows.count,
        stages={name: times if name in reader.seen else None for name, times in table.items()},
        other=dict(reader.other),
        cut_off=events.cut_off,
    )


def _stage_of(activity: str) -> str | None:
    if activity in _STAGE_OF:
        return _STAGE_OF[activity]
    for beginning, stage in _COPIES.items():
        if activity.startswith(beginning):
            return stage
    return "all_reduce" if activity.endswith(_COLLECTIVES) else None
