"""What the devices reached at best, measured at the start of each run, is about the same in all of them."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from hpcai500.results.verification.context import Context
from hpcai500.results.verification.facts import nodes, values
from hpcai500.results.verification.finding import Finding
from hpcai500.results.verification.guard import fail, note, warning

_NAME = "ceilings-agree"
# The same devices repeat a matrix product within a few percent; a hot room, or a neighbour on a CPU, costs more.
_TOLD_RATIO = 1.2
# No accelerator halves its rate between two jobs without being another one, or in another mode.
_WRONG_RATIO = 2.0


def check_ceilings(context: Context) -> Iterator[Finding]:
    """The event `ceilings` of each start of each done run, with the middle one."""
    told = [(name, value) for name, record in context.done.items() for value in values(record, "ceilings")]
    silent = [name for name, record in context.done.items() if not values(record, "ceilings")]
    if silent:
        yield warning(
            _NAME, f"{', '.join(silent)}: no ceilings were measured: a rate that is too high would not be seen"
        )
    if not told:
        return
    middle = statistics.median(value["flops"] for _, value in told)
    kinds = sorted({f"{value['precision']} on {value['ranks']} ranks, side {value['side']}" for _, value in told})
    if len(kinds) > 1:
        yield fail(_NAME, f"measured in {len(kinds)} ways: {'; '.join(kinds)}")
    for name, value in told:
        ratio = max(value["flops"] / middle, middle / value["flops"])
        if ratio > _TOLD_RATIO:
            evidence = f"{name}: {value['flops']:.4g} FLOPS, the middle of all trials is {middle:.4g}"
            wrong = ratio > _WRONG_RATIO and _has_accelerators(context, name)
            yield fail(_NAME, evidence) if wrong else warning(_NAME, evidence)
    if len(kinds) == 1:
        yield note(_NAME, f"{len(told)} starts reach {middle:.4g} FLOPS at best in the middle, in {kinds[0]}")


def _has_accelerators(context: Context, name: str) -> bool:
    """Processors are shared with whoever else is on the node; accelerators of a job are its own."""
    return any(node.get("accelerators") for node in nodes(context.done[name]))
