"""`--replay`: what another evaluation of checkpoints may differ in, and what happens where it does more."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from opened import changed, evidence, failed, honest
from written_campaign import values

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
    return honest(tmp_path_factory.mktemp("honest"), "problem.target_quality=0.2")


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


def _found(
    base: Submission, folder: Path, change: Change = lambda found, record: None, most: int | None = None
) -> list[Finding]:
    context = changed(base, folder)
    return list(replay_check(_answers(context, change), most)(context))


def _with(**other: Any) -> Change:
    return lambda found, record: found.update(other)


def test_what_is_found_again_is_noted(base: Submission, tmp_path: Path) -> None:
    found = _found(base, tmp_path, _with(held_back={"value": 0.75, "samples": 10_000}))
    assert {finding.name for finding in found if finding.severity == "note"} == {
        "replay-dataset", "replay-quality", "replay-target", "replay-flops", "replay-training", "replay-held-back",
        "replay-twins",
    }  # fmt: skip
    assert {finding.name for finding in found if finding.severity != "note"} == {"replay-not-shown"}
    assert not list(tmp_path.glob("*.pt"))


def test_what_a_replay_does_not_show_is_said_in_one_line(base: Submission, tmp_path: Path) -> None:
    told = evidence(_found(base, tmp_path / "a", most=1), "replay-not-shown", "skipped")
    assert "trained in these runs, by this code and in that time" in told
    assert ", drawn here from 3" in told
    assert "--held-back DATA" in told
    held_back = _with(held_back={"value": 0.75, "samples": 10_000})
    told = evidence(_found(base, tmp_path / "b", held_back), "replay-not-shown", "skipped")
    assert "drawn" not in told
    assert "--held-back" not in told


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
    ],
)
def test_what_is_not_found_again_refuses(base: Submission, tmp_path: Path, other: dict[str, Any], name: str) -> None:
    assert failed(_found(base, tmp_path, _with(**other), most=1)) == {name}


def test_content_that_nobody_has_hashed_is_not_compared(base: Submission, tmp_path: Path) -> None:
    found = _found(base, tmp_path, _with(content_fingerprint=None), most=1)
    assert "content: `hpcai500 data check`" in evidence(found, "replay-dataset", "note")


def test_small_samples_may_differ_by_chance(base: Submission, tmp_path: Path) -> None:
    assert not failed(_found(base, tmp_path, _with(training={"value": 0.7, "samples": 100}), most=1))


def test_qualities_that_are_all_told_a_little_higher_refuse(base: Submission, tmp_path: Path) -> None:
    """Each within what one may differ by, 0.002, and their mean beyond what noise leaves of three."""

    def lower(found: dict[str, Any], record: Record) -> None:
        found["value"] -= 0.0015
        found["at_target"]["value"] -= 0.0015

    told = _found(base, tmp_path / "a", lower)
    assert failed(told) == {"replay-quality", "replay-target"}
    assert "3 trials tell 0.0015 more on average than is found here" in evidence(told, "replay-quality")

    def noise(found: dict[str, Any], record: Record) -> None:
        found["value"] += {"trial-01": -0.0015, "trial-02": 0.0015, "trial-03": 0.0}[record.path.name]

    assert not failed(_found(base, tmp_path / "b", noise))


def _lowered(by: float, **other: Any) -> Change:
    """Both qualities are found to be worse than the record tells."""

    def lower(found: dict[str, Any], record: Record) -> None:
        found["value"] -= by
        found["at_target"]["value"] -= by
        found |= {"precision": "fp32", **other}

    return lower


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
def test_another_kind_of_device_may_differ_by_more_and_is_told(
    base: Submission, tmp_path: Path, by: float, device: str, severity: str
) -> None:
    """Of fp32: the run was on cuda."""
    found = _found(base, tmp_path, _lowered(by, device=device), most=1)
    for name in ("replay-quality", "replay-target"):
        assert next(one.severity for one in found if one.name == name) == severity
        assert ("the run was on cuda, this replay on cpu" in evidence(found, name, severity)) == (severity == "warning")


def test_on_another_kind_of_device_all_trials_may_move_alike(base: Submission, tmp_path: Path) -> None:
    """Three trials that each tell 0.0004 more: within the tolerance of one, beyond that of their mean."""
    assert failed(_found(base, tmp_path / "a", _lowered(0.0004))) == {"replay-quality", "replay-target"}
    found = _found(base, tmp_path / "b", _lowered(0.0004, device="cpu"))
    assert not failed(found)
    told = evidence(found, "replay-quality", "warning")
    assert "3 trials tell 0.0004 more on average than is found here, more than 0.000289" in told
    assert "the run was on cuda, this replay on cpu" in told


def test_a_metric_of_another_unit_is_told_and_not_judged(base: Submission, tmp_path: Path) -> None:
    """A plug-in's, in decibels: neither what rounding does to it is known here, nor what chance does."""
    other = {"metric": "psnr", "value": 31.25, "training": {"value": 30.5, "samples": 100}}
    context = changed(base, tmp_path)
    change = _with(**other, held_back={"value": 29.0, "samples": 100})
    found = guarded("replay", lambda: replay_check(_answers(context, change))(context))
    assert not failed(found)
    assert "psnr 31.25 here" in evidence(found, "replay-quality", "warning")
    assert "is not known here" in evidence(found, "replay-quality", "warning")
    for name in ("replay-training", "replay-held-back"):
        assert "how much of psnr chance explains is not known here" in evidence(found, name, "skipped")


