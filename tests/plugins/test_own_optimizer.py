"""A workload's own update rule: as in a plain loop of torch, on one rank or two, in stages, and after a restart."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from builders.plugins import Clipped
from builders.runs import last_weights, same_weights
from torch import Tensor, nn

from hpcai500.engine.precision import Precision
from hpcai500.engine.updates import optimizer_of
from hpcai500.errors import EnvironmentLacksError, RecipeError
from hpcai500.layers import Recipe
from hpcai500.optim.schedules import LearningRate
from hpcai500.plugins import function_of
from hpcai500.recipe import load_recipe
from hpcai500.workloads.base import Place

CPU = torch.device("cpu")
HALVES = "hyperparameters.batch_size=4"
STEPS = 50


def loaded(*settings: str) -> Recipe:
    return load_recipe("clipped/reference", settings)


def built(recipe: Recipe, shares: int = 1) -> Any:
    """The workload of one rank that does all `shares` of an update, with the weights that a run begins with."""
    folder = Path("data")
    function_of("clipped", "make_data")(folder)
    torch.manual_seed(recipe.hyperparameters.seed)
    place = Place(CPU, torch.float32, 1, total_shares=shares, shares=tuple(range(shares)))
    return function_of("clipped", "workload")(recipe, folder, place)


def plain_loop(shares: int) -> dict[str, Tensor]:
    """The weights after all updates in torch's own words: mean of the shares' gradients, clipped, AdamW."""
    recipe = loaded(*([HALVES] if shares == 2 else []))
    policy, workload = recipe.hyperparameters, built(recipe, shares)
    model = workload.model
    rate = LearningRate(policy, 8, workload.steps_per_epoch, recipe.problem.epochs)
    betas = (policy.beta1, policy.beta2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0, betas=betas, eps=policy.epsilon, weight_decay=0.1)
    done = clipped = 0
    for epoch in range(1, recipe.problem.epochs + 1):
        batches = workload.training_batches(epoch, 0)
        for _ in range(workload.steps_per_epoch):
            optimizer.zero_grad()
            for _ in range(shares):
                (workload.loss(model, next(batches).payload) / shares).backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), policy.gradient_norm)
            optimizer.param_groups[0]["lr"] = rate.at(done)
            optimizer.step()
            done, clipped = done + 1, clipped + int(norm > policy.gradient_norm)
    assert done == STEPS
    assert clipped > STEPS / 4  # or the test would say nothing of clipping
    found: dict[str, Tensor] = model.state_dict()
    return found


@pytest.fixture
def in_folder(here: Clipped, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Clipped:
    monkeypatch.chdir(tmp_path)
    return here


@pytest.fixture(scope="module")
def alone(clipped: Clipped) -> Path:
    return clipped.trained("alone")


def assert_close(record: Path, expected: dict[str, Tensor]) -> None:
    found = last_weights(record)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-6)


def test_one_rank_trains_exactly_the_weights_of_a_plain_loop(in_folder: Clipped, alone: Path) -> None:
    expected, found = plain_loop(1), last_weights(alone)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], value) for name, value in expected.items())


@pytest.mark.parametrize(
    "settings",
    [
        (HALVES,),
        ("programming.parallel_mode=pipeline", "programming.stages=2", "programming.micro_batches=2"),
        ("framework.fused_optimizer=true", HALVES),
    ],
    ids=["data", "pipeline", "fused"],
)
def test_two_ranks_train_the_weights_of_a_plain_loop(
    in_folder: Clipped, settings: tuple[str, ...], request: pytest.FixtureRequest
) -> None:
    record = in_folder.trained(f"two-{request.node.callspec.id}", *settings, procs=2)
    assert_close(record, plain_loop(2 if HALVES in settings else 1))


def test_accumulated_gradients_are_clipped_once_as_a_whole(in_folder: Clipped) -> None:
    record = in_folder.trained("accumulated", HALVES, "hyperparameters.accumulation_steps=2")
    assert_close(record, plain_loop(2))


@pytest.mark.parametrize("procs", [1, 2])
def test_a_stopped_run_goes_on_bit_for_bit(clipped: Clipped, alone: Path, procs: int) -> None:
    whole = alone if procs == 1 else clipped.trained("whole-two", HALVES, procs=2)
    name = f"stopped-{procs}"
    half = ("--set", HALVES) if procs == 2 else ()
    words = ("clipped", "--out", name, "--procs", str(procs), *half)
    ended = clipped.run(*words, environment={"CLIPPED_STOP": "3:4"})
    assert "stopped by SIGINT at epoch 3" in ended.stderr
    ended = clipped.run("clipped", "--resume", "--out", name, "--procs", str(procs))
    assert ended.returncode == 0, ended.stderr
    assert same_weights(clipped.work / name, whole)


@pytest.mark.parametrize("fused", ["true", "false"])
def test_with_fp16_the_rule_gets_gradients_without_the_scale_and_skips_overflows(
    in_folder: Clipped, fused: str
) -> None:
    recipe = loaded(f"framework.fused_optimizer={fused}")
    workload = built(recipe)
    model, precision = workload.model, Precision("fp16", CPU)
    optimizer = optimizer_of(recipe, workload, model)
    seen: list[float] = []
    optimizer.register_step_pre_hook(lambda *_: seen.append(float(model[3].weight.grad.norm())))
    for scale in (1.0, float("inf")):
        before = [parameter.detach().clone() for parameter in model.parameters()]
        optimizer.zero_grad()
        samples, labels = workload.blank_payload()
        loss = nn.functional.cross_entropy(model(samples.float()), labels)
        gradient = torch.autograd.grad(loss, model[3].weight, retain_graph=True)[0].norm()
        precision.backward(loss * scale)
        for group in optimizer.param_groups:
            group["lr"] = 0.1
        precision.step(optimizer, unscaled=True)
        moved = any(not torch.equal(one, two) for one, two in zip(before, model.parameters(), strict=True))
        assert moved == (scale == 1.0)
        if moved:
            assert seen[0] == pytest.approx(float(gradient), rel=1e-3)


def test_the_plug_ins_layer_8_narrows_the_rule_and_adds_fields(here: Clipped) -> None:
    recipe = loaded()
    assert (recipe.hyperparameters.optimizer, recipe.hyperparameters.gradient_norm) == ("adamw", 0.05)
    assert recipe.model_dump()["hyperparameters"]["gradient_norm"] == 0.05
    with pytest.raises(RecipeError, match=r"hyperparameters\.optimizer: expected 'adamw', got 'sgd'|optimizer"):
        loaded("hyperparameters.optimizer=sgd")
    with pytest.raises(RecipeError, match="gradient_norm"):
        loaded("hyperparameters.gradient_norm=0")


def no_optimizer(workload: Any) -> object:
    return SimpleNamespace(model=workload.model)


def without_the_last(workload: Any) -> object:
    some = list(workload.model.parameters())[:-1]
    return SimpleNamespace(optimizer=lambda model: torch.optim.SGD(some, lr=0.0))


def of_another_model(workload: Any) -> object:
    other = [*workload.model.parameters(), nn.Parameter(torch.zeros(1))]
    return SimpleNamespace(optimizer=lambda model: torch.optim.SGD(other, lr=0.0))


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (no_optimizer, r"its workload has no optimizer\(model\), and hpcai500 no update rule adamw"),
        (without_the_last, r"its workload's optimizer\(model\) lacks the parameter 3\.bias"),
        (of_another_model, r"its workload's optimizer\(model\) has parameters that the model does not train"),
    ],
)
def test_a_wrong_rule_is_told_with_the_package(in_folder: Clipped, broken: Callable[[Any], object], said: str) -> None:
    recipe = loaded()
    workload = built(recipe)
    with pytest.raises(EnvironmentLacksError, match=rf"clipped: the plug-in hpcai500-clipped 1\.0 .*{said}"):
        optimizer_of(recipe, broken(workload), workload.model)


def test_commands_that_read_recipes_know_a_rule_that_hpcai500_does_not_have(clipped: Clipped, alone: Path) -> None:
    for words in (
        ("score", alone),
        ("report", alone, "-o", "page.html"),
        ("export", "--mllog", alone),
        ("flops", "clipped"),
        ("profile", "clipped", "--steps", "3"),
        ("scale", "clipped", "--predict", "4", "--machine", "v100-64"),
        ("slurm", "render", "clipped", "--nodes", "2", "--site", "local"),
    ):
        ended = clipped.run(*words)
        assert ended.returncode == 0, (words, ended.stderr)
