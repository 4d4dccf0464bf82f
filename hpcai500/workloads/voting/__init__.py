"""How members of an ensemble vote (V3.0 section 3.1): what counts their votes, by benchmark."""

from __future__ import annotations

from functools import partial

from hpcai500.layers import Recipe
from hpcai500.methodology.coverage import SampleIds
from hpcai500.plugins.loading import function_of
from hpcai500.workloads.voting.base import Voter


def voter(recipe: Recipe, samples: SampleIds) -> Voter:
    """What counts the votes of members of `recipe` on `samples`: ids, ascending.

    Raises:
        EnvironmentLacksError: the benchmark is of a plug-in that cannot be used.
    """
    match recipe.benchmark:
        case "ic":
            return classes_voter(recipe, samples)
        case "ewa":
            return boxes_voter(recipe, samples)
        case _:
            made: Voter = function_of(recipe.benchmark, "voter")(recipe, samples)
            return made


def classes_voter(recipe: Recipe, samples: SampleIds) -> Voter:
    """The mean of class probabilities; of predictions {samples, labels, logits}."""
    from hpcai500.workloads.voting.softmax_mean import SoftmaxMean  # noqa: PLC0415 - one vote an ensemble

    assert recipe.ensemble is not None
    assert recipe.ensemble.vote == "mean"
    return SoftmaxMean(samples)


def boxes_voter(recipe: Recipe, samples: SampleIds) -> Voter:
    """The boxes of extreme weather, fused; of predictions as `voting.detections` has them."""
    from hpcai500.data.climate.layout import CLASSES  # noqa: PLC0415 - one vote an ensemble
    from hpcai500.workloads.voting.fusing import best_boxes, weighted_boxes  # noqa: PLC0415
    from hpcai500.workloads.voting.pooled_boxes import PooledBoxes  # noqa: PLC0415

    options = recipe.ensemble
    assert options is not None
    fuse = {"weighted-boxes": weighted_boxes, "nms": best_boxes}[options.vote]
    return PooledBoxes(samples, CLASSES, partial(fuse, iou=options.vote_iou))
