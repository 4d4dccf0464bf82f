"""Recipes: the reference is the authors', mistakes are named with file, line and fix, hashes ignore formatting."""

from __future__ import annotations

import codecs
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, ValidationError

from hpcai500.campaign.journal import read_campaign, read_heads
from hpcai500.errors import HpcAi500Error, RecipeError, UsageError
from hpcai500.launch.slurm.site import find_site, load_site
from hpcai500.layers import LAYER_NUMBERS, IcRecipe, Recipe
from hpcai500.machine import find_machine, load_machine
from hpcai500.recipe import (
    Difference,
    find_recipe,
    load_recipe,
    parse_resolved,
    recipe_hash,
    reference_recipe,
    table_differences,
    to_toml,
)
from hpcai500.record import parse_object, read_record
from hpcai500.results.acceptance.contract import find_contract, load_contract
from hpcai500.results.submission.signature import require_signers
from hpcai500.toml_source import MOST_BYTES, Source, explain, parse_toml, read_source


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
    assert 9 in {difference.layer for difference in from_reference(load_recipe("ic/smoke"))}


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
        ("[hardware]\nnodes = 2\naccelerators_per_node = 2\nranks = 4\n", "cannot have 4; set it to 0 where all have"),
        ("[hardware]\nnodes = 3\naccelerators_per_node = 3\nranks = 4\n", "cannot have 4"),
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


def test_a_mistake_in_set_is_blamed_on_set_and_not_on_the_file() -> None:
    assert complaint("ic/smoke", ["nonsense.x=1"]).startswith("--set nonsense.x: nonsense: unknown table")
    assert complaint("ic/smoke", ["accelerator.device=tpu"]).startswith("--set accelerator.device: ")


@pytest.mark.parametrize("text", ["epochs=2", "problem.epochs", ".x=1", "problem.=1"])
def test_a_set_that_is_no_assignment_shows_how(text: str) -> None:
    assert "expected table.key=value, for example --set problem.epochs=2" in complaint("ic/smoke", [text])


def test_an_unknown_recipe_lists_those_that_exist() -> None:
    assert "ic/reference, ic/smoke" in complaint("ic/smok")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b'benchmark = "nlp"\n', "benchmark: expected one of ic"),
        (b'benchmark = ["ic"]\n', "benchmark: expected one of ic"),
        (b'benchmark = "ic"\nedition = "v9"\n', "edition: expected one of v2.0"),
        (b"\xff\x00", "not a text file in UTF-8"),
    ],
)
def test_an_unknown_benchmark_or_edition_lists_those_that_exist(tmp_path: Path, content: bytes, expected: str) -> None:
    path = tmp_path / "head.toml"
    path.write_bytes(content)
    assert expected in complaint(path)


def test_a_recipe_of_an_ensemble_begins_with_the_table_that_comes_with_the_benchmark() -> None:
    recipe = load_recipe("ic/smoke", ["ensemble.members=4"], edition="v3.0")
    assert recipe.ensemble is not None
    assert (recipe.ensemble.members, recipe.ensemble.sampling, recipe.ensemble.vote) == (4, "bootstrap", "mean")
    assert parse_resolved(to_toml(recipe), "recipe.toml") == recipe

    assert "ensemble" not in to_toml(load_recipe("ic/smoke"))


@pytest.mark.parametrize(
    ("name", "settings", "edition", "expected"),
    [
        (
            "ic/smoke",
            ["ensemble.sampling=poisson", "ensemble.strata=class"],
            "v3.0",
            "ensemble.strata: Poisson draws have no strata",
        ),
        ("ic/smoke", ["ensemble.members=4"], None, 'edition v2.0 has no ensembles; use edition = "v3.0"'),
        ("ic/smoke", ["ensemble.vote=nms"], "v3.0", "ensemble.vote: expected mean"),
        ("ewa/smoke", ["ensemble.vote=mean"], "v3.0", "ensemble.vote: expected weighted-boxes"),
    ],
)
def test_an_ensemble_that_cannot_be_is_told_with_what_can(
    name: str, settings: list[str], edition: str | None, expected: str
) -> None:
    assert expected in complaint(name, settings, edition)


