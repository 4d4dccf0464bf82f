"""An ensemble on disk: fixed once, read again, and bound to its members."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from tiny_runs import TINY

from hpcai500.campaign.journal import read_campaign
from hpcai500.ensemble.journal import (
    Ensemble,
    append,
    begin_member,
    create_ensemble,
    member_recipe,
    parse_members,
    read_ensemble,
)
from hpcai500.ensemble.mapping import member_places, shape_of
from hpcai500.errors import RecordError, UsageError
from hpcai500.recipe import load_recipe


def planned(folder: Path, members: int = 3) -> Ensemble:
    shape = shape_of(1, members=members)
    recipe = load_recipe("ic/smoke", [*TINY, f"ensemble.members={members}"], edition="v3.0")
    return create_ensemble(folder, recipe, shape, member_places(shape, 1), folder.parent / "data", None)


def test_what_was_planned_is_read_again(tmp_path: Path) -> None:
    ensemble = planned(tmp_path / "e")
    assert read_ensemble(tmp_path / "e") == ensemble
    assert (ensemble.shape.members, ensemble.shape.degree, ensemble.seed(2)) == (3, 1, 3)


def test_the_mapping_is_a_file_that_people_and_programs_read(tmp_path: Path) -> None:
    planned(tmp_path / "e")
    text = (tmp_path / "e" / "plan.toml").read_text()
    jobs = tomllib.loads(text)["jobs"]
    assert jobs[2] == {"member": 2, "seed": 3, "nodes": ["node-3"], "accelerators": [0]}
    assert len([line for line in text.splitlines() if "member =" in line]) == 3


def test_a_mapping_that_was_changed_by_hand_is_refused_since_nothing_would_follow_from_it(tmp_path: Path) -> None:
    planned(tmp_path / "e")
    path = tmp_path / "e" / "plan.toml"
    path.write_text(path.read_text().replace("node-3", "node-9"))
    with pytest.raises(RecordError, match=r"plan\.toml: was changed; .*: restore it, or plan another"):
        read_ensemble(tmp_path / "e")


def test_a_folder_with_anything_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RecordError, match="not empty; give another folder"):
        planned(tmp_path)


def test_an_ensemble_is_not_planned_over_another(tmp_path: Path) -> None:
    planned(tmp_path / "e")
    with pytest.raises(RecordError, match="holds an ensemble already: go on with it by `hpcai500 ensemble run"):
        planned(tmp_path / "e")


def test_a_member_has_a_seed_of_its_own_and_names_the_plan(tmp_path: Path) -> None:
    ensemble = planned(tmp_path / "e")
    campaign = begin_member(ensemble, 2)
    assert campaign.start["ensemble"] == {"id": ensemble.identity, "member": 2}
    assert [trial.seed for trial in campaign.trials] == [3]
    assert member_recipe(ensemble, 2).hyperparameters.seed == 3
    assert begin_member(ensemble, 2).identity == campaign.identity


def test_a_member_of_another_plan_does_not_count(tmp_path: Path) -> None:
    one, other = planned(tmp_path / "one"), planned(tmp_path / "other", members=2)
    begin_member(one, 1)
    other.folder(1).parent.mkdir(parents=True)
    one.folder(1).rename(other.folder(1))
    with pytest.raises(RecordError, match="not member 1 of this ensemble: its journal names another plan"):
        other.campaign(1)


def test_members_share_no_file_that_they_write(tmp_path: Path) -> None:
    ensemble = planned(tmp_path / "e")
    before = (ensemble.path / "ensemble.jsonl").read_bytes()
    for member in ensemble.members:
        begin_member(ensemble, member)
    assert (ensemble.path / "ensemble.jsonl").read_bytes() == before
    assert len({read_campaign(ensemble.folder(member)).identity for member in ensemble.members}) == 3


def test_what_is_added_to_the_journal_is_chained(tmp_path: Path) -> None:
    ensemble = planned(tmp_path / "e")
    later = append(ensemble, "cancel", {"jobs": ["1"]})
    assert (later.identity, len(later.events)) == (ensemble.identity, 2)
    assert later.head != ensemble.head
    journal = tmp_path / "e" / "ensemble.jsonl"
    journal.write_bytes(journal.read_bytes().replace(b'"members":3', b'"members":4'))
    with pytest.raises(RecordError, match="the chain is broken"):
        read_ensemble(tmp_path / "e")


def test_a_recipe_that_was_changed_after_the_plan_is_told(tmp_path: Path) -> None:
    planned(tmp_path / "e")
    path = tmp_path / "e" / "recipe.toml"
    path.write_text(path.read_text().replace("epochs = 3", "epochs = 2"))
    with pytest.raises(RecordError, match="not the recipe that the ensemble was planned with"):
        read_ensemble(tmp_path / "e")


def test_a_folder_that_is_no_ensemble_is_told_with_the_command_that_makes_one(tmp_path: Path) -> None:
    with pytest.raises(
        RecordError, match=r"not an ensemble: ensemble\.jsonl is missing; plan one: hpcai500 ensemble plan"
    ):
        read_ensemble(tmp_path)


@pytest.mark.parametrize("value", [{}, {"schema": "other"}, [], None, {"schema": "hpcai500-ensemble-1"}])
def test_a_journal_of_anything_else_is_refused_in_one_line(tmp_path: Path, value: object) -> None:
    planned(tmp_path / "e")
    path = tmp_path / "e" / "ensemble.jsonl"
    event = json.loads(path.read_text())
    path.write_text(json.dumps({**event, "value": value}) + "\n")
    with pytest.raises(RecordError) as told:
        read_ensemble(tmp_path / "e")
    assert "\n" not in str(told.value)


def test_a_journal_of_members_without_accelerators_is_refused(tmp_path: Path) -> None:
    planned(tmp_path / "e")
    path = tmp_path / "e" / "ensemble.jsonl"
    path.write_text(path.read_text().replace('"degree":1', '"degree":0'))
    with pytest.raises(RecordError, match="no ensemble has 3 members of 0 on nodes of 1"):
        read_ensemble(tmp_path / "e")


@pytest.mark.parametrize(("text", "members"), [("1", [1]), ("0-2", [0, 1, 2]), ("2,0", [0, 2]), (" 1 , 1-2", [1, 2])])
def test_members_are_named_by_numbers_and_ranges(tmp_path: Path, text: str, members: list[int]) -> None:
    assert parse_members(text, planned(tmp_path / "e")) == members


@pytest.mark.parametrize("text", ["", "x", "1-", "3", "-1", "0-9", "2-1", "0-999999999", "0-99999999999999"])
def test_members_that_there_are_not_are_told(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError, match="--member"):
        parse_members(text, planned(tmp_path / "e"))
