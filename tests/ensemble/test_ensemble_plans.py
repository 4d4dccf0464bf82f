"""A plan of an ensemble: the mapping of members to nodes, what is refused, and what is fixed on disk once for all."""

from __future__ import annotations

import fcntl
import json
import math
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest
from fakes.slurm import planned
from hypothesis import assume, given
from hypothesis import strategies as st

from hpcai500.campaign.attempts import Invocation, begin_attempt
from hpcai500.campaign.journal import read_campaign, turn_at
from hpcai500.ensemble.journal import append, begin_member, member_recipe, parse_members, read_ensemble
from hpcai500.ensemble.mapping import Shape, fits_nodes, member_places, possible_shapes, shape_of
from hpcai500.ensemble.member import MemberOrder, _turn, run_member
from hpcai500.ensemble.planning import Planned, PlanRequest, plan_ensemble
from hpcai500.errors import RecipeError, RecordError, RunError, UsageError
from hpcai500.hosts import find_placement
from hpcai500.launch.launcher import launcher_of

# --- Equation 5 and the mapping


counts = st.integers(1, 64)


@given(counts, counts, counts)
def test_equation_5_holds_for_every_plan(per_node: int, members: int, degree: int) -> None:
    assume(fits_nodes(degree, per_node))
    shape = shape_of(per_node, members=members, degree=degree)
    assert shape.scale == members * degree
    assert shape_of(per_node, scale=shape.scale, members=members) == shape
    assert shape_of(per_node, scale=shape.scale, degree=degree) == shape
    assert shape_of(per_node, scale=shape.scale, members=members, degree=degree) == shape


