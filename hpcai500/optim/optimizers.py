"""Optimizers: the update rules of recipes, from torch or implemented here (LARS, LAMB, RMSprop warm-up).

The rules here work on all tensors of a parameter group at once (`torch._foreach_*`), and keep everything that a resumed
run needs in `state` and `param_groups`, which are in checkpoints.

Parameters may be DTensors. The rules here update this rank's shards, and add up norms over all shards; torch's rules
need a parameter group for each device mesh, because they update a group's tensors together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, assert_never

import torch
import torch.distributed as dist
from torch import Tensor, nn, optim

from hpcai500.comm import kernels
from hpcai500.errors import EnvironmentLacksError
from hpcai500.layers import Hyperparameters

# ----------------------------------------------------------------------------------------------------
# Momentum, with the learning rate outside the velocity or inside it (Goyal et al. 2017, section 3).


Form = Literal["outside", "inside", "corrected"]


def descend(
    optimizer: optim.Optimizer,
    group: dict[str, Any],
    weights: list[Tensor],
    gradients: list[Tensor],
    *,
    decay: float = 0.0,
    ratios: list[Tensor] | None = None,
) -> None:
    """Move `weights` in place by one step of momentum.

    With u = ratio (gradient + decay weight), m `group["momentum"]` and r `group["lr"]`, velocity v and weight w become

    - outside: v = m v + u, w = w - r v (equation 9; torch's SGD);
    - inside: v = m v + r u, w = w - v (equation 10);
    - corrected: v = m (r / r of the previous step) v + r u, w = w - v (remark 2): the steps of `outside`.

    The velocity is kept in `optimizer.state`, the rate of the previous step in `group["previous_lr"]`, so both are in
    checkpoints. `ratios` are tensors without dimensions, one for each weight; 1 by default.
    """
    velocities = shards([_velocity(optimizer, weight) for weight in weights])
    weights = shards(weights)
    rate, outside = group["lr"], group["momentum_form"] == "outside"
    torch._foreach_mul_(velocities, group["momentum"] * _correction(group))
    for tensors, share in ((gradients, 1.0), (weights, decay)):
        factor = share if outside else share * rate
        if ratios is not None and share:
            torch._foreach_addcmul_(velocities, tensors, ratios, value=factor)
        elif share:
            torch._foreach_add_(velocities, tensors, alpha=factor)
    torch._foreach_add_(weights, velocities, alpha=-rate if outside else -1.0)
    group["previous_lr"] = rate


def _correction(group: dict[str, Any]) -> float:
    """The factor that corrects a velocity that contains the rate after a change of the rate.

    It is 1 after a step at rate 0, with which a warm-up may start: the velocity is then 0.
    """
    previous = group["previous_lr"]
    return float(group["lr"] / previous) if group["momentum_form"] == "corrected" and previous else 1.0


def _velocity(optimizer: optim.Optimizer, weight: Tensor) -> Tensor:
    state = optimizer.state[weight]
    if "velocity" not in state:
        state["velocity"] = torch.zeros_like(weight, memory_format=torch.preserve_format)
    velocity: Tensor = state["velocity"]
    return velocity


def shards(tensors: Iterable[Tensor]) -> list[Tensor]:
    """This rank's shard of each DTensor, in the same memory; other tensors as they are."""
    return [tensor.to_local() if hasattr(tensor, "to_local") else tensor for tensor in tensors]


def _gradient_shards(weights: Iterable[Tensor]) -> list[Tensor]:
    """This rank's shards of the gradients, laid out over the ranks as their weights."""
    gradients: list[Any] = []
    for weight in weights:
        gradient: Any = weight.grad
        placements = getattr(weight, "placements", None)
        if placements is not None and gradient.placements != placements:
            gradient = gradient.redistribute(weight.device_mesh, placements)  # type: ignore[attr-defined]
        gradients.append(gradient)
    return shards(gradients)


class GroupOptimizer(optim.Optimizer):
    """A rule that updates all weights of a parameter group with a gradient at once.

    `_move` gets parameters, which may be DTensors, and this rank's shards of their gradients.
    """

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """Update the parameters that have a gradient.

        Raises:
            EnvironmentLacksError: the rule needs norms of weights on a CUDA device, but the build has no CUDA.
        """
        for group in self.param_groups:
            weights = [weight for weight in group["params"] if weight.grad is not None]
            if weights:
                self._move(group, weights, _gradient_shards(weights))

    def _move(self, group: dict[str, Any], weights: list[Tensor], gradients: list[Tensor]) -> None:
        raise NotImplementedError


# ----------------------------------------------------------------------------------------------------
# SGD and LARS.


class InsideSGD(GroupOptimizer):
    """SGD with momentum whose velocity contains the learning rate; torch's SGD has it outside.

    `lr` is set before each step. `weight_decay` is an L2 penalty, added to the gradient.
    """

    def __init__(
        self, groups: Iterable[Any], *, lr: float, momentum: float, weight_decay: float = 0.0, form: Form = "inside"
    ) -> None:
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "momentum_form": form}
        super().__init__(groups, {**defaults, "previous_lr": 0.0})

    def _move(self, group: dict[str, Any], weights: list[Tensor], gradients: list[Tensor]) -> None:
        descend(self, group, weights, gradients, decay=group["weight_decay"])


