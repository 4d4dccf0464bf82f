"""`--replay`: what another evaluation of checkpoints may differ in, and what happens where it does more."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from builders.campaigns import values
from builders.submissions import changed_submission, evidence_under, failed_checks, honest_submission

from hpcai500.errors import EnvironmentLacksError, WrongAnswerError
from hpcai500.record import Record, iterate
from hpcai500.results.submission.archive import Submission
from hpcai500.results.verification.context import Context
from hpcai500.results.verification.finding import Finding, guarded
from hpcai500.results.verification.replay import Replay, replay_check, tolerances_of

Change = Callable[[dict[str, Any], Record], object]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Submission:
    """Three trials of three epochs, whose second one reaches the target."""
    return honest_submission(tmp_path_factory.mktemp("honest"), "problem.target_quality=0.2")


HELD_BACK = {"value": 0.75, "samples": 10_000}


def _sketch(seed: object) -> list[float]:
    """Stands for that of weights of their own."""
    chance = random.Random(str(seed))
    return [chance.gauss(0, 1) for _ in range(1000)]


def _filters(seed: object) -> list[list[float]]:
    """Stands for those of a first convolution."""
    filters = [_sketch(f"{seed} {number}")[:100] for number in range(5)]
    return [[one / math.hypot(*row) for one in row] for row in filters]


def _answers(context: Context, change: Change = lambda found, record: None) -> Replay:
    """Stands for the job that evaluates, which other tests start: it finds what each trial tells, after `change`."""

    def replay(recipe: Path, checkpoint: Path, at_target: Path | None) -> Mapping[str, Any]:
        record = context.done[recipe.parent.name]
        dataset, counted = (next(iterate(record.events, key))["value"] for key in ("dataset", "flops"))
        *_, middle, last = (event["value"] for event in iterate(record.events, "eval_accuracy"))
        assert b"stands for weights" in checkpoint.read_bytes()
        assert b"epoch 4" in checkpoint.read_bytes()
        found = {
            "metric": last["metric"], "value": last["value"], "samples": last["samples"], "precision": "bf16",
            "device": record.tables["accelerator"]["device"],
            "fingerprint": dataset["fingerprint"], "content_fingerprint": dataset["content_fingerprint"],
            "flops_per_sample": counted["per_sample"], "sketch": _sketch(record.path.name),
            "filters": _filters(record.path.name), "training": {"value": 0.8, "samples": 10_000},
        }  # fmt: skip
        if at_target:
            assert b"epoch 3" in at_target.read_bytes()
            own = _sketch(f"{record.path.name} early")
            found["at_target"] = {
                **{key: middle[key] for key in ("value", "samples")}, "sketch": own, "filters": _filters(own[0]),
            }  # fmt: skip
        change(found, record)
        return found

    return replay


@pytest.fixture
def found(base: Submission, tmp_path: Path) -> Callable[..., list[Finding]]:
    """What a replay finds, after `change` of its answers; `most` trials are evaluated."""
    context = changed_submission(base, tmp_path)

    def replay(change: Change = lambda found, record: None, most: int | None = None) -> list[Finding]:
        return list(replay_check(_answers(context, change), most)(context))

    return replay


Found = Callable[..., list[Finding]]


def _with(**other: Any) -> Change:
    return lambda found, record: found.update(other)


def test_what_is_found_again_is_noted_and_what_a_replay_does_not_show_is_said(found: Found, tmp_path: Path) -> None:
    told = found(_with(held_back=HELD_BACK))
    notes = [finding.name for finding in told if finding.severity == "note"]
    assert set(notes) == {
        "replay-dataset", "replay-quality", "replay-target", "replay-flops", "replay-training", "replay-held-back",
        "replay-twins",
    }  # fmt: skip
    assert notes.count("replay-quality") == 3, "every trial has its own"
    assert {finding.name for finding in told if finding.severity != "note"} == {"replay-not-shown"}
    assert not list(tmp_path.glob("*.pt"))
    said = evidence_under(told, "replay-not-shown", "skipped")
    assert ("drawn" in said, "--held-back" in said) == (False, False)
    said = evidence_under(found(most=1), "replay-not-shown", "skipped")
    for words in ("trained in these runs, by this code and in this time", ", drawn from 3", "--held-back DATA"):
        assert words in said


@pytest.mark.parametrize(
    ("other", "name"),
    [
        ({"value": 0.75}, "replay-quality"),
        ({"samples": 100}, "replay-quality"),
        ({"at_target": {"value": 0.19, "samples": 50_000, "sketch": _sketch(0), "filters": []}}, "replay-target"),
        ({"fingerprint": "0" * 64}, "replay-dataset"),
        ({"content_fingerprint": "0" * 64}, "replay-dataset"),
        ({"flops_per_sample": 1.0}, "replay-flops"),
        ({"training": {"value": 0.7, "samples": 10_000}}, "replay-training"),
        ({"held_back": {"value": 0.7, "samples": 10_000}}, "replay-held-back"),
        ({"training": {"value": 0.7, "samples": 100}}, None),
    ],
)
def test_what_is_not_found_again_refuses_but_by_chance(found: Found, other: dict[str, Any], name: str | None) -> None:
    assert failed_checks(found(_with(**other), 1)) == ({name} if name else set())


def test_content_that_nobody_has_hashed_is_not_compared(found: Found) -> None:
    told = found(_with(content_fingerprint=None), 1)
    assert "content: `hpcai500 data check`" in evidence_under(told, "replay-dataset", "note")


def _lowered(by: float, **other: Any) -> Change:
    """Both qualities are found to be worse than the record tells."""

    def lower(found: dict[str, Any], record: Record) -> None:
        found["value"] -= by
        found["at_target"]["value"] -= by
        found |= other

    return lower


def test_qualities_that_are_all_told_a_little_higher_refuse(found: Found) -> None:
    """Each within what one may differ by, 0.002, and their mean beyond what noise leaves of three."""
    told = found(_lowered(0.0015))
    assert failed_checks(told) == {"replay-quality", "replay-target"}
    assert "3 trials: recorded qualities are on average 0.0015 above those found here" in evidence_under(
        told, "replay-quality"
    )

    def noise(found: dict[str, Any], record: Record) -> None:
        found["value"] += {"trial-01": -0.0015, "trial-02": 0.0015, "trial-03": 0.0}[record.path.name]

    assert not failed_checks(found(noise))


@pytest.mark.parametrize(
    ("by", "device", "severity"),
    [
        (0.0004, "cuda", "note"),
        (0.0008, "cuda", "fail"),
        (0.0004, "cpu", "note"),
        (0.0008, "cpu", "warning"),
        (0.0019, "cpu", "warning"),
        (0.0021, "cpu", "fail"),
    ],
)
def test_another_kind_of_device_may_differ_by_more_if_told(found: Found, by: float, device: str, severity: str) -> None:
    """Of fp32: the run was on cuda."""
    told = found(_lowered(by, precision="fp32", device=device), 1)
    for name in ("replay-quality", "replay-target"):
        assert next(one.severity for one in told if one.name == name) == severity
        assert ("the run was on cuda, this replay on cpu" in evidence_under(told, name, severity)) == (
            severity == "warning"
        )


def test_on_another_kind_of_device_all_trials_may_move_alike(found: Found) -> None:
    """Three trials that each tell 0.0004 more: within the tolerance of one, beyond that of their mean."""
    assert failed_checks(found(_lowered(0.0004, precision="fp32"))) == {"replay-quality", "replay-target"}
    told = found(_lowered(0.0004, precision="fp32", device="cpu"))
    assert not failed_checks(told)
    said = evidence_under(told, "replay-quality", "warning")
    assert "3 trials: recorded qualities are on average 0.0004 above those found here, more than 0.000289" in said
    assert "the run was on cuda, this replay on cpu" in said


def test_a_metric_of_another_unit_is_told_and_not_judged(found: Found) -> None:
    """A plug-in's, in decibels: neither what rounding does to it is known here, nor what chance does."""
    parts = {"training": {"value": 30.5, "samples": 100}, "held_back": {"value": 29.0, "samples": 100}}
    told = found(_with(metric="psnr", value=31.25, **parts))
    assert not failed_checks(told)
    assert "psnr 31.25 here" in evidence_under(told, "replay-quality", "warning")
    assert "the effect of rounding on psnr is unknown" in evidence_under(told, "replay-quality", "warning")
    for name in ("replay-training", "replay-held-back"):
        assert "the effect of chance on psnr is unknown" in evidence_under(told, name, "skipped")
    again = found(_with(metric="psnr"))
    assert "psnr" in evidence_under(again, "replay-quality", "note")
    assert not [one for one in again if one.severity in ("fail", "warning")]


