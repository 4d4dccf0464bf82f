"""What a contract can be about: each metric by its name, its unit, which way is better, and where it is measured."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from hpcai500.methodology.result import Result

Better = Literal["higher", "lower"]
Kind = Literal["run", "variation", "micro", "efficiency"]

EFFICIENCY = "parallel_efficiency"
VARIATION = "variation of "
QUALITY = "quality"


@dataclass(frozen=True)
class Metric:
    """One metric.

    Attributes:
        name: as a contract names it.
        unit: what its numbers are in, in records and JSON.
        better: which way a system is better.
        kind: `run`: each run has one; `variation`: one number over all runs; `micro`: of `hpcai500 micro`;
            `efficiency`: from runs on several numbers of nodes.
        remedy: what to do where nothing is known of it.
    """

    name: str
    unit: str
    better: Better
    kind: Kind
    remedy: str

    @property
    def figure(self) -> str:
        """Its name in the lines for harnesses."""
        return self.name.replace(" ", "_")


_POWER = "run with --power where a meter can be read, or with --power csv:FILE (docs/power.md)"
_TALKING = "only a run of several ranks has it (docs/timeline.md)"
_QUALITY = "only a run that was evaluated has it"
_TARGET = "only a run against the edition's problem.target_quality has it; for others ask for flops and quality"
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
    ("communication_fraction", "fraction", "lower", _TALKING),
)
_PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
_MICRO = {
    **{f"{kind} {precision}": "FLOPS" for kind in ("gemm", "conv") for precision in _PRECISIONS},
    "copy": "bytes/s",
    **{f"allreduce {where}": "bytes/s" for where in ("node", "network", "system")},
    **{f"input {benchmark}": "samples/s" for benchmark in ("ic", "ewa")},
}


def _of_runs(name: str, unit: str, better: Better, remedy: str) -> Metric:
    return Metric(name, unit, better, "run", remedy)


def _variation(name: str) -> Metric:
    remedy = "give two runs or more, with different seeds: hpcai500 ic --trials 5 …"
    return Metric(f"{VARIATION}{name}", "fraction", "lower", "variation", remedy)


def _micro(name: str, unit: str) -> Metric:
    kind, _, _ = name.partition(" ")
    remedy = f"srun hpcai500 micro {kind} -o micro.json, then --micro micro.json (docs/micro.md)"
    return Metric(name, unit, "higher", "micro", remedy)


_SCALE = (
    "give records on that many nodes and on fewer, or: hpcai500 scale … --json > scale.json, then --scaling scale.json"
)
METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        *(_of_runs(*one) for one in _RUN),
        *(_variation(name) for name, *_ in _RUN),
        Metric(EFFICIENCY, "fraction", "higher", "efficiency", _SCALE),
        *(_micro(*one) for one in _MICRO.items()),
    )
}
# Mean watts are no aim of their own: with more speed they grow. What is judged is energy, and what was had for a watt.
COMPARED = tuple(
    METRICS[name]
    for name in (
        "vflops", "flops", "images_per_second", QUALITY, "time_to_quality_seconds", "seconds", "energy_joules",
        "flops_per_watt", "vflops_per_watt",
    )
)  # fmt: skip


def find_metric(name: str) -> Metric:
    """The metric that is called `name`.

    Raises:
        ValueError: there is none; the message names those that there are.
    """
    if name in METRICS:
        return METRICS[name]
    near = difflib.get_close_matches(name, METRICS, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    runs = ", ".join(name for name, *_ in _RUN)
    raise ValueError(
        f"no metric is called {name!r}; {hint}allowed: {runs}; {VARIATION}NAME for each of these; {EFFICIENCY}; "
        f"{', '.join(_MICRO)}"
    )


def value_of(metric: Metric) -> Callable[[Result], float | None]:
    """What gives the metric of a run, or of the variation the metric that varies, from a result."""
    name = metric.name.removeprefix(VARIATION)
    if name == QUALITY:
        return lambda result: result.quality.achieved
    return lambda result: getattr(result, name)
