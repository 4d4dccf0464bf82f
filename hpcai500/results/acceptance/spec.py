"""Contract files: what a system must reach to be accepted. `recipes/acceptance/example.toml` explains every field."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from hpcai500.editions import editions
from hpcai500.errors import UsageError
from hpcai500.layers import RECIPE_TYPES
from hpcai500.methodology.scaling import MOST_EFFICIENCY
from hpcai500.methodology.tolerance import Limits, Statistic
from hpcai500.recipe import recipes_folder
from hpcai500.results.acceptance.metrics import EFFICIENCY, Metric, find_metric
from hpcai500.results.acceptance.mistakes import mistakes
from hpcai500.results.acceptance.units import unit_factor, unit_names
from hpcai500.toml_source import parse_tables, read_source

DEFAULT_STATISTIC: Statistic = "mean"
# Nothing that is measured is further from 1 than these, and arithmetic stays exact.
_LEAST, _MOST = 1e-12, 1e30
_MOST_CRITERIA = 1000
# A limit below half or above twice the reference is no limit.
_LOOSEST_LOWER, _LOOSEST_UPPER = -0.5, 1.0


def _line(text: str) -> str:
    if not text.isprintable():
        raise ValueError(f"expected one line of printable characters, got {text!r}")
    return text


def _some(text: str) -> str:
    if not text.strip():
        raise ValueError("expected some text, got none")
    return _line(text)


def _edition(name: str) -> str:
    if name not in editions():
        raise ValueError(f"expected one of the editions {', '.join(editions())}, got {name!r}")
    return name


def _benchmark(name: str) -> str:
    if name not in RECIPE_TYPES:
        raise ValueError(f"expected one of the benchmarks {', '.join(RECIPE_TYPES)}, got {name!r}")
    return name


def _identity(text: str) -> str:
    if not re.fullmatch(r"[0-9a-f]{64}", text):
        raise ValueError(f"expected 64 hex digits, as `hpcai500 campaign status` shows them, got {text!r}")
    return text


def _metric(name: str) -> str:
    return find_metric(name).name


def _reference(value: float) -> float:
    if not _LEAST <= value <= _MOST:
        raise ValueError(f"expected a value above 0 (from {_LEAST:g} to {_MOST:g}), got {value:g}")
    return value


def _lower(fraction: float) -> float:
    if not _LOOSEST_LOWER <= fraction <= 0:
        raise ValueError(
            f"expected a fraction of the reference from {_LOOSEST_LOWER:g} to 0: -0.05 accepts what is 5 % lower, 0.0 "
            f"nothing lower; got {fraction:g}; whoever accepts less contracts a lower reference"
        )
    return fraction


def _upper(fraction: float) -> float:
    if not 0 <= fraction <= _LOOSEST_UPPER:
        raise ValueError(
            f"expected a fraction of the reference from 0 to {_LOOSEST_UPPER:g}: 0.05 accepts what is 5 % higher, 0.0 "
            f"nothing higher; got {fraction:g}; whoever accepts more contracts a higher reference"
        )
    return fraction


Line = Annotated[str, Field(max_length=500), AfterValidator(_line)]
Name = Annotated[str, Field(max_length=500), AfterValidator(_some)]
Count = Annotated[int, Field(ge=1, le=10**6)]
Fraction = Annotated[float, Field(allow_inf_nan=False)]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class PartyTable(_Table):
    """One of those who made the contract."""

    role: Name
    name: Name
    signs: Line = ""


class SystemTable(_Table):
    """What is judged."""

    name: Name = "not named"
    description: Line = ""


class RequireTable(_Table):
    """What must hold of every run, whatever its speed."""

    rankable: bool = True
    verified: bool = False
    signed: bool = False
    registered: Annotated[str, AfterValidator(_identity)] | None = None
    signers: Name | None = None
    level: Literal["hardware", "system", "free"] | None = None
    edition: Annotated[str, AfterValidator(_edition)] | None = None
    runs: Count = 1
    nodes: Count | None = None

    @model_validator(mode="after")
    def _trusts_only_what_is_signed(self) -> RequireTable:
        if self.signers is not None and not (self.verified or self.signed):
            raise ValueError(
                "signers has no effect alone: add verified = true (submissions), signed = true (micro, scale), or both"
            )
        return self


class CriterionTable(_Table):
    """One contracted value."""

    metric: Annotated[str, AfterValidator(_metric)]
    reference: Annotated[Fraction, AfterValidator(_reference)]
    lower: Annotated[Fraction, AfterValidator(_lower)] | None = None
    upper: Annotated[Fraction, AfterValidator(_upper)] | None = None
    unit: str
    statistic: Statistic | None = None
    nodes: Count | None = None
    benchmark: Annotated[str, AfterValidator(_benchmark)] | None = None
    clause: Line = ""

    @property
    def subject(self) -> Metric:
        """What is measured."""
        return find_metric(self.metric)

    @property
    def factor(self) -> float:
        """How many of the metric's own unit one of the contract's is."""
        factor = unit_factor(self.unit, self.subject.unit)
        assert factor is not None
        return factor

    @property
    def limits(self) -> Limits:
        """What is accepted, in the metric's own unit; no parallel efficiency above 1.05 but where `upper` says so."""
        reference, upper = self.reference * self.factor, self.upper
        if upper is None and self.subject.kind == "efficiency":
            upper = MOST_EFFICIENCY / reference - 1
        return Limits(reference, self.lower, upper)

    @property
    def over_runs(self) -> Statistic | None:
        """How the values of several runs become one; None where there is only one number over all runs."""
        return self.statistic or (None if self.subject.kind == "variation" else DEFAULT_STATISTIC)

    @property
    def name(self) -> str:
        """What people and harnesses call it."""
        qualities: list[str] = []
        if self.over_runs and self.subject.kind == "run":
            qualities.append("every run" if self.over_runs == "every" else self.over_runs)
        qualities += [f"{self.nodes} node{'s' if self.nodes > 1 else ''}"] if self.nodes else []
        of = f"{self.benchmark}: " if self.benchmark else ""
        return f"{of}{self.metric}" + (f" ({', '.join(qualities)})" if qualities else "")

    @model_validator(mode="after")
    def _has_a_unit_of_its_metric(self) -> CriterionTable:
        if unit_factor(self.unit, self.subject.unit) is None:
            raise ValueError(
                f"unit: {self.metric} is measured in {self.subject.unit}; allowed: "
                f"{', '.join(unit_names(self.subject.unit))}; got {self.unit!r}"
            )
        return self

    @model_validator(mode="after")
    def _can_be_missed(self) -> CriterionTable:
        """A contract that nobody can miss says nothing."""
        needed = "lower" if self.subject.better == "higher" else "upper"
        if getattr(self, needed) is None:
            raise ValueError(f"{self.metric}: {self.subject.better} is better, so give {needed} = 0.0, or a tolerance")
        # A part of a whole is never more than all of it, and runs do not vary by 100 %.
        most = self.limits.highest
        if needed == "upper" and self.subject.unit == "fraction" and most is not None and most >= 1:
            raise ValueError(
                f"{self.metric}: up to {most * 100:g} % is accepted, and it is never above 100 %: give a lower "
                'reference; unit = "%" where it is in per cent'
            )
        return self

    @model_validator(mode="after")
    def _has_what_its_kind_needs(self) -> CriterionTable:
        kind = self.subject.kind
        if kind == "efficiency" and self.nodes is None:
            raise ValueError(f"nodes: {EFFICIENCY} is that of a number of nodes: nodes = 16")
        if kind == "efficiency" and self.upper is None and self.reference * self.factor > MOST_EFFICIENCY:
            raise ValueError(
                f"reference: a {EFFICIENCY} above {MOST_EFFICIENCY:g} is not accepted where no upper is given: give a "
                'lower reference (unit = "%" where it is in per cent), or upper'
            )
        if kind == "micro" and (self.nodes or self.benchmark):
            raise ValueError(f"{self.metric}: leave nodes and benchmark out, it is measured by hpcai500 micro")
        if kind == "variation" and self.statistic:
            raise ValueError(f"{self.metric}: leave statistic out, it is one number over all runs")
        return self


