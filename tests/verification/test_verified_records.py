"""Single records under verification: what no forgery shows of older versions, restarts, other models, ensembles, files.

Honest runs may be odd: gone on with elsewhere, from memory, data looked at in between. They are not refused.
"""

from __future__ import annotations

import copy
import hashlib
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from builders.campaigns import SHORT, edit_record, rewrite_recipe, sum_steps, values, write_campaign
from builders.events import interrupted
from builders.runs import member_recipe, train_member
from builders.submissions import all_findings, changed_submission, failed_checks, honest_submission
from builders.submissions import evidence_under as evidence

from hpcai500 import __version__
from hpcai500.methodology.passes import lost_evaluations
from hpcai500.methodology.result import derive
from hpcai500.methodology.sampling import Coverage, drawn_digest, draws
from hpcai500.recipe import rulebook
from hpcai500.record import Event, Record, read_record
from hpcai500.results.submission.archive import Submission
from hpcai500.results.verification.context import Context
from hpcai500.results.verification.finding import Finding, fail, folded, note
from hpcai500.results.verification.run_events import DIGESTS
from hpcai500.results.verification.verify import RECORD_CHECKS

Change = Callable[[list[Event]], object]
Told = list[tuple[str, str, str]]
SEED = 3


@pytest.fixture
def record(tmp_path: Path) -> Path:
    return write_campaign(tmp_path / "campaign", *SHORT, trials=1) / "trial-01"


def findings(path: Path, edition: str = "v2.0", *, scored: bool = True) -> Told:
    """(severity, name, evidence) of all."""
    read = read_record(path)
    rules = rulebook(edition, read.tables["benchmark"])
    result = derive(read.tables, rules, read.events) if scored else None
    found = [one for check in RECORD_CHECKS for one in check(read, result, rules)]
    return [(one.severity, one.name, one.evidence) for one in found]


def against(told: Told) -> Told:
    return [one for one in told if one[0] in ("fail", "warning")]


def test_a_record_of_an_older_version_is_warned_of_and_not_refused(record: Path) -> None:
    def age(events: list[Event]) -> None:
        events[:] = [event for event in events if event["key"] not in ("ceilings", "replicas")]
        del events[0]["value"]["campaign"]

    # The record of another time was in no campaign.
    (record.parent / "campaign.jsonl").unlink()
    edit_record(record, age)
    found = [(severity, name) for severity, name, _ in against(findings(record))]
    assert found == [("warning", "ceilings"), ("warning", "replicas")]


def test_what_was_found_right_is_told(record: Path) -> None:
    told = {name: evidence for severity, name, evidence in findings(record) if severity == "note"}
    assert "0.101 of the run's ceiling (9.6e+15)" in told["speed"]
    assert told["events"].startswith("36 events, 3 epochs; passed: order, evidence, sessions, clock")
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
    assert f"FLOPs of a sample are 5000000000; the recipe's model has {training}" in told[1][2]
    assert f"parameters are 25557032; the recipe's model has {25_557_032 - 990 * 2049}" in told[1][2]


def gone_on(record: Path, change: Callable[[list[Event], dict[str, Any]], object]) -> Told:
    """What is found in a record that was interrupted; `change` gets its events and what the first one told before."""

    def go_on(events: list[Event]) -> None:
        own = copy.deepcopy(events[0]["value"])
        events[:] = interrupted()
        change(events, own)

    edit_record(record, go_on)
    return findings(record, scored=False)


def test_a_restart_before_the_newest_checkpoint_is_for_people_to_judge(record: Path) -> None:
    def change(events: list[Event], own: dict[str, Any]) -> None:
        for start in values(events, "init_start"):
            start.update(own)
        values(events, "init_start")[1]["version"] = "9.9"
        values(events, "run_resume")[0].update(step=0)

    [told] = [one for severity, name, one in against(gone_on(record, change)) if name == "restarts"]
    assert f"several versions of hpcai500: {__version__}, 9.9" in told
    assert "resumed at epoch 2, step 0, although epoch 2, step 100 was saved" in told


def test_processes_of_one_run_work_on_one_thing(record: Path) -> None:
    def exchange(events: list[Event], own: dict[str, Any]) -> None:
        values(events, "init_start")[0].update(own)
        values(events, "init_start")[1].update(own, recipe_hash="f" * 64)
        values(events, "dataset")[1]["fingerprint"] = "0" * 64

    told = next(one for severity, name, one in gone_on(record, exchange) if (severity, name) == ("fail", "restarts"))
    assert "start 2 names the recipe_hash ffff" in told
    assert "the event dataset is not the same after each of 2 starts" in told


