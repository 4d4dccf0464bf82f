"""How many proposals and regions a step of a detector has: whether the contestants of a case have as much to do.

Counted once, outside of what is timed, in a forward pass of training. All numbers are of the whole batch.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from hpcai500.workloads.models.detector import FasterRCNN, Proposals

# Columns of a row: proposals that NMS leaves, and of these and the truth what the heads train on.
PROPOSALS, SAMPLED = "proposals", "sampled_regions"
Counts = dict[str, int]


def of_ours(model: FasterRCNN, one_pass: Callable[[], object]) -> Counts:
    """What is found in `one_pass`, a forward pass of our detector. Places that hold nothing do not count."""
    counts: Counts = {}
    propose = model.rpn.propose

    def proposing(*arguments: Any) -> Proposals:
        found = propose(*arguments)
        counts[PROPOSALS] = int(found.present.sum())
        return found

    def pooling(_: nn.Module, arguments: tuple[Any, ...]) -> None:
        corners: Tensor = arguments[1][:, 1:]
        counts[SAMPLED] = int((corners[:, 2:] > corners[:, :2]).all(dim=1).sum())

    with ExitStack() as until_then, torch.no_grad():
        until_then.enter_context(patch.object(model.rpn, "propose", proposing))
        until_then.callback(model.roi_heads.pooling.register_forward_pre_hook(pooling).remove)
        one_pass()
    return counts


def of_torchvision(model: Any, one_pass: Callable[[], object]) -> Counts:
    """What is found in `one_pass`, a forward pass of torchvision's Faster R-CNN `model`."""
    counts: Counts = {}

    def note(name: str) -> Callable[[nn.Module, tuple[Any, ...]], None]:
        # Both modules are called with features, then boxes: a tensor for each image.
        def hook(_: nn.Module, arguments: tuple[Any, ...]) -> None:
            counts[name] = sum(len(boxes) for boxes in arguments[1])

        return hook

    with ExitStack() as until_then, torch.no_grad():
        until_then.callback(model.roi_heads.register_forward_pre_hook(note(PROPOSALS)).remove)
        until_then.callback(model.roi_heads.box_roi_pool.register_forward_pre_hook(note(SAMPLED)).remove)
        one_pass()
    return counts
