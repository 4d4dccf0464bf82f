"""Timelines: of a record, of Horovod, and in MLPerf's format, with nothing taken on trust.

`horovod/mpi.json` (of mpirun) and `horovod/gloo.json` (of horovodrun --gloo) are files that Horovod 0.28.1 wrote here
(two ranks, four tensors, three steps); the tests cut and damage them. The rules of MLPerf's logs are those of
`mlperf_logging.compliance_checker` 4.1.68 (common.yaml of training 3.1.0 and of HPC 3.0.0), as assertions, and the
package's own checkers run on whole logs.
"""

from __future__ import annotations

import copy
import json
import re
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest
from builders.campaigns import SHORT, edit_record, values, write_campaign
from builders.records import COSTS, settings_of_ranks, write_record
from hypothesis import given
from hypothesis import strategies as st
from kept_texts import require_text
from typer.testing import CliRunner

from hpcai500.cli import main
from hpcai500.cli.commands import app
from hpcai500.errors import DataError, RecordError, UsageError
from hpcai500.record import Event, Record, read_record
from hpcai500.results.mllog import Line, mllog_lines, submission_facts
from hpcai500.results.timeline import (
    export_trace,
    read_horovod_timeline,
    straggler_lines,
    timeline_document,
    timeline_lines,
)

TRACE = b'{"traceEvents":[]}'


def of_a_record(folder: Path, **costs: Any) -> list[str]:
    record = write_record(folder / "r", *settings_of_ranks(2), costs=COSTS | costs)
    return list(timeline_lines(timeline_document(record, None)))


def test_the_document_is_what_the_job_wrote_also_of_a_run_that_was_stopped(tmp_path: Path) -> None:
    record = write_record(tmp_path / "r", *settings_of_ranks(2), costs=COSTS)
    document = timeline_document(record, None)
    assert document == COSTS | {"communication_fraction": 0.125, "suspended_seconds": 0}
    assert json.loads(json.dumps(document)) == document
    stopped = write_record(tmp_path / "stopped", *settings_of_ranks(2), costs=COSTS, finish=False)
    assert timeline_document(stopped, None)["steps"] == 100


def test_a_stop_of_the_run_is_said_beside_the_sums_that_it_is_in(tmp_path: Path) -> None:
    record = write_record(tmp_path / "r", *settings_of_ranks(2), costs=COSTS)
    stop = {"key": "suspended", "value": {"seconds": 71.0}}
    edit_record(record, lambda events: events.__setitem__(slice(-1, -1), [{**events[-1], **stop}] * 2))
    document = timeline_document(record, None)
    assert document["suspended_seconds"] == 142.0
    assert any(line.startswith("suspended               142.0 s") for line in timeline_lines(document))


def test_people_get_table_12_the_stragglers_and_the_sums(tmp_path: Path) -> None:
    require_text("timeline", of_a_record(tmp_path / "known"))
    network = {"ratio": 1.0123, "over": "loopback", "verdict": "the counters agree"}
    unknown = {"overlap": None, "stragglers": None, "bytes_per_step": {"gradient": None, "sent": None}}
    alike = [rank | {"steps": 1} for rank in COSTS["ranks"]]
    require_text("timeline-unknown", of_a_record(tmp_path / "unknown", **unknown, network=network, ranks=alike))
    require_text("timeline-of-horovod", timeline_lines(timeline_document(None, REAL[1])), folder=SAMPLES)


def test_of_many_ranks_the_slowest_are_shown_by_rank(tmp_path: Path) -> None:
    many = [COSTS["ranks"][0] | {"rank": n, "host": f"host{n}", "own_seconds": float(n % 50)} for n in range(100)]
    lines = list(straggler_lines(many))
    assert [line.split()[0] for line in lines[1:-1]] == [str(n) for n in (*range(42, 50), *range(92, 100))]
    assert lines[-1] == "the 16 slowest of 100 ranks; --json has all of them"


def test_a_record_without_communication_or_trace_is_an_error_that_says_why(tmp_path: Path) -> None:
    alone = write_record(tmp_path / "r")
    with pytest.raises(RecordError, match="no event communication: the run had one process"):
        timeline_document(alone, None)
    with pytest.raises(RecordError, match=r"no trace: the run had one process, .* or communication.trace_steps was 0"):
        export_trace(alone, tmp_path / "out.json")
    with pytest.raises(RecordError, match=r"events.jsonl:8: the event communication is incomplete"):
        timeline_document(write_record(tmp_path / "s", costs={"steps": 5}), None)
    for sources in ((None, None), (tmp_path, tmp_path)):
        with pytest.raises(UsageError, match="give a record, or Horovod's timeline file"):
            timeline_document(*sources)


