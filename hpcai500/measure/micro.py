"""Common parts of measurements of a machine's ceilings: memory, precisions, error bounds, the job, the search.

A ceiling is the speed of products, convolutions, copies, all-reduces or input here, with verified results. All ranks
measure at once.
"""

from __future__ import annotations

import math
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from hpcai500.comm.communicator import Communicator
from hpcai500.errors import WrongAnswerError
from hpcai500.measure.timing import Effort, Timing, repeat, stopwatch
from hpcai500.progress import Progress
from hpcai500.system.limits import memory_limit
from hpcai500.system.node import caches_of, parse_meminfo

# ----------------------------------------------------------------------------------------------------
# Memory: how much a measurement may take, and the size of the caches that it must not fit into.


_ROOT = Path("/")


def available_bytes(device: torch.device, ranks_here: int, root: Path = _ROOT) -> int:
    """Memory that this rank may take on `device`: half of what is free, shared with the other ranks of the host."""
    if device.type == "cuda":
        # Memory that torch's allocator caches counts as free.
        torch.cuda.empty_cache()
        return int(torch.cuda.mem_get_info(device)[0]) // 2
    meminfo = parse_meminfo((root / "proc/meminfo").read_text(encoding="ascii"))
    # Kernels older than 3.14 do not report MemAvailable; MemFree is less.
    free = meminfo["MemAvailable" if "MemAvailable" in meminfo else "MemFree"]
    return min(free, memory_limit(root) or free) // 2 // ranks_here


def last_level_cache_bytes(root: Path = _ROOT) -> int:
    """Size of all last-level data caches together, each shared one counted once; 0 if unknown."""
    caches = [cache for cache in caches_of(root) or [] if cache["type"] != "Instruction"]
    last = max((cache["level"] for cache in caches), default=0)
    return sum(cache["bytes"] * cache["instances"] for cache in caches if cache["level"] == last)


# ----------------------------------------------------------------------------------------------------
# Precisions that products are measured in, and what each rounds.


@dataclass(frozen=True)
class Precision:
    """How numbers are stored and rounded.

    Attributes:
        name: the recipe's word.
        dtype: of operands and results.
        result: unit roundoff of a result: 2**-24 for fp32.
        operand: unit roundoff of an operand on its way into the product; 0 if it is not rounded.
        sums: unit roundoff of the sums, which are in fp32 for all precisions.
    """

    name: str
    dtype: torch.dtype
    result: float
    operand: float = 0.0
    sums: float = 2.0**-24


PRECISIONS = {
    one.name: one
    for one in (
        Precision("fp32", torch.float32, result=2.0**-24),
        # Operands lose 13 bits. Tensor cores truncate sums where a CPU rounds them: twice the unit.
        Precision("tf32", torch.float32, result=2.0**-24, operand=2.0**-11, sums=2.0**-23),
        Precision("bf16", torch.bfloat16, result=2.0**-8, sums=2.0**-23),
        Precision("fp16", torch.float16, result=2.0**-11, sums=2.0**-23),
    )
}


def lacking(precision: Precision, device: torch.device) -> str | None:
    """Why `precision` cannot be measured on `device`; None if it can."""
    if precision.name != "tf32":
        return None
    if device.type != "cuda":
        return "tf32 exists on CUDA devices only"
    if torch.cuda.get_device_capability(device) < (8, 0):
        return "this device has no tf32: its generation is too old"
    return None


