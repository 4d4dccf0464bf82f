"""`--replay`: what another evaluation of the last checkpoint may differ in, and what happens where it does more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from opened import changed, evidence, honest

from hpcai500.chain import iterate
from hpcai500.errors import EnvironmentLacksError, WrongAnswerError
from hpcai500.results.submission.archive import Submission
from hpcai500.results.verification.context import Context
from hpcai500.results.verification.finding import Finding
from hpcai500.results.verification.guard import guarded
from hpcai500.results.verification.replay import Replay, replay_check, tolerance_of


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Submission:
    """Two trials of three epochs."""
    return honest(tmp_path_factory.mktemp("honest"), trials=2)


def _answers(context: Context, **other: Any) -> Replay:
    """Stands for the job that evaluates, which other tests start: it finds what trial 1 tells, or `other`."""
    record = context.done["trial-01"]
    dataset, counted, told = (
        list(iterate(record.events, key))[-1]["value"] for key in ("dataset", "flops", "eval_accuracy")
    )
    found = {
        "metric": told["metric"], "value": told["value"], "samples": told["samples"],
        "fingerprint": dataset["fingerprint"], "flops_per_sample": counted["per_sample"], **other,
    }  # fmt: skip

    def replay(recipe: Path, checkpoint: Path) -> Mapping[str, Any]:
        assert recipe.name == "recipe.toml"
        assert b"stands for weights" in checkpoint.read_bytes()
        return found

    return replay


def _found(base: Submission, folder: Path, most: int | None = 1, **other: Any) -> list[Finding]:
    context = changed(base, folder)
    return list(replay_check(_answers(context, **other), most)(context))


def test_what_is_found_again_is_noted(base: Submission, tmp_path: Path) -> None:
    found = _found(base, tmp_path)
    assert {finding.name for finding in found} == {
        "replay-dataset", "replay-quality", "replay-flops", "replay-checkpoint",
    }  # fmt: skip
    assert {finding.severity for finding in found} == {"note", "skipped"}
    assert "1 of 2 trials were replayed" in evidence(found, "replay-checkpoint", "skipped")
    assert not list(tmp_path.glob("*.pt"))


@pytest.mark.parametrize(
    ("other", "name"),
    [
        ({"value": 0.75}, "replay-quality"),
        ({"samples": 100}, "replay-quality"),
        ({"fingerprint": "0" * 64}, "replay-dataset"),
        ({"flops_per_sample": 1.0}, "replay-flops"),
    ],
)
def test_what_is_not_found_again_refuses(base: Submission, tmp_path: Path, other: dict[str, Any], name: str) -> None:
    found = _found(base, tmp_path, **other)
    assert {finding.name for finding in found if finding.severity == "fail"} == {name}


def test_every_trial_has_its_own_quality(base: Submission, tmp_path: Path) -> None:
    found = _found(base, tmp_path, most=None, value=0.7636)
    assert sum(finding.name == "replay-quality" for finding in found) == 2


def test_a_refused_checkpoint_refuses_and_a_missing_device_is_no_ones_fault(base: Submission, tmp_path: Path) -> None:
    context = changed(base, tmp_path)

    def refuse(recipe: Path, checkpoint: Path) -> Mapping[str, Any]:
        raise WrongAnswerError("holds code")

    def lack(recipe: Path, checkpoint: Path) -> Mapping[str, Any]:
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


def test_more_trials_than_there_are_cannot_be_replayed(base: Submission, tmp_path: Path) -> None:
    assert "3 trials were asked for, 2 came to their end" in evidence(_found(base, tmp_path, most=3), "replay-missing")


def test_a_campaign_without_a_finished_run_has_nothing_to_replay(base: Submission, tmp_path: Path) -> None:
    context = replace(changed(base, tmp_path), records={})
    found = list(replay_check(lambda recipe, checkpoint: {})(context))
    assert [(one.severity, one.name) for one in found] == [("fail", "replay-missing")]


@pytest.mark.parametrize(
    ("metric", "samples", "tolerance"), [("top1", 50_000, 0.002), ("top1", 100, 0.02), ("map50", 1460, 0.01)]
)
def test_tolerances_are_those_of_the_docs(metric: str, samples: int, tolerance: float) -> None:
    assert tolerance_of(metric, samples) == tolerance
