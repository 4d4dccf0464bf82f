"""Contract files: what a system must reach to be accepted. `recipes/acceptance/example.toml` explains every field."""

from __future__ import annotations

import difflib
import hashlib
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from hpcai500.errors import UsageError
from hpcai500.files import why_not
from hpcai500.job_options import COLLECTIVES
from hpcai500.methodology.goodput import FIGURES, figure
from hpcai500.methodology.passes import Better
from hpcai500.methodology.result import Result
from hpcai500.methodology.samples import Unit
from hpcai500.methodology.statistics import Limits, Statistic
from hpcai500.methodology.storage import CHECKPOINTS, SAMPLES
from hpcai500.methodology.weak_scaling import MOST_EFFICIENCY
from hpcai500.plugins import may_be_benchmark
from hpcai500.recipe import editions, recipes_folder
from hpcai500.text import PREFIXES, duration, scaled
from hpcai500.toml_source import explain, parse_tables, read_source

# ----------------------------------------------------------------------------------------------------
# The metrics that a contract can limit.


Kind = Literal["run", "variation", "micro", "efficiency"]

EFFICIENCY = "parallel_efficiency"
VARIATION = "variation of "
QUALITY = "quality"
RATE = "_per_second"
BETWEEN = "mean_between_interruptions_seconds"


@dataclass(frozen=True)
class Metric:
    """One metric.

    Attributes:
        unit: of its numbers in records and JSON.
        better: whether higher or lower is better.
        kind: `run`: each run has one; `variation`: one number over all runs; `micro`: of `hpcai500 micro` or
            `storage`; `efficiency`: from runs on several numbers of nodes.
        remedy: what to do if it is unknown.
    """

    name: str
    unit: str
    better: Better
    kind: Kind
    remedy: str


_POWER = "run with --power where a meter can be read, or with --power csv:FILE (docs/power.md)"
_COMMUNICATION = "only a run of several ranks has it (docs/timeline.md)"
_QUALITY = "only a run that was evaluated has it"
_TARGET = "only a run with the edition's problem.target_quality has it; for other runs use flops and quality"
_INTERRUPTED = "only a run that was interrupted, and then continued, has it"
_GOODPUT = {
    "recovery_seconds": _INTERRUPTED,
    "checkpoint_seconds": "the run wrote no checkpoint",
}
_RUN: tuple[tuple[str, str, Better, str], ...] = (
    ("vflops", "FLOPS", "higher", _TARGET),
    ("flops", "FLOPS", "higher", ""),
    ("images_per_second", "images/s", "higher", ""),
    (QUALITY, "fraction", "higher", _QUALITY),
    ("time_to_quality_seconds", "s", "lower", "the target quality was never reached: run again"),
    ("seconds", "s", "lower", ""),
    ("evaluation_seconds", "s", "lower", ""),
    ("energy_joules", "J", "lower", _POWER),
    ("watts", "W", "lower", _POWER),
    ("flops_per_watt", "FLOPS/W", "higher", _POWER),
    ("vflops_per_watt", "FLOPS/W", "higher", f"{_TARGET}; {_POWER}"),
    ("data_wait_fraction", "fraction", "lower", "no training step was timed"),
    ("communication_fraction", "fraction", "lower", _COMMUNICATION),
    *((name, unit, better, _GOODPUT.get(name, "")) for name, (unit, better) in FIGURES.items()),
)
_PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
# What `hpcai500 micro` measures: name -> unit.
MICRO_UNITS = {
    **{f"{kind} {precision}": "FLOPS" for kind in ("gemm", "conv") for precision in _PRECISIONS},
    "copy": "bytes/s",
    **{f"{collective} {where}": "bytes/s" for collective in COLLECTIVES for where in ("node", "network", "system")},
    "pairs slowest": "bytes/s",
    "pairs share": "fraction",
    "pairs latency": "s",
    "pairs bisection": "bytes/s",
    **{f"device {way}": "bytes/s" for way in ("from host", "to host", "to device")},
    **{f"input {benchmark}": "samples/s" for benchmark in ("ic", "ewa")},
}
# What `hpcai500 storage` measures.
_STORAGE: dict[str, tuple[str, Better]] = {
    **{f"storage read {kind}": ("samples/s", "higher") for kind in SAMPLES},
    **{f"storage read {kind} p99": ("s", "lower") for kind in SAMPLES},
    **{f"storage accelerators {kind}": ("accelerators", "higher") for kind in SAMPLES},
    **{f"storage {what}": ("files/s", "higher") for what in ("create", "list", "open", "remove")},
    **{f"storage {verb}": ("bytes/s", "higher") for verb in ("save", "restore")},
    **{f"storage {verb} {model}": ("s", "lower") for verb in ("save", "restore") for model in CHECKPOINTS},
}