def test_the_known_digests_are_those_that_would_be_computed() -> None:
    assert {samples: Coverage.expected(samples).digest for samples in DIGESTS} == DIGESTS


def test_a_set_beyond_all_measure_takes_no_time(record: Path) -> None:
    edit_record(record, lambda events: values(events, "dataset")[0].update(training_samples=2**50))
    told = against(findings(record))
    assert ("warning", "coverage", f"the digest of {2**50} samples was not computed again") in told
    assert any(name == "samples" for _, name, _ in told)


@pytest.mark.parametrize(
    ("file", "content", "severity"),
    [
        ("pictures/detections.png", b"seen", []),
        ("pictures/detections.png", b"painted", ["fail"]),
        ("pictures/gone.png", None, ["skipped"]),
        ("pictures/../../secret", None, ["fail"]),
        ("trace/x", None, ["fail"]),
        ("/etc/passwd", None, ["fail"]),
    ],
)
def test_pictures_are_those_of_the_events(record: Path, file: str, content: bytes | None, severity: list[str]) -> None:
    value = {"file": file, "sha256": hashlib.sha256(b"seen").hexdigest()}
    if content is not None:
        (record / "pictures").mkdir()
        (record / file).write_bytes(content)
    edit_record(record, lambda events: events.append({**events[-1], "key": "picture", "value": value}))
    assert [one for one, name, _ in findings(record) if name == "files"] == severity


def test_a_check_that_stumbles_tells_of_it(record: Path) -> None:
    """A recipe that lacks a table was written by a hand."""
    read = read_record(record)
    tables = {name: table for name, table in read.tables.items() if name != "workload"}
    strange = Record(read.path, tables, read.system, read.events, 0, "done")
    found = [one for check in RECORD_CHECKS for one in check(strange, None, rulebook("v2.0", "ic"))]
    assert {one.name for one in found if one.severity == "fail"} >= {"malformed", "restarts"}


# Honest oddities.


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Submission:
    return honest_submission(tmp_path_factory.mktemp("odd"))


def of_record(context: Context, name: str) -> list[Finding]:
    """What its own events say against a record."""
    record, result = context.done[name], context.asked.results[name]
    found = [one for check in RECORD_CHECKS for one in check(record, result, context.asked.rules)]
    return [one for one in found if one.severity in ("fail", "warning")]


def halve(events: list[Event]) -> None:
    """The last epoch was trained by one node alone, after the other one was lost."""
    number = next(n for n, event in enumerate(events) if event["key"] == "epoch_start" and event["value"]["epoch"] == 3)
    before, rest = events[:number], events[number:]
    start = next(n for n, event in enumerate(before) if event["key"] == "run_start")
    head = [event for event in copy.deepcopy(before[: start + 1]) if event["key"] != "system_differences"]
    for value in values(head, "system"):
        value["nodes"] = value["nodes"][:1]
    for value in values(head, "ceilings"):
        value.update(ranks=8, flops=value["flops"] / 2, slowest_host="node-1")
    world = head[-1]["value"]
    world.update(world_size=8, nodes=1, hosts=["node-1"])
    world.update(epoch=3, step=0, after="a kill or a crash", torn_bytes=0)
    head[-1]["key"] = "run_resume"
    done = values(rest, "epoch_stop")[0]
    _move(head, before[-1]["clock_s"] + 20 - head[0]["clock_s"])
    _move(rest, head[-1]["clock_s"] + 0.001 - rest[0]["clock_s"])
    _move(rest[1:], done["seconds"])
    for name in [name for name in done if name.endswith("seconds")]:
        done[name] *= 2
    values(rest, "replicas")[0]["ranks"] = 8
    for told in (*values(rest, "steps"), *values(rest, "communication")):
        told["ranks"] = told["ranks"][:8]
        for part in (told, *told["ranks"]):
            part["steps"] = done["steps"]
    sum_steps(rest, rest)
    events[:] = [*before, *head, *rest]


def _move(events: list[Event], seconds: float) -> None:
    for event in events:
        event["clock_s"] = round(event["clock_s"] + seconds, 6)
        event["time_ms"] += round(1000 * seconds)


def edited(name: str, change: Change) -> Callable[[Path], None]:
    return lambda opened: edit_record(opened / "campaign" / name, change)


