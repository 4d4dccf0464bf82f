"""A language model as a benchmark of hpcai500. The command line loads this module, so it must not import torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from hpcai500.layers import Hyperparameters, LossProblem, Recipe, ShardedProgramming
from hpcai500.layers.fields import Count, Layer, NonNegative, Positive
from hpcai500.plugins import Plugin
from pydantic import Field, model_validator


class Shape(Layer):
    """Layer 7, the table [workload]: sizes of the transformer and its sequences."""

    vocabulary: Annotated[int, Field(ge=2, le=2**32)] = Field(description="tokens that the model knows")
    layers: Count = Field(description="blocks of attention and feed-forward network")
    width: Count = Field(description="values of a token in the residual stream")
    heads: Count = Field(description="heads of queries")
    key_value_heads: Count = Field(description="heads of keys and values; each serves several heads of queries")
    head_width: Annotated[int, Field(ge=2, le=2**16, multiple_of=2)] = Field(description="values of a head")
    hidden_width: Count = Field(description="values between the products of the feed-forward network")
    rope_theta: Positive = Field(description="base of the rotary positions")
    norm_epsilon: Positive = Field(description="added to the mean square in RMSNorm")
    sequence_length: Annotated[int, Field(ge=2, le=2**24)] = Field(description="tokens of a sample")
    recompute_activations: bool = Field(description="keep only the input of each block, and compute the rest again")
    tail: Literal["pad", "drop"] = Field(description="last batch of an epoch: padded or dropped")

    @model_validator(mode="after")
    def _heads_fit(self) -> Shape:
        if self.heads % self.key_value_heads:
            raise ValueError(f"key_value_heads: expected a divisor of heads ({self.heads}), got {self.key_value_heads}")
        return self


class Policy(Hyperparameters):
    """Layer 8, with the update rule that language models use."""

    # In place of the rules that hpcai500 has.
    optimizer: Literal["adamw"] = Field(  # type: ignore[assignment]
        description="Adam with decoupled weight decay (Loshchilov and Hutter 2019)"
    )
    largest_norm: NonNegative = Field(description="gradients are scaled down to this norm; 0: never")


class LmRecipe(Recipe):
    """The nine layers."""

    problem: LossProblem
    hyperparameters: Policy
    workload: Shape
    programming: ShardedProgramming

    @model_validator(mode="after")
    def _heads_are_divided(self) -> LmRecipe:
        ranks, heads = self.programming.tensor_ranks, self.workload.key_value_heads
        if heads % ranks or self.workload.hidden_width % ranks:
            raise ValueError(
                f"programming.tensor_ranks: expected a divisor of workload.key_value_heads ({heads}) and of "
                f"workload.hidden_width ({self.workload.hidden_width}), got {ranks}"
            )
        return self


PLUGIN = Plugin(
    recipe=LmRecipe,
    recipes=Path(__file__).parent / "recipes",
    workload="hpcai500_lm.workload:build",
    voter="hpcai500_lm.voting:voter",
    model="hpcai500_lm.workload:counted",
    make_data="hpcai500_lm.grammar:make",
    check_data="hpcai500_lm.tokens:check",
)
