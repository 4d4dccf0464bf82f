"""What a benchmark's samples are called and hold, and their rates in words and tables."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError

# Benchmarks whose samples are images.
_OF_IMAGES = ("ic", "ewa")
_RATE = "images_per_second"
# `images_per_second` is the rate of samples.
_TAKEN = ("images", "samples")
_NAME = re.compile(r"[a-z][a-z0-9_]{0,23}")
_ROUND = 1000


def _is_name(name: str) -> str:
    if name in _TAKEN or not _NAME.fullmatch(name):
        # Not a ValueError, of which pydantic's message would begin with "Value error".
        raise PydanticCustomError(
            "unit_name",
            "expected a plural noun of at most 24 lower-case letters, digits and _, which is not images or samples",
        )
    return name


class Unit(BaseModel):
    """What each sample holds: a plural noun, and how many."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, defer_build=True)

    name: Annotated[str, AfterValidator(_is_name)]
    per_sample: Annotated[int, Field(ge=1, le=10**9)]

    @property
    def metric(self) -> str:
        """The name of its rate: `words_per_second`."""
        return f"{self.name}_per_second"


@dataclass(frozen=True)
class Samples:
    """How texts name the samples of a benchmark: `name` in the singular, and what each holds, if the workload says."""

    name: str = "image"
    unit: Unit | None = None

    @property
    def names(self) -> str:
        return f"{self.name}s"

    @property
    def one(self) -> str:
        """With its article."""
        return f"an {self.name}" if self.name[0] in "aeiou" else f"a {self.name}"

    @property
    def rate_unit(self) -> str:
        """The unit of `rate`, for a table's head or an axis."""
        return f"{self.unit.name if self.unit else self.names}/s"

    def rate(self, samples_per_second: float) -> float:
        """A rate in `rate_unit`."""
        return samples_per_second * self.unit.per_sample if self.unit else samples_per_second

    def rate_text(self, samples_per_second: float, number: Callable[[float], str] = "{:.1f}".format) -> str:
        """`48.2 images/s`, or `12339 words/s (48.2 samples/s)`."""
        alone = f"{number(samples_per_second)} {self.names}/s"
        if self.unit is None:
            return alone
        rate = self.rate(samples_per_second)
        return f"{f'{rate:.0f}' if rate >= _ROUND else number(rate)} {self.rate_unit} ({alone})"

    def rates(self, samples_per_second: float) -> dict[str, float]:
        """The rate of samples and that of what they hold, by the names of the metrics."""
        own = {self.unit.metric: self.rate(samples_per_second)} if self.unit else {}
        return {_RATE: samples_per_second, **own}

    @property
    def rate_units(self) -> dict[str, str]:
        """The units of `rates`."""
        own = {self.unit.metric: self.rate_unit} if self.unit else {}
        return {_RATE: f"{self.names}/s", **own}


IMAGES = Samples()


def samples_of(benchmark: object, dataset: Mapping[str, Any] | None = None) -> Samples:
    """The samples of `benchmark`; `dataset` is the value of the event `dataset`.

    Raises:
        ValidationError: its `unit` has another form than `Unit`.
    """
    unit = (dataset or {}).get("unit")
    return Samples(
        "image" if benchmark in _OF_IMAGES else "sample", None if unit is None else Unit.model_validate(unit)
    )
