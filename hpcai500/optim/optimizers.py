"""Update rules, from the recipe's words to torch's classes."""

from __future__ import annotations

from torch import nn, optim

from hpcai500.layers import Hyperparameters


def build_optimizer(model: nn.Module, policy: Hyperparameters) -> optim.Optimizer:
    """SGD with momentum over all parameters of `model`; the learning rate is set before each step.

    `weight_decay_on = "weights"` spares what has one dimension: scales and shifts of batch norm, and biases.
    """
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    decayed = [p for p in trainable if p.ndim > 1 or policy.weight_decay_on == "all"]
    spared = [p for p in trainable if p.ndim <= 1 and policy.weight_decay_on == "weights"]
    groups = [{"params": decayed, "weight_decay": policy.weight_decay}]
    if spared:
        groups.append({"params": spared, "weight_decay": 0.0})
    return optim.SGD(groups, lr=0.0, momentum=policy.momentum)
