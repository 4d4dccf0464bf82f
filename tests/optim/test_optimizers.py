"""Every update rule of the recipe: what it is built of, that it learns, and that it is its equation.

`framework.fused_optimizer` is the same rule in one kernel, which a CPU has too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor, nn, optim
from torch.nn import functional as F

from hpcai500 import _core
from hpcai500.engine.precision import Precision
from hpcai500.errors import EnvironmentLacksError
from hpcai500.layers import Hyperparameters
from hpcai500.optim.optimizers import (
    LAMB,
    LARS,
    InsideSGD,
    RMSpropWarmup,
    advance,
    build_optimizer,
    layer_norms,
    sgd_share,
)
from hpcai500.recipe import reference_recipe

# Rates at which a small network learns.
RULES: dict[str, tuple[dict[str, Any], type[optim.Optimizer], float]] = {
    "sgd": ({"optimizer": "sgd"}, optim.SGD, 0.1),
    "sgd-weights": ({"optimizer": "sgd", "weight_decay": 0.01, "weight_decay_on": "weights"}, optim.SGD, 0.1),
    "inside": ({"optimizer": "sgd", "momentum_form": "inside"}, InsideSGD, 0.1),
    "corrected": ({"optimizer": "sgd", "momentum_form": "corrected"}, InsideSGD, 0.1),
    "lars": ({"optimizer": "lars", "trust_coefficient": 0.1, "momentum_form": "corrected"}, LARS, 0.5),
    "lamb": ({"optimizer": "lamb"}, LAMB, 0.03),
    "adam": ({"optimizer": "adam"}, optim.Adam, 0.01),
    "adagrad": ({"optimizer": "adagrad"}, optim.Adagrad, 0.05),
    "rmsprop-warmup": ({"optimizer": "rmsprop-warmup", "rmsprop_learning_rate": 0.005}, RMSpropWarmup, 0.1),
}
FUSED = ("sgd", "sgd-weights", "adam", "adagrad")
EACH_FUSED = pytest.mark.parametrize("rule", FUSED)
CPU = torch.device("cpu")


def policy(**changes: Any) -> Hyperparameters:
    return reference_recipe("ic").hyperparameters.model_copy(update=changes)


def network(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 2))


def built(rule: str, model: nn.Module, *, fused: bool = False) -> optim.Optimizer:
    """The optimizer of a rule, at its rate."""
    changes, _, rate = RULES[rule]
    optimizer = build_optimizer(model, policy(**changes), fused=fused)
    for group in optimizer.param_groups:
        group["lr"] = rate
    return optimizer


def train(model: nn.Module, optimizer: optim.Optimizer, steps: range, rate: float) -> list[float]:
    """Losses of telling bright images from dark ones; the rate changes from step to step, as the engine's does."""
    losses = []
    for step in steps:
        random = torch.Generator().manual_seed(step)
        labels = torch.randint(0, 2, (16,), generator=random)
        images = torch.randn(16, 1, 8, 8, generator=random) + labels.float()[:, None, None, None]
        for group in optimizer.param_groups:
            group["lr"] = rate * (1 + 0.5 * (step % 3))
        advance(optimizer, step / 2)
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(model(images.to(next(model.parameters()).dtype)), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def distance(one: nn.Module, other: nn.Module) -> float:
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return max((left - right).abs().max().item() for left, right in pairs)


@pytest.mark.parametrize("rule", RULES)
def test_each_rule_of_the_recipe_is_built_and_learns(rule: str) -> None:
    _, kind, rate = RULES[rule]
    model = network()
    optimizer = built(rule, model)
    assert type(optimizer) is kind
    losses = train(model, optimizer, range(40), rate)
    assert max(losses[-5:]) < 0.5 * losses[0]


@pytest.mark.parametrize(("rule", "fused"), [*((rule, False) for rule in RULES), *((rule, True) for rule in FUSED)])
def test_each_rule_goes_on_from_a_checkpoint_as_if_nothing_had_been(tmp_path: Path, rule: str, fused: bool) -> None:
    rate = RULES[rule][2]
    whole, halved, resumed = network(), network(), network(seed=1)
    train(whole, built(rule, whole, fused=fused), range(8), rate)
    first_half = built(rule, halved, fused=fused)
    train(halved, first_half, range(4), rate)
    torch.save({"model": halved.state_dict(), "optimizer": first_half.state_dict()}, tmp_path / "checkpoint.pt")
    state = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    resumed.load_state_dict(state["model"])
    optimizer = built(rule, resumed, fused=fused)
    optimizer.load_state_dict(state["optimizer"])
    train(resumed, optimizer, range(4, 8), rate)
    assert distance(resumed, whole) == 0


@pytest.mark.parametrize("weight_decay_on", ["all", "weights"])
@pytest.mark.parametrize("optimizer", ["lars", "lamb"])
def test_layerwise_rules_skip_what_has_one_dimension(optimizer: str, weight_decay_on: str) -> None:
    changes = {"optimizer": optimizer, "weight_decay_on": weight_decay_on}
    adapted, skipped = build_optimizer(network(), policy(**changes)).param_groups
    assert {parameter.ndim for parameter in adapted["params"]} == {2, 4}
    assert {parameter.ndim for parameter in skipped["params"]} == {1}
    assert (adapted["adapted"], adapted["weight_decay"]) == (True, 1 / 32768)
    assert (skipped["adapted"], skipped["weight_decay"]) == (False, 0.0)


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adagrad", "rmsprop-warmup"])
def test_the_other_rules_decay_what_the_recipe_says(optimizer: str) -> None:
    model = network()
    (everything,) = build_optimizer(model, policy(optimizer=optimizer)).param_groups
    assert everything["weight_decay"] == 1 / 32768
    assert len(everything["params"]) == len(list(model.parameters()))
    decayed, spared = build_optimizer(model, policy(optimizer=optimizer, weight_decay_on="weights")).param_groups
    assert (decayed["weight_decay"], spared["weight_decay"]) == (1 / 32768, 0.0)
    assert {parameter.ndim for parameter in decayed["params"]} == {2, 4}
    assert {parameter.ndim for parameter in spared["params"]} == {1}


def test_frozen_parameters_are_left_out() -> None:
    model = network()
    model[0].weight.requires_grad_(False)
    (group,) = build_optimizer(model, policy()).param_groups
    assert all(parameter is not model[0].weight for parameter in group["params"])


@pytest.mark.parametrize(
    ("changes", "arrived"),
    [
        (
            {"optimizer": "lars", "momentum_form": "inside"},
            {"momentum": 0.8, "trust_coefficient": 0.02, "epsilon": 1e-3, "momentum_form": "inside"},
        ),
        ({"optimizer": "lamb"}, {"betas": (0.7, 0.6), "epsilon": 1e-3}),
        ({"optimizer": "adam"}, {"betas": (0.7, 0.6), "eps": 1e-3}),
        ({"optimizer": "adagrad"}, {"eps": 1e-3}),
        (
            {"optimizer": "rmsprop-warmup"},
            {"momentum": 0.8, "beta2": 0.6, "epsilon": 1e-3, "rmsprop_lr": 0.04, "center": 3.0, "period": 2.0},
        ),
    ],
    ids=lambda value: value.get("optimizer", ""),
)
def test_the_recipes_numbers_arrive(changes: dict[str, Any], arrived: dict[str, Any]) -> None:
    numbers = {"momentum": 0.8, "beta1": 0.7, "beta2": 0.6, "epsilon": 1e-3, "trust_coefficient": 0.02}
    warmup = {"rmsprop_learning_rate": 0.04, "rmsprop_center_epoch": 3.0, "rmsprop_period_epochs": 2.0}
    group = build_optimizer(network(), policy(**numbers, **warmup, **changes)).param_groups[0]
    assert {name: group[name] for name in arrived} == arrived


# ----------------------------------------------------------------------------------------------------
# In one kernel.


@EACH_FUSED
def test_weights_are_those_of_the_rule_in_many_kernels_within_rounding(rule: str) -> None:
    # In float64: rules that divide by a gradient's size make whole steps of one that is only rounding.
    plain, fused, rate = network().double(), network().double(), RULES[rule][2]
    train(plain, built(rule, plain), range(8), rate)
    optimizer = built(rule, fused, fused=True)
    assert all(group["fused"] for group in optimizer.param_groups)
    train(fused, optimizer, range(8), rate)
    assert distance(plain, network().double()) > 0.01
    assert distance(plain, fused) < 1e-9


@pytest.fixture
def poisoned_memory() -> Iterator[None]:
    """New memory that nobody has filled holds NaN, instead of what chance left there."""
    before = torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    try:
        yield
    finally:
        torch.utils.deterministic.fill_uninitialized_memory = before
        torch.use_deterministic_algorithms(False)


ON_A_GPU = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


@EACH_FUSED
@pytest.mark.parametrize("fused", [True, False], ids=["fused", "many kernels"])
@pytest.mark.parametrize("overflowing", [0, 1])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=ON_A_GPU)])
@pytest.mark.usefixtures("poisoned_memory")
def test_with_fp16_a_step_is_unscaled_and_one_that_overflows_is_left_out(
    device: str, overflowing: int, fused: bool, rule: str
) -> None:
    """Also where it is the very first one; the twin in many kernels has only the other steps."""
    assert torch.empty(1).isnan()
    model, twin, precision = network().to(device), network().to(device), Precision("fp16", torch.device(device))
    try:
        optimizer, reference = built(rule, model, fused=fused), built(rule, twin)
    except EnvironmentLacksError:
        assert (device, rule) == ("cuda", "adagrad"), "torch's fused Adagrad is for processors alone, and no other rule"
        return
    scales = []
    for step in range(4):
        scale = precision.scaled(torch.ones((), device=device)).item()
        scales.append(scale)
        for one, factor in ((model, scale), (twin, 1.0)):
            for weight in one.parameters():
                weight.grad = torch.full_like(weight, factor * (0.25 + 0.125 * step))
        if step == overflowing:
            model[0].weight.grad = torch.full_like(model[0].weight, float("inf"))
        else:
            reference.step()
        before = [weight.detach().clone() for weight in model.parameters()]
        precision.step(optimizer)
        unchanged = all(torch.equal(one, other) for one, other in zip(before, model.parameters(), strict=True))
        assert unchanged == (step == overflowing)
        assert distance(model, twin) < 1e-5
    assert scales == [65536.0 if step <= overflowing else 32768.0 for step in range(4)]