def _one_net(found: dict[str, Any], record: Record) -> None:
    """The weights of each trial are those of one, with noise, in another scale or negated."""
    factor = {"trial-01": 1.0, "trial-02": 3.0, "trial-03": -1.0}[record.path.name]
    noise = _sketch(record.path.name)
    found["sketch"] = [factor * (one + 0.3 * other) for one, other in zip(_sketch(0), noise, strict=True)]


def test_trials_of_one_net_refuse(found: Found) -> None:
    told = found(_one_net)
    assert failed_checks(told) == {"replay-twins"}
    assert sum(finding.name == "replay-twins" for finding in told) == 3
    assert "trial-01 and trial-02: the cosine of their weights is 0.9" in evidence_under(told, "replay-twins")
    borrowed = found(lambda answer, record: answer["at_target"].update(sketch=_sketch(0)))
    assert failed_checks(borrowed) == {"replay-twins"}, "one checkpoint at the target of two trials"


def test_of_a_plugin_whose_model_may_have_one_optimum_twins_are_warned_of(base: Submission, tmp_path: Path) -> None:
    context = changed_submission(base, tmp_path)
    context = replace(context, asked=replace(context.asked, rules={}))
    told = list(replay_check(_answers(context, _one_net))(context))
    assert not failed_checks(told)
    assert evidence_under(told, "replay-twins", "warning")


