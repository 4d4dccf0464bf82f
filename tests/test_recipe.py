"""Recipes: the reference is complete and the authors', mistakes are named with their line, hashes ignore formatting."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcai500.errors import RecipeError
from hpcai500.layers import LAYER_NUMBERS, IcRecipe, Recipe
from hpcai500.recipe import (
    Difference,
    load_recipe,
    parse_resolved,
    recipe_hash,
    reference_recipe,
    table_differences,
    to_toml,
)


def write(folder: Path, text: str) -> Path:
    path = folder / "mine.toml"
    path.write_text(f'benchmark = "ic"\n{text}')
    return path


def complaint(*arguments: object) -> str:
    with pytest.raises(RecipeError) as caught:
        load_recipe(*arguments)  # type: ignore[arg-type]
    return str(caught.value)


def from_reference(recipe: Recipe) -> list[Difference]:
    return table_differences(recipe.model_dump(mode="json"), reference_recipe("ic").model_dump(mode="json"))


def test_the_reference_is_the_authors() -> None:
    recipe = reference_recipe("ic")
    policy = recipe.hyperparameters
    assert (recipe.problem.target_quality, recipe.problem.epochs) == (0.763, 90)
    assert (policy.base_learning_rate, policy.base_batch, policy.learning_rate_scaling) == (0.256, 256, "linear")
    assert (policy.warmup_epochs, policy.warmup_start, policy.schedule) == (8, 0, "cosine")
    assert (policy.momentum, policy.weight_decay, policy.weight_decay_on) == (0.875, 1 / 32768, "all")


def test_the_tables_of_a_recipe_are_the_nine_layers() -> None:
    # The table of an ensemble says how often there is what the nine layers describe.
    tables = [name for name in IcRecipe.model_fields if name not in ("benchmark", "edition", "ensemble")]
    assert sorted(tables) == sorted(LAYER_NUMBERS)
    assert sorted(LAYER_NUMBERS.values()) == list(range(1, 10))


def test_a_recipe_is_a_difference_from_the_reference(tmp_path: Path) -> None:
    recipe = load_recipe(write(tmp_path, "[hyperparameters]\nbatch_size = 256\n"))
    (difference,) = from_reference(recipe)
    assert (difference.layer, difference.field, difference.value) == (8, "hyperparameters.batch_size", 256)


def test_the_smoke_recipe_differs_in_layer_nine() -> None:
    layers = {difference.layer for difference in from_reference(load_recipe("ic/smoke"))}
    assert 9 in layers


def test_resolved_toml_round_trips_with_nothing_implicit() -> None:
    recipe = load_recipe("ic/smoke", ["problem.epochs=3"])
    text = to_toml(recipe)
    assert parse_resolved(text, "recipe.toml") == recipe
    assert all(key in text for table in LAYER_NUMBERS for key in getattr(recipe, table).model_dump())


def test_the_hash_ignores_formatting_and_sees_values(tmp_path: Path) -> None:
    one = load_recipe(write(tmp_path, "[problem]\nepochs=90 # same\n"))
    assert recipe_hash(one) == recipe_hash(reference_recipe("ic"))
    assert recipe_hash(load_recipe("ic/reference", ["problem.epochs=91"])) != recipe_hash(one)


def test_an_unknown_key_is_named_with_file_line_and_the_likely_one(tmp_path: Path) -> None:
    path = write(tmp_path, "[hyperparameters]\nmomentum = 0.9\nbatch_sise = 3\n")
    message = complaint(path)
    assert message.startswith(f"{path}:4: [hyperparameters] batch_sise: unknown key; did you mean batch_size? allowed:")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('[problem]\nepochs = "3"\n', ":3: [problem] epochs: expected a valid integer, got '3'"),
        ("[problem]\nepochs = 0\n", ":3: [problem] epochs: expected greater than or equal to 1, got 0"),
        ("[hyperparameters]\nmomentum = 2\n", ":3: [hyperparameters] momentum: expected less than 1, got 2"),
        ("[hyperparameters]\nmomentum = nan\n", ":3: [hyperparameters] momentum:"),
        ('[accelerator]\ndevice = "tpu"\n', ":3: [accelerator] device: expected 'cpu' or 'cuda', got 'tpu'"),
        ("[workload]\ncrop_area = [1, 0.5]\n", "crop_area: expected [low, high] with low <= high"),
        ("[workload]\nevaluation_resize = 100\n", "evaluation_resize: expected at least image_size (224), got 100"),
        ("[hyperparameters]\nwarmup_epochs = 91\n", "warmup_epochs: expected at most problem.epochs (90), got 91"),
        ("[hardware]\nnodes = 2\n", "communication.backend: `local` is one process, but hardware asks for 2"),
        ('[accelerator]\ndevice = "cpu"\nprecision = "tf32"\n', "tf32 exists on CUDA devices only"),
        ("[programming]\nsynchronous = false\n", ":3: [programming] synchronous: expected True, got False"),
        ("[nonsense]\nx = 1\n", ":2: nonsense: unknown table or key; allowed: benchmark, edition, problem"),
        ("[problem\n", "not valid TOML"),
        ("problem = 3\n", ":2: problem: expected a table, got 3"),
        ("problem.epochs = 0\n", ":2: [problem] epochs: expected greater than or equal to 1"),
        ("[ 'problem' ]\nepochs = 0\n", ":3: [problem] epochs: expected greater than or equal to 1"),
        ("problem = {epochs = 0}\n", ":2: [problem] epochs: expected greater than or equal to 1"),
        ("[problem]\nepochs = 1000000000000\n", ":3: [problem] epochs: expected less than or equal to 1000000000"),
        ('[problem]\ndataset = "a\\nHPCAI500 RESULT PASS"\n', ":3: [problem] dataset: string should match pattern"),
        ("[hyperparameters]\nend_learning_rate = 1.0\n", "end_learning_rate: expected at most the peak rate (0.128)"),
    ],
)
def test_a_mistake_is_named_with_its_place(tmp_path: Path, text: str, expected: str) -> None:
    assert expected in complaint(write(tmp_path, text))


def test_every_mistake_gets_its_own_line(tmp_path: Path) -> None:
    with pytest.raises(RecipeError) as caught:
        load_recipe(write(tmp_path, "[problem]\nepochs = 0\nfoo = 1\n"))
    assert [line.split(": ")[1] for line in caught.value.lines] == ["[problem] epochs", "[problem] foo"]


def test_set_changes_one_field_and_needs_no_quotes() -> None:
    assert load_recipe("ic/reference", ["accelerator.device=cpu"]).accelerator.device == "cpu"
    assert load_recipe("ic/reference", ["workload.crop_area=[0.5, 1.0]"]).workload.crop_area == (0.5, 1.0)


def test_a_benchmark_that_is_no_name_is_refused(tmp_path: Path) -> None:
    assert "benchmark: expected one of ic" in complaint(_with_head(tmp_path, 'benchmark = ["ic"]'))


def test_an_unknown_table_in_set_is_blamed_on_set() -> None:
    assert complaint("ic/smoke", ["nonsense.x=1"]).startswith("--set nonsense.x: nonsense: unknown table")


def test_a_mistake_in_set_is_blamed_on_set_and_not_on_the_file() -> None:
    assert complaint("ic/smoke", ["accelerator.device=tpu"]).startswith("--set accelerator.device: ")


@pytest.mark.parametrize("text", ["epochs=2", "problem.epochs", ".x=1", "problem.=1"])
def test_a_set_that_is_no_assignment_shows_how(text: str) -> None:
    assert "expected table.key=value, for example --set problem.epochs=2" in complaint("ic/smoke", [text])


def test_an_unknown_recipe_lists_those_that_exist() -> None:
    assert "ic/reference, ic/smoke" in complaint("ic/smok")


def test_an_unknown_benchmark_or_edition_lists_those_that_exist(tmp_path: Path) -> None:
    assert "benchmark: expected one of ic" in complaint(_with_head(tmp_path, 'benchmark = "nlp"'))
    assert "edition: expected one of v2.0" in complaint(_with_head(tmp_path, 'benchmark = "ic"\nedition = "v9"'))


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "binary.toml"
    path.write_bytes(b"\xff\xfe\x00")
    assert "not a text file in UTF-8" in complaint(path)


def _with_head(folder: Path, head: str) -> Path:
    path = folder / "head.toml"
    path.write_text(head + "\n")
    return path


def test_a_recipe_of_an_ensemble_begins_with_the_table_that_comes_with_the_benchmark() -> None:
    recipe = load_recipe("ic/smoke", ["ensemble.members=4"], edition="v3.0")
    assert recipe.ensemble is not None
    assert (recipe.ensemble.members, recipe.ensemble.sampling, recipe.ensemble.vote) == (4, "bootstrap", "mean")
    assert parse_resolved(to_toml(recipe), "recipe.toml") == recipe


def test_poisson_counts_keep_no_shares_and_a_recipe_that_wants_both_is_refused() -> None:
    both = ["ensemble.sampling=poisson", "ensemble.strata=class"]
    with pytest.raises(RecipeError, match=r"ensemble\.strata: Poisson counts keep the shares of nothing"):
        load_recipe("ic/smoke", both, edition="v3.0")


def test_a_recipe_of_one_model_says_nothing_of_ensembles() -> None:
    assert "ensemble" not in to_toml(load_recipe("ic/smoke"))


def test_an_edition_without_ensembles_refuses_one_and_names_the_edition_that_has_them() -> None:
    with pytest.raises(RecipeError, match=r'edition v2\.0 knows no ensembles: edition = "v3\.0" does'):
        load_recipe("ic/smoke", ["ensemble.members=4"])


@pytest.mark.parametrize(("benchmark", "vote", "others"), [("ic", "nms", "mean"), ("ewa", "mean", "weighted-boxes")])
def test_a_vote_that_the_benchmark_does_not_have_is_told_with_those_that_it_has(
    benchmark: str, vote: str, others: str
) -> None:
    with pytest.raises(RecipeError, match=f"ensemble.vote: expected {others}"):
        load_recipe(f"{benchmark}/smoke", [f"ensemble.vote={vote}"], edition="v3.0")