def _metrics() -> Iterator[Metric]:
    for name, unit, better, remedy in _RUN:
        yield Metric(name, unit, better, "run", remedy)
    for name, *_ in _RUN:
        remedy = "give two runs or more, with different seeds: hpcai500 ic --trials 5 …"
        yield Metric(f"{VARIATION}{name}", "fraction", "lower", "variation", remedy)
    remedy = (
        "give records on that many nodes and on fewer, or: hpcai500 scale … --json > scale.json, then "
        "--scaling scale.json"
    )
    yield Metric(EFFICIENCY, "fraction", "higher", "efficiency", remedy)
    for name, unit in MICRO_UNITS.items():
        kind = name.partition(" ")[0]
        remedy = f"srun hpcai500 micro {kind} -o micro.json, then --micro micro.json (docs/micro.md)"
        yield Metric(name, unit, "lower" if unit == "s" else "higher", "micro", remedy)
    remedy = "srun hpcai500 storage DIR -o storage.json, then --micro storage.json (docs/storage.md)"
    for name, (unit, better) in _STORAGE.items():
        yield Metric(name, unit, better, "micro", remedy)


METRICS: dict[str, Metric] = {metric.name: metric for metric in _metrics()}
# The quality of runs whose metric is a loss: a plain number of 0 or more.
LOSS = replace(METRICS[QUALITY], unit="1", better="lower")
# Without mean watts, which grow with speed: energy and the metrics per watt are compared instead.
COMPARED = tuple(
    METRICS[name]
    for name in (
        "vflops", "flops", "images_per_second", QUALITY, "time_to_quality_seconds", "seconds", "energy_joules",
        "flops_per_watt", "vflops_per_watt",
    )
)  # fmt: skip


def find_metric(name: str) -> Metric:
    """Return the metric `name`.

    Raises:
        ValueError: there is none; the message has those with similar names.
    """
    if metric := METRICS.get(name) or _rate(name):
        return metric
    near = difflib.get_close_matches(name, METRICS, n=3, cutoff=0.7)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    raise ValueError(
        f"no metric is called {name!r}; {hint}{QUALITY} is the metric of the recipe, such as top1 or a loss; "
        "hpcai500 accept --example lists all names"
    )


def _rate(name: str) -> Metric | None:
    """The rate, or its variation, of what the samples of a plug-in hold: `tokens_per_second`; None for other names."""
    rate = name.removeprefix(VARIATION)
    try:
        unit = Unit(name=rate.removesuffix(RATE), per_sample=1)
    except ValidationError:
        return None
    if unit.metric != rate:
        return None
    like = METRICS[name.replace(rate, "images_per_second")]
    return replace(like, name=name, unit=like.unit.replace("images", unit.name))


def value_of(metric: Metric, result: Result) -> float | None:
    """The value of the metric in a run; for a variation, the value of the metric that varies."""
    name = metric.name.removeprefix(VARIATION)
    if name in FIGURES:
        return figure(result.goodput, name)
    if name in result.rates:
        return result.rates[name]
    value: float | None = result.quality.achieved if name == QUALITY else getattr(result, name)
    return value


