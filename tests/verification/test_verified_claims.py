"""Manifest, claim, level, results, energy: what is told against what the events give."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from opened import all_findings, changed, evidence, failed, honest
from written_campaign import edit_record, rechain_campaign, values

from hpcai500.results.submission.archive import Submission
from hpcai500.results.submission.manifest import Metric
from hpcai500.results.verification.campaign import level_of
from hpcai500.results.verification.context import Question


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Submission:
    """Three trials of three epochs, with power measured."""
    return honest(tmp_path_factory.mktemp("honest"), watts=700.0)


@pytest.fixture(scope="module")
def system_level(tmp_path_factory: pytest.TempPathFactory) -> Submission:
    """Two trials of ninety epochs with a compiled model."""
    return honest(tmp_path_factory.mktemp("system"), "framework.compile=true", short=False, trials=2)


def _result(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    def rewrite(opened: Path) -> None:
        path = opened / "campaign/trial-02/result.json"
        document = json.loads(path.read_text())
        change(document)
        path.write_text(json.dumps(document))

    return rewrite


def test_what_is_told_truly_is_noted(base: Submission, tmp_path: Path) -> None:
    found = all_findings(changed(base, tmp_path))
    assert not failed(found)
    assert "3 records give the energies" in evidence(found, "power-samples", "note")
    assert "none that allows what was changed, as claimed" in evidence(found, "level", "note")
    assert "not rankable under v2.0: 3 finished runs" in evidence(found, "standing", "note")


@pytest.mark.parametrize(
    ("told", "where"),
    [
        ({"trials": 12}, "trials: the manifest says 12, the campaign 3"),
        ({"benchmark": "ewa"}, "benchmark: the manifest says ewa"),
        ({"edition": "v3.0"}, "edition: the manifest says v3.0"),
        ({"accelerators": "8 x NVIDIA H100 80GB HBM3"}, "accelerators, in trial-01: the manifest says 8 x"),
        ({"framework": "PyTorch 9"}, "framework, in trial-01: the manifest says PyTorch 9"),
        ({"campaign": "0" * 64}, "campaign: the manifest says 000"),
    ],
)
def test_a_manifest_that_is_not_of_this_campaign_is_seen(
    base: Submission, tmp_path: Path, told: dict[str, Any], where: str
) -> None:
    assert where in evidence(all_findings(changed(base, tmp_path, **told)), "manifest")


def test_a_metric_that_is_a_billionth_too_high_is_seen(base: Submission, tmp_path: Path) -> None:
    metrics = dict(base.manifest.claim.metrics)
    for factor, wrong in ((1 + 1e-10, False), (1 + 1e-8, True)):
        better = metrics["vflops"].model_copy(update={"mean": metrics["vflops"].mean * factor})
        found = all_findings(changed(base, tmp_path / str(factor), claim={"metrics": {**metrics, "vflops": better}}))
        assert ("vflops.mean: claimed is" in evidence(found, "claim")) == wrong


def test_a_metric_that_the_records_do_not_have_is_seen(base: Submission, tmp_path: Path) -> None:
    fast = Metric(runs=3, mean=1.0, dropped_lowest=None, dropped_highest=None, variation=None)
    metrics = {**base.manifest.claim.metrics, "fastness": fast}
    found = all_findings(changed(base, tmp_path, claim={"metrics": metrics}))
    assert "fastness: there in the claim, absent by the records" in evidence(found, "claim")
    fewer = {name: one for name, one in base.manifest.claim.metrics.items() if name != "vflops"}
    found = all_findings(changed(base, tmp_path / "fewer", claim={"metrics": fewer}))
    assert "vflops: absent in the claim" in evidence(found, "claim")


def test_a_campaign_that_is_not_rankable_cannot_be_claimed_as_rankable(base: Submission, tmp_path: Path) -> None:
    found = all_findings(changed(base, tmp_path, claim={"rankable": True, "reasons": []}))
    assert "claimed is rankable; the records give: 3 finished runs" in evidence(found, "claim")


def test_a_reason_that_is_left_out_is_seen(base: Submission, tmp_path: Path) -> None:
    found = all_findings(changed(base, tmp_path, claim={"reasons": base.manifest.claim.reasons[1:]}))
    assert "that are found only: ['3 finished runs" in evidence(found, "claim")


def test_a_level_that_is_too_strict_is_seen_and_a_looser_one_noted(system_level: Submission, tmp_path: Path) -> None:
    true = all_findings(changed(system_level, tmp_path / "a"))
    assert evidence(true, "level", "note").startswith("system, as claimed")
    strict = all_findings(changed(system_level, tmp_path / "b", claim={"level": "hardware"}))
    assert "claimed is hardware; needed is system: framework.compile is True" in evidence(strict, "level")
    loose = changed(system_level, tmp_path / "c", claim={"level": "free"})
    found = all_findings(loose)
    assert not failed(found)
    assert "claimed is free, where system would do" in evidence(found, "level", "note")
    assert level_of(loose) == "free"


def test_another_edition_may_be_asked_for(base: Submission, tmp_path: Path) -> None:
    context = changed(base, tmp_path, question=Question(edition="v3.0"))
    found = all_findings(context)
    assert not failed(found)
    assert context.asked.results["trial-01"].edition == "v3.0"
    assert context.claimed.results["trial-01"].edition == "v2.0"
    assert "those of v3.0, which was asked for" in evidence(found, "edition", "note")


def test_a_result_that_its_events_do_not_give_is_seen(base: Submission, tmp_path: Path) -> None:
    def better(document: dict[str, Any]) -> None:
        document["vflops"] *= 1.01

    assert "result.json says vflops is" in evidence(all_findings(changed(base, tmp_path, _result(better))), "result")


def test_one_is_not_true(base: Submission, tmp_path: Path) -> None:
    found = all_findings(changed(base, tmp_path, _result(lambda document: document.update(restarts=False))))
    assert "result.json says restarts is False; its events give 0" in evidence(found, "result")


def test_a_result_that_is_missing_or_cannot_be_computed_is_seen(base: Submission, tmp_path: Path) -> None:
    gone = changed(base, tmp_path / "a", lambda opened: (opened / "campaign/trial-02/result.json").unlink())
    assert "trial-02: result.json is missing" in evidence(all_findings(gone), "result")

    def cut(events: list[dict[str, Any]]) -> None:
        events[:] = [event for event in events if event["key"] != "eval_accuracy"]

    short = changed(base, tmp_path / "b", lambda opened: edit_record(opened / "campaign/trial-02", cut))
    assert "trial-02: its events give no result: epoch 1" in evidence(all_findings(short), "result")


def test_an_energy_that_its_samples_do_not_give_is_seen(base: Submission, tmp_path: Path) -> None:
    def save(events: list[dict[str, Any]]) -> None:
        for node in values(events, "power")[-1]["nodes"]:
            node["energy_joules"] *= 0.9

    found = all_findings(changed(base, tmp_path, lambda opened: edit_record(opened / "campaign/trial-02", save)))
    assert "give energy_joules" in evidence(found, "power-samples")


def test_samples_that_were_changed_are_not_those_of_the_events(base: Submission, tmp_path: Path) -> None:
    def change(opened: Path) -> None:
        path = next((opened / "campaign/trial-02/power").iterdir())
        path.write_bytes(path.read_bytes().replace(b"70", b"60"))

    assert "not the power samples that the events name" in evidence(
        all_findings(changed(base, tmp_path, change)), "record-files"
    )


@pytest.mark.parametrize("key", ["run_start", "dataset", "system", "epoch_stop", "power", "checkpoint", "ceilings"])
@pytest.mark.parametrize("value", [None, [7]])
def test_events_of_any_type_refuse_and_never_raise(base: Submission, tmp_path: Path, key: str, value: Any) -> None:
    def spoil(events: list[dict[str, Any]]) -> None:
        for event in events:
            if event["key"] == key:
                event["value"] = value

    def change(opened: Path) -> None:
        record = opened / "campaign/trial-02"
        edit_record(record, spoil)
        rechain_campaign(opened / "campaign")

    assert failed(all_findings(changed(base, tmp_path, change)))
