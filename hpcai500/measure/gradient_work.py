"""The gradients of a model in the order of sending, and when in a backward pass each is ready: by counting."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

from hpcai500.comm.buckets import BYTES_AN_ELEMENT
from hpcai500.measure.flops import FlopsCount
from hpcai500.methodology.cost.gradients import Gradients


def gradients_of(named: Iterable[tuple[str, nn.Parameter]], count: FlopsCount) -> list[Gradients]:
    """Each trained parameter, last registered first, as `comm.buckets.make_buckets` sends them.

    A backward pass goes through the operators of `count` in reverse. The gradient of a parameter is ready when the
    operations of its own module and of all later ones are done: `ready` is their share of the backward FLOPs. Modules
    that are not counted (normalisation) are ready with what was sent before them.
    """
    done, ready = 0.0, {}
    backward = count.training_flops - count.forward_flops
    for operator in reversed(count.operators):
        done += operator.training_flops - operator.forward_flops
        ready[operator.name] = done / backward
    found: list[Gradients] = []
    latest = 0.0
    trained = [(name, one) for name, one in named if one.requires_grad and one.numel()]
    for name, parameter in reversed(trained):
        latest = max(latest, ready.get(name.rpartition(".")[0], 0.0))
        found.append(Gradients(parameter.numel() * BYTES_AN_ELEMENT, min(1.0, latest)))
    return found