# ----------------------------------------------------------------------------------------------------
# The units that a contract may use: those of the metrics, and their multiples.


_MULTIPLES = {prefix: factor for factor, prefix in PREFIXES}
# For each unit of a metric that has others, which a contract may use: their size in the metric's unit.
_NAMES: dict[str, dict[str, float]] = {
    "FLOPS": {f"{prefix}FLOPS": factor for prefix, factor in _MULTIPLES.items()},
    "FLOPS/W": {f"{prefix}FLOPS/W": factor for prefix, factor in _MULTIPLES.items()},
    "bytes/s": {"B/s": 1.0, **{f"{prefix}B/s": factor for prefix, factor in _MULTIPLES.items()}},
    "J": {"kJ": 1e3, "MJ": 1e6, "GJ": 1e9, "kWh": 3.6e6, "MWh": 3.6e9},
    "W": {"kW": 1e3, "MW": 1e6},
    "s": {"us": 1e-6, "ms": 1e-3, "min": 60.0, "h": 3600.0},
    "fraction": {"%": 0.01},
}


def unit_names(base: str) -> list[str]:
    """All units that a contract may use for `base`, `base` itself first."""
    return [base, *_NAMES.get(base, {})]


def unit_factor(name: str, base: str) -> float | None:
    """How many `base` one `name` is; None if it is not a multiple of it."""
    return 1.0 if name == base else _NAMES.get(base, {}).get(name)


def shown(value: float, base: str, unit: str | None = None) -> str:
    """Format `value`, which is in `base`, in the contract's `unit`, or with a fitting prefix."""
    if unit is not None:
        factor = unit_factor(unit, base)
        assert factor is not None
        return _digits(value / factor) if unit in ("fraction", "1") else f"{_digits(value / factor)} {unit}"
    if base == "fraction":
        return f"{_digits(value * 100)} %"
    if base == "1":
        return _digits(value)
    if base == "s":
        return duration(value)
    if base in _NAMES:
        return scaled(value, "B/s" if base == "bytes/s" else base)
    return f"{_digits(value)} {base}"


def _digits(value: float) -> str:
    """Four significant digits, or all digits before the point: `58,900`, `1.472`."""
    return f"{value:,.0f}" if 1e4 <= abs(value) < 1e15 else f"{value:,.4g}"


# ----------------------------------------------------------------------------------------------------
# The schema of contract files.


# All measured values are within this range, in which arithmetic stays exact.
_LEAST, _MOST = 1e-12, 1e30
_MOST_CRITERIA = 1000
# A limit below half or above twice the reference would be meaningless.
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
    if not may_be_benchmark(name):
        raise ValueError(f"expected the name of a benchmark: ic, ewa, or that of a plug-in, got {name!r}")
    return name


def _identity(text: str) -> str:
    if not re.fullmatch(r"[0-9a-f]{64}", text):
        raise ValueError(f"expected 64 hex digits, as `hpcai500 campaign status` shows them, got {text!r}")
    return text


def _metric(name: str) -> str:
    return find_metric(name).name


def _from(least: float, most: float, otherwise: str) -> AfterValidator:
    """Accept numbers from `least` to `most`; `otherwise` is the error message, with `{}` for the value."""

    def check(value: float) -> float:
        if not least <= value <= most:
            raise ValueError(otherwise.format(f"{value:g}"))
        return value

    return AfterValidator(check)


_REFERENCE = _from(_LEAST, _MOST, f"expected a value above 0 (from {_LEAST:g} to {_MOST:g}), got {{}}")
_LOWER = _from(
    _LOOSEST_LOWER,
    0,
    f"expected a fraction of the reference from {_LOOSEST_LOWER:g} to 0: -0.05 accepts what is 5 % lower, 0.0 nothing "
    "lower; got {}; to accept less, give a lower reference",
)
_UPPER = _from(
    0,
    _LOOSEST_UPPER,
    f"expected a fraction of the reference from 0 to {_LOOSEST_UPPER:g}: 0.05 accepts what is 5 % higher, 0.0 nothing "
    "higher; got {}; to accept more, give a higher reference",
)
_CONFIDENCE = _from(0.5, 0.999, "expected a probability from 0.5 to 0.999, such as 0.95; got {}")

