"""Throughput, time, images and operations of the result with each other."""

from __future__ import annotations

import math
from collections.abc import Iterator

from hpcai500.results.verification.finding import Finding
from hpcai500.results.verification.guard import fail
from hpcai500.results.verification.records.run import Run, judged

_ROUNDING = 1e-9


def check_rates(run: Run) -> Iterator[Finding]:
    """Images are the samples of all epochs, and rates times the time give them and their operations again."""
    result = run.result
    if result is None:
        return
    images = sum(one.done.samples for one in run.epochs)
    moments = {moment.key: moment for moment in run.log.moments if moment.key == "run_stop"}
    begun = next(run.log.named("run_start"))
    pairs = {
        "images": (result.images, images),
        "images a second x seconds": (result.images_per_second * result.seconds, images),
        "FLOPS x seconds": (result.flops * result.seconds, images * result.flops_per_image),
    }
    if len(run.log.trained) == 1:
        pairs["seconds"] = (result.seconds, moments["run_stop"].clock_s - begun.clock_s)
    wrong = (
        f"{what} are {one:.9g} in the result, {other:.9g} by the events"
        for what, (one, other) in pairs.items()
        if not math.isclose(one, other, rel_tol=_ROUNDING)
    )
    yield from judged("arithmetic", wrong, fail)