CUDA, CPU = ("accelerator.device=cuda",), ("accelerator.device=cpu",)
GRAPHS, FUSED = "framework.cuda_graphs=true", "framework.fused_optimizer=true"
TWO_STAGES = (
    "programming.parallel_mode=model", "programming.stages=2", "hardware.accelerators_per_node=2",
    "communication.backend=torch",
)  # fmt: skip
REFUSED = [
    ("ic", (*CPU, "accelerator.precision=tf32"), "accelerator.precision: tf32 exists on CUDA devices only; use fp32"),
    ("ewa", ("accelerator.loader=dali",), "accelerator.loader: expected native or memory for this benchmark, got dali"),
    ("ic", (*CPU, "accelerator.conversion=device"), "accelerator.conversion: `device` is for CUDA devices, but"),
    ("ic", (*CPU, GRAPHS), "framework.cuda_graphs: needs a CUDA device, but accelerator.device is cpu; set it to"),
    (
        "ic",
        (*CUDA, GRAPHS, *TWO_STAGES),
        "framework.cuda_graphs: stages of one model wait for each other within a step",
    ),
    (
        "ic",
        (*CUDA, GRAPHS, "workload.norm=sync-batch"),
        "framework.cuda_graphs: synchronised batch norm waits for other",
    ),
    ("ewa", (*CUDA, GRAPHS, "workload.norm=sync-batch"), "set it to false, or workload.norm to another norm"),
    (
        "ic",
        (FUSED, "hyperparameters.optimizer=lars"),
        "torch has no fused kernel for lars, only for sgd, adam, adagrad",
    ),
    ("ic", (FUSED, "hyperparameters.optimizer=lamb"), "no fused kernel for lamb"),
    ("ic", (FUSED, "hyperparameters.optimizer=rmsprop-warmup"), "no fused kernel for rmsprop-warmup"),
    ("ic", (FUSED, "hyperparameters.momentum_form=inside"), "false, or hyperparameters.momentum_form to outside"),
    ("ic", (FUSED, "hyperparameters.momentum_form=corrected"), "fused sgd has the learning rate outside the momentum"),
]
ALLOWED = [
    ("ic", (*CUDA, "accelerator.precision=tf32")),
    ("ic", (*CUDA, "accelerator.loader=dali")),
    ("ic", (*CPU, "accelerator.loader=dali")),
    ("ic", (*CUDA, "accelerator.conversion=device")),
    ("ewa", (*CUDA, "accelerator.conversion=device")),
    ("ic", (*CUDA, GRAPHS)),
    ("ic", (*CUDA, GRAPHS, FUSED, "framework.compile=true", "accelerator.precision=fp16")),
    ("ic", (*CUDA, GRAPHS, "hyperparameters.accumulation_steps=4", "workload.norm_statistics=last-batch")),
    ("ewa", (*CUDA, GRAPHS, FUSED, "accelerator.precision=bf16")),
    ("ic", (*CUDA, GRAPHS, "hardware.accelerators_per_node=8", "communication.backend=torch")),
    ("ic", (*CPU, FUSED)),
    ("ic", (FUSED, "hyperparameters.optimizer=adam", "hyperparameters.momentum_form=inside")),
    ("ic", (FUSED, "hyperparameters.optimizer=adagrad")),
    ("ic", (FUSED, *TWO_STAGES)),
]


@pytest.mark.parametrize(("benchmark", "settings", "words"), REFUSED)
def test_what_does_not_work_together_is_refused_with_the_fix(
    benchmark: str, settings: tuple[str, ...], words: str
) -> None:
    assert words in complaint(f"{benchmark}/reference", settings)


@pytest.mark.parametrize(("benchmark", "settings"), ALLOWED)
def test_what_works_together_is_a_recipe(benchmark: str, settings: tuple[str, ...]) -> None:
    recipe = load_recipe(f"{benchmark}/reference", settings)
    assert recipe.framework.cuda_graphs == (GRAPHS in settings)


@pytest.mark.parametrize("read", [load_recipe, load_site, load_contract, read_campaign, read_record])
def test_a_key_of_thousands_of_parts_is_refused_by_file_and_line(tmp_path: Path, read: Callable[[Path], Any]) -> None:
    file = tmp_path / "recipe.toml"
    file.write_text("# a comment\n" + ".".join("a" * 8000) + " = 1\n")
    for name in ("campaign.jsonl", "events.jsonl"):
        (tmp_path / name).write_text("")
    with pytest.raises(HpcAi500Error, match=r"recipe\.toml:2: 7999 dots in a line, at most 200") as caught:
        read(tmp_path if read in (read_campaign, read_record) else file)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"a = 1 # " + b"x" * MOST_BYTES, "larger than 262144 bytes"),
        (b"a = " + b"[" * 100_000, "TOML nested too deeply"),
        (b"a = " + b"1" * 10_000, "not valid TOML"),
        (b"a = \xff", r"not valid TOML: not a text file in UTF-8 \(invalid start byte at byte 4\)"),
        (b"a = \nb = 1", "not valid TOML: .*line 1"),
    ],
)
def test_what_cannot_be_read_is_one_line(content: bytes, said: str) -> None:
    with pytest.raises(RecipeError, match=f"^file.toml: {said}") as caught:
        parse_toml(content, "file.toml", RecipeError)
    assert "\n" not in str(caught.value)


