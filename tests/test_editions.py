"""Editions: what they hold, and that the reference which records are judged by does not shift under them."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from hpcai500 import recipe as rulebook_module
from hpcai500.errors import RecipeError
from hpcai500.layers import LAYER_NUMBERS, RECIPE_TYPES
from hpcai500.methodology.rules import judge
from hpcai500.recipe import (
    benchmark_rules,
    editions,
    ensemble_reference,
    load_edition,
    load_recipe,
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


@pytest.mark.parametrize("benchmark", RECIPE_TYPES)
def test_v3_reuses_the_benchmarks_of_v2(benchmark: str) -> None:
    newer, older = benchmark_rules("v3.0", benchmark), benchmark_rules("v2.0", benchmark)
    assert {key: value for key, value in newer.items() if key != "ensemble_sha256"} == older
    assert load_edition("v3.0")["name"] == "v3.0"


def test_v3_rules_of_an_ensemble_stand_beside_the_levels_of_v2() -> None:
    newer, older = load_edition("v3.0")["levels"], load_edition("v2.0")["levels"]
    for part in ("layers", "fields"):
        assert {key: value for key, value in newer[part].items() if key != "ensemble"} == older[part]


@pytest.mark.parametrize("benchmark", RECIPE_TYPES)
def test_one_model_alone_is_judged_by_v3_as_by_v2(benchmark: str) -> None:
    alone = load_recipe(f"{benchmark}/reference").model_dump(mode="json")
    assert judge(alone, rulebook("v3.0", benchmark)).level == "hardware"


@pytest.mark.parametrize("benchmark", RECIPE_TYPES)
def test_the_number_of_members_is_free_and_their_bootstrap_is_not(benchmark: str) -> None:
    rules = rulebook("v3.0", benchmark)
    many = load_recipe(f"{benchmark}/ensemble", ["ensemble.members=3"]).model_dump(mode="json")
    assert judge(many, rules).level == "hardware"
    same = load_recipe(f"{benchmark}/ensemble", ["ensemble.sampling=all"]).model_dump(mode="json")
    assert judge(same, rules).level is None


@pytest.mark.parametrize("benchmark", RECIPE_TYPES)
def test_the_table_of_an_ensemble_does_not_change_under_its_edition(benchmark: str) -> None:
    assert benchmark_rules("v3.0", benchmark)["ensemble_sha256"] == tables_hash(ensemble_reference(benchmark)), (
        f"recipes/{benchmark}/ensemble.toml is no longer the one of edition v3.0; {NEW_EDITION}"
    )


def test_v3_adds_the_ensemble_and_v2_has_none() -> None:
    assert load_edition("v3.0")["ensemble"]["sample_share"] == 0.632
    assert "ensemble" not in load_edition("v2.0")


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
