"""Findings in single records that no forgery of the suite shows: older versions, restarts, other models, files."""

from __future__ import annotations

import copy
import hashlib
from pathlib import Path

import pytest
from made_log import interrupted
from written_campaign import SHORT, edit_record, values, write_campaign

from hpcai500 import __version__
from hpcai500.methodology.result import derive
from hpcai500.recipe import rulebook
from hpcai500.record import Event, Record, read_record
from hpcai500.results.verification.verify import RECORD_CHECKS


@pytest.fixture
def record(tmp_path: Path) -> Path:
    return write_campaign(tmp_path / "campaign", *SHORT, trials=1) / "trial-01"


def findings(path: Path, *, scored: bool = True) -> list[tuple[str, str, str]]:
    """(severity, name, evidence) of all."""
    read = read_record(path)
    rules = rulebook("v2.0", read.tables["benchmark"])
    result = derive(read.tables, rules, read.events) if scored else None
    found = [one for check in RECORD_CHECKS for one in check(read, result, rules)]
    return [(one.severity, one.name, one.evidence) for one in found]


def against(path: Path, *, scored: bool = True) -> list[tuple[str, str, str]]:
    return [one for one in findings(path, scored=scored) if one[0] not in ("note", "skipped")]


def test_a_record_of_an_older_version_is_warned_of_and_not_refused(record: Path) -> None:
    def age(events: list[Event]) -> None:
        events[:] = [event for event in events if event["key"] not in ("ceilings", "replicas")]
        del events[0]["value"]["campaign"]

    # The record of another time was in no campaign.
    (record.parent / "campaign.jsonl").unlink()
    edit_record(record, age)
    assert [(severity, name) for severity, name, _ in against(record)] == [
        ("warning", "ceilings"),
        ("warning", "replicas"),
    ]


def test_what_was_found_right_is_told(record: Path) -> None:
    told = {name: evidence for severity, name, evidence in findings(record) if severity == "note"}
    assert "0.101 of the 9.6e+15 measured in the same run" in told["speed"]
    assert told["events"].startswith("36 events, 3 epochs; they agree in order, evidence, sessions, clock")
    assert "differ by" in told["clock"]


def test_another_model_is_counted_by_its_recipe_and_its_own_count_must_be_possible(record: Path) -> None:
    def widen(events: list[Event]) -> None:
        values(events, "dataset")[0]["classes"] = 10
        values(events, "flops")[0].update(per_sample=5e9, forward=1e9)

    edit_record(record, widen)
    told = [one for one in findings(record) if one[1] == "model"]
    assert [severity for severity, _, _ in told] == ["fail", "fail"]
    assert "training takes 5e+09 FLOPs a sample, 5 of forward; expected up to 3" in told[0][2]
    # 990 outputs of 2048 inputs less: weights and biases; two operations a weight, thrice in training.
    training = 24_299_077_632 - 990 * 2048 * 6
    assert f"FLOPs of a sample are 5000000000; those of the recipe's model {training}" in told[1][2]
    assert f"parameters are 25557032; those of the recipe's model {25_557_032 - 990 * 2049}" in told[1][2]


def test_a_restart_before_the_newest_checkpoint_is_for_people_to_judge(record: Path) -> None:
    def go_on(events: list[Event]) -> None:
        own = copy.deepcopy(events[0]["value"])
        events[:] = interrupted()
        for start in values(events, "init_start"):
            start.update(own)
        values(events, "init_start")[1]["version"] = "9.9"
        values(events, "run_resume")[0].update(step=0)

    edit_record(record, go_on)
    told = {name: evidence for severity, name, evidence in against(record, scored=False) if name == "restarts"}
    assert f"other versions of hpcai500: {__version__}, 9.9" in told["restarts"]
    assert "went on at epoch 2, step 0, although epoch 2, step 100 was saved" in told["restarts"]


def test_processes_of_one_run_work_on_one_thing(record: Path) -> None:
    def exchange(events: list[Event]) -> None:
        own = copy.deepcopy(events[0]["value"])
        events[:] = interrupted()
        values(events, "init_start")[0].update(own)
        values(events, "init_start")[1].update(own, recipe_hash="f" * 64)
        values(events, "dataset")[1]["fingerprint"] = "0" * 64

    edit_record(record, exchange)
    told = against(record, scored=False)
    evidence = next(text for severity, name, text in told if (severity, name) == ("fail", "restarts"))
    assert "start 2 names the recipe_hash ffff" in evidence
    assert "the event dataset is not the same after each of 2 starts" in evidence


def test_a_set_beyond_all_measure_takes_no_time(record: Path) -> None:
    edit_record(record, lambda events: values(events, "dataset")[0].update(training_samples=2**50))
    told = against(record)
    assert ("warning", "coverage", f"the digest of {2**50} samples was not computed again") in told
    assert any(name == "samples" for _, name, _ in told)


@pytest.mark.parametrize(
    ("file", "content", "severity"),
    [
        ("pictures/detections.png", b"seen", None),
        ("pictures/detections.png", b"painted", "fail"),
        ("pictures/gone.png", None, "skipped"),
        ("pictures/../../secret", b"seen", "fail"),
        ("trace/x", b"seen", "fail"),
        ("/etc/passwd", None, "fail"),
    ],
)
def test_pictures_are_those_of_the_events(record: Path, file: str, content: bytes | None, severity: str | None) -> None:
    sha256 = "9f6a5a6c6a5b4a6e" * 4

    def draw(events: list[Event]) -> None:
        events.append({**events[-1], "key": "picture", "value": {"file": file, "sha256": sha256}})

    if content is not None and file.startswith("pictures/d"):
        (record / "pictures").mkdir()
        (record / file).write_bytes(content)
        if content == b"seen":
            sha256 = hashlib.sha256(content).hexdigest()
    edit_record(record, draw)
    told = [one for one, name, _ in findings(record) if name == "files"]
    assert told == ([severity] if severity else [])


def test_a_check_that_stumbles_tells_of_it(record: Path) -> None:
    """A recipe that lacks a table was written by a hand."""
    read = read_record(record)
    tables = {name: table for name, table in read.tables.items() if name != "workload"}
    strange = Record(read.path, tables, read.system, read.events, 0, "done")
    found = [one for check in RECORD_CHECKS for one in check(strange, None, rulebook("v2.0", "ic"))]
    assert {one.name for one in found if one.severity == "fail"} >= {"malformed", "restarts"}
