"""Update rules, from the recipe's words to classes: torch's own, and those that torch lacks."""

from __future__ import annotations

from typing import Any

from torch import nn, optim

from hpcai500.layers import Hyperparameters
from hpcai500.optim.lamb import LAMB
from hpcai500.optim.lars import LARS
from hpcai500.optim.rmsprop_warmup import RMSpropWarmup
from hpcai500.optim.sgd import InsideSGD


def build_optimizer(model: nn.Module, policy: Hyperparameters) -> optim.Optimizer:
    """The recipe's update rule over all parameters of `model` that learn; the learning rate is set before each step.

    What has one dimension (scales and shifts of batch norm, biases) is spared weight decay by `weight_decay_on =
    "weights"`. LARS and LAMB always spare it, adaptation too, as MLPerf's reference does.
    """
    momentum, epsilon = policy.momentum, policy.epsilon
    groups = _groups(model, policy)
    match policy.optimizer:
        case "sgd":
            return _sgd(groups, policy)
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
            return optim.Adam(groups, lr=0.0, betas=(policy.beta1, policy.beta2), eps=epsilon)
        case "adagrad":
            return optim.Adagrad(groups, lr=0.0, eps=epsilon)
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


def _sgd(groups: list[dict[str, Any]], policy: Hyperparameters) -> optim.Optimizer:
    if policy.momentum_form == "outside":
        return optim.SGD(groups, lr=0.0, momentum=policy.momentum)
    return InsideSGD(groups, lr=0.0, momentum=policy.momentum, form=policy.momentum_form)


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
