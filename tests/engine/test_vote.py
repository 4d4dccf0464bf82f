"""The vote of real members: what it writes, that nothing of it depends on chance or order, and whom it refuses."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from builders.campaigns import edit_record
from builders.runs import member_arguments, short_member_recipe

from hpcai500 import train
from hpcai500.engine import vote_command
from hpcai500.engine.vote import curve_points, read_list
from hpcai500.ensemble.counting import Member, RefusedError, run_vote
from hpcai500.ensemble.journal import Ensemble
from hpcai500.errors import ExitCode, UsageError
from hpcai500.job_options import VoteOptions, as_argument
from hpcai500.methodology.sampling import draws, probe
from hpcai500.recipe import to_toml
from hpcai500.record import Event
from hpcai500.workloads.voting import softmax, write_arrays

MEMBERS = 3


def made(benchmark: str, folder: Path, data: Path) -> list[Path]:
    records = [folder / f"member-{number}" for number in range(MEMBERS)]
    for number, record in enumerate(records):
        assert train.main(member_arguments(short_member_recipe(benchmark, seed=1 + number), data, record)) == 0
    return records


@pytest.fixture(scope="module")
def classifiers(images: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return made("ic", tmp_path_factory.mktemp("classifiers"), images)


@pytest.fixture(scope="module")
def detectors(weather: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return made("ewa", tmp_path_factory.mktemp("detectors"), weather)


Vote = Callable[..., tuple[int, Path]]


@pytest.fixture
def vote(tmp_path: Path) -> Vote:
    """`vote(records, "ensemble.vote=nms")`: exit code, and the file."""

    def hold(records: list[Path] | dict[int, Path], *settings: str) -> tuple[int, Path]:
        named = records if isinstance(records, dict) else dict(enumerate(records))
        first = next(iter(named.values()))
        recipe, listed, out = tmp_path / "recipe.toml", tmp_path / "list", tmp_path / "vote.json"
        benchmark = "ewa" if "detectors" in str(first) else "ic"
        recipe.write_text(to_toml(short_member_recipe(benchmark, *settings)))
        listed.write_text("".join(f"{number}\t{record}\n" for number, record in named.items()))
        out.unlink(missing_ok=True)
        return vote_command.main([as_argument(VoteOptions(recipe, listed, out, tmp_path / "refused"))]), out

    return hold


def arrays(record: Path, kind: str) -> dict[str, Any]:
    with np.load(record / "predictions" / f"{kind}.npz", allow_pickle=False) as file:
        return dict(file)


def result(record: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((record / "result.json").read_text())
    return document


def test_the_vote_of_classifiers_is_the_mean_of_their_softmax_outputs(classifiers: list[Path], vote: Vote) -> None:
    code, out = vote(classifiers)
    assert code == 0
    found = json.loads(out.read_text())
    predicted = [arrays(record, "evaluation") for record in classifiers]
    labels = predicted[0]["labels"]
    for count, point in enumerate(found["curve"], 1):
        mean = np.mean([softmax(one["logits"]) for one in predicted[:count]], axis=0)
        assert point == {"members": count, "value": float((mean.argmax(axis=1) == labels).mean())}
    assert found["value"] == found["curve"][-1]["value"]
    assert [one["value"] for one in found["members"]] == [result(one)["quality"]["achieved"] for one in classifiers]
    assert [(one["member"], one["record"]) for one in found["members"]] == list(enumerate(map(str, classifiers)))
    files = [hashlib.sha256((one / "predictions/evaluation.npz").read_bytes()).hexdigest() for one in classifiers]
    assert [one["sha256"] for one in found["members"]] == files
    facts = {"schema": "hpcai500-vote-1", "benchmark": "ic", "metric": "top1", "target": 0.01, "vote": "mean"}
    facts |= {"samples": 12, "per_class": None}
    assert {key: found[key] for key in facts} == facts


def test_out_of_bag_each_training_sample_is_judged_by_members_that_have_not_drawn_it(
    classifiers: list[Path], vote: Vote
) -> None:
    found = json.loads(vote(classifiers)[1].read_text())["out_of_bag"]
    sums: dict[int, Any] = {}
    labels, votes = {}, 0
    for number, record in enumerate(classifiers):
        one = arrays(record, "out-of-bag")
        unseen = set(probe(33, 20).tolist()) - set(draws(33, 1 + number, "bootstrap").tolist())
        assert set(one["samples"].tolist()) == unseen
        for sample, label, row in zip(one["samples"].tolist(), one["labels"], softmax(one["logits"]), strict=True):
            sums[sample], labels[sample] = sums.get(sample, 0) + row, label
            votes += 1
        assert found["members"][number]["samples"] == len(unseen)
    right = sum(int(total.argmax() == labels[sample]) for sample, total in sums.items())
    assert (found["samples"], found["value"]) == (len(sums), right / len(sums))
    assert found["votes_a_sample"] == votes / len(sums)


def test_the_vote_of_detectors_has_the_precision_of_each_class(detectors: list[Path], vote: Vote) -> None:
    code, out = vote(detectors)
    found = json.loads(out.read_text())
    assert (code, found["metric"], found["samples"]) == (0, "map50", 10)
    assert len(found["per_class"]) == 4
    occurring = [value for value in found["per_class"].values() if value is not None]
    assert found["value"] == pytest.approx(np.mean(occurring))
    assert [one["value"] for one in found["members"]] == [result(one)["quality"]["achieved"] for one in detectors]
    assert found["curve"][0]["value"] == found["members"][0]["value"]
    assert found["out_of_bag"]["samples"] > 0


def test_the_same_vote_comes_byte_by_byte_and_listed_in_any_order(classifiers: list[Path], vote: Vote) -> None:
    before = vote(classifiers)[1].read_bytes()
    assert vote({number: classifiers[number] for number in (2, 0, 1)})[1].read_bytes() == before


def test_numbers_of_members_do_not_change_what_all_of_them_say(classifiers: list[Path], vote: Vote) -> None:
    one = json.loads(vote(classifiers)[1].read_text())
    other = json.loads(vote({0: classifiers[2], 1: classifiers[0], 2: classifiers[1]})[1].read_text())
    assert (one["value"], one["out_of_bag"]["value"]) == (other["value"], other["out_of_bag"]["value"])


@pytest.mark.parametrize("kind", ["classifiers", "detectors"])
def test_an_ensemble_of_one_is_its_member(kind: str, vote: Vote, request: pytest.FixtureRequest) -> None:
    member = request.getfixturevalue(kind)[1]
    found = json.loads(vote({7: member})[1].read_text())
    assert found["value"] == result(member)["quality"]["achieved"]
    assert found["curve"] == [{"members": 1, "value": found["value"]}]
    assert found["out_of_bag"]["value"] == found["out_of_bag"]["members"][0]["value"]


@pytest.mark.parametrize(
    ("members", "points"),
    [
        (1, {1}),
        (3, {1, 2, 3}),
        (16, {*range(1, 17)}),
        (100, {*range(1, 17), 32, 64, 100}),
        (10_000, {*range(1, 17), *(2**power for power in range(5, 14)), 10_000}),
    ],
    ids=lambda value: str(value) if isinstance(value, int) else "",
)
def test_the_curve_has_each_member_at_first_and_then_powers_of_two(members: int, points: set[int]) -> None:
    assert curve_points(members) == points


@pytest.fixture
def harmed(classifiers: list[Path], tmp_path: Path) -> list[Path]:
    """Members of which the second may be changed."""
    copy = Path(shutil.copytree(classifiers[1], tmp_path / "harmed"))
    return [classifiers[0], copy, classifiers[2]]


def refused(vote: Vote, records: list[Path], capfd: pytest.CaptureFixture[str], *settings: str) -> tuple[int, str]:
    capfd.readouterr()
    code, out = vote(records, *settings)
    assert not out.exists()
    (line,) = capfd.readouterr().err.strip().splitlines()
    return code, line


def rewrite(record: Path, kind: str, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a member's predictions, and all that vouches for them, as a member that lies would."""
    found = arrays(record, kind)
    change(found)
    path = record / "predictions" / f"{kind}.npz"
    with path.open("wb") as stream:
        write_arrays(stream, found)
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()

    def name(events: list[Event]) -> None:
        for event in events:
            if event["key"] == "predictions" and event["value"]["kind"] == kind:
                event["value"]["sha256"] = sha256

    edit_record(record, name)