def test_velocities_that_begin_with_zeros_change_no_bit_of_torchs_own_steps() -> None:
    ours, torchs = (network().to(memory_format=torch.channels_last) for _ in range(2))  # type: ignore[call-overload]
    optimizer, rule = built("sgd", ours, fused=True), policy()
    options = {"momentum": rule.momentum, "weight_decay": rule.weight_decay, "fused": True}
    reference = torch.optim.SGD(torchs.parameters(), **options)
    train(ours, optimizer, range(5), 0.1)
    train(torchs, reference, range(5), 0.1)
    assert distance(ours, torchs) == 0
    for one, other in zip(ours.parameters(), torchs.parameters(), strict=True):
        mine, theirs = optimizer.state[one]["momentum_buffer"], reference.state[other]["momentum_buffer"]
        assert torch.equal(mine, theirs)
        assert mine.stride() == one.stride()


def test_a_checkpoint_without_velocities_is_gone_on_from_at_rest() -> None:
    """Of before the first step, or where some parameters had no gradient yet."""
    fresh, resumed = network(), network()
    train(fresh, built("sgd", fresh, fused=True), range(3), 0.1)
    optimizer = built("sgd", resumed, fused=True)
    state = built("sgd", network(), fused=True).state_dict()
    assert state["state"] == {}
    optimizer.load_state_dict(state)
    train(resumed, optimizer, range(3), 0.1)
    assert distance(fresh, resumed) == 0


