"""Records as logs in MLPerf's format: each line can be parsed, and its tools find what they demand in the common rules.

The rules are those of `mlperf_logging.compliance_checker` 4.1.68 (common.yaml of training 3.1.0 and of HPC 3.0.0), as
assertions: the package itself was run by hand (docs/export.md).
"""

from __future__ import annotations

import copy
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner
from written_campaign import SHORT, edit_record, values, write_campaign

from hpcai500.cli import main
from hpcai500.cli.commands import app
from hpcai500.errors import RecordError
from hpcai500.record import Event, Record, read_record
from hpcai500.results.mllog import Line, mllog_lines

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
    keys = [line["key"] for line in parsed]
    times = [line["time_ms"] for line in parsed]
    assert times == sorted(times)
    found = Counter(keys)
    assert {key: found[key] for key in _ONCE} == dict.fromkeys(_ONCE, 1)
    assert found["init_start"] >= 1
    assert found["cache_clear"] >= 1
    assert found["eval_accuracy"] >= 1
    assert max(place for place, key in enumerate(keys) if key == "init_start") < keys.index("init_stop")
    assert keys.index("init_stop") < keys.index("run_start") < keys.index("run_stop")
    assert all(line["value"] != "" for line in parsed if line["key"].startswith("submission_"))
    assert "status" in _of(parsed, "run_stop")[0]["metadata"]
    assert all(isinstance(line["metadata"]["epoch_num"], int) for line in parsed if line["key"] in _OF_AN_EPOCH)
    assert _of(parsed, "submission_division")[0]["value"] in ("open", "closed")


def _require_intervals_end(parsed: list[dict[str, Any]]) -> None:
    """Whatever begins ends before it begins again."""
    for begin, end in (("epoch_start", "epoch_stop"), ("eval_start", "eval_stop")):
        turns = [line["key"] for line in parsed if line["key"] in (begin, end)]
        assert turns == [begin, end] * (len(turns) // 2)


def test_a_finished_run_has_all_that_the_checkers_common_rules_demand(campaign: Path) -> None:
    parsed = _parsed(campaign / "trial-01")
    _require_compliant(parsed)
    _require_intervals_end(parsed)
    assert [line["metadata"]["epoch_num"] for line in _of(parsed, "eval_accuracy")] == [1, 2, 3]
    recorded = values(list(read_record(campaign / "trial-01").events), "eval_accuracy")
    assert [line["value"] for line in _of(parsed, "eval_accuracy")] == [value["value"] for value in recorded]
    assert _of(parsed, "run_stop")[0]["metadata"]["status"] == "success"
    assert _of(parsed, "global_batch_size")[0]["value"] == 4096
    assert _of(parsed, "opt_base_learning_rate")[0]["value"] == pytest.approx(0.256 * 4096 / 256)
    assert _of(parsed, "submission_platform")[0]["value"] == "2 nodes, accelerators: 16 x NVIDIA H100 80GB HBM3"


def test_the_run_takes_as_long_as_the_record_says(campaign: Path) -> None:
    parsed = _parsed(campaign / "trial-01")
    took = (_of(parsed, "run_stop")[0]["time_ms"] - _of(parsed, "run_start")[0]["time_ms"]) / 1000
    assert took == pytest.approx(_of(parsed, "hpcai500_result")[0]["value"]["seconds"], abs=0.01)


def test_each_event_is_in_the_log_and_each_line_of_an_event_names_it(campaign: Path) -> None:
    events = read_record(campaign / "trial-01").events
    places = [line["metadata"].get("lineno") for line in _parsed(campaign / "trial-01")]
    assert {place for place in places if place} == {event["seq"] + 1 for event in events}


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


def test_a_failed_run_ends_aborted_with_nothing_left_open(campaign: Path) -> None:
    parsed = _parsed(campaign / "trial-02")
    _require_compliant(parsed)
    _require_intervals_end(parsed)
    stop = _of(parsed, "epoch_stop")[-1]
    assert stop["metadata"] == {"epoch_num": 2, "status": "aborted"}
    assert _of(parsed, "run_stop")[0]["metadata"]["status"] == "aborted"
    assert _of(parsed, "hpcai500_run_error")[0]["value"] == {"reason": "node-2 was lost"}
    assert _of(parsed, "hpcai500_result") == []


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
    _require_intervals_end(parsed)
    assert len(_of(parsed, "hpcai500_resume_init_start")) == len(_of(parsed, "hpcai500_run_resume")) == 1
    epochs = [(line["metadata"]["epoch_num"], line["metadata"].get("status")) for line in _of(parsed, "eval_stop")]
    assert epochs == [(1, None), (2, "aborted"), (2, None), (3, None)]


def test_a_run_without_an_end_has_none_in_the_log(campaign: Path) -> None:
    record = campaign / "trial-02"
    (record / "ERROR").unlink()
    assert _of(_parsed(record), "run_stop") == []


def test_a_text_that_looks_like_a_line_does_not_cut_the_log() -> None:
    line = Line("hpcai500_x", "a:::MLLOG {}", 1).text()
    assert line.count(":::MLL") == 1
    assert json.loads(line.removeprefix(":::MLLOG "))["value"] == "a:::MLLOG {}"


def test_an_event_without_its_facts_is_refused(campaign: Path) -> None:
    def spoil(events: list[Event]) -> None:
        values(events, "eval_accuracy")[0].pop("epoch")

    edit_record(campaign / "trial-01", spoil)
    with pytest.raises(RecordError, match="lack something: KeyError 'epoch'"):
        mllog_lines(read_record(campaign / "trial-01"))


def test_ctrl_c_is_one_line_and_exit_code_1(
    campaign: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(record: Record) -> list[str]:
        raise KeyboardInterrupt

    monkeypatch.setattr("hpcai500.results.mllog.mllog_lines", stopped)
    monkeypatch.setattr("sys.argv", ["hpcai500", "export", str(campaign / "trial-01"), "--mllog"])
    assert main() == 1
    assert capsys.readouterr().err == "hpcai500: error: stopped by Ctrl-C\n"


@pytest.mark.parametrize("target", [".", "/", ".."])
def test_a_folder_as_output_is_told_with_the_way_out(campaign: Path, target: str) -> None:
    ended = CliRunner().invoke(app, ["export", str(campaign / "trial-01"), "--mllog", "-o", target])
    assert f"{target}: a folder; give a file: -o " in str(ended.exception)


def test_the_command_prints_or_writes_the_log_and_asks_for_a_format(campaign: Path, tmp_path: Path) -> None:
    runner, record = CliRunner(), str(campaign / "trial-01")
    printed = runner.invoke(app, ["export", record, "--mllog"])
    assert printed.exit_code == 0
    assert printed.stdout.startswith(":::MLLOG {")
    target = tmp_path / "run.log"
    assert runner.invoke(app, ["export", record, "--mllog", "-o", str(target)]).exit_code == 0
    assert target.read_text() == printed.stdout
    assert "add --mllog" in str(runner.invoke(app, ["export", record]).exception)
    assert "a campaign" in str(runner.invoke(app, ["export", str(campaign), "--mllog"]).exception)
