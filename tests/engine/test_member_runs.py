"""Whole runs of a member of an ensemble: what the record says of its draws, that it is scored, and that it holds."""

from __future__ import annotations

import math
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from builders.runs import member_arguments, member_recipe, same_weights, train_member

from hpcai500 import train
from hpcai500.methodology.sampling import drawn_digest, draws
from hpcai500.recipe import rulebook
from hpcai500.record import iterate, read_record
from hpcai500.results.score import score_record
from hpcai500.results.verification.verify import RECORD_CHECKS

SEED = 7
SIZE = {"ic": 33, "ewa": 10}
SEEDED = (f"hyperparameters.seed={SEED}", "problem.epochs=2")
# What nothing but the size of these runs is to blame for.
TINY_REASONS = (
    "problem.",
    "the data set has",
    "the data set was made by",
    "no level of edition",
    "workload.",
    "operations are counted for 64 regions an image",
)
MEMBERS = ["ic-bootstrap-none", "ic-poisson-none", "ic-bootstrap-class", "ewa-bootstrap-year", "ewa-all-none"]


def values(path: Path, key: str) -> list[dict[str, Any]]:
    return [event["value"] for event in iterate(read_record(path).events, key)]


def against(path: Path) -> list[tuple[str, str, str]]:
    """What refuses a record when it is verified."""
    record = read_record(path)
    rules = rulebook(record.tables["edition"], record.tables["benchmark"])
    found = [one for check in RECORD_CHECKS for one in check(record, score_record(path), rules)]
    return [(one.severity, one.name, one.evidence) for one in found if one.severity == "fail"]


@pytest.fixture(scope="module", params=MEMBERS)
def member(
    request: pytest.FixtureRequest, images: Path, weather: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, str, str, Path]:
    """Benchmark, sampling, strata and record of one run."""
    benchmark, sampling, strata = request.param.split("-")
    recipe = member_recipe(benchmark, *SEEDED, sampling=sampling, strata=strata)
    out = tmp_path_factory.mktemp("member") / "record"
    return benchmark, sampling, strata, train_member(recipe, images if benchmark == "ic" else weather, out)


def test_the_record_tells_what_was_drawn_and_that_each_epoch_delivered_it(member: tuple[str, str, str, Path]) -> None:
    benchmark, sampling, strata, path = member
    sizes = {"none": [], "class": [11, 11, 11], "year": [10]}[strata]
    drawn = draws(SIZE[benchmark], SEED, sampling, sizes)
    (dataset,) = values(path, "dataset")
    assert dataset["training_samples"] == SIZE[benchmark]
    assert dataset["drawn"] == {
        "sampling": sampling,
        "strata": sizes,
        "draws": drawn.size,
        "distinct": len(set(drawn.tolist())),
        "share": len(set(drawn.tolist())) / SIZE[benchmark],
    }
    batch = 8 if benchmark == "ic" else 4
    steps = math.ceil(drawn.size / batch)
    for epoch in values(path, "epoch_stop"):
        assert epoch["coverage"] == dataset["coverage"] == drawn_digest(drawn)
        assert (epoch["steps"], epoch["samples"]) == (steps, drawn.size)
        assert epoch["padded_samples"] == steps * batch - drawn.size


def test_the_result_counts_draws_and_refuses_nothing_of_them(member: tuple[str, str, str, Path]) -> None:
    benchmark, sampling, _, path = member
    result = score_record(path)
    drawn = values(path, "dataset")[0]["drawn"]["draws"]
    assert result.images == 2 * drawn
    assert sampling != "bootstrap" or drawn == SIZE[benchmark]
    others = [reason for reason in result.reasons if not reason.startswith(TINY_REASONS)]
    # A year of ten images may have none of a rare class.
    others = [reason for reason in others if "no sample of" not in reason and "the quality leaves out" not in reason]
    no_bagging = ["ensemble.sampling is all; no level of edition v3.0 allows a change of it"]
    assert others == (no_bagging if sampling == "all" else [])


def test_verification_draws_again_and_finds_the_same(member: tuple[str, str, str, Path]) -> None:
    assert against(member[-1]) == []


def test_two_members_draw_and_learn_different_things(images: Path, tmp_path: Path) -> None:
    one, same, other = (
        train_member(member_recipe("ic", f"hyperparameters.seed={seed}", "problem.epochs=1"), images, tmp_path / name)
        for seed, name in ((1, "one"), (1, "same"), (2, "other"))
    )
    assert same_weights(one, same)
    assert not same_weights(one, other)
    assert values(one, "dataset")[0]["coverage"] != values(other, "dataset")[0]["coverage"]


def test_a_dropped_tail_does_not_deliver_all_draws_and_is_not_rankable(images: Path, tmp_path: Path) -> None:
    recipe = member_recipe("ic", *SEEDED, "workload.tail=drop")
    result = score_record(train_member(recipe, images, tmp_path / "record"))
    assert "2 epochs from 1 to 2: the samples delivered are not those that the member drew (workload.tail = drop)" in (
        result.reasons
    )


def test_a_member_that_was_stopped_goes_on_to_the_same_weights(images: Path, tmp_path: Path) -> None:
    recipe = member_recipe("ic", "hyperparameters.seed=7", "problem.epochs=60", sampling="poisson")
    stopped = tmp_path / "stopped"
    arguments = member_arguments(recipe, images, stopped)
    process = subprocess.Popen([sys.executable, "-m", "hpcai500.train", *arguments], stderr=subprocess.PIPE)
    log, deadline = stopped / "events.jsonl", time.monotonic() + 300
    while not log.exists() or log.read_bytes().count(b'"key":"epoch_start"') < 2:
        assert process.poll() is None
        assert time.monotonic() < deadline, "no second epoch in 300 s"
        time.sleep(0.001)
    process.send_signal(signal.SIGTERM)
    process.communicate()
    assert process.returncode == 1
    assert train.main(["--resume", "--out", str(stopped)]) == 0
    assert same_weights(stopped, train_member(recipe, images, tmp_path / "whole"))
    assert against(stopped) == []
