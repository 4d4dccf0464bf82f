"""A submission, and what another team made of it: the same, something else, or too little to tell."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from builders.campaigns import SHORT, copy_campaign, edit_journal, edit_record, values, write_campaign
from typer.testing import CliRunner

from hpcai500.campaign.journal import read_campaign
from hpcai500.cli.commands import app
from hpcai500.errors import RunError, UsageError, WrongAnswerError
from hpcai500.layers import Hardware
from hpcai500.recipe import load_recipe
from hpcai500.record import Event, read_record
from hpcai500.results.replication.comparison import (
    Replication,
    Side,
    compare_sides,
    differences,
    make_line,
    read_side,
    read_submission,
    replication_lines,
    require_data,
)
from hpcai500.results.replication.plan import Plan, PlanRequest, plan_replication
from hpcai500.results.submission.pack import SubmitRequest, pack

_OWN_SEEDS = "hyperparameters.seed=101"
_LATER_S = 1_782_438_400.0


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The campaign of somebody else: 12 short runs on 16 made-up accelerators."""
    return write_campaign(tmp_path_factory.mktemp("original") / "campaign", *SHORT)


@pytest.fixture(scope="module")
def submission(original: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same as a signed submission, from a system whose name is an attack."""
    folder = tmp_path_factory.mktemp("submission")
    key, file = folder / "key", folder / "theirs.zip"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    pack(SubmitRequest(original, file, "<script>`|Big", "Their Site", key=key))
    return file


@pytest.fixture(scope="module")
def submitted(submission: Path) -> Side:
    """The same, read."""
    return read_submission(submission)


@pytest.fixture(scope="module")
def theirs(original: Path) -> Side:
    """The original's campaign, read."""
    return read_side(original)


def _repeated(folder: Path, *settings: str, **story: Any) -> Side:
    path = write_campaign(folder / "repetition", *SHORT, *settings, **{"start_s": _LATER_S, **story})
    return read_side(path)


@pytest.fixture
def compared(theirs: Side, tmp_path: Path) -> Callable[..., Replication]:
    """The original compared with a repetition that has seeds of its own."""
    return lambda *settings, **story: compare_sides(theirs, _repeated(tmp_path, _OWN_SEEDS, *settings, **story))


Compared = Callable[..., Replication]


def _verdicts(found: Replication) -> dict[str, str]:
    return {row.metric.name: row.found.verdict for row in found.rows}


def _deciding(found: Replication) -> set[str]:
    return {row.metric.name for row in found.rows if row.decides}


def test_the_same_on_the_same_system_is_replicated(compared: Compared) -> None:
    found = compared(images_per_second=40_400.0)
    assert (found.verdict, found.exit_code, found.same_system, found.reasons) == ("replicated", 0, True, ())
    assert _deciding(found) == {"top1", "vflops", "flops", "images_per_second", "seconds"}
    assert any(note.startswith("neither is rankable: all 12 finished runs") for note in found.notes)
    row = next(row for row in found.rows if row.metric.name == "images_per_second")
    assert row.found.ratio == pytest.approx(1.01, abs=0.002)
    assert row.found.difference.low < row.found.difference.mean < row.found.difference.high


def test_another_speed_of_the_same_system_is_not_replicated(compared: Compared) -> None:
    found = compared(images_per_second=36_000.0)
    assert (found.verdict, found.exit_code, _verdicts(found)["top1"]) == ("not replicated", 2, "replicated")
    assert "images_per_second: not replicated" in found.reasons


def test_on_another_system_quality_decides_and_speed_is_told(
    compared: Compared, original: Path, tmp_path: Path
) -> None:
    found = compared(images_per_second=20_000.0, accelerator="NVIDIA A100")
    assert (found.verdict, found.same_system, _deciding(found)) == ("replicated", False, {"top1"})
    assert _verdicts(found)["images_per_second"] == "not replicated"
    assert any("16 x NVIDIA H100 80GB HBM3 in the original, 16 x NVIDIA A100" in note for note in found.notes)
    lines = list(replication_lines(found))
    assert max(len(line) for line in lines if str(tmp_path) not in line and str(original) not in line) <= 100
    assert "(not replicated)" in "\n".join(lines)
    assert "verdict     replicated" in "\n".join(lines)


def test_another_system_may_have_fewer_accelerators_for_the_same_update(compared: Compared) -> None:
    half = ("hardware.nodes=1", "hyperparameters.accumulation_steps=2")
    found = compared(*half, images_per_second=20_000.0)
    assert (found.verdict, found.same_system) == ("replicated", False)
    assert "hardware.nodes is 2 in the original, 1 in the repetition" in found.notes


def test_another_quality_is_not_replicated_anywhere(compared: Compared) -> None:
    found = compared(quality=0.74, accelerator="other")
    assert (found.verdict, found.reasons) == ("not replicated", ("top1: not replicated",))


def test_few_runs_that_vary_are_inconclusive_and_no_pass(compared: Compared) -> None:
    found = compared(trials=2, spread=0.05)
    assert (found.verdict, found.exit_code) == ("inconclusive", 2)
    assert "top1: inconclusive" in found.reasons


def test_one_run_is_inconclusive(compared: Compared) -> None:
    found = compared(trials=1)
    assert found.verdict == "inconclusive"
    assert "fewer than two runs" in "\n".join(replication_lines(found))


def test_the_tolerance_of_quality_follows_from_that_of_speed_or_is_given(theirs: Side, tmp_path: Path) -> None:
    other = _repeated(tmp_path, _OWN_SEEDS, trials=2)
    assert compare_sides(theirs, other).quality_tolerance == pytest.approx(1.05**0.2 - 1)
    assert compare_sides(theirs, other, 0.05, 0.1).quality_tolerance == 0.1
    with pytest.raises(UsageError, match="a share between 0 and 1, got 5"):
        compare_sides(theirs, other, 5)


OTHER_DATA = {"dataset": {"fingerprint": "ab" * 32, "content_fingerprint": "cd" * 32}}


@pytest.mark.parametrize(
    ("settings", "story", "said"),
    [
        (
            ["hyperparameters.momentum=0.9"],
            {},
            "hyperparameters.momentum is 0.875 in the original, 0.9 in the repetition",
        ),
        (["hyperparameters.batch_size=128"], {}, "is 4096 in the original, 2048 in the repetition"),
        (["hardware.nodes=1"], {}, "is 4096 in the original, 2048"),
        (["framework.compile=true"], {}, "framework.compile is False"),
        ([], OTHER_DATA, "different data: the fingerprint is"),
    ],
)
def test_other_work_is_no_repetition(compared: Compared, settings: list[str], story: dict[str, Any], said: str) -> None:
    found = compared(*settings, trials=3, **story)
    assert (found.verdict, found.exit_code) == ("not a repetition", 2)
    assert any(said in reason for reason in found.reasons)


def _with_data(side: Side, **facts: Any) -> Side:
    """The same, as if its runs had told other facts of their data."""

    def told(event: Event) -> Event:
        return {**event, "value": {**event["value"], **facts}} if event["key"] == "dataset" else event

    records = (dataclasses.replace(record, events=tuple(map(told, record.events))) for record in side.records)
    return dataclasses.replace(side, records=tuple(records))


def test_fingerprints_of_one_kind_are_compared(theirs: Side, tmp_path: Path) -> None:
    """Whoever has not checked the content still has the list of files."""
    other = _repeated(tmp_path, _OWN_SEEDS, trials=2)
    assert differences(theirs, _with_data(other, content_fingerprint=None)).obstacles == ()
    [obstacle] = differences(theirs, _with_data(other, content_fingerprint=None, fingerprint="ab" * 32)).obstacles
    assert obstacle.startswith("different data: the fingerprint is")


def test_made_data_are_told_with_the_line_that_makes_them_again(submitted: Side, tmp_path: Path) -> None:
    made = _with_data(submitted, synthetic=True, classes=10, training_samples=1000, evaluation_samples=50)
    line = "hpcai500 data make ic DATA --classes 10 --train-per-class 100 --val-per-class 5"
    warning = require_data(made, None)
    assert warning is not None
    assert line in warning
    guide = _planned(made, tmp_path / "again").guide.read_text()
    assert f"    {line}\n" in guide
    assert "again is run by ('slurm', 2, 8) --data DATA" in guide
    assert require_data(made, tmp_path) is None
    odd = _with_data(made, training_samples=1001)
    assert make_line(odd.records[0], odd.tables, "DATA") is None
    with pytest.raises(UsageError, match="which hpcai500 cannot make"):
        require_data(submitted, None)


def test_made_years_are_told_with_the_line_that_makes_them_again(submitted: Side) -> None:
    facts = {"synthetic": True, "training_samples": 600, "evaluation_samples": 200, "grid": [128, 192]}
    tables = {"benchmark": "ewa", "problem": {"training_years": [1979, 1981], "evaluation_years": [1982, 1982]}}
    assert make_line(_with_data(submitted, **facts).records[0], tables, "DATA") == (
        "hpcai500 data make ewa DATA --years 1979-1982 --images-per-year 200 --height 128 --width 192"
    )


def test_another_level_is_not_replicated(theirs: Side, tmp_path: Path) -> None:
    side = dataclasses.replace(_repeated(tmp_path, _OWN_SEEDS), level="free")
    found = compare_sides(dataclasses.replace(theirs, level="hardware"), side)
    assert found.verdict == "not replicated"
    assert found.reasons == ("the level is hardware in the original, free in the repetition",)


def test_a_level_that_nobody_can_tell_is_no_proof(submitted: Side, tmp_path: Path) -> None:
    """Other code may have changed anything, and so may that of the original."""
    other = _repeated(tmp_path, _OWN_SEEDS, package_code="ef" * 32)
    found = compare_sides(submitted, other)
    assert (found.verdict, other.level) == ("inconclusive", None)
    assert found.reasons == (
        f"{other.path}: its code differs from this installation (by its recipe alone, the level would be none): give "
        "its submission instead (`hpcai500 submit`), so that the sources can be compared",
    )
    assert "level unknown" in "\n".join(replication_lines(found))


def test_runs_of_the_original_are_no_repetition_of_it(theirs: Side, original: Path, tmp_path: Path) -> None:
    copy = copy_campaign(original, tmp_path / "copy")
    for same in (theirs, read_side(copy)):
        with pytest.raises(UsageError, match="a repetition needs new runs"):
            compare_sides(theirs, same)
    edit_journal(copy, lambda events: events[0]["value"].update(data="/data/of-the-repetition"))
    said = r"copy: 12 of 12 runs are those of .*campaign \(the same losses, times, weights"
    with pytest.raises(UsageError, match=said):
        compare_sides(theirs, read_side(copy))


@pytest.mark.parametrize(
    ("what", "key", "field"),
    [("losses", "epoch_stop", "loss"), ("weights", "replicas", "digest"), ("checkpoints", "checkpoint", "sha256")],
)
def test_what_the_original_learnt_is_no_repetition_under_other_seeds(
    theirs: Side, original: Path, tmp_path: Path, what: str, key: str, field: str
) -> None:
    path = write_campaign(tmp_path / "repetition", *SHORT, _OWN_SEEDS, trials=3, start_s=_LATER_S)
    learnt = [value[field] for value in values(list(read_record(original / "trial-02").events), key)]

    def learn(events: list[Event]) -> None:
        for value, copied in zip(values(events, key), learnt, strict=True):
            value[field] = copied

    edit_record(path / "trial-03", learn)
    said = rf"1 of 3 runs are those of .*campaign under other seeds \(the same {what}\): a repetition needs new runs"
    with pytest.raises(UsageError, match=said):
        compare_sides(theirs, read_side(path))


def test_shared_seeds_and_other_software_are_noted(theirs: Side, tmp_path: Path) -> None:
    other = _repeated(tmp_path, trials=5, images_per_second=40_100.0, package_code="ef" * 32)
    notes = compare_sides(theirs, other).notes
    assert any(note.startswith("5 seeds are the same") for note in notes)
    assert any(note.startswith("code: ") and "efefef" in note for note in notes)
    assert any(note.startswith("the repetition is not rankable: 5 finished runs") for note in notes)


def test_a_metric_that_a_run_lacks_is_left_out(theirs: Side, tmp_path: Path) -> None:
    lacking = (theirs.results[0].model_copy(update={"time_to_quality_seconds": None}), *theirs.results[1:])
    found = compare_sides(dataclasses.replace(theirs, results=lacking), _repeated(tmp_path, _OWN_SEEDS, trials=2))
    assert {"time_to_quality_seconds", "watts"}.isdisjoint(_verdicts(found))


# The plan of a repetition.


def _planned(submitted: Side, folder: Path, **request: Any) -> Plan:
    here = submitted.records[0].system

    def line(launcher: str, hardware: Hardware, _: Path) -> str:
        return f"{folder.name} is run by {launcher, hardware.nodes, hardware.accelerators_per_node}"

    return plan_replication(submitted, PlanRequest(folder, **request), here, line)


def test_the_plan_is_the_recipe_as_often_with_seeds_of_its_own(submitted: Side, tmp_path: Path) -> None:
    plan = _planned(submitted, tmp_path / "again")
    campaign = read_campaign(tmp_path / "again" / "campaign")
    assert [trial.seed for trial in campaign.trials] == list(range(13, 25))
    theirs, ours = dict(submitted.tables), dict(campaign.tables)
    assert {key for key in theirs if theirs[key] != ours[key]} == {"hyperparameters"}
    assert load_recipe(tmp_path / "again" / "submitted-recipe.toml").model_dump(mode="json") == theirs
    assert plan.guide.is_file()


def test_the_same_seeds_are_taken_where_they_are_asked_for(submitted: Side, tmp_path: Path) -> None:
    plan = _planned(submitted, tmp_path / "again", same_seeds=True)
    assert [trial.seed for trial in plan.campaign.trials] == list(range(1, 13))
    assert "runs are not independent" in plan.guide.read_text()


def test_the_guide_names_all_that_is_needed_and_what_a_stranger_named_is_only_text(
    submitted: Side, tmp_path: Path
) -> None:
    guide = _planned(submitted, tmp_path / "again").guide.read_text()
    record = submitted.records[0]
    package = record.system["installation"]["package"]
    dataset = next(event["value"] for event in record.events if event["key"] == "dataset")
    for needed in (
        package["version"], package["code_sha256"], "srun python -m hpcai500.train --out trial-01", "(launcher: slurm)",
        "hpcai500 data check ic DATA", "again is run by ('slurm', 2, 8) --data DATA", "NVIDIA H100 80GB HBM3",
        f"hpcai500 replicate {submitted.path} --with {tmp_path / 'again' / 'campaign'}", "the seeds 13 to 24",
        dataset["content_fingerprint"],
    ):  # fmt: skip
        assert needed in guide
    assert "<script>" not in guide
    assert guide.startswith("# Repeat &lt;script&gt;\\`\\|Big (Their Site)\n")


def test_the_guide_names_the_processors_of_a_system_without_accelerators(submitted: Side, tmp_path: Path) -> None:
    assert submitted.manifest
    manifest = submitted.manifest.model_copy(update={"accelerators": "none (2 x AMD EPYC 9654)"})
    guide = _planned(dataclasses.replace(submitted, manifest=manifest), tmp_path / "again").guide.read_text()
    assert "- System: no accelerators; processors: 2 x AMD EPYC 9654; PyTorch" in guide


def test_another_system_is_planned_for_only_as_far_as_the_work_stays_the_same(submitted: Side, tmp_path: Path) -> None:
    folder = tmp_path / "again"
    with pytest.raises(UsageError, match=r"--set hyperparameters\.momentum: changes the work"):
        _planned(submitted, folder, overrides=["hyperparameters.momentum=0.9"])
    with pytest.raises(UsageError, match="would be 2048 samples, the submission's is 4096"):
        _planned(submitted, folder, overrides=["hardware.nodes=1"])
    assert not folder.exists()
    plan = _planned(submitted, folder, overrides=["hardware.nodes=1", "hyperparameters.accumulation_steps=2"])
    assert plan.campaign.tables["hardware"]["nodes"] == 1
    with pytest.raises(UsageError, match="not empty"):
        _planned(submitted, folder)


@pytest.mark.parametrize("failure", [KeyboardInterrupt(), OSError(28, "No space left on device")])
@pytest.mark.parametrize("place", ["create_campaign", "guide_text"])
def test_what_stops_a_plan_leaves_an_empty_folder(
    submitted: Side, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: BaseException, place: str
) -> None:
    def fails(*_: object) -> None:
        raise failure

    folder = tmp_path / "again"
    with monkeypatch.context() as patch:
        patch.setattr(f"hpcai500.results.replication.plan.{place}", fails)
        with pytest.raises((KeyboardInterrupt, RunError)) as caught:
            _planned(submitted, folder)
    assert not isinstance(failure, OSError) or "No space left on device; give another folder" in str(caught.value)
    assert not list(folder.iterdir())
    assert _planned(submitted, folder).guide.is_file()


def test_a_folder_that_cannot_be_made_is_a_mistake_of_the_line(submitted: Side) -> None:
    # Nobody can make a folder there, root neither.
    with pytest.raises(UsageError, match=r"/proc/repetition: cannot be written: .*; give another folder: -o DIR"):
        _planned(submitted, Path("/proc/repetition"))


def test_facts_of_the_wrong_type_are_unknown_in_the_guide(submitted: Side, tmp_path: Path) -> None:
    """As if the submitter had written nonsense into `system.json`."""
    record = dataclasses.replace(submitted.records[0], system={**submitted.records[0].system, "nodes": [{"cpu": 3}]})
    side = dataclasses.replace(submitted, records=(record, *submitted.records[1:]))
    assert "| processors of a node | unknown |" in _planned(side, tmp_path / "again").guide.read_text()


def test_a_submission_that_does_not_hold_is_refused(original: Path, submission: Path, tmp_path: Path) -> None:
    unsigned = tmp_path / "unsigned.zip"
    pack(SubmitRequest(original, unsigned, "Big", "Their Site", checkpoints=False))
    with pytest.raises(WrongAnswerError, match=r"unsigned\.zip: refused: .* see `hpcai500 verify "):
        read_submission(unsigned)
    torn = tmp_path / "torn.zip"
    torn.write_bytes(submission.read_bytes()[:-100])
    with pytest.raises(WrongAnswerError, match="refused: archive"):
        read_submission(torn)
    with pytest.raises(UsageError, match="neither a submission nor a campaign"):
        read_side(tmp_path)


def test_the_command_lays_out_then_compares(submission: Path, tmp_path: Path) -> None:
    file = tmp_path / "theirs.zip"
    shutil.copy(submission, file)

    def replicate(*arguments: object) -> Any:
        return CliRunner().invoke(app, ["replicate", str(file), *map(str, arguments)])

    nowhere = replicate("--json")
    assert "hpcai500 cannot make: give the folder of the same data with --data DIR" in str(nowhere.exception)
    assert not (tmp_path / "theirs-replication").exists()
    laid = replicate("--json", "--data", tmp_path)
    assert laid.exit_code == 0, laid.output
    document = json.loads(laid.stdout)
    assert document["folder"] == str(tmp_path / "theirs-replication")
    assert "hpcai500 campaign run" in Path(document["guide"]).read_text()
    repetition = write_campaign(tmp_path / "repetition", *SHORT, _OWN_SEEDS, start_s=_LATER_S)
    compared = replicate("--with", repetition, "--json")
    assert compared.exit_code == 0, compared.output
    found = json.loads(compared.stdout)
    assert (found["verdict"], found["original"]["system"]) == ("replicated", "<script>`|Big")
    assert {row["name"]: row["decides"] for row in found["metrics"]}["top1"] is True
    gone = replicate("--with", "nodir")
    assert str(gone.exception) == "--with nodir: no such campaign (its folder) or submission (its file)"
    assert "leave out --same-seeds" in str(replicate("--with", repetition, "--same-seeds").exception)
