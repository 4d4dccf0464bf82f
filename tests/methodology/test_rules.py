"""Levels: what a change forces, and that no change can ever lower one."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcai500.methodology.rules import LevelReport, find_level, same_value
from hpcai500.recipe import load_recipe, rulebook

RULES = {benchmark: rulebook("v2.0", benchmark) for benchmark in ("ic", "ewa")}
FIELDS = {
    benchmark: [(table, key) for table in rules["levels"]["layers"] for key in rules["reference"][table]]
    for benchmark, rules in RULES.items()
}
LEVELS = ("hardware", "system", "free")
VALUES = st.one_of(
    st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.lists(st.floats(), max_size=3), st.none(),
    st.sampled_from(["lars", "memory", "bf16"]),
)  # fmt: skip


def changed(changes: dict[tuple[str, str], Any], benchmark: str = "ic") -> dict[str, Any]:
    tables = copy.deepcopy(RULES[benchmark]["reference"])
    for (table, key), value in changes.items():
        tables[table][key] = value
    return tables


def height(judgement: LevelReport) -> int:
    """A level as a number: the more a recipe changes, the higher."""
    return len(LEVELS) if judgement.level is None else LEVELS.index(judgement.level)


@pytest.mark.parametrize("benchmark", ["ic", "ewa"])
def test_the_reference_itself_is_of_the_strictest_level(benchmark: str) -> None:
    judgement = find_level(RULES[benchmark]["reference"], RULES[benchmark])
    assert judgement == LevelReport("hardware", (), (), LEVELS)
    assert judgement.forcing == ()


@pytest.mark.parametrize(
    ("setting", "level"),
    [
        ("hyperparameters.batch_size=256", "hardware"),
        ("hyperparameters.accumulation_steps=4", "hardware"),
        ("hyperparameters.base_learning_rate=1.0", "hardware"),
        ("hyperparameters.schedule=slow-start", "hardware"),
        ("hyperparameters.trust_coefficient=0.01", "hardware"),
        ("hyperparameters.optimizer=lars", "hardware"),
        ("hyperparameters.optimizer=lamb", "hardware"),
        ("hyperparameters.optimizer=adam", "free"),
        ("hyperparameters.optimizer=adagrad", "free"),
        ("hyperparameters.optimizer=rmsprop-warmup", "free"),
        ("hyperparameters.momentum=0.9", "free"),
        ("hyperparameters.momentum_form=corrected", "free"),
        ("hyperparameters.weight_decay=1e-4", "free"),
        ("hyperparameters.weight_decay_on=weights", "free"),
        ("hyperparameters.beta1=0.8", "free"),
        ("hyperparameters.seed=7", "hardware"),
        ("workload.zero_gamma=true", "free"),
        ("workload.dct_scaling=true", "free"),
        ("framework.compile=true", "system"),
        ("framework.channels_last=false", "system"),
        ("framework.cuda_graphs=true", "system"),
        ("framework.fused_optimizer=true", "system"),
        ("accelerator.precision=bf16", "hardware"),
        ("accelerator.precision=tf32", "hardware"),
        ("accelerator.loader=dali", "hardware"),
        ("accelerator.conversion=device", "hardware"),
        ("accelerator.prefetch_batches=8", "hardware"),
        ("accelerator.loader=memory", None),
        ("communication.compression=int8", "hardware"),
        ("communication.topology=hierarchical", "hardware"),
        ("communication.trace_steps=0", "hardware"),
        ("os.threads=4", "hardware"),
        ("problem.epochs=91", None),
        ("problem.target_quality=0.75", None),
    ],
)
def test_every_change_has_the_lowest_level_that_allows_it(setting: str, level: str | None) -> None:
    judgement = find_level(load_recipe("ic/reference", [setting]).model_dump(mode="json"), RULES["ic"])
    (change,) = judgement.changes
    assert (change.field, judgement.level, change.level) == (setting.partition("=")[0], level, level)
    assert change.section.startswith("V2.0 ")
    assert change.why


@pytest.mark.parametrize(
    ("benchmark", "table", "key", "value", "level"),
    [
        ("ewa", "programming", "synchronous", False, None),
        ("ic", "programming", "synchronous", False, None),
        ("ewa", "problem", "training_years", [1979, 1980], None),
        ("ic", "programming", "parallel_mode", "model", "hardware"),
    ],
)
def test_what_only_a_table_can_say_has_its_level_or_none(
    benchmark: str, table: str, key: str, value: Any, level: str | None
) -> None:
    assert find_level(changed({(table, key): value}, benchmark), RULES[benchmark]).level == level


def test_the_changes_that_force_a_level_are_those_that_no_lower_one_allows() -> None:
    tables = changed({("framework", "compile"): True, ("hyperparameters", "batch_size"): 256, ("os", "threads"): 2})
    judgement = find_level(tables, RULES["ic"])
    assert [change.field for change in judgement.changes] == [
        "hyperparameters.batch_size", "framework.compile", "os.threads",
    ]  # fmt: skip
    assert [change.field for change in judgement.forcing] == ["framework.compile"]
    assert [change.field for change in judgement.beyond("hardware")] == ["framework.compile"]
    assert judgement.beyond("system") == judgement.beyond("free") == ()


def test_an_older_recipe_lacks_what_joined_later_and_is_not_changed_by_that() -> None:
    tables = changed({})
    for field in ("hyperparameters.momentum_form", "communication.topology"):
        table, _, key = field.partition(".")
        del tables[table][key]
    judgement = find_level(tables, RULES["ic"])
    assert (judgement.level, judgement.changes) == ("hardware", ())
    assert judgement.absent == ("hyperparameters.momentum_form", "communication.topology")


@pytest.mark.parametrize("field", ["hyperparameters.momentum", "accelerator.loader", "problem.epochs"])
def test_a_field_that_every_recipe_states_cannot_be_left_out(field: str) -> None:
    tables = changed({})
    table, _, key = field.partition(".")
    del tables[table][key]
    judgement = find_level(tables, RULES["ic"])
    assert (judgement.level, [change.field for change in judgement.changes]) == (None, [field])
    assert judgement.changes[0].why == "the recipe does not state it"


def test_a_layer_cannot_be_left_out_or_be_no_table() -> None:
    tables = changed({})
    assert find_level(tables | {"workload": "resnet"}, RULES["ic"]).level is None
    del tables["workload"]
    assert find_level(tables, RULES["ic"]).level is None


@pytest.mark.parametrize(
    ("table", "level"), [("accelerator", "hardware"), ("framework", "system"), ("hyperparameters", "free"),
                         ("programming", "free"), ("problem", None)],
)  # fmt: skip
def test_a_field_of_a_newer_version_is_judged_as_its_layer_and_said(table: str, level: str | None) -> None:
    judgement = find_level(changed({(table, "of_tomorrow"): 1}), RULES["ic"])
    assert (judgement.level, judgement.changes[0].reference) == (level, None)
    assert judgement.changes[0].why == "the edition does not know this field: it has the level of its layer"


@pytest.mark.parametrize("layer", [{"members": 8}, 3, "hardware"])
def test_a_layer_of_a_newer_version_qualifies_for_nothing(layer: Any) -> None:
    judgement = find_level(changed({}) | {"ensemble": layer}, RULES["ic"])
    assert (judgement.level, judgement.changes[0].layer, judgement.changes[0].field) == (None, 0, "ensemble")


def test_the_edition_that_a_recipe_names_is_no_change() -> None:
    assert find_level(changed({}) | {"edition": "v3.0"}, RULES["ic"]).changes == ()


def fields(benchmark: str) -> st.SearchStrategy[dict[tuple[str, str], Any]]:
    return st.dictionaries(st.sampled_from(FIELDS[benchmark]), VALUES, max_size=6)


@given(fields("ic"), fields("ic"))
def test_a_level_never_falls_when_a_change_is_added(
    some: dict[tuple[str, str], Any], more: dict[tuple[str, str], Any]
) -> None:
    assert height(find_level(changed(some), RULES["ic"])) <= height(find_level(changed(more | some), RULES["ic"]))


@given(fields("ewa"), st.randoms())
def test_the_order_of_fields_and_layers_does_not_matter(changes: dict[tuple[str, str], Any], chance: Any) -> None:
    def shuffled(table: dict[str, Any]) -> dict[str, Any]:
        return dict(chance.sample(list(table.items()), len(table)))

    tables = changed(changes, "ewa")
    other = shuffled({key: shuffled(value) if isinstance(value, dict) else value for key, value in tables.items()})
    one, two = find_level(tables, RULES["ewa"]), find_level(other, RULES["ewa"])
    assert [repr(change) for change in one.changes] == [repr(change) for change in two.changes]
    assert (one.level, one.absent) == (two.level, two.absent)


@given(fields("ic"))
def test_the_level_is_the_highest_that_any_change_forces_alone(changes: dict[tuple[str, str], Any]) -> None:
    alone = [height(find_level(changed({field: value}), RULES["ic"])) for field, value in changes.items()]
    assert height(find_level(changed(changes), RULES["ic"])) == max(alone, default=0)


@given(fields("ic"))
def test_whoever_qualifies_for_a_level_qualifies_for_the_ones_above(changes: dict[tuple[str, str], Any]) -> None:
    judgement = find_level(changed(changes), RULES["ic"])
    assert [not judgement.beyond(level) for level in LEVELS] == [height(judgement) <= place for place in range(3)]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (8, 8.0, True),
        (True, 1, False),
        (False, 0.0, False),
        (0.1 + 0.2, 0.3, False),
        (float("nan"), float("nan"), False),
        ([0.05, 1.0], (0.05, 1), True),
        ([1, 2], [1, 2, 3], False),
        ([[1, True]], [[1, 1]], False),
        ({"a": [1]}, {"a": [1.0]}, True),
        ({"a": 1}, {"a": 1, "b": None}, False),
        ("1", 1, False),
        (None, 0, False),
    ],
)
def test_values_are_the_same_exactly_or_not_at_all(one: Any, other: Any, same: bool) -> None:
    assert same_value(one, other) is same_value(other, one) is same
