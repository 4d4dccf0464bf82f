"""Horovod's own timeline: files that Horovod 0.28.1 wrote here (two ranks, four tensors, three steps), cut and damaged.

`horovod/mpi.json` is of mpirun, `horovod/gloo.json` of horovodrun --gloo.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcai500.errors import DataError
from hpcai500.results.timeline import read_horovod_timeline, timeline_document, timeline_lines

SAMPLES = Path(__file__).parent / "horovod"
REAL = [SAMPLES / "mpi.json", SAMPLES / "gloo.json"]


def twin(path: Path) -> dict[str, float]:
    """Mean microseconds of each activity over all ALLREDUCE slices, by a stack for each tensor."""
    sums: dict[str, float] = defaultdict(float)
    stacks: dict[int, list[Any]] = defaultdict(list)
    for event in json.loads(path.read_text()):
        if event["ph"] == "B":
            stacks[event["pid"]].append(event)
        elif event["ph"] == "E":
            begin = stacks[event["pid"]].pop()
            sums[begin["name"]] += event["ts"] - begin["ts"]
            sums["count"] += begin["name"] == "ALLREDUCE"
    return {name: total / sums["count"] for name, total in sums.items()}


@pytest.mark.parametrize(("path", "collective"), [(REAL[0], "MPI_ALLREDUCE"), (REAL[1], "GLOO_ALLREDUCE")])
def test_a_real_file_gives_the_means_of_a_plain_loop(path: Path, collective: str) -> None:
    found, expected = read_horovod_timeline(path), twin(path)
    assert (found.tensors, found.all_reduces, found.cut_off) == (4, 12, False)
    names = {
        "negotiation": "NEGOTIATE_ALLREDUCE",
        "memcpy_in": "MEMCPY_IN_FUSION_BUFFER",
        "all_reduce": collective,
        "memcpy_out": "MEMCPY_OUT_FUSION_BUFFER",
    }
    known = {stage: times["mean_seconds"] * 1e6 for stage, times in found.stages.items() if times}
    assert known == {stage: pytest.approx(expected[name]) for stage, name in names.items()}
    # Nobody waits for data on a CPU, where it is there when the all-reduce is asked for.
    assert found.stages["wait_for_data"] is found.stages["queuing"] is None
    assert list(found.other) == ["INIT_FUSION_BUFFER"]


def event(phase: str, moment: float, name: str = "", tensor: int = 1) -> dict[str, Any]:
    return {"ph": phase, "name": name, "ts": moment, "pid": tensor} | ({} if phase != "E" else {"args": {"a": [1]}})


# What NCCL's path writes: here one tensor of two has data to wait for.
GPU = [
    event("M", 0, "process_name"), event("i", 0, "CYCLE_START"),
    event("B", 0, "NEGOTIATE_ALLREDUCE"), event("X", 1, "0"), event("E", 1000),
    event("B", 1000, "ALLREDUCE"), event("B", 1000, "WAIT_FOR_DATA"), event("E", 3000),
    event("B", 3000, "WAIT_FOR_OTHER_TENSOR_DATA"), event("E", 6000), event("B", 6000, "INIT_NCCL"), event("E", 6500),
    event("B", 7000, "QUEUE"), event("E", 11_000), event("B", 11_000, "MEMCPY_IN_FUSION_BUFFER"), event("E", 16_000),
    event("B", 16_000, "NCCL_REDUCESCATTER"), event("E", 18_000), event("B", 18_000, "MEMCPY_IN_HOST_BUFFER"),
    event("E", 18_500), event("B", 18_500, "MPI_ALLREDUCE"), event("E", 20_500), event("B", 20_500, "NCCL_ALLGATHER"),
    event("E", 22_500), event("B", 22_500, "MEMCPY_OUT_FUSION_BUFFER"), event("E", 29_500), event("E", 30_000),
    event("B", 0, "ALLREDUCE", 2), event("B", 0, "NCCL_ALLREDUCE", 2), event("E", 2000, "", 2), event("E", 2000, "", 2),
    event("B", 0, "BROADCAST", 3), event("B", 0, "NCCL_BCAST", 3), event("E", 9000, "", 3), event("E", 9000, "", 3),
]  # fmt: skip


def write(path: Path, events: list[dict[str, Any]]) -> Path:
    path.write_text(json.dumps(events))
    return path


def test_a_gpus_file_has_all_stages_and_a_mean_counts_those_without(tmp_path: Path) -> None:
    found = read_horovod_timeline(write(tmp_path / "t", GPU))
    means = {name: round(times["mean_seconds"] * 1000, 6) for name, times in found.stages.items() if times}
    assert means == {
        "negotiation": 0.5, "wait_for_data": 1.0, "wait_for_other_data": 1.5, "queuing": 2.0, "memcpy_in": 2.75,
        "all_reduce": 4.0, "memcpy_out": 3.5,
    }  # fmt: skip
    assert (found.tensors, found.all_reduces, found.other) == (2, 2, {"INIT_NCCL": pytest.approx(0.0005)})


def test_a_file_that_begins_in_the_middle_of_an_operation_is_read(tmp_path: Path) -> None:
    assert read_horovod_timeline(write(tmp_path / "t", [event("E", 1), event("E", 2), *GPU])).all_reduces == 2


@given(st.integers(0, SAMPLES.joinpath("mpi.json").stat().st_size - 1))
def test_wherever_a_killed_job_cut_its_file_what_is_complete_is_read(tmp_path_factory: Any, size: int) -> None:
    path = tmp_path_factory.mktemp("cut") / "t"
    path.write_bytes(REAL[0].read_bytes()[:size])
    complete = len(re.findall(r'"args": {"dtype"[^}]*}}', path.read_text()))
    if complete:
        assert read_horovod_timeline(path).all_reduces == complete
    else:
        with pytest.raises(DataError, match=r"no complete all-reduce in it|expected an array"):
            read_horovod_timeline(path)


def test_an_array_without_its_end_is_whole_and_one_cut_in_an_event_says_so(tmp_path: Path) -> None:
    path = tmp_path / "t"
    text = REAL[0].read_text()
    path.write_text(text[:-1])
    assert (read_horovod_timeline(path).all_reduces, read_horovod_timeline(path).cut_off) == (12, False)
    path.write_text(text[:-30])
    assert (read_horovod_timeline(path).all_reduces, read_horovod_timeline(path).cut_off) == (11, True)
    assert "the file ends inside an event: its writer was killed" in list(timeline_lines(timeline_document(None, path)))


def test_a_file_larger_than_what_is_read_at_once_gives_the_same(tmp_path: Path) -> None:
    path, body = tmp_path / "t", REAL[0].read_text()[1:-1]
    path.write_text("[" + ",\n".join([body] * 400) + "]")
    assert path.stat().st_size > 3 << 20
    one, many = read_horovod_timeline(REAL[0]), read_horovod_timeline(path)
    assert many.all_reduces == 400 * one.all_reduces
    for name, times in one.stages.items():
        assert (many.stages[name] or {}).get("mean_seconds") == (times and pytest.approx(times["mean_seconds"]))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"hello", r"t:1 \(character 0\): damaged, or no timeline: expected an array of events"),
        (b"", r"t:1 \(character 0\): damaged"),
        (b'{"traceEvents": []}', r"t:1 \(character 0\): damaged"),
        (b"[]", "no complete all-reduce in it"),
        (b"[1, 2]", "expected an event, got int"),
        (b"[{}] tail", r"t:1 \(character 5\): .* something follows the closing bracket"),
        (b'[\n{"ph": "B", "name": "A"}\n]', r"t:2 \(character 2\): not an event of Horovod's timeline: ts or pid"),
        (b'[{"ph":"B","name":"A","ts":5,"pid":1},\n{"ph":"E","ts":4,"pid":1}]', r"t:2 \(character 39\): A ends before"),
        (b'[{"ph": \0\0\0\0\0\0\0\0\0\0}]', r"t:1 \(character 8\): damaged"),
        (b'[{"ph": "\xff"}]', "not a text file in UTF-8 .* at byte 9"),
        (b'["' + b"x" * (9 << 20), "Unterminated string"),
    ],
)
def test_damage_is_named_with_its_place(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "t"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_horovod_timeline(path)


def test_a_file_that_is_not_there_is_an_error_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"t: cannot be read: No such file"):
        read_horovod_timeline(tmp_path / "t")


def test_people_get_table_12() -> None:
    lines = list(timeline_lines(timeline_document(None, REAL[1])))
    assert lines[0].startswith("one all-reduce of a tensor, mean over 12 all-reduces of 4 tensors")
    assert [line.split("  ")[0] for line in lines[2:9]] == [
        "negotiation", "wait for data", "wait for other data", "queuing", "memcpy in", "all-reduce", "memcpy out",
    ]  # fmt: skip
    assert lines[3].split()[-4:] == ["-"] * 4