@contextmanager
def arithmetic(precision: Precision) -> Iterator[None]:
    """Inside, products are computed in `precision` and gradients are not recorded; restores torch's settings."""
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark
    torch.set_float32_matmul_precision("high" if precision.name == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = precision.name == "tf32"
    # As in training, where shapes never change, so that the search for the fastest algorithm pays off.
    torch.backends.cudnn.benchmark = True
    try:
        with torch.inference_mode():
            yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark = before[1:]


# ----------------------------------------------------------------------------------------------------
# Problems, such as a matrix product or a convolution, are solved in several ways, and the fastest counts.


Call = Callable[[], Tensor]


@dataclass(frozen=True)
class Prepared:
    """A problem with its operands: library calls that solve it, by name, and a check: what is wrong with a result."""

    calls: Mapping[str, Call]
    check: Callable[[Tensor], str | None]


class Problem(Protocol):
    """Something to compute.

    Attributes:
        name: its shape, for messages.
        flops: operations of solving it, two a multiply-add.
        elements: number of values of operands and results, in all layouts that are tried.
        check_flops: about how many float64 operations, or conversions to float64, a check of a result takes.
    """

    @property
    def name(self) -> str: ...
    @property
    def flops(self) -> int: ...
    @property
    def elements(self) -> int: ...
    @property
    def check_flops(self) -> int: ...

    def prepare(self, precision: Precision, device: torch.device) -> Prepared:
        """Make the operands on `device`, and the calls that a library has there."""


# ----------------------------------------------------------------------------------------------------
# Error bounds: how far a product in finite precision may be from the exact one.


# Operands are uniform in [-1, 1]: zero mean, this variance.
_VARIANCE = 1 / 3
# Standard deviations of a sum of roundings that are allowed: one in 5e8 entries is beyond six.
_SIGMAS = 6.0
# Factor of the errors of Winograd's 4 x 4 tiles over those of plain sums: Lavin and Gray, "Fast algorithms for
# convolutional neural networks", CVPR 2016, table 4 (2.84e-4 to 4.01e-5). Libraries choose such tiles in fp32.
WINOGRAD = 7.1


def operand(shape: tuple[int, ...], precision: Precision, device: torch.device) -> Tensor:
    """Random values, uniform in [-1, 1]: zeros would take less power, and so be faster than training."""
    return torch.empty(shape, device=device).uniform_(-1, 1).to(precision.dtype)


def entry_bound(exact: Tensor, inner: int, precision: Precision, loss: float = 1.0, parts: int = 1) -> Tensor:
    """The largest error of each entry of a product with the float64 entries `exact`, sums of `inner` products each.

    Of operands with zero mean, a sum of k products has the standard deviation S = sqrt(k) / 3. Its error is that of

    - the result's own rounding: u |c|; where sums of parts are rounded to 16 bits too, as a split sum is, a few u S;
    - each partial sum's rounding: k independent errors of at most u S, so their sum is like sqrt(k) u S and not like
      the pessimistic k u S (Higham and Mary, "Sharper probabilistic backward error analysis for basic linear algebra
      kernels with random data", SIAM J. Sci. Comput. 42(5), 2020);
    - each operand's rounding on its way in: sqrt(2) u S.

    An fp32 product that was computed in bf16 or tf32 is far beyond it.

    `loss` is a factor for the sums of an algorithm that needs fewer operations (`WINOGRAD`). `parts` is how many
    partial sums are rounded to 16 bits one after the other, as a CPU without 16-bit instructions sums a weight gradient
    over images and an input gradient over the kernel's places: the j-th of them has the deviation S sqrt(j / parts),
    and rounding is uniform, so that the errors amount to u S sqrt(parts / 6). The size of the partial sums, and so the
    variance of their roundings, differs from entry to entry, so six deviations are not enough: of ten million simulated
    entries the worst was 10.4 deviations away, and twelve are allowed.
    """
    deviation = math.sqrt(inner) * _VARIANCE
    relative = loss * precision.sums * math.sqrt(inner) + math.sqrt(2) * precision.operand
    if precision.dtype != torch.float32:
        relative += precision.result * (1.0 if parts == 1 else max(1.0, 2 * math.sqrt(parts / 6)))
    return precision.result * exact.abs() + _SIGMAS * deviation * relative


def row_sum_bound(computed: Tensor, inner: int, precision: Precision) -> Tensor:
    """The largest error of each row's sum with random signs, from the row's float64 entries (rows, columns).

    Errors of entries are independent, so six standard deviations bound their sum; the bound of an entry is no less than
    its standard deviation.
    """
    return _SIGMAS * entry_bound(computed, inner, precision).square().sum(dim=-1).sqrt()


# ----------------------------------------------------------------------------------------------------
# The job: the ranks that measure at once, and the sum of their measurements.


Value = TypeVar("Value")
_CPUS = Path("/proc/cpuinfo")


@dataclass(frozen=True)
class MeasuringJob:
    """All ranks of the job, each with its device.

    `say` shows a line to the user, on one rank; `doing` gets what is being measured.
    """

    world: Communicator
    device: torch.device
    cores: int
    say: Callable[[str], None]
    doing: Callable[[str], None] = lambda what: None

    @property
    def nodes(self) -> int:
        return len(set(self.world.hosts))

    @property
    def ranks_here(self) -> int:
        return self.world.hosts.count(self.world.hosts[self.world.rank])

    def gather(self, value: Value) -> list[Value]:
        """All ranks' `value`, by rank."""
        return self.world.gather_objects(value)

    def time(self, run: Callable[[], float], effort: Effort) -> Timing:
        """Time `run` on all ranks at once: they begin together, and none ends before all have enough repetitions."""
        self.world.barrier()
        return repeat(run, effort, agree=lambda needed: max(self.gather(needed)))

    def require(self, what: str, error: str | None) -> None:
        """Check, on all ranks together, that no rank has an `error` in the result of `what`.

        Raises:
            WrongAnswerError: a rank has one (on all ranks).
        """
        for rank, one in enumerate(self.gather(error)):
            if one:
                raise WrongAnswerError(
                    f"{what}: rank {rank} on host {self.world.hosts[rank]} has a wrong result: {one}; do not trust "
                    "that machine or its library until the cause is known"
                )

    def entry(self, unit: str, amount: float, timing: Timing, share: float = 1.0, **more: Any) -> dict[str, Any]:
        """The document's entry of a measurement that all ranks made at once; call it on all ranks.

        This rank did `amount` in each repetition; `unit` is that of `amount` a second. The value is `share` times the
        sum of all ranks' rates; `more` are further keys of the entry.
        """
        low, high = timing.interval
        mine = amount / timing.median, amount / high, amount / low, timing.spread, len(timing.seconds)
        rates, lows, highs, spreads, repetitions = zip(*self.gather(mine), strict=True)
        slowest = min(range(len(rates)), key=lambda rank: rates[rank])
        return {
            "value": share * sum(rates),
            "unit": unit,
            "interval": [share * sum(lows), share * sum(highs)],
            "spread": max(spreads),
            "repetitions": min(repetitions),
            "accelerators": self.world.size,
            "nodes": self.nodes,
            "device": device_name(self.device),
            "per_rank": list(rates),
            "slowest": {"rank": slowest, "host": self.world.hosts[slowest], "value": rates[slowest]},
            **more,
        }


def device_name(device: torch.device, cpus: Path = _CPUS) -> str:
    """The device's model; for a CPU that of /proc/cpuinfo, or else the machine's architecture."""
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    lines = cpus.read_text(encoding="utf-8").splitlines() if cpus.is_file() else []
    names: Sequence[str] = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


# ----------------------------------------------------------------------------------------------------
# The search for the fastest of many shapes and library calls: all are tried, the best are measured and verified.


# Number of ways that are measured precisely after a short trial, whose fastest need not be the fastest.
FINALISTS = 3
_TRIES = 3
# Time of the search in units of a measurement; slow processors try few shapes in it, fast ones all.
_SEARCH = 4
# Time of the finalists, in the same unit: those that would begin later are left out.
_FINAL = 6.0
# A way is not tried if it is predicted to take this many times the allowed time; the prediction is rough.
_DOUBT = 4.0
# On CUDA, the first call of a convolution tries all algorithms of its library, as training does once.
_TUNING_SECONDS = 10.0


@dataclass(frozen=True)
class Way:
    """A problem's index, and the name of a call that solves it."""

    problem: int
    call: str


def fastest(
    problems: Sequence[Problem],
    precision: Precision,
    job: MeasuringJob,
    seconds: float,
    bar: Progress,
    probes: Sequence[Problem] = (),
) -> dict[str, Any] | None:
    """The document's entry of the fastest way to solve one of `problems`; None if none ends in time on all ranks.

    Args:
        problems: of growing size, so that each predicts the time of the next.
        seconds: of measuring a finalist.
        bar: advanced once, at the end.
        probes: smaller problems, for a first estimate of this machine's speed before anything large is begun.

    Raises:
        WrongAnswerError: a rank's result is wrong.
    """
    effort = Effort(seconds=seconds, most_seconds=2 * seconds)
    with arithmetic(precision):
        search = _Search(precision, job, seconds, effort)
        tried = _tried_by_all(job, search.try_all(problems, probes))
        slow = job.gather(search.check_seconds)
        ways = _finalists(problems, tried, max(slow), seconds)
        measured: list[tuple[dict[str, Any], Way]] = []
        begun = time.monotonic()
        for way in ways:
            # At least one finalist is measured, however slow it is.
            if measured and any(job.gather(time.monotonic() - begun > _FINAL * seconds)):
                break
            measured.append((_measure(problems[way.problem], way, precision, job, effort), way))
    bar.advance()
    if not measured:
        return None
    entry, best = max(measured, key=lambda one: one[0]["value"])
    return {
        **entry,
        "shape": problems[best.problem].name,
        "call": best.call,
        "precision": precision.name,
        "verified": True,
        "tried": _best_of_each(problems, tried),
    }


def _finalists(problems: Sequence[Problem], tried: dict[Way, float], check_seconds: float, seconds: float) -> list[Way]:
    """The fastest ways, of those whose results can be checked in time; the quickest to check where none can.

    `tried` has the FLOPS of each way, `check_seconds` is the time of one operation of a check.
    """
    quick = [way for way in tried if problems[way.problem].check_flops * check_seconds <= _FINAL * seconds]
    if tried and not quick:
        quick = [min(tried, key=lambda way: problems[way.problem].check_flops)]
    return sorted(quick, key=lambda way: -tried[way])[:FINALISTS]


class _Search:
    """Tries shapes and calls on this rank, small ones first, and begins nothing that would not end in time.

    `check_seconds` is the time of one operation of a check (`Problem.check_flops`); 0 while unknown.
    """

    def __init__(self, precision: Precision, job: MeasuringJob, seconds: float, effort: Effort) -> None:
        self._precision, self._job = precision, job
        self._watch = stopwatch(job.device)
        self._longest = seconds / effort.least
        tuning = _TUNING_SECONDS if job.device.type == "cuda" else 0.0
        self._patience = _DOUBT * self._longest + tuning
        self._budget = _SEARCH * seconds + tuning
        # FLOPS of each call at the largest problem that it has solved.
        self._rates: dict[str, float] = {}
        # Time of making operands, for each of their elements.
        self._prepare_seconds = 0.0
        self.check_seconds = 0.0

    def try_all(self, problems: Sequence[Problem], probes: Sequence[Problem]) -> dict[Way, float]:
        """Rough FLOPS of every way of `problems` on this rank."""
        job, found = self._job, dict[Way, float]()
        job.world.barrier()
        limit = time.monotonic() + self._budget
        for probe in probes:
            if self._fits(probe, limit):
                self._try(probe, limit, is_probe=True)
        for number, problem in enumerate(problems):
            room = available_bytes(job.device, job.ranks_here) // self._precision.dtype.itemsize
            if problem.elements <= room and self._fits(problem, limit):
                for call, taken in self._try(problem, limit).items():
                    if taken <= self._longest:
                        found[Way(number, call)] = problem.flops / taken
        return found

    def _fits(self, problem: Problem, limit: float) -> bool:
        """Whether the fastest call can be expected to try `problem` before `limit`, and to be measured in time."""
        if not self._rates:
            return True
        expected = problem.flops / max(self._rates.values())
        preparing = problem.elements * self._prepare_seconds
        return expected <= _DOUBT * self._longest and time.monotonic() + preparing + expected < limit

    def _may_call(self, name: str, problem: Problem) -> bool:
        """Whether the call can be expected to end in time; a call without a result so far counts as the slowest."""
        if not self._rates:
            return True
        return problem.flops / self._rates.get(name, min(self._rates.values())) <= self._patience

    def _try(self, problem: Problem, limit: float, *, is_probe: bool = False) -> dict[str, float]:
        """Seconds of each call that was tried; where the first takes much too long, no other is tried.

        Calls take turns and the fastest time of each counts, so that other load on the host hits all of them alike.
        """
        what = f"{problem.name} in {self._precision.name}"
        self._job.doing(what)
        begun = time.monotonic()
        prepared = problem.prepare(self._precision, self._job.device)
        self._prepare_seconds = (time.monotonic() - begun) / problem.elements
        best: dict[str, float] = {}
        # The first trial decides whether anything is measured at all, so one disturbance must not fail it.
        patience = self._patience if self._rates else _DOUBT * self._patience
        for name, call in prepared.calls.items():
            if not self._may_call(name, problem) or (best and time.monotonic() > limit):
                continue
            self._job.doing(f"{what} by {name}")
            try:
                # The first call may also compile a kernel.
                best[name] = self._watch(call)
            except RuntimeError as error:
                # This build has no such product in this precision, or memory is short.
                if not is_probe:
                    self._job.say(f"{what}: {name} failed: {str(error).partition(chr(10))[0][:200]}")
                continue
            if best[name] > patience and len(best) == 1:
                break
        quick = [name for name, taken in best.items() if taken <= patience]
        for _ in range(_TRIES):
            for name in quick:
                if time.monotonic() < limit or not self._rates:
                    best[name] = min(best[name], self._watch(prepared.calls[name]))
        self._rates |= {name: problem.flops / taken for name, taken in best.items()}
        if is_probe and quick:
            begun = time.monotonic()
            prepared.check(prepared.calls[quick[0]]())
            self.check_seconds = (time.monotonic() - begun) / problem.check_flops
        return best


def _tried_by_all(job: MeasuringJob, mine: dict[Way, float]) -> dict[Way, float]:
    """FLOPS of all ranks together, of the ways that all of them could try."""
    everyone = job.gather(mine)
    return {way: sum(rates[way] for rates in everyone) for way in mine if all(way in rates for rates in everyone)}


def _measure(problem: Problem, way: Way, precision: Precision, job: MeasuringJob, effort: Effort) -> dict[str, Any]:
    prepared = problem.prepare(precision, job.device)
    call, watch = prepared.calls[way.call], stopwatch(job.device)
    what = f"{problem.name} in {precision.name} by {way.call}"
    job.doing(f"{what}, measured")
    timing: Timing = job.time(lambda: watch(call), effort)
    job.doing(f"{what}, checked in float64")
    job.require(what, prepared.check(call()))
    return job.entry("FLOPS", problem.flops, timing)


def _best_of_each(problems: Sequence[Problem], tried: dict[Way, float]) -> list[dict[str, Any]]:
    """The fastest call of every shape that was tried, with rough FLOPS, to show which shapes are slow."""
    best: dict[int, Way] = {}
    for way, rate in tried.items():
        if way.problem not in best or rate > tried[best[way.problem]]:
            best[way.problem] = way
    return [
        {"shape": problems[number].name, "call": way.call, "value": tried[way]} for number, way in sorted(best.items())
    ]
