"""Which modules of our models have static shapes and are called once a step: what a CUDA graph can hold."""

from __future__ import annotations

from torch import nn

from hpcai500.workloads.models.faster_rcnn import FasterRCNN
from hpcai500.workloads.models.resnet import ResNet


def static_parts(model: nn.Module, ranks: int) -> tuple[str, ...]:
    """Names of modules of `model` in the order of their calls; "" is the model itself.

    Gradients of a part come all at once, when its backward graph has run. One rank has nobody to send them to and takes
    parts as large as they get. Several take stage by stage, so that the sums of one stage travel beside the backward
    pass of the next; the few kernels of the stem and the classifier are then started one by one.

    Args:
        model: of a workload; of an unknown kind, it is taken whole.
        ranks: that train it together.
    """
    match model:
        case ResNet():
            return tuple(model.stage_names) if ranks > 1 else ("",)
        case FasterRCNN():
            # The rest of a step chooses by values, and is left to the host.
            stages = tuple(f"backbone.body.{name}" for name in model.backbone.body.stage_names)
            return (*stages, "backbone.fpn", "rpn.head") if ranks > 1 else ("dense",)
        case _:
            return ("",)
