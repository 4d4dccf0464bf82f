"""Layers 9 and 8: what is solved, and how it is learnt (V2.0, Fig. 2)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from hpcai500.layers.fields import Count, Fraction, Layer, Name, NonNegative, Positive, YearRange

# How many there are.
SEEDS = 2**63


class Problem(Layer):
    """Layer 9: what is solved. Nothing here may change in a result that is ranked."""

    dataset: Name = Field(description="name of the data set; `synthetic-*` is made by hpcai500 itself")
    metric: Name = Field(description="quality metric, by the name that the workload reports")
    target_quality: Fraction = Field(gt=0, description="quality that the penalty coefficient compares with")
    epochs: Count = Field(description="passes over the training set")


class ClimateProblem(Problem):
    """Layer 9 of `ewa`: also which years are trained on, and which decide the quality."""

    training_years: YearRange = Field(description="first and last year of the training set")
    evaluation_years: YearRange = Field(description="first and last year of the evaluation set")

    @model_validator(mode="after")
    def _years_are_apart(self) -> ClimateProblem:
        for name in ("training_years", "evaluation_years"):
            first, last = getattr(self, name)
            if first > last:
                raise ValueError(f"{name}: expected [first, last] with first <= last, got [{first}, {last}]")
        if self.training_years[0] <= self.evaluation_years[1] and self.evaluation_years[0] <= self.training_years[1]:
            raise ValueError(
                f"evaluation_years: expected years that are not trained on ({list(self.training_years)}), "
                f"got {list(self.evaluation_years)}"
            )
        return self


class Hyperparameters(Layer):
    """Layer 8. Batch size and learning-rate policy may change at every level; the rest is the reference's."""

    batch_size: Count = Field(description="samples per accelerator (or per set of stages) and backward pass")
    accumulation_steps: Count = Field(description="backward passes of an accelerator that are summed into one update")
    optimizer: Literal["sgd", "lars", "lamb", "adam", "adagrad", "rmsprop-warmup"] = Field(
        description="update rule; `rmsprop-warmup` turns from RMSprop into SGD (V2.0 Table 1, Preferred Networks)"
    )
    base_learning_rate: Positive = Field(description="learning rate at `base_batch` samples a step")
    base_batch: Count = Field(description="global batch that `base_learning_rate` is stated for")
    learning_rate_scaling: Literal["linear", "none"] = Field(description="how the rate follows the global batch")
    warmup_epochs: NonNegative = Field(description="epochs of linear growth to the scaled rate")
    warmup_start: Fraction = Field(description="share of the scaled rate at the first step of the warm-up")
    schedule: Literal["cosine", "step", "polynomial", "constant", "slow-start"] = Field(
        description="decay after the warm-up; `slow-start` begins at half the rate (V2.0 Table 1, Preferred Networks)"
    )
    end_learning_rate: NonNegative = Field(description="rate at the last step of cosine and polynomial decay")
    step_epochs: Annotated[tuple[Positive, ...], Field(strict=False)] = Field(
        description="epochs at which `step` decays"
    )
    step_factor: Fraction = Field(description="factor of each `step` decay")
    polynomial_power: Positive = Field(description="power of `polynomial` decay")
    momentum: Annotated[float, Field(ge=0, lt=1)] = Field(description="momentum of SGD, LARS and RMSprop warm-up")
    momentum_form: Literal["outside", "inside", "corrected"] = Field(
        description="where the learning rate stands (SGD, LARS): outside the velocity, inside it, or inside with the "
        "correction that makes it equal to outside (an algorithmic change: V2.0 Table 1, Facebook and Berkeley)"
    )
    trust_coefficient: Positive = Field(description="factor of LARS between a layer's weights and its update")
    beta1: Annotated[float, Field(ge=0, lt=1)] = Field(description="decay of the first moment (Adam, LAMB)")
    beta2: Annotated[float, Field(ge=0, lt=1)] = Field(
        description="decay of the second moment (Adam, LAMB, RMSprop warm-up)"
    )
    epsilon: NonNegative = Field(description="added to denominators (all but SGD)")
    rmsprop_learning_rate: Positive = Field(description="rate of the RMSprop share of `rmsprop-warmup`")
    rmsprop_center_epoch: NonNegative = Field(description="epoch at which half of `rmsprop-warmup` is SGD")
    rmsprop_period_epochs: Positive = Field(description="length of its transition, in epochs")
    weight_decay: NonNegative = Field(description="L2 penalty added to the gradient")
    weight_decay_on: Literal["all", "weights"] = Field(
        description="`weights` spares batch norm and biases, as LARS and LAMB always do (an algorithmic change: V2.0 "
        "Table 1, Tencent)"
    )
    seed: Annotated[int, Field(ge=0, lt=SEEDS)] = Field(description="seed of weights, sample order and crops")