def test_the_trace_is_given_out_as_the_run_wrote_it(tmp_path: Path) -> None:
    record = write_record(tmp_path / "r", *settings_of_ranks(2), trace=TRACE)
    export_trace(record, tmp_path / "out.json")
    assert (tmp_path / "out.json").read_bytes() == TRACE
    with pytest.raises(RecordError, match="cannot be written: No such file or directory"):
        export_trace(record, tmp_path / "nowhere" / "out.json")
    (record / "trace" / "communication.json").write_bytes(TRACE + b" ")
    with pytest.raises(RecordError, match="changed after the run: its hash is not the one in the events"):
        export_trace(record, tmp_path / "out.json")


def test_the_command_says_on_stderr_where_it_wrote_the_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = write_record(tmp_path / "r", *settings_of_ranks(2), costs=COSTS, trace=TRACE)
    monkeypatch.chdir(tmp_path)
    ended = CliRunner().invoke(app, ["timeline", str(record), "--trace", "out.json", "--json"])
    assert ended.stderr == "hpcai500: out.json: written; open it in ui.perfetto.dev\n"
    assert json.loads(ended.stdout)
    assert (tmp_path / "out.json").read_bytes() == TRACE


# Horovod's own timeline.


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
    # Nobody waits for data on a CPU, where it is there when the all-reduce is asked for.
    assert {stage: times and times["mean_seconds"] * 1e6 for stage, times in found.stages.items()} == {
        "negotiation": pytest.approx(expected["NEGOTIATE_ALLREDUCE"]),
        "wait_for_data": None,
        "wait_for_other_data": None,
        "queuing": None,
        "memcpy_in": pytest.approx(expected["MEMCPY_IN_FUSION_BUFFER"]),
        "all_reduce": pytest.approx(expected[collective]),
        "memcpy_out": pytest.approx(expected["MEMCPY_OUT_FUSION_BUFFER"]),
    }
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


@given(st.integers(0, SAMPLES.joinpath("mpi.json").stat().st_size - 1))
def test_wherever_a_killed_job_cut_its_file_what_is_complete_is_read(tmp_path_factory: Any, size: int) -> None:
    path = tmp_path_factory.mktemp("cut") / "t"
    path.write_bytes(REAL[0].read_bytes()[:size])
    complete = len(re.findall(r'"args": {"dtype"[^}]*}}', path.read_text()))
    if complete:
        assert read_horovod_timeline(path).all_reduces == complete
    else:
        with pytest.raises(DataError, match=r"no complete all-reduce|expected an array"):
            read_horovod_timeline(path)


def test_an_array_without_its_end_is_whole_and_one_cut_in_an_event_says_so(tmp_path: Path) -> None:
    path, text = tmp_path / "t", REAL[0].read_text()
    for cut, all_reduces, cut_off in ((1, 12, False), (30, 11, True)):
        path.write_text(text[:-cut])
        found = read_horovod_timeline(path)
        assert (found.all_reduces, found.cut_off) == (all_reduces, cut_off)
    assert "the file ends inside an event: its writer was killed" in list(timeline_lines(timeline_document(None, path)))
    # It may begin in the middle of an operation as well.
    assert read_horovod_timeline(write(path, [event("E", 1), event("E", 2), *GPU])).all_reduces == 2


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
        (b"hello", r"t:1 \(character 0\): damaged, or not a timeline: expected an array of events"),
        (b"", r"t:1 \(character 0\): damaged"),
        (b'{"traceEvents": []}', r"t:1 \(character 0\): damaged"),
        (b"[]", "no complete all-reduce"),
        (b"[1, 2]", "expected an event, got int"),
        (b"[{}] tail", r"t:1 \(character 5\): .* text after the closing bracket"),
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


# MLPerf's logs: each line can be parsed, and its tools find what they demand in the common rules.


_ONCE = (
    "submission_org", "submission_platform", "submission_division", "submission_status", "init_stop", "run_start",
    "run_stop", "train_samples", "eval_samples", "global_batch_size", "opt_name",
)  # fmt: skip
_OF_AN_EPOCH = ("epoch_start", "epoch_stop", "eval_start", "eval_stop", "eval_accuracy")
_KINDS = {"INTERVAL_START", "INTERVAL_END", "POINT_IN_TIME"}


@pytest.fixture
def campaign(tmp_path: Path) -> Path:
    """Two short runs of Image Classification; the first attempt at the second one failed."""
    return write_campaign(tmp_path / "campaign", *SHORT, trials=2, failing=(2,))