def all_right(one: dict[str, Any]) -> None:
    one["logits"] = np.eye(3, dtype=np.float32)[one["labels"]]


def test_a_changed_file_is_refused(harmed: list[Path], vote: Vote, capfd: pytest.CaptureFixture[str]) -> None:
    file = harmed[1] / "predictions/evaluation.npz"
    content = bytearray(file.read_bytes())
    content[-200] ^= 1
    file.write_bytes(content)
    code, line = refused(vote, harmed, capfd)
    assert code == ExitCode.WRONG_ANSWER
    assert f"member 1 ({harmed[1]}): predictions/evaluation.npz was changed: its hash differs" in line


@pytest.mark.parametrize(
    ("kind", "change", "reason"),
    [
        ("evaluation", all_right, "but the last evaluation in the record gave "),
        ("evaluation", lambda one: one.update(samples=one["samples"] + 1), "predictions of the 12 expected samples"),
        ("evaluation", lambda one: one.update(samples=one["samples"][:-1]), "predictions of the 12 expected samples"),
        ("evaluation", lambda one: one.update(labels=one["labels"][::-1]), "labels are not those of earlier members"),
        ("evaluation", lambda one: one.update(logits=one["logits"].astype(float)), "float64 in 2 dimensions, expected"),
        ("out-of-bag", all_right, "but the event out_of_bag does not"),
        ("out-of-bag", lambda one: one.update(samples=np.arange(len(one["samples"]))), "expected samples"),
    ],
)  # fmt: skip
def test_a_member_that_lies_is_refused_in_one_line_that_names_it(
    harmed: list[Path],
    vote: Vote,
    capfd: pytest.CaptureFixture[str],
    kind: str,
    change: Callable[[dict[str, Any]], object],
    reason: str,
) -> None:
    rewrite(harmed[1], kind, change)
    code, line = refused(vote, harmed, capfd)
    assert (code, f"member 1 ({harmed[1]}): predictions/{kind}.npz" in line) == (ExitCode.WRONG_ANSWER, True), line
    assert reason in line


