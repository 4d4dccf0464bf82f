"""Options of an accelerator that do not work together are refused with the fix; those that do are not."""

from __future__ import annotations

import pytest

from hpcai500.errors import RecipeError
from hpcai500.recipe import load_recipe

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
    ("ic", (*CPU, GRAPHS), "framework.cuda_graphs: CUDA devices have them, but accelerator.device is cpu; set it to"),
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
        "torch has no single kernel for lars, only for sgd, adam, adagrad",
    ),
    ("ic", (FUSED, "hyperparameters.optimizer=lamb"), "no single kernel for lamb"),
    ("ic", (FUSED, "hyperparameters.optimizer=rmsprop-warmup"), "no single kernel for rmsprop-warmup"),
    ("ic", (FUSED, "hyperparameters.momentum_form=inside"), "false, or hyperparameters.momentum_form to outside"),
    ("ic", (FUSED, "hyperparameters.momentum_form=corrected"), "multiplies the rate outside of the momentum"),
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
    with pytest.raises(RecipeError) as caught:
        load_recipe(f"{benchmark}/reference", settings)
    assert words in str(caught.value)


@pytest.mark.parametrize(("benchmark", "settings"), ALLOWED)
def test_what_works_together_is_a_recipe(benchmark: str, settings: tuple[str, ...]) -> None:
    recipe = load_recipe(f"{benchmark}/reference", settings)
    assert recipe.framework.cuda_graphs == (GRAPHS in settings)
