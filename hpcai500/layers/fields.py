"""Types of values that several tables of a recipe share."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Fraction = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
# More than any machine has, and small enough for exact arithmetic.
Count = Annotated[int, Field(ge=1, le=10**9)]
# Names are printed in lines that harnesses read.
Name = Annotated[str, Field(pattern=r"^[\w.-]+$")]
# TOML has arrays, which strict mode would not accept as tuples.
Interval = Annotated[tuple[Positive, Positive], Field(strict=False)]
Pair = Annotated[tuple[Count, Count], Field(strict=False)]
Year = Annotated[int, Field(ge=0, le=9999)]
YearRange = Annotated[tuple[Year, Year], Field(strict=False)]


class Layer(BaseModel):
    """A table of a recipe: unknown keys and wrong types are refused, values never change after validation."""

    # Built when first used, for commands that read no recipe.
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, defer_build=True)