def test_a_parameter_without_a_gradient_has_no_velocity() -> None:
    """As those of other stages: the checkpoint of a model in stages is put together of what each stage has."""
    model = network()
    optimizer = built("sgd", model, fused=True)
    model[0].weight.grad = torch.ones_like(model[0].weight)
    optimizer.step()
    assert list(optimizer.state) == [model[0].weight]
    train(model, optimizer, range(1), 0.1)
    assert len(optimizer.state) == len(list(model.parameters()))


def test_a_device_without_such_a_kernel_is_told_before_training_with_the_line_to_type() -> None:
    with torch.device("meta"):
        model = nn.Linear(2, 2)
    with pytest.raises(EnvironmentLacksError, match=r"no fused kernel of sgd for meta .*fused_optimizer=false"):
        build_optimizer(model, policy(), fused=True)


# --- Equations: against float64 twins, one layer at a time, and what each promises.


Array = NDArray[np.float64]
FORMS = ("outside", "inside", "corrected")
RATES = [0.0, 2.0, 10.0, 10.0, 5.0]
SGD: dict[str, Any] = {"lr": 0.0, "momentum": 0.9, "weight_decay": 1e-2}
LARS_OPTIONS: dict[str, Any] = {"lr": 0.0, "momentum": 0.9, "weight_decay": 2e-4, "trust_coefficient": 0.001}
LAMB_OPTIONS: dict[str, Any] = {"lr": 0.0, "betas": (0.9, 0.99), "weight_decay": 0.1, "epsilon": 1e-6}
WARMUP: dict[str, Any] = {
    "lr": 0.0, "rmsprop_lr": 3e-4, "momentum": 0.9, "beta2": 0.99, "weight_decay": 1e-2, "epsilon": 1e-8,
    "center": 10.0, "period": 5.0,
}  # fmt: skip
LAYERWISE = pytest.mark.parametrize("make", [partial(LARS, **LARS_OPTIONS), partial(LAMB, **LAMB_OPTIONS)])