Line = Annotated[str, Field(max_length=500), AfterValidator(_line)]
Name = Annotated[str, Field(max_length=500), AfterValidator(_some)]
Count = Annotated[int, Field(ge=1, le=10**6)]
Fraction = Annotated[float, Field(allow_inf_nan=False)]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class PartyTable(_Table):
    """A party to the contract."""

    role: Name
    name: Name
    signs: Line = ""


class SystemTable(_Table):
    """The system under test."""

    name: Name = "not named"
    description: Line = ""


class RequireTable(_Table):
    """Requirements for every run, whatever its speed."""

    rankable: bool = True
    verified: bool = False
    signed: bool = False
    registered: Annotated[str, AfterValidator(_identity)] | None = None
    signers: Name | None = None
    level: Literal["hardware", "system", "free"] | None = None
    edition: Annotated[str, AfterValidator(_edition)] | None = None
    runs: Count = 1
    nodes: Count | None = None
    confidence: Annotated[Fraction, _CONFIDENCE] | None = None

    @model_validator(mode="after")
    def _signers_need_signatures(self) -> RequireTable:
        if self.signers is not None and not (self.verified or self.signed):
            raise ValueError(
                "signers has no effect alone: add verified = true (submissions), signed = true (micro, scale), or both"
            )
        return self