def _not_empty(criteria: tuple[CriterionTable, ...]) -> tuple[CriterionTable, ...]:
    if not 1 <= len(criteria) <= _MOST_CRITERIA:
        raise ValueError(f"expected [[criteria]], one table or more (at most {_MOST_CRITERIA}), got {len(criteria)}")
    return criteria


class Spec(_Table):
    """One contract."""

    title: Name
    contract: Line = ""
    parties: Annotated[tuple[PartyTable, ...], Field(strict=False)] = ()
    system: SystemTable = SystemTable()
    require: RequireTable = RequireTable()
    criteria: Annotated[tuple[CriterionTable, ...], Field(strict=False), AfterValidator(_not_empty)]

    @model_validator(mode="after")
    def _says_each_thing_once(self) -> Spec:
        name, count = Counter(criterion.name for criterion in self.criteria).most_common(1)[0]
        if count > 1:
            raise ValueError(f"two criteria are {name}: give one, with lower and upper")
        return self


@dataclass(frozen=True)
class Contract:
    """A contract file: where it lies, the hash of its bytes, what it says."""

    path: Path
    sha256: str
    spec: Spec

    @property
    def signers(self) -> Path | None:
        """The file of keys that it vouches for; its path is relative to the contract."""
        return self.path.parent / self.spec.require.signers if self.spec.require.signers else None


def contracts_folder() -> Path:
    """The folder of the contract files that come with hpcai500."""
    return recipes_folder() / "acceptance"


def find_contract(name: Path) -> Path:
    """The file of `name`: a path, or the short name of a contract file that comes with hpcai500 (`smoke`).

    Raises:
        UsageError: neither exists.
    """
    shipped = contracts_folder() / f"{name}.toml"
    for path in (name, shipped):
        if path.is_file():
            return path
    known = ", ".join(sorted(path.stem for path in contracts_folder().glob("*.toml")))
    problem = "a folder, where a contract file must be first" if name.is_dir() else "no such contract file"
    raise UsageError(f"{name}: {problem}; known are {known}; begin one: hpcai500 accept --example > contract.toml")


def load_contract(path: Path) -> Contract:
    """The contract in the file `path`.

    Raises:
        UsageError: with file, line, table, key and the allowed values, a line for each mistake.
    """
    source = read_source(path, UsageError)
    tables = parse_tables(source, UsageError)
    try:
        spec = Spec.model_validate(tables)
    except ValidationError as error:
        raise UsageError(*mistakes(Spec, source, tables, error)) from error
    return Contract(path, hashlib.sha256(source.text.encode()).hexdigest(), spec)