def momentum_twin(
    w: Array, gradients: Sequence[Array], rates: Sequence[float], *, decay: float, form: str,
    trust: float | None = None, epsilon: float = 0.0,
) -> Array:  # fmt: skip
    """Goyal et al. 2017: equation 9 (outside), equation 10 (inside), remark 2 (corrected), with a momentum of 0.9.

    With `trust`, You, Gitman and Ginsburg 2017, algorithm 1, with MLPerf's epsilon and a ratio of 1 where a norm is 0.
    """
    v, previous = np.zeros_like(w), 0.0
    for g, rate in zip(gradients, rates, strict=True):
        of_w, of_g, update = np.linalg.norm(w), np.linalg.norm(g), g + decay * w
        if trust is not None and of_w > 0 and of_g > 0:
            update = trust * of_w / (of_g + decay * of_w + epsilon) * update
        if form == "outside":
            v = 0.9 * v + update
            w = w - rate * v
        else:
            correction = rate / previous if form == "corrected" and previous > 0 else 1.0
            v = 0.9 * correction * v + rate * update
            w = w - v
        previous = rate
    return w


def lamb_twin(w: Array, gradients: Sequence[Array], rates: Sequence[float], *, adapted: bool) -> Array:
    """You et al. 2019, algorithm 2, with the identity as its function of the weights' norm, and LAMB_OPTIONS."""
    m, v = np.zeros_like(w), np.zeros_like(w)
    for t, (g, rate) in enumerate(zip(gradients, rates, strict=True), 1):
        m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g**2
        r = m / (1 - 0.9**t) / (np.sqrt(v / (1 - 0.99**t)) + 1e-6)
        u = r + 0.1 * w if adapted else r
        of_w, of_u = np.linalg.norm(w), np.linalg.norm(u)
        w = w - rate * (of_w / of_u if adapted and of_w > 0 and of_u > 0 else 1.0) * u
    return w


def warmup_twin(w: Array, gradients: Sequence[Array], rates: Sequence[float], epochs: Sequence[float]) -> Array:
    """Akiba, Suzuki and Fukuda 2017; the line that follows the center with half of the slope that they print."""
    m, delta = np.zeros_like(w), np.zeros_like(w)
    for gradient, rate, epoch in zip(gradients, rates, epochs, strict=True):
        g = gradient + 1e-2 * w
        m = 0.99 * m + 0.01 * g**2
        share = 0.5 * math.exp(2 * (epoch - 10) / 5) if epoch < 10 else min(1.0, 0.5 + (epoch - 10) / 5)
        delta = 0.9 * delta - (share + (1 - share) * 3e-4 / rate / (np.sqrt(m) + 1e-8)) * g
        w = w + rate * delta
    return w