def without_file(name: str) -> Callable[[Path], object]:
    return lambda record: (record / name).unlink()


def edited(change: Callable[[list[Event]], object]) -> Callable[[Path], object]:
    return lambda record: edit_record(record, change)


def no_predictions(events: list[Event]) -> None:
    events[:] = [event for event in events if event["key"] != "predictions"]


def dataset(events: list[Event]) -> dict[str, Any]:
    found: dict[str, Any] = next(event for event in events if event["key"] == "dataset")["value"]
    return found


def other_strata(events: list[Event]) -> None:
    dataset(events)["drawn"]["strata"] = [1] * dataset(events)["training_samples"]


def broken_chain(record: Path) -> None:
    log = record / "events.jsonl"
    log.write_bytes(log.read_bytes().replace(b'"ceilings"', b'"ceilingz"'))


@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        (without_file("DONE"), "is not finished (unfinished); only finished members can vote"),
        (
            without_file("predictions/evaluation.npz"),
            "predictions/evaluation.npz cannot be read: No such file or directory",
        ),
        (edited(no_predictions), "has no evaluation predictions; resume its run"),
        (
            edited(lambda events: dataset(events).update(fingerprint="0" * 64)),
            "was not trained on the same data as member 0",
        ),
        (edited(other_strata), "was not trained on the same data as member 0"),
        (broken_chain, "the chain is broken here"),
        (shutil.rmtree, "no such folder"),
    ],
)
def test_who_is_no_finished_member_of_this_ensemble_is_refused(
    harmed: list[Path], vote: Vote, capfd: pytest.CaptureFixture[str], harm: Callable[[Path], object], reason: str
) -> None:
    harm(harmed[1])
    code, line = refused(vote, harmed, capfd)
    assert code == ExitCode.USAGE
    assert f"member 1 ({harmed[1]}): " in line
    assert reason in line


