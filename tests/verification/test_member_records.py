"""Records of ensemble members under verification: what was drawn is drawn again, and a forged word of it is found."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from member_runs import member_recipe, train_member
from written_campaign import edit_record, rewrite_recipe, values

from hpcai500.methodology.result import derive
from hpcai500.methodology.sampling import Coverage, drawn_digest, draws
from hpcai500.recipe import rulebook
from hpcai500.record import Event, read_record
from hpcai500.results.verification.verify import RECORD_CHECKS

SEED = 3
Change = Callable[[list[Event]], None]


@pytest.fixture(scope="module")
def honest(images: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A real record of each kind: drawn from the whole set, and from its classes."""
    root = tmp_path_factory.mktemp("members")
    settings = (f"hyperparameters.seed={SEED}", "problem.epochs=1")
    return {
        strata: train_member(member_recipe("ic", *settings, strata=strata), images, root / strata)
        for strata in ("none", "class")
    }


@pytest.fixture(params=["none", "class"])
def record(request: pytest.FixtureRequest, honest: dict[str, Path], tmp_path: Path) -> Path:
    """A copy for one forger."""
    return Path(shutil.copytree(honest[request.param], tmp_path / request.param))


def failed(path: Path) -> dict[str, str]:
    """Name and evidence of what refuses the record."""
    read = read_record(path)
    rules = rulebook("v3.0", "ic")
    result = derive(read.tables, rules, read.events)
    found = [one for check in RECORD_CHECKS for one in check(read, result, rules) if one.severity == "fail"]
    return {name: "; ".join(one.evidence for one in found if one.name == name) for name in {one.name for one in found}}


def reasons(path: Path) -> str:
    read = read_record(path)
    return "; ".join(derive(read.tables, rulebook("v3.0", "ic"), read.events).reasons)


def deliver(events: list[Event], coverage: str, count: int = 33) -> None:
    """Let data set and epochs tell this digest, of so many samples."""
    values(events, "dataset")[0]["coverage"] = coverage
    for epoch in values(events, "epoch_stop"):
        epoch.update(coverage=coverage, samples=count, padded_samples=epoch["steps"] * 8 - count)


def tell(**changes: Any) -> Change:
    return lambda events: values(events, "dataset")[0]["drawn"].update(changes)


def test_nothing_is_said_against_the_honest_record(record: Path) -> None:
    assert failed(record) == {}
    assert "drawn" not in reasons(record)


@pytest.mark.parametrize(
    ("change", "evidence"),
    [
        (tell(distinct=33, share=1.0), "distinct 33, expected"),
        (tell(share=0.632), "share 0.632, expected"),
        (tell(sampling="all"), "samples were drawn by all; the recipe asks for bootstrap"),
        (tell(strata=[33]), "samples were drawn from 1 strata"),
        (tell(draws=34), "draws 34, expected 33"),
        (lambda events: values(events, "dataset")[0].pop("drawn"), "does not tell what was drawn"),
        (lambda events: values(events, "dataset")[0].update(drawn=None), "does not tell what was drawn"),
    ],
)
def test_a_forged_word_of_the_draws_is_found(record: Path, change: Change, evidence: str) -> None:
    edit_record(record, change)
    assert evidence in failed(record)["drawn"]


def test_a_member_that_saw_every_sample_is_found(record: Path) -> None:
    """No bagging: it learns more than its share, and says that it did not."""
    edit_record(record, lambda events: deliver(events, Coverage.expected(33).digest))
    assert "the member's draws of the data set's 33 samples give" in failed(record)["coverage"]


def test_draws_of_another_seed_are_found(record: Path) -> None:
    rewrite_recipe(record, "hyperparameters.seed=4")
    assert {"drawn", "coverage"} & failed(record).keys()
    edit_record(record, lambda events: deliver(events, drawn_digest(draws(33, SEED + 2, "bootstrap"))))
    assert "coverage" in failed(record)


def test_epochs_that_delivered_something_else_are_found_and_not_rankable(record: Path) -> None:
    def skip(events: list[Event]) -> None:
        values(events, "epoch_stop")[0]["coverage"] = drawn_digest(draws(33, 99, "bootstrap"))

    edit_record(record, skip)
    assert "epoch 1: 33-" in failed(record)["coverage"]
    assert "the samples delivered are not those that the member drew" in reasons(record)


def test_fewer_draws_with_all_that_follows_from_them_are_found(record: Path) -> None:
    """Less work for the same claim: a tenth of the steps, and every number of the record fits."""
    few = draws(33, SEED, "bootstrap")[:8]

    def shrink(events: list[Event]) -> None:
        facts = {"draws": 8, "distinct": len(set(few.tolist())), "share": len(set(few.tolist())) / 33}
        values(events, "dataset")[0]["drawn"].update(facts)
        values(events, "model")[0]["steps_per_epoch"] = 1
        for epoch in values(events, "epoch_stop"):
            epoch["steps"] = 1
        deliver(events, drawn_digest(few), 8)

    edit_record(record, shrink)
    assert "draws 8, expected 33" in failed(record)["drawn"]
    assert "8 samples were drawn; bootstrap draws 33" in reasons(record)


def test_classes_of_other_sizes_are_other_draws(honest: dict[str, Path], tmp_path: Path) -> None:
    record = Path(shutil.copytree(honest["class"], tmp_path / "record"))
    edit_record(record, tell(strata=[1, 2, 30]))
    assert {"drawn", "coverage"} & failed(record).keys()
    edit_record(record, tell(strata=[11, 11, 12]))
    assert failed(record)["drawn"] == "the strata have 34 samples; the training set has 33"


def test_a_run_of_one_model_draws_nothing(honest: dict[str, Path], tmp_path: Path) -> None:
    record = Path(shutil.copytree(honest["none"], tmp_path / "record"))
    recipe = record / "recipe.toml"
    before, _, after = recipe.read_text(encoding="utf-8").partition("[ensemble]")
    recipe.write_text(before + after.partition("\n[")[1].strip("\n") + after.partition("\n[")[2], encoding="utf-8")
    rewrite_recipe(record)
    assert "the recipe has no [ensemble]" in failed(record)["drawn"]
    assert "the recipe is that of one model" in reasons(record)


@pytest.mark.parametrize("samples", [2**22, 2**40])
def test_a_set_beyond_all_measure_takes_no_time(honest: dict[str, Path], tmp_path: Path, samples: int) -> None:
    """300 records, each of a size and a seed of its own, are as many times the work of one."""
    record = Path(shutil.copytree(honest["none"], tmp_path / "record"))
    edit_record(record, lambda events: values(events, "dataset")[0].update(training_samples=samples))
    read = read_record(record)
    rules = rulebook("v3.0", "ic")
    found = [one for check in RECORD_CHECKS for one in check(read, derive(read.tables, rules, read.events), rules)]
    told = [(one.severity, one.evidence) for one in found if one.name in ("coverage", "drawn")]
    assert told == [("warning", f"the digest of {samples} samples was not computed again")]