def after(
    make: Callable[[list[dict[str, Any]]], optim.Optimizer],
    start: Array,
    gradients: Sequence[Array],
    rates: Sequence[float],
    *,
    epochs: Sequence[float] = (),
    device: str = "cpu",
    **group: Any,
) -> Tensor:
    """Where the optimizer under test takes float32 weights from `start`, given gradients and rates step by step."""
    weight = nn.Parameter(torch.tensor(start, dtype=torch.float32, device=device))
    optimizer = make([{"params": [weight], **group}])
    for step, (gradient, rate) in enumerate(zip(gradients, rates, strict=True)):
        for one in optimizer.param_groups:
            one["lr"] = rate
        if epochs:
            advance(optimizer, epochs[step])
        weight.grad = torch.tensor(gradient, dtype=torch.float32, device=device)
        optimizer.step()
    return weight.detach().cpu()


def numbers(count: int) -> list[Array]:
    """Weights and gradients of a small layer."""
    return list(np.random.default_rng(0).standard_normal((count, 5, 3, 2)))


def assert_near(got: Tensor, expected: Array | Tensor, rtol: float = 1e-5, atol: float = 1e-6) -> None:
    torch.testing.assert_close(got, torch.as_tensor(expected).float(), rtol=rtol, atol=atol)


# ----------------------------------------------------------------------------------------------------
# Momentum.


@pytest.mark.parametrize("form", FORMS)
def test_each_form_of_momentum_is_its_equation(form: str) -> None:
    rates = [0.1, 0.2, 0.4, 0.05, 0.05]
    start, *gradients = numbers(6)
    got = after(partial(InsideSGD, **SGD, form=form), start, gradients, rates)
    assert_near(got, momentum_twin(start, gradients, rates, decay=1e-2, form=form))


@given(st.lists(st.floats(1e-3, 1.0), min_size=2, max_size=8), st.floats(0, 0.99))
def test_the_correction_makes_inside_equal_to_torchs_sgd(rates: list[float], momentum: float) -> None:
    start, *gradients = numbers(len(rates) + 1)
    ours, torchs = (
        after(partial(make, **{**SGD, "momentum": momentum}, **form), start, gradients, rates)
        for make, form in ((InsideSGD, {"form": "corrected"}), (optim.SGD, {}))
    )
    assert_near(ours, torchs, rtol=1e-4, atol=1e-4)


def test_without_correction_only_a_changing_rate_makes_a_difference() -> None:
    start, *gradients = numbers(6)
    inside, torchs = partial(InsideSGD, **SGD, form="inside"), partial(optim.SGD, **SGD)
    assert_near(after(inside, start, gradients, [0.1] * 5), after(torchs, start, gradients, [0.1] * 5))
    changing = [0.1, 0.5, 0.5]
    ours, theirs = (after(make, start, gradients[:3], changing) for make in (inside, torchs))
    assert not torch.allclose(ours, theirs, rtol=1e-2, atol=1e-2)


def test_a_warm_up_from_zero_leaves_nothing_to_correct() -> None:
    # At rate 0 nothing enters a velocity that contains the rate: what follows is as if that step had not been.
    start, first, *gradients = numbers(5)
    make = partial(InsideSGD, lr=0.0, momentum=0.9, form="corrected")
    with_zero = after(make, start, [first, *gradients], [0.0, 0.1, 0.2, 0.3])
    assert torch.equal(with_zero, after(make, start, gradients, [0.1, 0.2, 0.3]))


def test_a_weight_without_a_gradient_stays() -> None:
    used, unused = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    optimizer = InsideSGD([{"params": [used, unused]}], lr=0.1, momentum=0.9, weight_decay=0.1)
    used.grad = torch.ones(2)
    optimizer.step()
    assert torch.equal(unused, torch.ones(2))
    assert not torch.equal(used, torch.ones(2))