def _parsed(record: Path) -> list[dict[str, Any]]:
    lines = mllog_lines(read_record(record))
    assert all(line.startswith(":::MLLOG ") and line.isascii() and "\n" not in line for line in lines)
    parsed = [json.loads(line.removeprefix(":::MLLOG ")) for line in lines]
    for line in parsed:
        assert list(line) == ["namespace", "time_ms", "event_type", "key", "value", "metadata"]
        assert isinstance(line["time_ms"], int)
        assert isinstance(line["metadata"], dict)
        assert line["event_type"] in _KINDS
    return parsed


def _of(parsed: list[dict[str, Any]], key: str) -> list[dict[str, Any]]:
    return [line for line in parsed if line["key"] == key]


def _require_compliant(parsed: list[dict[str, Any]]) -> None:
    keys, times = ([line[name] for line in parsed] for name in ("key", "time_ms"))
    assert times == sorted(times)
    found = Counter(keys)
    assert {key: found[key] for key in _ONCE} == dict.fromkeys(_ONCE, 1)
    assert min(found[key] for key in ("init_start", "cache_clear", "eval_accuracy")) >= 1
    assert max(place for place, key in enumerate(keys) if key == "init_start") < keys.index("init_stop")
    assert keys.index("init_stop") < keys.index("run_start") < keys.index("run_stop")
    assert all(line["value"] != "" for line in parsed if line["key"].startswith("submission_"))
    assert "status" in _of(parsed, "run_stop")[0]["metadata"]
    assert all(isinstance(line["metadata"]["epoch_num"], int) for line in parsed if line["key"] in _OF_AN_EPOCH)
    assert _of(parsed, "submission_division")[0]["value"] in ("open", "closed")
    # Whatever begins ends before it begins again.
    for begin, end in (("epoch_start", "epoch_stop"), ("eval_start", "eval_stop")):
        turns = [line["key"] for line in parsed if line["key"] in (begin, end)]
        assert turns == [begin, end] * (len(turns) // 2)


def test_a_platform_without_accelerators_names_its_processors(tmp_path: Path) -> None:
    record = read_record(write_record(tmp_path / "record", cpu="AMD EPYC 9654"))
    platform = "1 node, no accelerators; processors: 1 x AMD EPYC 9654"
    assert dict(submission_facts(record))["submission_platform"] == platform


def test_a_finished_run_has_all_that_the_checkers_common_rules_demand(campaign: Path) -> None:
    parsed, events = _parsed(campaign / "trial-01"), read_record(campaign / "trial-01").events
    _require_compliant(parsed)
    assert [line["metadata"]["epoch_num"] for line in _of(parsed, "eval_accuracy")] == [1, 2, 3]
    recorded = [value["value"] for value in values(list(events), "eval_accuracy")]
    assert [line["value"] for line in _of(parsed, "eval_accuracy")] == recorded
    assert _of(parsed, "run_stop")[0]["metadata"]["status"] == "success"
    assert _of(parsed, "global_batch_size")[0]["value"] == 4096
    assert _of(parsed, "opt_base_learning_rate")[0]["value"] == pytest.approx(0.256 * 4096 / 256)
    assert _of(parsed, "submission_platform")[0]["value"] == "2 nodes, accelerators: 16 x NVIDIA H100 80GB HBM3"
    took = (_of(parsed, "run_stop")[0]["time_ms"] - _of(parsed, "run_start")[0]["time_ms"]) / 1000
    assert took == pytest.approx(_of(parsed, "hpcai500_result")[0]["value"]["seconds"], abs=0.01)
    places = [line["metadata"].get("lineno") for line in parsed]
    assert {place for place in places if place} == {event["seq"] + 1 for event in events}, "an event has no line"


def test_only_the_same_task_has_mlperfs_name_and_all_other_words_have_a_prefix(tmp_path: Path) -> None:
    same = _parsed(write_campaign(tmp_path / "ic", *SHORT, trials=1) / "trial-01")
    other = _parsed(write_campaign(tmp_path / "ewa", recipe="ewa/reference", trials=1) / "trial-01")
    assert [line["value"] for line in _of(same, "submission_benchmark")] == ["resnet"]
    assert _of(other, "submission_benchmark") == []
    assert _of(other, "hpcai500_benchmark")[0]["value"] == "ewa"
    _require_compliant(other)
    words = {line["key"] for line in [*same, *other] if not line["key"].startswith("hpcai500_")}
    assert words <= {
        *_ONCE, *_OF_AN_EPOCH, "submission_benchmark", "cache_clear", "init_start", "seed",
        "gradient_accumulation_steps", "micro_batch_size", "opt_base_learning_rate", "opt_learning_rate_warmup_epochs",
        "opt_weight_decay", "lowest_numerical_precision_in_linear",
    }  # fmt: skip


def test_a_run_that_misses_its_target_is_aborted(tmp_path: Path) -> None:
    missed = write_campaign(tmp_path / "missed", *SHORT, "problem.target_quality=0.99", trials=1) / "trial-01"
    assert read_record(missed).status == "done"
    assert _of(_parsed(missed), "run_stop")[0]["metadata"]["status"] == "aborted"


@pytest.mark.parametrize(
    "setting",
    [
        "workload.width=24", "workload.depths=[1, 1, 1, 1]", "workload.block=basic", "workload.image_size=192",
        "problem.dataset=synthetic-shapes",
    ],
)  # fmt: skip
def test_another_net_or_resolution_is_not_mlperfs_resnet(setting: str, tmp_path: Path) -> None:
    other = write_campaign(tmp_path / "ic", *SHORT, setting, trials=1) / "trial-01"
    assert _of(_parsed(other), "submission_benchmark") == []


@pytest.mark.parametrize("name", ["training_samples", "evaluation_samples", "classes"])
def test_other_images_are_not_mlperfs_resnet(name: str, campaign: Path) -> None:
    def fewer(events: list[Event]) -> None:
        values(events, "dataset")[0][name] -= 1

    edit_record(campaign / "trial-02", fewer)
    assert _of(_parsed(campaign / "trial-02"), "submission_benchmark") == []


def test_the_learning_rate_of_slow_start_is_half(tmp_path: Path) -> None:
    record = write_campaign(tmp_path / "ic", *SHORT, "hyperparameters.schedule=slow-start", trials=1) / "trial-01"
    assert _of(_parsed(record), "opt_base_learning_rate")[0]["value"] == pytest.approx(0.256 * 4096 / 256 / 2)


def test_a_failed_run_ends_aborted_with_nothing_left_open(campaign: Path) -> None:
    parsed = _parsed(campaign / "trial-02")
    _require_compliant(parsed)
    assert _of(parsed, "epoch_stop")[-1]["metadata"] == {"epoch_num": 2, "status": "aborted"}
    assert _of(parsed, "run_stop")[0]["metadata"]["status"] == "aborted"
    assert _of(parsed, "hpcai500_run_error")[0]["value"] == {"reason": "node-2 was lost"}
    assert _of(parsed, "hpcai500_result") == []
    (campaign / "trial-02" / "ERROR").unlink()
    assert _of(_parsed(campaign / "trial-02"), "run_stop") == [], "without an end, it has none in the log"


def _restarted(events: list[Event]) -> None:
    """As if it had crashed in the evaluation of epoch 2, and gone on with its training."""
    crash = [event["key"] for event in events].index("eval_accuracy", [e["key"] for e in events].index("checkpoint"))
    first = [event["key"] for event in events].index("run_start")
    resume = {**events[first], "key": "run_resume", "value": {"epoch": 2, "step": 0, "after": "a kill or a crash"}}
    again = next(place for place, event in enumerate(events) if event["key"] == "epoch_start" and place > first + 3)
    session = [*copy.deepcopy(events[:first]), resume, *copy.deepcopy(events[again:crash])]
    for event in session:
        event["time_ms"], event["clock_s"] = events[crash - 1]["time_ms"], events[crash - 1]["clock_s"]
    events[crash:crash] = session


def test_a_run_that_crashed_and_went_on_is_one_run_with_what_was_cut_off_aborted(campaign: Path) -> None:
    edit_record(campaign / "trial-01", _restarted)
    parsed = _parsed(campaign / "trial-01")
    _require_compliant(parsed)
    assert len(_of(parsed, "hpcai500_resume_init_start")) == len(_of(parsed, "hpcai500_run_resume")) == 1
    epochs = [(line["metadata"]["epoch_num"], line["metadata"].get("status")) for line in _of(parsed, "eval_stop")]
    assert epochs == [(1, None), (2, "aborted"), (2, None), (3, None)]


# MLPerf's own checkers; rulesets after 4.0.0 have no ResNet.


def _checked(checker: str, *words: str | Path, folder: Path) -> subprocess.CompletedProcess[str]:
    pytest.importorskip("mlperf_logging")
    command = [sys.executable, "-m", f"mlperf_logging.{checker}", *map(str, words), "--log_output", folder / "said.log"]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)