class CriterionTable(_Table):
    """One contracted value."""

    metric: Annotated[str, AfterValidator(_metric)]
    reference: Annotated[Fraction, _REFERENCE]
    lower: Annotated[Fraction, _LOWER] | None = None
    upper: Annotated[Fraction, _UPPER] | None = None
    unit: str
    better: Literal["lower"] | None = None
    statistic: Statistic | None = None
    nodes: Count | None = None
    benchmark: Annotated[str, AfterValidator(_benchmark)] | None = None
    clause: Line = ""

    @property
    def subject(self) -> Metric:
        return LOSS if self.better else find_metric(self.metric)

    @property
    def factor(self) -> float:
        """Size of the contract's unit in the metric's own unit."""
        factor = unit_factor(self.unit, self.subject.unit)
        assert factor is not None
        return factor

    @property
    def limits(self) -> Limits:
        """The accepted values, in the metric's own unit; parallel efficiency up to 1.05 unless `upper` is given."""
        reference, upper = self.reference * self.factor, self.upper
        if upper is None and self.subject.kind == "efficiency":
            upper = MOST_EFFICIENCY / reference - 1
        return Limits(reference, self.lower, upper)

    @property
    def over_runs(self) -> Statistic | None:
        """How the values of several runs become one; None if there is only one number over all runs."""
        return self.statistic or (None if self.subject.kind == "variation" else "mean")

    @property
    def name(self) -> str:
        """The name of the criterion: `ic: vflops (mean, 16 nodes)`."""
        qualities: list[str] = []
        if self.over_runs and self.subject.kind == "run":
            qualities.append("every run" if self.over_runs == "every" else self.over_runs)
        if self.nodes:
            qualities.append(f"{self.nodes} node{'s' if self.nodes > 1 else ''}")
        of = f"{self.benchmark}: " if self.benchmark else ""
        return f"{of}{self.metric}" + (f" ({', '.join(qualities)})" if qualities else "")

    @model_validator(mode="after")
    def _fits_its_metric(self) -> CriterionTable:
        """Refuse a unit of another metric, a criterion that no system could miss, and keys that do not apply."""
        name, metric = self.metric, self.subject
        if self.better and name != QUALITY:
            raise ValueError(f"better: only for {QUALITY}; for {name} leave it out")
        if unit_factor(self.unit, metric.unit) is None:
            of_loss = f'{name} of a loss, where better = "lower",' if metric is LOSS else name
            or_loss = '; for a loss, add better = "lower", with unit = "1"' if metric is METRICS[QUALITY] else ""
            raise ValueError(
                f"unit: {of_loss} is measured in {metric.unit}; allowed: {', '.join(unit_names(metric.unit))}; "
                f"got {self.unit!r}{or_loss}"
            )
        needed = "lower" if metric.better == "higher" else "upper"
        if getattr(self, needed) is None:
            raise ValueError(f"{name}: {metric.better} is better, so give {needed} = 0.0, or a tolerance")
        # A fraction is never above 1, and runs do not vary by 100 %.
        most = self.limits.highest
        if needed == "upper" and metric.unit == "fraction" and most is not None and most >= 1:
            raise ValueError(
                f"{name}: up to {most * 100:g} % is accepted, and it is never above 100 %: give a lower reference; "
                'unit = "%" if it is in per cent'
            )
        if metric.kind == "efficiency" and self.upper is None and self.reference * self.factor > MOST_EFFICIENCY:
            raise ValueError(
                f"reference: a {EFFICIENCY} above {MOST_EFFICIENCY:g} is not accepted without upper: give a lower "
                'reference (unit = "%" if it is in per cent), or upper'
            )
        if metric.kind == "micro" and (self.nodes or self.benchmark):
            raise ValueError(f"{name}: leave nodes and benchmark out, it is measured outside of the runs")
        if metric.kind == "variation" and self.statistic:
            raise ValueError(f"{name}: leave statistic out, it is one number over all runs")
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
    def _names_are_unique(self) -> Spec:
        name, count = Counter(criterion.name for criterion in self.criteria).most_common(1)[0]
        if count > 1:
            raise ValueError(f"two criteria are {name}: give one with lower and upper")
        return self

    @model_validator(mode="after")
    def _efficiency_has_its_nodes(self) -> Spec:
        for criterion in self.criteria:
            if criterion.subject.kind == "efficiency" and (criterion.nodes or self.require.nodes) is None:
                raise ValueError(
                    f"nodes: {EFFICIENCY} needs a number of nodes, such as nodes = 16, here or in [require]"
                )
        return self


@dataclass(frozen=True)
class Contract:
    """A contract file: its path, the hash of its bytes, and its content."""

    path: Path
    sha256: str
    spec: Spec

    @property
    def signers(self) -> Path | None:
        """The file of keys that the contract trusts; its path is relative to the contract."""
        return self.path.parent / self.spec.require.signers if self.spec.require.signers else None


def contracts_folder() -> Path:
    """The folder of the shipped contract files."""
    return recipes_folder() / "acceptance"


def find_contract(name: Path) -> Path:
    """Find the file of `name`: a path, or the short name of a shipped contract (`smoke`).

    Raises:
        UsageError: neither exists.
    """
    shipped = contracts_folder() / f"{name}.toml"
    for path in (name, shipped):
        if path.is_file():
            return path
    known = ", ".join(sorted(path.stem for path in contracts_folder().glob("*.toml")))
    problem = "a folder, but the contract file must come first" if name.is_dir() else why_not("file", name)
    raise UsageError(f"{name}: {problem}; shipped: {known}; or write one: hpcai500 accept --example > contract.toml")


def load_contract(path: Path) -> Contract:
    """Read the contract file `path`.

    Raises:
        UsageError: a line for each mistake, with file, line, table, key and the allowed values.
    """
    source = read_source(path, UsageError)
    tables = parse_tables(source, UsageError)
    try:
        spec = Spec.model_validate(tables)
    except ValidationError as error:
        raise UsageError(*explain(Spec, source, error, tables, named_by="metric")) from error
    return Contract(path, hashlib.sha256(source.text.encode()).hexdigest(), spec)