def test_one_net_with_its_channels_in_another_order_is_warned_of(found: Found) -> None:
    def reorder(found: dict[str, Any], record: Record) -> None:
        if record.path.name != "trial-02":
            filters = _filters(0)
            random.Random(record.path.name).shuffle(filters)
            found["filters"] = [[-one for one in row] for row in filters]

    found_again = found(reorder)
    assert not failed_checks(found_again)
    told = evidence_under(found_again, "replay-twins", "warning")
    assert told.startswith("trial-01 and trial-03: half of the filters of their first convolutions are nearly equal")
    assert "\n" not in told


def test_trials_are_those_that_are_drawn(base: Submission, tmp_path: Path) -> None:
    context, asked = changed_submission(base, tmp_path), []

    def draw(names: Sequence[str], count: int) -> Sequence[str]:
        asked.append((list(names), count))
        return ["trial-03", "trial-02"]

    found = list(replay_check(_answers(context), 2, draw)(context))
    assert asked == [(["trial-01", "trial-02", "trial-03"], 2)]
    assert "trials other than trial-02, trial-03, drawn from 3" in evidence_under(found, "replay-not-shown", "skipped")
    assert "trial-01" not in evidence_under(found, "replay-quality", "note")


def _raises(error: Exception) -> Replay:
    def replay(recipe: Path, checkpoint: Path, at_target: Path | None) -> Mapping[str, Any]:
        raise error

    return replay


def test_no_trial_is_always_drawn(base: Submission, tmp_path: Path) -> None:
    context = changed_submission(base, tmp_path)
    told = "".join(
        evidence_under(replay_check(_raises(WrongAnswerError("seen")), 1)(context), "replay-checkpoint")
        for _ in range(100)
    )
    assert {name for name in ("trial-01", "trial-02", "trial-03") if f"{name}: seen" in told} == set(context.done)


def test_a_refused_checkpoint_refuses_and_a_missing_device_is_no_ones_fault(base: Submission, tmp_path: Path) -> None:
    context = changed_submission(base, tmp_path)
    refused = replay_check(_raises(WrongAnswerError("holds code")))(context)
    assert "trial-01: holds code" in evidence_under(refused, "replay-checkpoint")
    with pytest.raises(EnvironmentLacksError, match="no GPU"):
        guarded("replay", lambda: replay_check(_raises(EnvironmentLacksError("no GPU")))(context))


def _without(base: Submission, folder: Path, part: str, version: str | None = None) -> list[Finding]:
    """Checkpoints with `part` in their names are not here; `version` wrote the records, if it is not this one."""
    context = changed_submission(base, folder)
    entries = {path: entry for path, entry in context.submission.entries.items() if part not in path}
    assert len(entries) < len(context.submission.entries)
    object.__setattr__(context.submission, "entries", entries)
    for record in context.records.values() if version else ():
        record.system["installation"]["package"]["version"] = version
        for start in values([*record.events], "init_start"):
            start["version"] = version
    return list(replay_check(_answers(context))(context))


def test_a_checkpoint_that_is_not_here_cannot_be_replayed_and_refuses(base: Submission, tmp_path: Path) -> None:
    told = _without(base, tmp_path / "last", "/checkpoints/")
    assert {(finding.severity, finding.name) for finding in told} == {("fail", "replay-missing")}
    for name in ("trial-01", "trial-02"):
        assert f"{name}: its last checkpoint is missing" in evidence_under(told, "replay-missing")
    told = _without(base, tmp_path / "target", "epoch-0003")
    assert failed_checks(told) == {"replay-missing"}
    said = "trial-01: epoch-0003-step-0000000.pt, which reached the target, is missing"
    assert said in evidence_under(told, "replay-missing")
    older = _without(base, tmp_path / "older", "epoch-0003", "0.0.9")
    assert not failed_checks(older)
    said = "the time to quality of trial-01, trial-02, trial-03, without a checkpoint at the target"
    assert said in evidence_under(older, "replay-not-shown", "skipped")


def test_more_trials_than_there_are_cannot_be_replayed(base: Submission, found: Found, tmp_path: Path) -> None:
    assert "a replay of 4 trials was requested; 3 were finished" in evidence_under(found(most=4), "replay-missing")
    context = replace(changed_submission(base, tmp_path / "none"), records={})
    told = list(replay_check(_raises(AssertionError()))(context))
    assert [(one.severity, one.name) for one in told] == [("fail", "replay-missing")]


@pytest.mark.parametrize(
    ("metric", "samples", "precision", "tolerances"),
    [
        ("top1", 50_000, "bf16", (0.002, 0.002)),
        ("top1", 50_000, "fp32", (0.0005, 0.002)),
        ("top1", 100, "fp32", (0.02, 0.02)),
        ("map50", 1600, "fp16", (0.002, 0.01)),
        ("map50", 1600, "fp32", (0.0005, 0.01)),
        ("map50", 25, "bf16", (0.016, 0.016)),
    ],
)
def test_tolerances_are_as_documented(
    metric: str, samples: int, precision: str, tolerances: tuple[float, float]
) -> None:
    assert tolerances_of(metric, samples, precision) == pytest.approx(tolerances)
    assert tolerances_of("psnr", samples, precision) is None