@pytest.mark.parametrize("ruleset", ["3.1.0", "4.0.0"])
@pytest.mark.parametrize("trial", ["trial-01", "trial-02"])
def test_mlperfs_checker_accepts_finished_and_failed_runs(
    trial: str, ruleset: str, campaign: Path, tmp_path: Path
) -> None:
    log = tmp_path / "run.log"
    log.write_text("".join(f"{line}\n" for line in mllog_lines(read_record(campaign / trial))))
    ended = _checked("compliance_checker", log, "--ruleset", ruleset, folder=tmp_path)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "SUCCESS" in ended.stdout + ended.stderr


@pytest.mark.parametrize(("target", "converged"), [(0.7, True), (0.99, False)])
def test_mlperfs_reference_points_count_runs_that_reach_their_target(
    target: float, converged: bool, tmp_path: Path
) -> None:
    record = write_campaign(tmp_path / "ic", *SHORT, f"problem.target_quality={target}", trials=1) / "trial-01"
    (tmp_path / "logs").mkdir()
    for number in range(5):
        log = tmp_path / "logs" / f"result_{number}.txt"
        log.write_text("".join(f"{line}\n" for line in mllog_lines(read_record(record))))
    ended = _checked("rcp_checker", "logs", "--rcp_version", "4.0.0", "--verbose", folder=tmp_path)
    said = ended.stdout + ended.stderr
    assert "Traceback" not in said
    assert ("did not converge" in said) == (not converged), said


