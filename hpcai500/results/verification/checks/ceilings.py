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
    # A run may go on with fewer ranks; that its rank is not told for that is said elsewhere.
    each = [(name, value["flops"] / value["ranks"]) for name, value in told]
    middle = statistics.median(flops for _, flops in each)
    kinds = sorted({f"{value['precision']}, side {value['side']}" for _, value in told})
    if len(kinds) > 1:
        yield fail(_NAME, f"measured in {len(kinds)} ways: {'; '.join(kinds)}")
    for name, flops in each:
        ratio = max(flops / middle, middle / flops)
        if ratio > _TOLD_RATIO:
            evidence = f"{name}: {flops:.4g} FLOPS a rank, the middle of all starts is {middle:.4g}"
            wrong = ratio > _WRONG_RATIO and _has_accelerators(context, name)
            yield fail(_NAME, evidence) if wrong else warning(_NAME, evidence)
    if len(kinds) == 1:
        yield note(_NAME, f"{len(told)} starts reach {middle:.4g} FLOPS a rank at best in the middle, in {kinds[0]}")


def _has_accelerators(context: Context, name: str) -> bool:
    """Processors are shared with whoever else is on the node; accelerators of a job are its own."""
    return any(node.get("accelerators") for node in nodes(context.done[name]))