def test_nobody_votes_twice_and_nobody_with_another_recipe(
    harmed: list[Path], vote: Vote, capfd: pytest.CaptureFixture[str]
) -> None:
    code, line = refused(vote, [harmed[0], harmed[1], harmed[0]], capfd)
    assert (code, "lists a member or a record twice" in line) == (ExitCode.USAGE, True)
    twin = Path(shutil.copytree(harmed[0], harmed[1].parent / "twin"))
    code, line = refused(vote, [harmed[0], twin], capfd)
    assert (code, "has the same seed 1 as member 0, so it is the same model" in line) == (ExitCode.USAGE, True)
    code, line = refused(vote, harmed, capfd, "hyperparameters.momentum=0.8")
    assert (code, "its recipe is not the ensemble's: hyperparameters.momentum" in line) == (ExitCode.USAGE, True)


@pytest.mark.parametrize("text", ["", "0 /a", "x\t/a", "-1\t/a", "0\t", "0\t/a\n0\t/b", "0\t/a\n1\t/a", "²\t/a"])
def test_a_list_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "list"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match=re.escape(str(path))):
        read_list(path, tmp_path)


def listed_below(folder: Path, records: list[Path]) -> list[str]:
    """Arguments of a vote whose list, recipe and records lie below `folder`."""
    folder.mkdir()
    for number, record in enumerate(records):
        shutil.copytree(record, folder / f"members/{number}")
    (folder / "recipe.toml").write_text(to_toml(short_member_recipe("ic")))
    (folder / "list").write_text("".join(f"{number}\tmembers/{number}\n" for number in range(len(records))))
    return [as_argument(VoteOptions(folder / "recipe.toml", folder / "list", folder / "vote", folder / "refused"))]


def test_an_ensemble_that_was_moved_has_the_same_vote_byte_by_byte(classifiers: list[Path], tmp_path: Path) -> None:
    assert vote_command.main(listed_below(tmp_path / "here", classifiers)) == 0
    assert vote_command.main(listed_below(tmp_path / "there", classifiers)) == 0
    content = (tmp_path / "here/vote").read_bytes()
    assert content == (tmp_path / "there/vote").read_bytes()
    assert [one["record"] for one in json.loads(content)["members"]] == ["members/0", "members/1", "members/2"]


def test_who_is_refused_is_written_down_for_whoever_asked(harmed: list[Path], tmp_path: Path) -> None:
    rewrite(harmed[1], "evaluation", all_right)
    assert vote_command.main(listed_below(tmp_path / "e", harmed)) == ExitCode.WRONG_ANSWER
    told = json.loads((tmp_path / "e/refused").read_text())
    assert told["member"] == 1
    assert told["reason"].startswith("predictions/evaluation.npz gives top1 1.0")
    assert not (tmp_path / "e/vote").exists()


def test_what_is_refused_by_the_real_vote_is_known_to_who_collects(harmed: list[Path], tmp_path: Path) -> None:
    rewrite(harmed[1], "evaluation", all_right)
    listed_below(tmp_path / "e", harmed)
    # Of an ensemble and its members, the vote takes no more than this.
    ensemble = SimpleNamespace(path=tmp_path / "e")
    members = [SimpleNamespace(number=number, record=f"members/{number}") for number in range(3)]
    with pytest.raises(RefusedError, match=r"member 1: predictions/evaluation\.npz gives top1") as error:
        run_vote(cast(Ensemble, ensemble), cast(list[Member], members), tmp_path / "e/vote.json")
    assert (error.value.member, error.value.exit_code) == (1, ExitCode.RUN_FAILED)
    run_vote(cast(Ensemble, ensemble), cast(list[Member], [members[0], members[2]]), tmp_path / "e/vote.json")
    assert json.loads((tmp_path / "e/vote.json").read_text())["members"][1]["record"] == "members/2"
    assert sorted(path.name for path in (tmp_path / "e").iterdir()) == ["list", "members", "recipe.toml", "vote.json"]