def test_a_metric_of_another_unit_that_is_found_again_is_noted(base: Submission, tmp_path: Path) -> None:
    found = _found(base, tmp_path, _with(metric="psnr"))
    assert "psnr" in evidence(found, "replay-quality", "note")
    assert not [one for one in found if one.severity in ("fail", "warning")]


def _one_net(found: dict[str, Any], record: Record) -> None:
    """The weights of each trial are those of one, with noise, in another scale or negated."""
    factor = {"trial-01": 1.0, "trial-02": 3.0, "trial-03": -1.0}[record.path.name]
    noise = _sketch(record.path.name)
    found["sketch"] = [factor * (one + 0.3 * other) for one, other in zip(_sketch(0), noise, strict=True)]


def test_trials_of_one_net_refuse(base: Submission, tmp_path: Path) -> None:
    found = _found(base, tmp_path, _one_net)
    assert failed(found) == {"replay-twins"}
    assert sum(finding.name == "replay-twins" for finding in found) == 3
    assert "trial-01 and trial-02: the cosine of their weights is 0.9" in evidence(found, "replay-twins")


def test_of_a_plugin_whose_model_may_have_one_optimum_twins_are_only_warned_of(
    base: Submission, tmp_path: Path
) -> None:
    context = changed(base, tmp_path)
    context = replace(context, asked=replace(context.asked, rules={}))
    found = list(replay_check(_answers(context, _one_net))(context))
    assert not failed(found)
    assert evidence(found, "replay-twins", "warning")


def test_one_net_with_its_channels_in_another_order_is_warned_of(base: Submission, tmp_path: Path) -> None:
    def reorder(found: dict[str, Any], record: Record) -> None:
        if record.path.name != "trial-02":
            filters = _filters(0)
            random.Random(record.path.name).shuffle(filters)
            found["filters"] = [[-one for one in row] for row in filters]

    found = _found(base, tmp_path, reorder)
    assert not failed(found)
    told = evidence(found, "replay-twins", "warning")
    assert told.startswith("trial-01 and trial-03: half of the filters of their first convolutions have a twin")
    assert "\n" not in told


def test_one_checkpoint_at_the_target_of_two_trials_refuses(base: Submission, tmp_path: Path) -> None:
    def borrow(found: dict[str, Any], record: Record) -> None:
        found["at_target"]["sketch"] = _sketch(0)

    assert failed(_found(base, tmp_path, borrow)) == {"replay-twins"}


def test_every_trial_has_its_own_quality(base: Submission, tmp_path: Path) -> None:
    found = _found(base, tmp_path)
    assert sum(finding.name == "replay-quality" for finding in found) == 3


def test_trials_are_those_that_are_drawn(base: Submission, tmp_path: Path) -> None:
    context, asked = changed(base, tmp_path), []

    def draw(names: Sequence[str], count: int) -> Sequence[str]:
        asked.append((list(names), count))
        return ["trial-03", "trial-02"]

    found = list(replay_check(_answers(context), 2, draw)(context))
    assert asked == [(["trial-01", "trial-02", "trial-03"], 2)]
    assert "other trials than trial-02, trial-03, drawn here from 3" in evidence(found, "replay-not-shown", "skipped")
    assert "trial-01" not in evidence(found, "replay-quality", "note")