def layer_norms(tensors: Sequence[Tensor]) -> Tensor:
    """L2 norms of n float32 tensors: (n,) float64, summed in float64 on their device.

    Raises:
        EnvironmentLacksError: tensors on a CUDA device, but a build without CUDA.
    """
    norms = torch.empty(len(tensors), dtype=torch.float64, device=tensors[0].device)
    kernels.layer_norms(tensors, norms)
    return norms


def whole_norms(weights: Sequence[Tensor], updates: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """L2 norms of n weights, and of updates of this rank's shards of them, each (n,) float64; over all shards.

    Raises:
        EnvironmentLacksError: as `layer_norms`.
    """
    count = len(weights)
    norms = layer_norms([*shards(weights), *updates])
    for dimension in range(max(len(getattr(weight, "placements", ())) for weight in weights)):
        for mesh, places in _by_mesh(weights, dimension):
            both = torch.tensor([*places, *(place + count for place in places)], device=norms.device)
            squares = norms[both].square()
            dist.all_reduce(squares, group=mesh.get_group(dimension))
            norms[both] = squares.sqrt()
    return norms[:count], norms[count:]


def _is_sharded(weight: Tensor) -> bool:
    return hasattr(weight, "device_mesh")


def _by_mesh(weights: Sequence[Tensor], dimension: int) -> Iterable[tuple[Any, list[int]]]:
    """Device meshes with a `dimension` over which weights are sharded, and the places of those weights."""
    found: dict[Any, list[int]] = {}
    for place, weight in enumerate(weights):
        placements = getattr(weight, "placements", ())
        if dimension < len(placements) and not placements[dimension].is_replicate():
            found.setdefault(weight.device_mesh, []).append(place)  # type: ignore[attr-defined]
    return found.items()


def ratios_of(numerators: Tensor, denominators: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Quotient of each pair, a tensor without dimensions of the type of `like`; 1 where either is 0.

    They stay on the device, so that the host does not wait for it.
    """
    valid = (numerators > 0) & (denominators > 0)
    return list(torch.where(valid, numerators / denominators, 1.0).to(like[0].dtype).unbind())


class LARS(GroupOptimizer):
    """Layer-wise adaptive rate scaling (You, Gitman and Ginsburg 2017), as in MLPerf's reference.

    SGD with momentum whose update of a layer is scaled to the size of the layer's weights.
    With g the gradient, d the weight decay and c the trust coefficient, the update that enters the velocity is

        c |w| / (|g| + d |w| + epsilon) (g + d w)

    and g + d w where |w| or |g| is 0. A group with `adapted` false uses g alone: neither adaptation nor decay.

    `lr` is set before each step.

    Args:
        trust_coefficient: c above; 0.001 in the paper.
        epsilon: prevents huge steps of layers with tiny gradients; 0 in MLPerf's reference.
        form: position of the learning rate, as in `descend`; inside in MLPerf's reference.
    """

    def __init__(
        self,
        groups: Iterable[Any],
        *,
        lr: float,
        momentum: float,
        weight_decay: float = 0.0,
        trust_coefficient: float = 0.001,
        epsilon: float = 0.0,
        form: Form = "inside",
    ) -> None:
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "momentum_form": form,
            "previous_lr": 0.0,
            "weight_decay": weight_decay,
            "trust_coefficient": trust_coefficient,
            "epsilon": epsilon,
            "adapted": True,
        }
        super().__init__(groups, defaults)

    def _move(self, group: dict[str, Any], weights: list[Tensor], gradients: list[Tensor]) -> None:
        if group["adapted"]:
            ratios = _trust_ratios(group, weights, gradients)
            descend(self, group, weights, gradients, decay=group["weight_decay"], ratios=ratios)
        else:
            descend(self, group, weights, gradients)


def _trust_ratios(group: dict[str, Any], weights: list[Tensor], gradients: list[Tensor]) -> list[Tensor]:
    of_weights, of_gradients = whole_norms(weights, gradients)
    sizes = of_gradients + group["weight_decay"] * of_weights + group["epsilon"]
    # Where the gradient is 0, the ratio is 1 regardless of decay and epsilon.
    return ratios_of(group["trust_coefficient"] * of_weights, torch.where(of_gradients > 0, sizes, 0.0), weights)


# ----------------------------------------------------------------------------------------------------
# LAMB.


class LAMB(GroupOptimizer):
    """Layer-wise adaptive moments for batch training (You et al. 2019, algorithm 2).

    Adam whose step of a layer is scaled to the size of the layer's weights.
    With m and v the bias-corrected moments of the gradient, d the weight decay and r the rate,

        u = m / (sqrt(v) + epsilon) + d w,    w = w - r |w| / |u| u

    and w - r u where |w| or |u| is 0. A group with `adapted` false uses u without decay, and the ratio 1.

    `lr` is set before each step. `weight_decay` is added to the step, not to the gradient.
    """

    def __init__(
        self,
        groups: Iterable[Any],
        *,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        weight_decay: float = 0.01,
        epsilon: float = 1e-6,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "weight_decay": weight_decay, "epsilon": epsilon, "adapted": True}
        super().__init__(groups, defaults)

    def _move(self, group: dict[str, Any], weights: list[Tensor], gradients: list[Tensor]) -> None:
        updates = self._moments(group, weights, gradients)
        if group["adapted"]:
            torch._foreach_add_(updates, shards(weights), alpha=group["weight_decay"])
            torch._foreach_mul_(updates, ratios_of(*whole_norms(weights, updates), weights))
        torch._foreach_add_(shards(weights), updates, alpha=-group["lr"])

    def _moments(self, group: dict[str, Any], weights: list[Tensor], gradients: list[Tensor]) -> list[Tensor]:
        """Update both moments; returns m / (sqrt(v) + epsilon) with bias correction."""
        beta1, beta2 = group["betas"]
        states = [self._state(weight) for weight in weights]
        for state in states:
            state["steps"] += 1
        first, second = (shards(state[name] for state in states) for name in ("first_moment", "second_moment"))
        torch._foreach_lerp_(first, gradients, 1 - beta1)
        torch._foreach_mul_(second, beta2)
        torch._foreach_addcmul_(second, gradients, gradients, 1 - beta2)
        roots = list(torch._foreach_sqrt(second))
        torch._foreach_div_(roots, [(1 - beta2 ** state["steps"]) ** 0.5 for state in states])
        torch._foreach_add_(roots, group["epsilon"])
        torch._foreach_mul_(roots, [1 - beta1 ** state["steps"] for state in states])
        return list(torch._foreach_div(first, roots))

    def _state(self, weight: Tensor) -> dict[str, Any]:
        state: dict[str, Any] = self.state[weight]
        if not state:
            # Counted for each tensor: one without a gradient at first starts later than the others.
            state["steps"] = 0
            for name in ("first_moment", "second_moment"):
                state[name] = torch.zeros_like(weight, memory_format=torch.preserve_format)
        return state


# ----------------------------------------------------------------------------------------------------
# RMSprop warm-up (Akiba, Suzuki and Fukuda 2017): training starts as RMSprop and turns into SGD.


def sgd_share(epoch: float, center: float, period: float) -> float:
    """Share of SGD at `epoch` (from 0, with fractions): an exponential up to 1/2 at `center`, then a line up to 1.

    The paper prints the line with twice this slope: it would reach 3/2 at its end, half a `period` after `center`. With
    this slope it reaches 1 there, and share and slope are continuous at `center`, as in the ELU that it follows.
    """
    distance = (epoch - center) / period
    return 0.5 * math.exp(2 * distance) if distance < 0 else min(0.5 + distance, 1.0)


class RMSpropWarmup(GroupOptimizer):
    """SGD with momentum whose gradient is scaled as in RMSprop at first, and unscaled after the transition.

    With g the gradient, s the share of SGD, r the learning rate and q that of RMSprop,

        m = beta2 m + (1 - beta2) g^2,    u = (s + (1 - s) q / r / (sqrt(m) + epsilon)) g

    and u enters the velocity, with the learning rate outside. At r = 0 weights do not change.

    `lr` and the attribute `epoch` (from 0, with fractions) are set before each step. The rate of the RMSprop share is
    `rmsprop_lr`, independent of `lr`. `weight_decay` is an L2 penalty, added to the gradient. At the epoch
    `center` half of the update is SGD's; the transition takes `period` epochs.
    """

    def __init__(
        self,
        groups: Iterable[Any],
        *,
        lr: float,
        rmsprop_lr: float = 3e-4,
        momentum: float = 0.9,
        beta2: float = 0.99,
        weight_decay: float = 0.0,
        epsilon: float = 1e-8,
        center: float = 10.0,
        period: float = 5.0,
    ) -> None:
        defaults = {
            "lr": lr,
            "rmsprop_lr": rmsprop_lr,
            "momentum": momentum,
            "momentum_form": "outside",
            "previous_lr": 0.0,
            "beta2": beta2,
            "weight_decay": weight_decay,
            "epsilon": epsilon,
            "center": center,
            "period": period,
        }
        super().__init__(groups, defaults)
        self.epoch = 0.0

    def _move(self, group: dict[str, Any], weights: list[Tensor], gradients: list[Tensor]) -> None:
        updates = list(torch._foreach_add(gradients, shards(weights), alpha=group["weight_decay"]))
        moments = self._moments(group, weights, updates)
        if group["lr"] > 0:
            torch._foreach_mul_(updates, self._scales(group, moments))
            descend(self, group, weights, updates)

    def _moments(self, group: dict[str, Any], weights: list[Tensor], gradients: list[Tensor]) -> list[Tensor]:
        for weight in weights:
            if "second_moment" not in self.state[weight]:
                self.state[weight]["second_moment"] = torch.zeros_like(weight, memory_format=torch.preserve_format)
        moments = shards(self.state[weight]["second_moment"] for weight in weights)
        torch._foreach_mul_(moments, group["beta2"])
        torch._foreach_addcmul_(moments, gradients, gradients, 1 - group["beta2"])
        return moments

    def _scales(self, group: dict[str, Any], moments: list[Tensor]) -> list[Tensor]:
        share = sgd_share(self.epoch, group["center"], group["period"])
        scales = list(torch._foreach_sqrt(moments))
        torch._foreach_add_(scales, group["epsilon"])
        torch._foreach_reciprocal_(scales)
        torch._foreach_mul_(scales, (1 - share) * group["rmsprop_lr"] / group["lr"])
        torch._foreach_add_(scales, share)
        return scales


# ----------------------------------------------------------------------------------------------------
# The optimizer of a recipe.


def build_optimizer(model: nn.Module, policy: Hyperparameters, *, fused: bool = False) -> optim.Optimizer:
    """The recipe's optimizer over all trainable parameters of `model`, which must be on its device.

    The learning rate is 0 until it is set, before each step. `weight_decay_on = "weights"` excludes parameters of one
    dimension (scales and shifts of batch norm, biases) from weight decay. LARS and LAMB always exclude them, also from
    adaptation, as MLPerf's reference does. `fused` updates all parameters in one kernel of torch.

    Raises:
        EnvironmentLacksError: this torch has no fused kernel for the device.
    """
    if fused:
        _require_fused(model, policy)
    momentum, epsilon = policy.momentum, policy.epsilon
    groups = _groups(model, policy)
    # torch's default for DTensors is a kernel for each weight.
    at_once = True if any(_is_sharded(parameter) for parameter in model.parameters()) and not fused else None
    kernel: dict[str, Any] = {"fused": fused or None, "foreach": at_once}
    match policy.optimizer:
        case "sgd":
            return _sgd(groups, policy, kernel)
        case "lars":
            return LARS(
                groups,
                lr=0.0,
                momentum=momentum,
                trust_coefficient=policy.trust_coefficient,
                epsilon=epsilon,
                form=policy.momentum_form,
            )
        case "lamb":
            return LAMB(groups, lr=0.0, betas=(policy.beta1, policy.beta2), epsilon=epsilon)
        case "adam":
            return optim.Adam(groups, lr=0.0, betas=(policy.beta1, policy.beta2), eps=epsilon, **kernel)
        case "adagrad":
            return optim.Adagrad(groups, lr=0.0, eps=epsilon, **kernel)
        case "rmsprop-warmup":
            return RMSpropWarmup(
                groups,
                lr=0.0,
                rmsprop_lr=policy.rmsprop_learning_rate,
                momentum=momentum,
                beta2=policy.beta2,
                epsilon=epsilon,
                center=policy.rmsprop_center_epoch,
                period=policy.rmsprop_period_epochs,
            )
        case unknown:
            assert_never(unknown)


def advance(optimizer: optim.Optimizer, epoch: float) -> None:
    """Set the epoch (from 0, with fractions) of a rule that depends on it; called before each step."""
    if isinstance(optimizer, RMSpropWarmup):
        optimizer.epoch = epoch


def _sgd(groups: list[dict[str, Any]], policy: Hyperparameters, kernel: dict[str, Any]) -> optim.Optimizer:
    if policy.momentum_form == "outside":
        optimizer = optim.SGD(groups, lr=0.0, momentum=policy.momentum, **kernel)
        if kernel["fused"] and policy.momentum:
            optimizer.register_step_pre_hook(_zero_velocities)
        return optimizer
    return InsideSGD(groups, lr=0.0, momentum=policy.momentum, form=policy.momentum_form)


def _zero_velocities(optimizer: optim.Optimizer, arguments: Any, named: Any) -> None:
    """Before a step, set the velocity of each parameter with a gradient but no velocity to 0.

    torch (2.13) leaves the velocities of a fused SGD uninitialized until the kernel of its first step fills them. If
    the gradients of that step overflow (fp16), the kernel skips it, and the next step reads uninitialized memory. Adam
    and Adagrad begin with zeros. This is done before a step, and not at the start, because in a model split into
    stages a rank has gradients, and so velocities, of its own stage only.
    """
    del arguments, named
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is None:
                continue
            state = optimizer.state[parameter]
            if state.get("momentum_buffer") is None:
                state["momentum_buffer"] = torch.zeros_like(parameter)


_FUSED: dict[str, Callable[..., optim.Optimizer]] = {
    "sgd": optim.SGD, "adam": optim.Adam, "adagrad": optim.Adagrad,
}  # fmt: skip


def _require_fused(model: nn.Module, policy: Hyperparameters) -> None:
    """Try one fused step of one weight: only a step shows whether torch has the kernel for the device."""
    device = next(model.parameters()).device
    weight = torch.zeros(1, device=device, requires_grad=True)
    weight.grad = torch.zeros_like(weight)
    try:
        _FUSED[policy.optimizer]([weight], lr=0.0, fused=True).step()
    except (RuntimeError, NotImplementedError) as error:
        raise EnvironmentLacksError(
            f"framework.fused_optimizer: torch {torch.__version__} has no fused kernel of {policy.optimizer} for "
            f"{device.type} ({str(error).splitlines()[0]}); set it to false: --set framework.fused_optimizer=false"
        ) from error


def _groups(model: nn.Module, policy: Hyperparameters) -> list[dict[str, Any]]:
    """The parameter groups: parameters of one dimension are a separate group if they are excluded from weight decay."""
    adaptive = policy.optimizer in ("lars", "lamb")
    separate = adaptive or policy.weight_decay_on == "weights"
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    decayed = [p for p in trainable if p.ndim > 1 or not separate]
    excluded = [p for p in trainable if p.ndim <= 1 and separate]
    groups: list[dict[str, Any]] = [
        {"params": decayed, "weight_decay": policy.weight_decay},
        {"params": excluded, "weight_decay": 0.0, "adapted": False},
    ]
    return [part for group in groups for part in _mesh_by_mesh(group)]


def _mesh_by_mesh(group: dict[str, Any]) -> list[dict[str, Any]]:
    """A group for each device mesh of its parameters; one for those that are no DTensors."""
    found: dict[Any, list[nn.Parameter]] = {}
    for parameter in group["params"]:
        found.setdefault(getattr(parameter, "device_mesh", None), []).append(parameter)
    return [{**group, "params": parameters} for parameters in found.values()]
