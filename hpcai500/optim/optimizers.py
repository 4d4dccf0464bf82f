"""Update rules, from the recipe's words to classes: torch's own, and those that torch lacks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn, optim

from hpcai500.errors import EnvironmentLacksError
from hpcai500.layers import Hyperparameters
from hpcai500.optim.lamb import LAMB
from hpcai500.optim.lars import LARS
from hpcai500.optim.rmsprop_warmup import RMSpropWarmup
from hpcai500.optim.sgd import InsideSGD


def build_optimizer(model: nn.Module, policy: Hyperparameters, *, fused: bool = False) -> optim.Optimizer:
    """The recipe's update rule over all parameters of `model` that learn; the learning rate is set before each step.

    What has one dimension (scales and shifts of batch norm, biases) is spared weight decay by `weight_decay_on =
    "weights"`. LARS and LAMB always spare it, adaptation too, as MLPerf's reference does.

    Args:
        model: where it will be trained: on its device.
        policy: layer 8.
        fused: update all parameters in one kernel, torch's own; recipes ask for it where the rule has one.

    Raises:
        EnvironmentLacksError: this torch has no such kernel for the device.
    """
    if fused:
        _require_fused(model, policy)
    momentum, epsilon = policy.momentum, policy.epsilon
    groups = _groups(model, policy)
    match policy.optimizer:
        case "sgd":
            return _sgd(groups, policy, fused=fused)
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
            return optim.Adam(groups, lr=0.0, betas=(policy.beta1, policy.beta2), eps=epsilon, fused=fused or None)
        case "adagrad":
            return optim.Adagrad(groups, lr=0.0, eps=epsilon, fused=fused or None)
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


def advance(optimizer: optim.Optimizer, epoch: float) -> None:
    """Tell the update rule how far the run is, before each step: epochs from 0, with fractions. Most need not know."""
    if isinstance(optimizer, RMSpropWarmup):
        optimizer.epoch = epoch


def _sgd(groups: list[dict[str, Any]], policy: Hyperparameters, *, fused: bool) -> optim.Optimizer:
    if policy.momentum_form == "outside":
        optimizer = optim.SGD(groups, lr=0.0, momentum=policy.momentum, fused=fused or None)
        if fused and policy.momentum:
            optimizer.register_step_pre_hook(_start_at_rest)
        return optimizer
    return InsideSGD(groups, lr=0.0, momentum=policy.momentum, form=policy.momentum_form)


def _start_at_rest(optimizer: optim.Optimizer, arguments: Any, named: Any) -> None:
    """Before a step, give a velocity of 0 to each parameter of it that has none: the step makes it the gradient.

    torch (2.13) makes the velocities of a fused SGD in its first step, not filled, and its kernel fills them. Where the
    gradients of that step overflow (fp16) the kernel leaves it out, and the next step goes on from what was in memory.
    What Adam and Adagrad keep begins with zeros. Not before the first step: of a model that is cut into stages, a rank
    has gradients, and so velocities, of its own stage alone.
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
    """Do one step of one weight of 0: torch says only then whether it has the kernel, and training has long begun."""
    device = next(model.parameters()).device
    weight = torch.zeros(1, device=device, requires_grad=True)
    weight.grad = torch.zeros_like(weight)
    try:
        _FUSED[policy.optimizer]([weight], lr=0.0, fused=True).step()
    except (RuntimeError, NotImplementedError) as error:
        raise EnvironmentLacksError(
            f"framework.fused_optimizer: torch {torch.__version__} has no single kernel of {policy.optimizer} for "
            f"{device.type} ({str(error).splitlines()[0]}); set it to false: --set framework.fused_optimizer=false"
        ) from error


def _groups(model: nn.Module, policy: Hyperparameters) -> list[dict[str, Any]]:
    """All parameters, or those of one dimension apart from the others where they are treated otherwise."""
    adaptive = policy.optimizer in ("lars", "lamb")
    apart = adaptive or policy.weight_decay_on == "weights"
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    decayed = [p for p in trainable if p.ndim > 1 or not apart]
    spared = [p for p in trainable if p.ndim <= 1 and apart]
    groups: list[dict[str, Any]] = [
        {"params": decayed, "weight_decay": policy.weight_decay},
        {"params": spared, "weight_decay": 0.0, "adapted": False},
    ]
    return [group for group in groups if group["params"]]
