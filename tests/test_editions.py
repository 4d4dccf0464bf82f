"""Editions: what they hold, how their rules judge, and that what records are judged by does not shift."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpcai500 import recipe as rulebook_module
from hpcai500.errors import RecipeError
from hpcai500.layers import LAYER_NUMBERS, RECIPE_TYPES
from hpcai500.methodology.rules import find_level
from hpcai500.recipe import (
    benchmark_rules,
    editions,
    ensemble_reference,
    load_edition,
    load_recipe,
    reference_recipe,
    rulebook,
    tables_hash,
)

NEW_EDITION = "CONTRIBUTING.md, `A new edition`, says what to do"
PAIRS = [(edition, benchmark) for edition in editions() for benchmark in RECIPE_TYPES]
# Of the names of the fields that the first records had.
FOUNDING = {
    "ic": "e1d498f9d80d7b67",
    "ewa": "58579f8e6dc6805b",
}


def reference_fields(benchmark: str, edition: str = "v2.0") -> set[str]:
    reference = rulebook(edition, benchmark)["reference"]
    return {f"{table}.{key}" for table, keys in reference.items() if isinstance(keys, dict) for key in keys}


@pytest.mark.parametrize(("edition", "benchmark"), PAIRS)
def test_a_reference_recipe_does_not_change_under_its_edition(edition: str, benchmark: str) -> None:
    rules = benchmark_rules(edition, benchmark)
    found = tables_hash(load_recipe(rules["reference_recipe"]).model_dump(mode="json"))
    assert found == rules["reference_sha256"], (
        f"recipes/{rules['reference_recipe']}.toml is no longer the reference of edition {edition}; {NEW_EDITION}"
    )


@pytest.mark.parametrize("benchmark", RECIPE_TYPES)
def test_a_field_that_joins_a_reference_is_told_so_that_older_records_may_lack_it(benchmark: str) -> None:
    joined = set(benchmark_rules("v2.0", benchmark)["joined_fields"])
    assert joined <= reference_fields(benchmark)
    founding = sorted(reference_fields(benchmark) - joined)
    assert hashlib.sha256("\n".join(founding).encode()).hexdigest()[:16] == FOUNDING[benchmark], (
        f"name the fields that joined recipes/{benchmark}/reference.toml in joined_fields of v2.0.toml; {NEW_EDITION}"
    )


@pytest.mark.parametrize("edition", editions())
def test_every_rule_is_of_a_layer_or_a_field_that_there_is(edition: str) -> None:
    levels = load_edition(edition)["levels"]
    ensemble = {"ensemble": 6} if "ensemble" in load_edition(edition) else {}
    assert {table: row["layer"] for table, row in levels["layers"].items()} == LAYER_NUMBERS | ensemble
    known = set.union(*(reference_fields(benchmark, edition) for benchmark in RECIPE_TYPES))
    rows = {f"{table}.{key}": row for table, fields in levels["fields"].items() for key, row in fields.items()}
    assert rows.keys() <= known
    for row in (*rows.values(), *levels["layers"].values()):
        assert {row["level"], *row.get("values", {}).values()} <= {*levels["order"], "never"}
        assert row["section"].startswith(("V2.0 ", "V3.0 "))
        assert row["why"]


def test_the_rules_of_the_paper_by_hand() -> None:
    levels = load_edition("v2.0")["levels"]
    assert levels["order"] == ["hardware", "system", "free"]
    assert {row["layer"]: row["level"] for row in levels["layers"].values()} == {
        9: "never", 8: "free", 7: "free", 6: "free", 5: "system",
        4: "hardware", 3: "hardware", 2: "hardware", 1: "hardware",
    }  # fmt: skip


def test_v3_is_v2_and_the_rules_of_an_ensemble() -> None:
    newer, older = load_edition("v3.0"), load_edition("v2.0")
    assert (newer["name"], newer["ensemble"]["sample_share"], "ensemble" in older) == ("v3.0", 0.632, False)
    for part in ("layers", "fields"):
        own = {key: value for key, value in newer["levels"][part].items() if key != "ensemble"}
        assert own == older["levels"][part]
    for benchmark in RECIPE_TYPES:
        rules = benchmark_rules("v3.0", benchmark)
        own = {key: value for key, value in rules.items() if key != "ensemble_sha256"}
        assert own == benchmark_rules("v2.0", benchmark)


@pytest.mark.parametrize("benchmark", RECIPE_TYPES)
@pytest.mark.parametrize(
    ("name", "settings", "edition", "level"),
    [
        ("reference", [], "v3.0", "hardware"),
        ("ensemble", ["ensemble.members=3"], "v3.0", "hardware"),
        ("ensemble", ["ensemble.sampling=all"], "v3.0", None),
        ("tuned", ["framework.cuda_graphs=false", "framework.fused_optimizer=false"], "v2.0", "hardware"),
    ],
    ids=["one model", "the number of members is free", "and their bootstrap is not", "tuned, but for its framework"],
)
def test_the_level_of_a_recipe_is_that_of_what_it_changes(
    benchmark: str, name: str, settings: list[str], edition: str, level: str | None
) -> None:
    recipe = load_recipe(f"{benchmark}/{name}", settings).model_dump(mode="json")
    assert find_level(recipe, rulebook(edition, benchmark)).level == level


@pytest.mark.parametrize("benchmark", RECIPE_TYPES)
def test_the_table_of_an_ensemble_does_not_change_under_its_edition(benchmark: str) -> None:
    assert benchmark_rules("v3.0", benchmark)["ensemble_sha256"] == tables_hash(ensemble_reference(benchmark)), (
        f"recipes/{benchmark}/ensemble.toml is no longer the one of edition v3.0; {NEW_EDITION}"
    )


def test_a_benchmark_that_no_edition_knows_has_no_rules() -> None:
    assert rulebook("v2.0", "plug-in") == {}


def test_an_unknown_edition_is_told_with_those_that_exist() -> None:
    with pytest.raises(RecipeError, match=r"expected one of v2\.0, v3\.0, got 'v9'"):
        rulebook("v9", "ic")


def test_a_reference_that_was_changed_on_this_machine_judges_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = tmp_path / "reference.toml"
    changed.write_text('benchmark = "ic"\n[hyperparameters]\nmomentum = 0.9\n', encoding="utf-8")
    rules = benchmark_rules("v2.0", "ic") | {"reference_recipe": str(changed)}
    monkeypatch.setattr(rulebook_module, "benchmark_rules", lambda edition, benchmark: rules)
    found = rulebook("v2.0", "ic")
    assert "reference" not in found
    assert found["reference_error"].startswith(f"{changed}: not the reference of edition v2.0: its hash differs")


@pytest.mark.parametrize("benchmark", ["ic", "ewa"])
def test_a_tuned_recipe_is_of_the_level_system_and_can_be_ranked(benchmark: str) -> None:
    recipe = load_recipe(f"{benchmark}/tuned")
    judgement = find_level(recipe.model_dump(mode="json"), rulebook("v2.0", benchmark))
    assert judgement.level == "system"
    assert {change.field for change in judgement.forcing} == {"framework.cuda_graphs", "framework.fused_optimizer"}
    assert {change.layer for change in judgement.changes} <= {8, 5, 4}
    assert recipe.problem == reference_recipe(benchmark).problem
    assert recipe.workload == reference_recipe(benchmark).workload


TWO = ("hardware.accelerators_per_node=2", "communication.backend=torch")
FOUR = ("hardware.accelerators_per_node=4", "communication.backend=torch")
# (row, the paper's words) -> what a recipe says for it; None where nobody can ask for it here.
OFFERED: dict[tuple[str, str], tuple[str, ...] | None] = {
    ("learning_rate", "warm-up and linear scaling"): (
        "hyperparameters.warmup_epochs=2.0",
        "hyperparameters.learning_rate_scaling=linear",
    ),
    ("learning_rate", "LARS"): ("hyperparameters.optimizer=lars",),
    ("learning_rate", "LAMB"): ("hyperparameters.optimizer=lamb",),
    ("optimizer", "SGD with momentum"): ("hyperparameters.optimizer=sgd", "hyperparameters.momentum=0.9"),
    ("optimizer", "Adam"): ("hyperparameters.optimizer=adam",),
    ("optimizer", "AdaGrad"): ("hyperparameters.optimizer=adagrad",),
    # torch computes convolutional networks in FP16 as mixed precision: it keeps weights in FP32.
    ("training_precision", "FP16"): ("accelerator.precision=fp16",),
    ("training_precision", "mixed precision"): ("accelerator.precision=bf16",),
    ("training_precision", "INT8"): ("accelerator.precision=int8",),
    ("communication_precision", "FP32"): ("communication.compression=none",),
    ("communication_precision", "FP16"): (*TWO, "communication.compression=fp16"),
    ("communication_precision", "INT8"): (*TWO, "communication.compression=int8"),
    ("parallel_mode", "data"): ("programming.parallel_mode=data",),
    ("parallel_mode", "model"): (*TWO, "programming.parallel_mode=model", "programming.stages=2"),
    ("parallel_mode", "pipeline"): (
        *TWO,
        "programming.parallel_mode=pipeline",
        "programming.stages=2",
        "programming.micro_batches=2",
    ),
    ("parallel_mode", "mixed"): (*FOUR, "programming.parallel_mode=mixed", "programming.stages=2"),
    ("communication", "synchronous all-reduce"): (*TWO, "communication.topology=flat", "programming.synchronous=true"),
    ("communication", "2D torus"): (*FOUR, "communication.topology=torus", "communication.torus_columns=2"),
    ("communication", "hierarchical all-reduce"): (*FOUR, "communication.topology=hierarchical"),
    # hpcai500 is one implementation, in torch: another framework is another implementation (V2.0 level `free`).
    ("framework", "TensorFlow"): None,
    ("framework", "PyTorch"): ("framework.name=torch",),
    ("framework", "MindSpore"): None,
}


def printed() -> Iterator[tuple[str, str]]:
    for row, choices in load_edition("v3.0")["ensemble"]["configuration"].items():
        yield from ((row, words) for words in (choices["default"], *choices["alternatives"]))


def test_every_choice_of_the_paper_is_answered() -> None:
    assert list(OFFERED) == list(printed())


def stated(recipe: Any, setting: str) -> str:
    name, _, value = setting.partition("=")
    table, _, key = name.partition(".")
    found = getattr(getattr(recipe, table), key)
    return f"{name}={str(found).lower() if isinstance(found, bool) else found}" if value else ""


@pytest.mark.parametrize("benchmark", RECIPE_TYPES)
@pytest.mark.parametrize(("row", "words"), [choice for choice, settings in OFFERED.items() if settings])
def test_a_recipe_can_say_it(benchmark: str, row: str, words: str) -> None:
    settings = OFFERED[row, words]
    assert settings
    recipe = load_recipe(f"{benchmark}/reference", ["hyperparameters.batch_size=2", *settings])
    assert [stated(recipe, setting) for setting in settings] == list(settings)
    for setting in settings:
        table, _, key = setting.partition("=")[0].partition(".")
        assert key in rulebook("v3.0", benchmark)["reference"][table]


@pytest.mark.parametrize("framework", ["tensorflow", "mindspore"])
def test_another_framework_is_refused(framework: str) -> None:
    with pytest.raises(RecipeError, match=r"framework\.name"):
        load_recipe("ic/reference", [f"framework.name={framework}"])