@pytest.mark.parametrize(
    ("scale", "members", "degree", "nodes_a_member"),
    [*((8 * members, members, 8, 1) for members in range(1, 9)), (64, 4, 16, 2), (64, 1, 64, 8)],
)
def test_the_experiments_of_the_paper(scale: int, members: int, degree: int, nodes_a_member: int) -> None:
    """V3.0 section 4.2: 8, 16, ... 64 GPUs, eight a node, are 1, 2, ... 8 jobs, a node each; section 4.3 has Fig. 7."""
    shape = shape_of(8, scale=scale, members=members)
    assert (shape.degree, shape.nodes_a_member, shape.nodes) == (degree, nodes_a_member, scale // 8)
    if degree == 8:
        assert shape_of(8, scale=scale) == shape


@given(counts, counts, counts)
def test_no_accelerator_belongs_to_two_members_and_none_of_a_member_is_missing(
    per_node: int, members: int, degree: int
) -> None:
    assume(fits_nodes(degree, per_node))
    shape = Shape(members, degree, per_node)
    jobs = member_places(shape, first_seed=5)
    taken = [(node, accelerator) for job in jobs for node in job.nodes for accelerator in job.accelerators]
    assert len(taken) == len(set(taken)) == shape.scale
    assert {accelerator for _, accelerator in taken} <= set(range(per_node))
    assert len({node for node, _ in taken}) == shape.nodes == math.ceil(shape.scale / per_node)
    assert [job.seed for job in jobs] == list(range(5, 5 + members))


def test_members_smaller_than_a_node_share_it_and_larger_ones_take_whole_ones() -> None:
    jobs = member_places(shape_of(4, members=3, degree=2), first_seed=1, hosts=["a", "b"])
    assert [(job.nodes, job.accelerators) for job in jobs] == [(("a",), (0, 1)), (("a",), (2, 3)), (("b",), (0, 1))]
    jobs = member_places(shape_of(2, members=2, degree=4), first_seed=1, hosts=["a", "b", "c", "d"])
    assert [job.nodes for job in jobs] == [("a", "b"), ("c", "d")]


@pytest.mark.parametrize(
    ("scale", "members", "degree", "nearest"),
    [
        (8, 3, None, "8 x 1, 4 x 2, 2 x 4"),
        (64, 4, 8, "16 x 4, 8 x 8, 4 x 16"),
        (7, None, 4, "7 x 1"),
    ],
)
def test_an_impossible_plan_is_refused_with_the_nearest_possible_ones(
    scale: int, members: int | None, degree: int | None, nearest: str
) -> None:
    with pytest.raises(UsageError, match=f"do are .*{nearest}"):
        shape_of(4 if scale != 64 else 8, scale=scale, members=members, degree=degree)


@given(counts, counts, counts)
def test_what_is_offered_instead_is_possible(per_node: int, scale: int, members: int) -> None:
    try:
        shape_of(per_node, scale=scale, members=members)
    except UsageError as error:
        if "Eq. 5" not in str(error):
            return
        offered = str(error).rpartition("do are ")[2].split(", ")
        for text in offered:
            count, _, degree = text.partition(" x ")
            assert shape_of(per_node, scale=scale, members=int(count), degree=int(degree)).scale == scale
        assert offered


def test_every_possible_shape_of_a_scale_is_found() -> None:
    shapes = [(shape.members, shape.degree) for shape in possible_shapes(8, 16)]
    assert shapes == [(16, 1), (8, 2), (4, 4), (2, 8), (1, 16)]


@pytest.mark.parametrize(
    ("per_node", "numbers", "said"),
    [
        (4, {"members": 2, "degree": 3}, r"nearest degrees that do are 1, 2, 4"),
        (4, {}, "give --members M or --scale S"),
        (4, {"members": 0}, "--members: expected 1 or more, got 0"),
        (8, {"members": 10**9}, "1000000 at most"),
        (8, {"scale": 10**9}, "1000000 at most"),
        (8, {"members": 10**5, "degree": 8 * 10**5}, "1000000 at most"),
    ],
)
def test_numbers_of_which_nothing_follows_are_told(per_node: int, numbers: dict[str, int], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        shape_of(per_node, **numbers)


@pytest.mark.parametrize(
    ("shape", "hosts", "said"),
    [
        (Shape(4, 2, 4), ["a"], "4 members of 2 accelerators need 2 nodes of 4, got 1"),
        (Shape(2, 4, 4), ["a", "a"], "a is named twice"),
    ],
)
def test_hosts_that_are_too_few_are_told_before_anything_is_written(shape: Shape, hosts: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        member_places(shape, 1, hosts)


# --- an ensemble on disk


def test_what_was_planned_is_read_again_and_its_mapping_by_people_and_programs(tmp_path: Path) -> None:
    ensemble = planned(tmp_path / "e")
    assert read_ensemble(tmp_path / "e") == ensemble
    assert (ensemble.shape.members, ensemble.shape.degree, ensemble.seed(2)) == (3, 1, 3)
    text = (tmp_path / "e" / "plan.toml").read_text()
    jobs = tomllib.loads(text)["jobs"]
    assert jobs[2] == {"member": 2, "seed": 3, "nodes": ["node-3"], "accelerators": [0]}
    assert len([line for line in text.splitlines() if "member =" in line]) == 3


@pytest.mark.parametrize(
    ("name", "old", "new", "said"),
    [
        # Nothing would follow from it.
        ("plan.toml", "node-3", "node-9", r"plan\.toml: was changed .*: restore it, or plan another"),
        ("recipe.toml", "epochs = 3", "epochs = 2", "not the recipe that the ensemble was planned with"),
        ("ensemble.jsonl", '"degree":1', '"degree":0', "no ensemble has 3 members of 0 on nodes of 1"),
    ],
)
def test_a_plan_that_was_changed_by_hand_is_refused(tmp_path: Path, name: str, old: str, new: str, said: str) -> None:
    planned(tmp_path / "e")
    path = tmp_path / "e" / name
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(RecordError, match=said):
        read_ensemble(tmp_path / "e")


def test_an_ensemble_is_planned_over_nothing_else(tmp_path: Path) -> None:
    with pytest.raises(
        RecordError, match=r"not an ensemble: ensemble\.jsonl is missing; plan one: hpcai500 ensemble plan"
    ):
        read_ensemble(tmp_path)
    planned(tmp_path / "e")
    with pytest.raises(RecordError, match="already holds an ensemble: continue it with `hpcai500 ensemble run"):
        planned(tmp_path / "e")
    with pytest.raises(RecordError, match="not empty; give an empty or new folder"):
        planned(tmp_path)


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


@pytest.mark.parametrize("value", [{}, {"schema": "other"}, [], None, {"schema": "hpcai500-ensemble-1"}])
def test_a_journal_of_anything_else_is_refused_in_one_line(tmp_path: Path, value: object) -> None:
    planned(tmp_path / "e")
    path = tmp_path / "e" / "ensemble.jsonl"
    event = json.loads(path.read_text())
    path.write_text(json.dumps({**event, "value": value}) + "\n")
    with pytest.raises(RecordError) as told:
        read_ensemble(tmp_path / "e")
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(("text", "members"), [("1", [1]), ("0-2", [0, 1, 2]), ("2,0", [0, 2]), (" 1 , 1-2", [1, 2])])
def test_members_are_named_by_numbers_and_ranges(tmp_path: Path, text: str, members: list[int]) -> None:
    assert parse_members(text, planned(tmp_path / "e")) == members


@pytest.mark.parametrize("text", ["", "x", "1-", "3", "-1", "0-9", "2-1", "0-999999999", "0-99999999999999"])
def test_members_that_there_are_not_are_told(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError, match="--member"):
        parse_members(text, planned(tmp_path / "e"))


# --- from a request to a plan


def plan(folder: Path, *overrides: str, **changes: Any) -> Planned:
    asked: dict[str, Any] = {"recipe": "ic/smoke", "members": 2, "data": folder} | changes
    return plan_ensemble(PlanRequest(folder / "my é", overrides=overrides, **asked))


def test_settings_that_go_with_the_ranks_of_the_plan_are_taken_and_no_others(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="`torch` is for two ranks or more"):
        plan(tmp_path, "communication.backend=torch")
    assert list(tmp_path.iterdir()) == []
    for name in ("one", "two", "stages"):
        (tmp_path / name).mkdir()
    assert plan(tmp_path / "one").ensemble.recipe().communication.backend == "local"
    recipe = plan(tmp_path / "two", degree=2, per_node=2).ensemble.recipe()
    assert (recipe.communication.backend, recipe.world_size) == ("torch", 2)
    settings = ("programming.parallel_mode=model", "programming.stages=2", "communication.backend=torch")
    recipe = plan(tmp_path / "stages", *settings, degree=2, per_node=2).ensemble.recipe()
    assert (recipe.programming.stages, recipe.world_size) == (2, 2)


def test_the_last_member_has_a_seed_too(tmp_path: Path) -> None:
    last = 2**63 - 1
    with pytest.raises(UsageError, match="2 members need seeds from"):
        plan(tmp_path, f"hyperparameters.seed={last}")
    assert plan(tmp_path, f"hyperparameters.seed={last - 1}").places[-1].seed == last


@pytest.mark.parametrize("stage", ["scratch", "~/scratch", ""])
def test_a_stage_that_every_node_would_refuse_is_refused_at_once(tmp_path: Path, stage: str) -> None:
    with pytest.raises(UsageError, match=r"give an absolute folder on each node"):
        plan(tmp_path, stage=stage)
    assert list(tmp_path.iterdir()) == []


def test_what_is_to_be_typed_next_is_one_word_for_the_shell(tmp_path: Path) -> None:
    planned = plan(tmp_path)
    (line,) = (line for line in planned.lines() if line.startswith("next"))
    assert f"hpcai500 ensemble run '{planned.ensemble.path}' " in line


# --- one process at a time is at a member: from what it stages to what its journal tells


@pytest.fixture
def naps(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long was slept; nobody sleeps."""
    taken: list[float] = []
    monkeypatch.setattr(time, "sleep", taken.append)
    monkeypatch.setattr(time, "monotonic", lambda: sum(taken))
    return taken


def test_a_member_that_somebody_is_at_is_left_alone_after_a_while(tmp_path: Path, naps: list[float]) -> None:
    ensemble = planned(tmp_path / "e")
    ensemble.folder(1).mkdir(parents=True)
    with turn_at(ensemble.folder(1), 0), pytest.raises(RunError, match="is being run by another process"):
        run_member(MemberOrder(ensemble.path, 1), launcher_of(find_placement({}), None))
    # Longer than NFS keeps the locks of a node that died.
    assert 90 < sum(naps) < 200
    assert list(ensemble.folder(1).glob("*")) == []


def test_a_member_whose_ranks_outlive_their_command_is_waited_for(tmp_path: Path, naps: list[float]) -> None:
    ensemble = planned(tmp_path / "e")
    campaign = begin_member(ensemble, 0)
    campaign, attempt = begin_attempt(campaign, 1, Invocation([], "alone", None))
    path = campaign.record(attempt) / "events.jsonl"
    with path.open("wb") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        with pytest.raises(RunError, match="is being run by another process"):
            run_member(MemberOrder(ensemble.path, 0), launcher_of(find_placement({}), None))
    with _turn(ensemble, 0):
        pass


def test_a_member_that_was_killed_while_it_began_begins_again(tmp_path: Path) -> None:
    ensemble = planned(tmp_path / "e")
    folder = ensemble.folder(2)
    folder.mkdir(parents=True)
    for name in ("recipe.toml", ".campaign.jsonl.17.tmp", "output.txt", "failures.jsonl", ".trial-00.lock"):
        (folder / name).write_text("cut")
    assert begin_member(ensemble, 2).trials[0].seed == 3