@pytest.mark.parametrize("step_ms", [-7_200_000, 3_600_000])
def test_a_wall_clock_that_is_set_changes_no_duration(step_ms: int, campaign: Path) -> None:
    before = _parsed(campaign / "trial-01")

    def step(events: list[Event]) -> None:
        begun = [event["key"] for event in events].index("run_start")
        for event in events[begun + 3 :]:
            event["time_ms"] += step_ms

    edit_record(campaign / "trial-01", step)
    parsed = _parsed(campaign / "trial-01")
    _require_compliant(parsed)
    assert [line["time_ms"] for line in parsed] == pytest.approx([line["time_ms"] for line in before], abs=2)


def test_a_run_that_goes_on_after_a_reboot_takes_the_wall_clock_between(campaign: Path) -> None:
    def reboot(events: list[Event]) -> None:
        _restarted(events)
        again = [event["key"] for event in events].index("init_start", 1)
        events[again]["value"]["boot_id"] = "another"
        for event in events[again:]:
            event["time_ms"] += 60_000
            event["clock_s"] -= 1000

    edit_record(campaign / "trial-01", reboot)
    parsed = _parsed(campaign / "trial-01")
    _require_compliant(parsed)
    again = next(place for place, line in enumerate(parsed) if line["key"] == "hpcai500_resume_init_start")
    assert parsed[again]["time_ms"] - parsed[again - 1]["time_ms"] == 60_000


def test_a_text_that_looks_like_a_line_does_not_cut_the_log() -> None:
    line = Line("hpcai500_x", "a:::MLLOG {}", 1).text()
    assert line.count(":::MLL") == 1
    assert json.loads(line.removeprefix(":::MLLOG "))["value"] == "a:::MLLOG {}"


def test_an_event_without_its_facts_is_refused(campaign: Path) -> None:
    def spoil(events: list[Event]) -> None:
        values(events, "eval_accuracy")[0].pop("epoch")

    edit_record(campaign / "trial-01", spoil)
    with pytest.raises(RecordError, match="are incomplete: KeyError 'epoch'"):
        mllog_lines(read_record(campaign / "trial-01"))


def test_ctrl_c_is_one_line(
    campaign: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(record: Record) -> list[str]:
        raise KeyboardInterrupt

    monkeypatch.setattr("hpcai500.results.mllog.mllog_lines", stopped)
    monkeypatch.setattr("sys.argv", ["hpcai500", "export", str(campaign / "trial-01"), "--mllog"])
    assert main() == 1
    assert capsys.readouterr().err == "hpcai500: error: stopped by Ctrl-C\n"


def test_the_command_prints_or_writes_the_log_and_asks_for_a_format(campaign: Path, tmp_path: Path) -> None:
    record, target = str(campaign / "trial-01"), tmp_path / "run.log"

    def export(*arguments: str) -> Any:
        return CliRunner().invoke(app, ["export", *arguments])

    printed = export(record, "--mllog")
    assert printed.exit_code == 0
    assert printed.stdout.startswith(":::MLLOG {")
    assert export(record, "--mllog", "-o", str(target)).exit_code == 0
    assert target.read_text() == printed.stdout
    assert "add --mllog" in str(export(record).exception)
    assert "a campaign" in str(export(str(campaign), "--mllog").exception)
    for folder in (".", "/", ".."):
        assert f"{folder}: a folder; give a file: -o " in str(export(record, "--mllog", "-o", folder).exception)
