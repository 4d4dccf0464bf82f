"""The table of an ensemble (V3.0): many base models, each on a bootstrap of the data, that vote. In no other recipe."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from hpcai500.layers.fields import Count, Fraction, Layer, Name


class Ensemble(Layer):
    """M base models and what makes them one (V3.0 sections 3.1 and 3.4); P_degree is the ranks of one: layer 1."""

    members: Count = Field(description="base models that are trained and vote (M of V3.0 Eq. 5)")
    sampling: Literal["bootstrap", "poisson", "all"] = Field(
        description="training samples of a member: as many draws as samples, with replacement; each sample as often as "
        "Poisson(1) says; or every sample once, which is no bagging"
    )
    strata: Name = Field(description="what draws keep the shares of: `none`, `class` (ic), `year` (ewa)")
    out_of_bag_samples: Annotated[int, Field(ge=0, le=10**9)] = Field(
        description="training samples, the same for all members, on which each is judged where it has not drawn them"
    )
    vote: Name = Field(description="`mean` of softmax outputs (ic); `weighted-boxes` fusion or `nms` (ewa)")
    vote_iou: Fraction = Field(gt=0, description="overlap from which boxes of two members are one (ewa)")