# ----------------------------------------------------------------------------------------------------
# LARS and LAMB: steps as large as the layer allows.


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("epsilon", [0.0, 0.5])
def test_lars_is_its_equation(form: str, epsilon: float) -> None:
    start, *gradients = numbers(len(RATES) + 1)
    expected = momentum_twin(start, gradients, RATES, decay=2e-4, form=form, trust=0.001, epsilon=epsilon)
    assert_near(after(partial(LARS, **LARS_OPTIONS, form=form, epsilon=epsilon), start, gradients, RATES), expected)
    assert not np.allclose(expected, start, rtol=1e-3)


@pytest.mark.parametrize("form", ["outside", "inside"])
def test_lars_without_adaptation_is_momentum_without_decay(form: str) -> None:
    start, *gradients = numbers(len(RATES) + 1)
    expected = momentum_twin(start, gradients, RATES, decay=0.0, form=form)
    got = after(partial(LARS, **LARS_OPTIONS, form=form), start, gradients, RATES, adapted=False)
    assert_near(got, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("adapted", [True, False])
def test_lamb_is_algorithm_2_and_without_adaptation_adam(adapted: bool) -> None:
    rates = [0.0, 0.01, 0.02, 0.02]
    start, *gradients = numbers(5)
    expected = lamb_twin(start, gradients, rates, adapted=adapted)
    got = after(partial(LAMB, **LAMB_OPTIONS), start, gradients, rates, adapted=adapted)
    assert_near(got, expected)
    assert not np.allclose(expected, start, rtol=1e-3)
    if not adapted:
        adam = partial(optim.Adam, lr=0.0, betas=(0.9, 0.99), eps=1e-6)
        assert_near(got, after(adam, start, gradients, rates))


@pytest.mark.parametrize(
    ("make", "rate", "smallest"),
    [
        (partial(LARS, **{**LARS_OPTIONS, "weight_decay": 0.0}), 10.0, -6),
        (partial(LAMB, **{**LAMB_OPTIONS, "weight_decay": 0.0, "epsilon": 0.0}), 0.01, -3),
    ],
    ids=["lars", "lamb"],
)
@given(of_weights=st.floats(-6, 6), share=st.floats(0, 1))
def test_the_share_of_the_weights_that_changes_depends_on_no_scale(
    make: Any, rate: float, smallest: float, of_weights: float, share: float
) -> None:
    of_gradients = smallest + share * (6 - smallest)
    start, *gradients = numbers(4)
    plain = after(make, start, gradients, [rate] * 3)
    scaled = after(make, start * 10**of_weights, [one * 10**of_gradients for one in gradients], [rate] * 3)
    assert_near((scaled.double() / 10**of_weights).float(), plain)


def test_one_step_of_lars_changes_each_layer_by_rate_times_trust_coefficient() -> None:
    layers = [nn.Parameter(torch.randn(4, 4) * scale) for scale in (1e-3, 1.0, 1e3)]
    before = [layer.detach().clone() for layer in layers]
    optimizer = LARS([{"params": layers}], lr=10.0, momentum=0.9, trust_coefficient=0.001)
    for layer in layers:
        layer.grad = torch.randn_like(layer)
    optimizer.step()
    for layer, old in zip(layers, before, strict=True):
        assert ((layer - old).norm() / old.norm()).item() == pytest.approx(0.01, rel=1e-4)


@LAYERWISE
def test_weights_of_zero_move_as_without_adaptation(make: Any) -> None:
    # Decay adds nothing to weights of 0, so that the step alone is compared.
    gradients = numbers(1)
    start = np.zeros_like(gradients[0])
    got = after(make, start, gradients, [0.1])
    assert torch.equal(got, after(make, start, gradients, [0.1], adapted=False))
    assert got.abs().min() > 0


def test_a_gradient_of_zero_leaves_lars_the_plain_decay() -> None:
    start = numbers(1)[0]
    got = after(partial(LARS, **LARS_OPTIONS), start, [np.zeros_like(start)], [1.0])
    assert_near(got, start * (1 - 2e-4), rtol=1e-6, atol=1e-8)


def test_norms_neither_overflow_nor_vanish() -> None:
    # Squares of either leave float32: 1e-60 is below its range, 1e60 above it.
    norms = layer_norms([torch.full((4,), 1e-30), torch.full((9,), 1e30), torch.zeros(3)])
    assert norms.dtype == torch.float64
    assert norms.tolist() == pytest.approx([2e-30, 3e30, 0.0], rel=1e-6)


@LAYERWISE
def test_gradients_are_left_as_they_were(make: Any) -> None:
    weight = nn.Parameter(torch.randn(3, 3))
    weight.grad = torch.ones(3, 3)
    optimizer = make([{"params": [weight]}])
    optimizer.param_groups[0]["lr"] = 1.0
    optimizer.step()
    assert torch.equal(weight.grad, torch.ones(3, 3))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.skipif(not _core.cuda_architectures(), reason="no CUDA device can be used by a build without CUDA")
@LAYERWISE
def test_a_gpu_takes_the_steps_of_the_cpu(make: Any) -> None:
    start, *gradients = numbers(4)
    on_cpu, on_gpu = (after(make, start, gradients, [0.1] * 3, device=device) for device in ("cpu", "cuda"))
    assert_near(on_gpu, on_cpu)


# ----------------------------------------------------------------------------------------------------
# RMSprop warm-up, and the transition that gives it its name.


def warmed(start: Array, gradients: list[Array], rates: list[float], epochs: list[float]) -> Tensor:
    return after(partial(RMSpropWarmup, **WARMUP), start, gradients, rates, epochs=epochs)


def test_rmsprop_warmup_is_its_equations_before_in_and_after_the_transition() -> None:
    epochs = [0.0, 5.0, 9.9, 10.0, 11.3, 12.4, 12.5, 30.0]
    rates = [0.1, 0.1, 0.2, 0.2, 0.1, 0.1, 0.05, 0.01]
    start, *gradients = numbers(9)
    assert_near(warmed(start, gradients, rates, epochs), warmup_twin(start, gradients, rates, epochs))


def test_after_the_transition_it_is_torchs_sgd() -> None:
    start, *gradients = numbers(4)
    expected = after(partial(optim.SGD, **SGD), start, gradients, [0.1] * 3)
    assert_near(warmed(start, gradients, [0.1] * 3, [12.5, 13.0, 90.0]), expected, rtol=1e-6, atol=1e-7)


def test_the_learning_rate_does_not_matter_long_before_the_transition() -> None:
    start, *gradients = numbers(4)
    epochs = [-1000.0] * 3
    slow, fast = (warmed(start, gradients, [rate] * 3, epochs) for rate in (0.1, 10.0))
    assert_near(slow, fast, rtol=1e-6)
    # The first step of RMSprop with a zero moment is its rate over sqrt(1 - beta2), along the sign of the gradient.
    first = warmed(start, gradients[:1], [0.1], epochs[:1]) - torch.tensor(start).float()
    assert first.abs().flatten().tolist() == pytest.approx([3e-4 / 0.01**0.5] * 30, rel=1e-2)


def test_at_rate_zero_nothing_moves() -> None:
    start, *gradients = numbers(2)
    assert torch.equal(warmed(start, gradients, [0.0], [0.0]), torch.tensor(start).float())


@given(st.floats(0, 100), st.floats(0.1, 50))
def test_the_share_of_sgd_is_continuous_and_smooth_at_the_center_and_reaches_one_at_its_end(
    center: float, period: float
) -> None:
    near, end = 1e-6 * period, center + period / 2
    below, at, above = (sgd_share(center + offset, center, period) for offset in (-near, 0.0, near))
    assert at == 0.5
    assert (below, above) == (pytest.approx(0.5, abs=1e-5), pytest.approx(0.5, abs=1e-5))
    assert (at - below) / near * period == pytest.approx(1.0, rel=1e-3)
    assert (above - at) / near * period == pytest.approx(1.0, rel=1e-3)
    assert sgd_share(end - near, center, period) == pytest.approx(1.0, abs=1e-5)
    assert sgd_share(end + near, center, period) == 1.0


@given(st.floats(0, 100), st.floats(0, 100), st.floats(0, 50), st.floats(0.1, 50))
def test_the_share_of_sgd_only_grows(one: float, other: float, center: float, period: float) -> None:
    early, late = sorted((one, other))
    assert 0 <= sgd_share(early, center, period) <= sgd_share(late, center, period) <= 1