def test_a_run_that_went_on_with_half_its_ranks_is_not_ranked_and_not_refused(base: Submission, tmp_path: Path) -> None:
    context = changed_submission(base, tmp_path, edited("trial-03", halve))
    # The journal of this test tells of one process, and of an end before the run's.
    assert failed_checks(all_findings(context)) <= {"dates"}
    assert of_record(context, "trial-03") == []
    assert "resumed in another configuration: ranks 16, then 8" in " ".join(context.asked.standing.reasons)


def test_whoever_looked_at_the_content_of_the_data_in_between_changed_nothing(base: Submission, tmp_path: Path) -> None:
    def found(content: str | None) -> list[Finding]:
        tell = edited("trial-01", lambda events: values(events, "dataset")[0].update(content_fingerprint=content))
        return all_findings(changed_submission(base, tmp_path / str(content), tell))

    assert not failed_checks(found(None))
    assert "several fingerprints" in evidence(found("0"), "same-data")


def test_batches_that_were_repeated_from_memory_are_no_fraud(tmp_path: Path) -> None:
    def repeat(events: list[Event]) -> None:
        for value in values(events, "epoch_stop"):
            value["coverage"] = f"{value['samples']}-{'0' * 32}"

    base = honest_submission(tmp_path, "accelerator.loader=memory", trials=1)
    context = changed_submission(base, tmp_path / "changed", edited("trial-01", repeat))
    assert of_record(context, "trial-01") == []
    assert any("loader is memory" in reason for reason in context.asked.results["trial-01"].reasons)


def test_what_is_missing_at_the_very_end_may_be_a_kill(base: Submission, tmp_path: Path) -> None:
    context = changed_submission(base, tmp_path, edited("trial-01", lambda events: events.pop()))
    assert [(one.severity, one.name) for one in of_record(context, "trial-01")] == [("warning", "evidence")]


@pytest.mark.parametrize(
    ("texts", "told"),
    [
        (["all right", "all right"], ["2 runs: all right"]),
        (["-0.001 s over 32 s", "+0.002 s over 30 s"], ["2 runs: -0.001 to +0.002 s over 30 to 32 s"]),
        (["1e+15 of 9.6e+15", "2e+15 of 9.6e+15"], ["2 runs: 1e+15 to 2e+15 of 9.6e+15"]),
        (["version 0.1.0", "version 0.2.0"], ["a: version 0.1.0", "b: version 0.2.0"]),
        (["one word", "another"], ["a: one word", "b: another"]),
    ],
)
def test_notes_of_many_runs_are_one(texts: list[str], told: list[str]) -> None:
    found = {name: [note("clock", text)] for name, text in zip("ab", texts, strict=True)}
    assert [one.evidence for one in folded(found)] == told


def test_what_is_against_a_run_stays_its_own() -> None:
    found: Mapping[str, list[Finding]] = {name: [fail("clock", "wrong"), note("clock", "right")] for name in "ab"}
    assert [one.evidence for one in folded(found)] == ["a: wrong", "b: wrong", "2 runs: right"]


def test_evaluations_that_a_restart_went_back_over_are_lost() -> None:
    told = [("eval_accuracy", 1), ("eval_accuracy", 2), ("run_resume", 2), ("eval_accuracy", 2), ("run_resume", 3)]
    events = [{"key": key, "seq": seq, "value": {"epoch": epoch}} for seq, (key, epoch) in enumerate(told)]
    assert [event["seq"] for event in lost_evaluations(events)] == [1]


# Records of ensemble members: what was drawn is drawn again, and a forged word of it is found.