def test_of_a_large_file_no_more_is_read(tmp_path: Path) -> None:
    file = tmp_path / "large.toml"
    with file.open("wb") as stream:
        stream.truncate(2**40)
    with pytest.raises(RecipeError, match="larger than 262144 bytes"):
        read_source(file, RecipeError)


def test_a_line_is_found_by_table_key_and_number() -> None:
    text = """\
  [table]
  key = 1
"quoted name".inner = 2
[[ points ]]
x = 1
[[points]]
x = 2
"""
    source = Source("file", text)
    assert source.line_of(("table", "key")) == 2
    assert source.line_of(("table", "quoted name", "inner")) == 3
    assert source.line_of(("points", 1, "x")) == 7
    assert source.line_of(("none",)) is None


def test_blanks_without_end_take_no_time() -> None:
    blanks = " " * 200_000
    assert Source("file", f'[{blanks}\na{blanks}b\n"{blanks}').line_of(("a",)) is None


class _Point(BaseModel):
    model_config = ConfigDict(extra="forbid")
    nodes: int
    rate: float


class _Points(BaseModel):
    points: list[_Point]


def test_tables_of_an_array_are_told_by_number_and_a_misspelt_key_once() -> None:
    tables = {"points": [{"nodes": 1, "rate": 2.0}, {"nodse": 2, "rate": 2.0}, {"nodes": 4}, 5]}
    source = Source("file.toml", "[[points]]\nnodes = 1\nrate = 2.0\n[[points]]\nnodse = 2\nrate = 2.0\n[[points]]\n")
    with pytest.raises(ValidationError) as caught:
        _Points.model_validate(tables)
    assert explain(_Points, source, caught.value, tables, named_by="nodse") == [
        "file.toml:5: [[points]] 2.nodse: unknown key; did you mean nodes? allowed: nodes, rate",
        "file.toml:7: [[points]] 3.rate: is missing",
        "file.toml: [[points]] 4: expected a table, got 5",
    ]


# --- files that a Windows editor saved


def saved_on_windows(path: Path, text: str) -> Path:
    path.write_bytes(codecs.BOM_UTF8 + text.replace("\n", "\r\n").encode())
    return path


def test_files_that_a_windows_editor_saved_are_read(tmp_path: Path) -> None:
    smoke = find_recipe("ic/smoke").read_text()
    assert load_recipe(saved_on_windows(tmp_path / "r.toml", smoke)) == load_recipe("ic/smoke")
    assert load_site(str(saved_on_windows(tmp_path / "s.toml", find_site("local").read_text()))) == load_site("local")
    machine = saved_on_windows(tmp_path / "m.toml", find_machine("v100-64").read_text())
    assert load_machine(machine).model_dump() == load_machine("v100-64").model_dump()
    assert load_contract(saved_on_windows(tmp_path / "c.toml", find_contract(Path("smoke")).read_text())).spec
    assert parse_object(saved_on_windows(tmp_path / "m.json", '{"a": 1}\n').read_bytes(), Path("m.json")) == {"a": 1}
    head = f"HPCAI500 HEAD {'a' * 64} 1 {'b' * 64} 2026-11-23T10:00:00Z\n"
    assert len(read_heads(saved_on_windows(tmp_path / "heads", head))) == 1


def test_a_file_in_utf_16_and_signers_with_a_mark_are_told(tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text(find_recipe("ic/smoke").read_text(), encoding="utf-16")
    with pytest.raises(RecipeError, match=r"r.toml: a text file in UTF-16: save it in UTF-8"):
        load_recipe(tmp_path / "r.toml")
    with pytest.raises(UsageError, match="begins with a byte-order mark, so OpenSSH misreads its first line"):
        require_signers(saved_on_windows(tmp_path / "signers", "me ssh-ed25519 AAAA\n"))
