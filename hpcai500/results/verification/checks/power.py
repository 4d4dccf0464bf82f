"""Energy is what the samples of power give."""

from __future__ import annotations

from collections.abc import Iterator

from hpcai500.errors import RecordError, WrongAnswerError
from hpcai500.results.power import check_power
from hpcai500.results.verification.context import Context
from hpcai500.results.verification.facts import values
from hpcai500.results.verification.finding import Finding
from hpcai500.results.verification.guard import fail, note

_NAME = "power-samples"


def check_power_samples(context: Context) -> Iterator[Finding]:
    """Each done record: its samples, integrated again."""
    found, measured = [], 0
    for name, record in context.done.items():
        try:
            check_power(record)
        except (WrongAnswerError, RecordError) as error:
            found.append(fail(_NAME, str(error)))
        told = values(record, "power")
        measured += any(one.get("nodes") for one in told)
        if len(told) > 1:
            found.append(fail(_NAME, f"{name}: power is told {len(told)} times; a run tells it once, at its end"))
    yield from found
    if not measured:
        yield note(_NAME, "no power was measured, and none is claimed")
    elif not found:
        yield note(_NAME, f"the samples of {measured} records give the energies that they tell")