def test_no_trial_is_always_drawn(base: Submission, tmp_path: Path) -> None:
    context, drawn = changed(base, tmp_path), set()

    def replay(recipe: Path, checkpoint: Path, at_target: Path | None) -> Mapping[str, Any]:
        drawn.add(recipe.parent.name)
        raise WrongAnswerError("seen")

    for _ in range(100):
        list(replay_check(replay, 1)(context))
    assert drawn == {"trial-01", "trial-02", "trial-03"}


def test_a_refused_checkpoint_refuses_and_a_missing_device_is_no_ones_fault(base: Submission, tmp_path: Path) -> None:
    context = changed(base, tmp_path)

    def refuse(recipe: Path, checkpoint: Path, at_target: Path | None) -> Mapping[str, Any]:
        raise WrongAnswerError("holds code")

    def lack(recipe: Path, checkpoint: Path, at_target: Path | None) -> Mapping[str, Any]:
        raise EnvironmentLacksError("no GPU")

    assert "trial-01: holds code" in evidence(replay_check(refuse)(context), "replay-checkpoint")
    with pytest.raises(EnvironmentLacksError, match="no GPU"):
        guarded("replay", lambda: replay_check(lack)(context))


def test_a_checkpoint_that_is_not_here_cannot_be_replayed_and_refuses(base: Submission, tmp_path: Path) -> None:
    context = changed(base, tmp_path)
    entries = {path: entry for path, entry in context.submission.entries.items() if "/checkpoints/" not in path}
    object.__setattr__(context.submission, "entries", entries)
    found = list(replay_check(_answers(context))(context))
    assert {(finding.severity, finding.name) for finding in found} == {("fail", "replay-missing")}
    told = evidence(found, "replay-missing")
    assert "trial-01: its last checkpoint is not here" in told
    assert "trial-02: its last checkpoint is not here" in told


def _without_target(base: Submission, folder: Path, version: str | None = None) -> list[Finding]:
    """The checkpoints at the target are not here; the records were written by `version`, else by this one."""
    context = changed(base, folder)
    entries = {path: entry for path, entry in context.submission.entries.items() if "epoch-0003" not in path}
    assert len(entries) == len(context.submission.entries) - 3
    object.__setattr__(context.submission, "entries", entries)
    if version:
        for record in context.records.values():
            record.system["installation"]["package"]["version"] = version
            for start in values([*record.events], "init_start"):
                start["version"] = version
    return list(replay_check(_answers(context))(context))


def test_without_the_checkpoint_at_the_target_its_time_cannot_be_replayed(base: Submission, tmp_path: Path) -> None:
    told = _without_target(base, tmp_path)
    assert failed(told) == {"replay-missing"}
    assert "trial-01: epoch-0003-step-0000000.pt, with which it reached its target, is not here" in evidence(
        told, "replay-missing"
    )


def test_of_another_version_it_is_said_that_its_time_was_not_replayed(base: Submission, tmp_path: Path) -> None:
    told = _without_target(base, tmp_path, "0.0.9")
    assert not failed(told)
    said = evidence(told, "replay-not-shown", "skipped")
    assert "the time to quality of trial-01, trial-02, trial-03: no checkpoint of that moment" in said


def test_more_trials_than_there_are_cannot_be_replayed(base: Submission, tmp_path: Path) -> None:
    assert "4 trials were asked for, 3 came to their end" in evidence(_found(base, tmp_path, most=4), "replay-missing")


def test_a_campaign_without_a_finished_run_has_nothing_to_replay(base: Submission, tmp_path: Path) -> None:
    context = replace(changed(base, tmp_path), records={})
    found = list(replay_check(lambda recipe, checkpoint, at_target: {})(context))
    assert [(one.severity, one.name) for one in found] == [("fail", "replay-missing")]


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
def test_tolerances_are_those_of_the_docs(
    metric: str, samples: int, precision: str, tolerances: tuple[float, float]
) -> None:
    assert tolerances_of(metric, samples, precision) == pytest.approx(tolerances)


def test_of_another_metric_no_tolerance_is_known() -> None:
    assert tolerances_of("psnr", 50_000, "fp32") is None
