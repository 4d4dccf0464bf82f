"""Table 2 of V3.0: each choice that the paper prints is a value of a recipe, or is said not to be offered."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from hpcai500.errors import RecipeError
from hpcai500.layers import RECIPE_TYPES
from hpcai500.recipe import load_edition, load_recipe, rulebook

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