@pytest.fixture(scope="module")
def members(images: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A real record of each kind: drawn from the whole set, and from its classes."""
    root = tmp_path_factory.mktemp("members")
    settings = (f"hyperparameters.seed={SEED}", "problem.epochs=1")
    return {
        strata: train_member(member_recipe("ic", *settings, strata=strata), images, root / strata)
        for strata in ("none", "class")
    }


def copied(record: Path, tmp_path: Path) -> Path:
    """A copy for one forger."""
    return Path(shutil.copytree(record, tmp_path / "member"))


@pytest.fixture(params=["none", "class"])
def member(request: pytest.FixtureRequest, members: dict[str, Path], tmp_path: Path) -> Path:
    return copied(members[request.param], tmp_path)


def refusals(path: Path) -> dict[str, str]:
    """Name and evidence of what refuses the record."""
    found = [(name, told) for severity, name, told in findings(path, "v3.0") if severity == "fail"]
    return {name: "; ".join(told for other, told in found if other == name) for name, _ in found}


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


def test_nothing_is_said_against_the_honest_record(member: Path) -> None:
    assert refusals(member) == {}
    assert "drawn" not in reasons(member)


@pytest.mark.parametrize(
    ("change", "evidence"),
    [
        (tell(distinct=33, share=1.0), "distinct 33, expected"),
        (tell(share=0.632), "share 0.632, expected"),
        (tell(sampling="all"), "samples were drawn by all; the recipe asks for bootstrap"),
        (tell(strata=[33]), "samples were drawn from 1 strata"),
        (tell(draws=34), "draws 34, expected 33"),
        (lambda events: values(events, "dataset")[0].pop("drawn"), "lacks the draws"),
        (lambda events: values(events, "dataset")[0].update(drawn=None), "lacks the draws"),
    ],
)
def test_a_forged_word_of_the_draws_is_found(member: Path, change: Change, evidence: str) -> None:
    edit_record(member, change)
    assert evidence in refusals(member)["drawn"]


def test_a_member_that_saw_other_samples_than_it_drew_is_found(member: Path) -> None:
    """Without bagging, it learns more than its share, and says that it did not."""
    edit_record(member, lambda events: deliver(events, Coverage.expected(33).digest))
    assert "the member's draws of the data set's 33 samples have the digest" in refusals(member)["coverage"]
    others = drawn_digest(draws(33, 99, "bootstrap"))
    edit_record(member, lambda events: values(events, "epoch_stop")[0].update(coverage=others))
    assert "epoch 1: 33-" in refusals(member)["coverage"]
    assert "the samples delivered are not those that the member drew" in reasons(member)


def test_draws_of_another_seed_are_found(member: Path) -> None:
    rewrite_recipe(member, "hyperparameters.seed=4")
    assert {"drawn", "coverage"} & refusals(member).keys()
    edit_record(member, lambda events: deliver(events, drawn_digest(draws(33, SEED + 2, "bootstrap"))))
    assert "coverage" in refusals(member)


def test_fewer_draws_with_all_that_follows_from_them_are_found(member: Path) -> None:
    """Less work for the same claim: a tenth of the steps, and every number of the record fits."""
    few = draws(33, SEED, "bootstrap")[:8]
    distinct = len(set(few.tolist()))

    def shrink(events: list[Event]) -> None:
        tell(draws=8, distinct=distinct, share=distinct / 33)(events)
        values(events, "model")[0]["steps_per_epoch"] = 1
        for epoch in values(events, "epoch_stop"):
            epoch["steps"] = 1
        deliver(events, drawn_digest(few), 8)

    edit_record(member, shrink)
    assert "draws 8, expected 33" in refusals(member)["drawn"]
    assert "8 samples were drawn; bootstrap draws 33" in reasons(member)


def test_classes_of_other_sizes_are_other_draws(members: dict[str, Path], tmp_path: Path) -> None:
    member = copied(members["class"], tmp_path)
    edit_record(member, tell(strata=[1, 2, 30]))
    assert {"drawn", "coverage"} & refusals(member).keys()
    edit_record(member, tell(strata=[11, 11, 12]))
    assert refusals(member)["drawn"] == "the strata have 34 samples; the training set has 33"


def test_a_run_of_one_model_draws_nothing(members: dict[str, Path], tmp_path: Path) -> None:
    member = copied(members["none"], tmp_path)
    recipe = member / "recipe.toml"
    before, _, after = recipe.read_text(encoding="utf-8").partition("[ensemble]")
    recipe.write_text(before + after.partition("\n[")[1].strip("\n") + after.partition("\n[")[2], encoding="utf-8")
    rewrite_recipe(member)
    assert "the recipe has no [ensemble]" in refusals(member)["drawn"]
    assert "although the recipe has no [ensemble]" in reasons(member)


@pytest.mark.parametrize("samples", [2**22, 2**40])
def test_a_set_that_nobody_draws_again_takes_no_time(members: dict[str, Path], tmp_path: Path, samples: int) -> None:
    """300 records, each of a size and a seed of its own, are as many times the work of one."""
    member = copied(members["none"], tmp_path)
    edit_record(member, lambda events: values(events, "dataset")[0].update(training_samples=samples))
    told = [(severity, one) for severity, name, one in findings(member, "v3.0") if name in ("coverage", "drawn")]
    assert told == [("warning", f"the digest of {samples} samples was not computed again")]
