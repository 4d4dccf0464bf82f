"""Whether the data set can be read, and as fast as training could ask for it."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcai500.measure.preflight.everyone import Answer, failures, listed, values
from hpcai500.measure.preflight.reading import Reading
from hpcai500.system.checks import Check
from hpcai500.system.preflight import READING

# Training reaches about half of what a matrix product does: less than that, and it will wait for its data.
_SHARE = 0.5


@dataclass(frozen=True)
class Need:
    """What training could take at most.

    Attributes:
        benchmark: for the line to type.
        data: the folder.
        flops: a second, of the matrix products of all ranks; None where they could not be measured.
        sample_flops: of one sample's training; None where they are unknown.
    """

    benchmark: str
    data: Path
    flops: float | None
    sample_flops: float | None

    @property
    def samples_per_second(self) -> float | None:
        """The ceiling: as if all of training were one matrix product."""
        return self.flops / self.sample_flops if self.flops and self.sample_flops else None


def judge_reading(answers: Sequence[Answer[Reading]], need: Need) -> Check:
    """Whether what all ranks read together is whole, and enough."""
    folder = shlex.quote(str(need.data))
    check = f"hpcai500 data check {need.benchmark} {folder}"
    if failed := failures(READING, answers, "cannot read the data set", f"`{check}` looks at all of it"):
        return failed
    found = values(answers)
    # Two ranks may have come across the same file.
    told_of = dict.fromkeys((reason, answer.host) for answer, reading in found for reason in reading.broken)
    broken = [f"{reason} (host {host})" for reason, host in told_of]
    checked = sum(reading.checked for _, reading in found)
    if broken:
        more = f" and {len(broken) - 3} more" if broken[3:] else ""
        told = f"{len(broken)} of {checked} files broken: {'; '.join(broken[:3])}{more}"
        return Check(READING, "fail", told, f"copy them again; `{check}` finds all of them")
    rate = math.fsum(reading.size_bytes / reading.seconds for _, reading in found)
    first = found[0][1]
    threads = f"{len(found)} x {first.threads} threads" if len(found) > 1 else f"{first.threads} threads"
    told = f"{rate / 1e6:.3g} MB/s by {threads} ({first.what}), {checked} files whole"
    if need.samples_per_second is None or not first.sample_bytes:
        return Check(READING, "pass", told)
    wanted = need.samples_per_second * first.sample_bytes
    told = (
        f"{told}; training takes {wanted / 1e6:.3g} MB/s at most ({need.samples_per_second:.3g} samples/s at the speed "
        "of GEMM)"
    )
    if rate >= _SHARE * wanted:
        return Check(READING, "pass", told)
    slowest = min(found, key=lambda it: it[1].size_bytes / it[1].seconds)[0]
    return Check(
        READING,
        "warn",
        f"{told}: training will wait for data; slowest was {listed([slowest.name])}",
        "stage the data set on storage of the nodes, or more threads: --set os.input_threads=N",
    )
