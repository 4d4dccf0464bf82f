"""The verdict for a terminal, and the stable lines for test harnesses."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from hpcai500.campaign.reading import Campaign
from hpcai500.results.acceptance.criteria import Judged
from hpcai500.results.acceptance.units import shown
from hpcai500.results.acceptance.verdict import Acceptance
from hpcai500.results.columns import aligned
from hpcai500.results.report.words import UNKNOWN, count, short

_HALF = 6
# Margin at either end of a bar: the same on every page, so that bars can be compared.
_WIDEST = 0.10
_WORDS = {"pass": "pass", "fail": "FAIL", "missing": "MISSING"}
_HEADINGS = ("criterion", "contracted", "measured", "margin", "95 % interval", "worse | better", "verdict")
# A run each is evidence for `every`; of many, the first ones and the worst.
_MOST_VALUES = 12
_MOST_RECORDS = 20


def acceptance_lines(acceptance: Acceptance) -> Iterator[str]:
    """Everything, the verdict last."""
    yield from _head(acceptance)
    yield ""
    yield "requirements"
    names = max(len(one.name) for one in acceptance.requirements)
    demands = max(len(one.required) for one in acceptance.requirements)
    for one in acceptance.requirements:
        yield f"  {one.name:{names}}  {one.required:{demands}}  {one.found:24}  {_WORDS[one.verdict]}".rstrip()
        if one.detail:
            yield f"    {one.detail}"
    yield ""
    yield from _table(acceptance.criteria)
    yield ""
    yield f"worst {acceptance.worst.of:6} {acceptance.worst.sentence}"
    yield from (f"  {said}" for said in (*acceptance.worst.differences, *acceptance.worst.ceilings))
    yield ""
    if acceptance.loud:
        yield f"HPCAI500 NOTE {acceptance.loud}"
    yield acceptance.sentence
    yield from figure_of_merit_lines(acceptance.criteria)
    yield f"HPCAI500 RESULT {acceptance.verdict}"


def figure_of_merit_lines(criteria: Sequence[Judged]) -> Iterator[str]:
    """`HPCAI500 FOM accept_<criterion>=<measured> <unit>` and its margin, of each that was measured."""
    for one in criteria:
        if one.measured is not None and one.margin is not None:
            name = f"accept_{re.sub(r'[^a-z0-9]+', '_', one.name.lower()).strip('_')}"
            yield f"HPCAI500 FOM {name}={one.measured:.6g} {one.metric.unit}"
            yield f"HPCAI500 FOM {name}_margin={one.margin:.6g} fraction"


def contracted(one: Judged) -> str:
    """`>= 950 TFLOPS`, or `9.5 to 10.5 s`: what is accepted."""
    lowest, highest = one.limits.lowest, one.limits.highest
    if lowest is not None and highest is not None:
        return _span(one, lowest, highest)
    if lowest is not None:
        return f"≥ {shown(lowest, one.metric.unit, one.unit)}"
    return "any" if highest is None else f"≤ {shown(highest, one.metric.unit, one.unit)}"


def interval_text(one: Judged) -> str:
    """`9.8 to 10.1 s`; a dash where there is none."""
    if one.interval is None:
        return "-"
    return _span(one, *one.interval)


def _span(one: Judged, low: float, high: float) -> str:
    """Both ends, with the unit once where it is the same."""
    first, last = (shown(end, one.metric.unit, one.unit) for end in (low, high))
    number, _, unit = first.partition(" ")
    return f"{number} to {last}" if unit == last.partition(" ")[2] else f"{first} to {last}"


def margin_text(one: Judged) -> str:
    """`+5.3 %`, with a sign always."""
    if one.margin is None:
        return "-"
    percent = one.margin * 100
    # Beside the limit, every digit tells on which side.
    return f"{percent:+.1f} %" if abs(percent) >= 0.05 else f"{percent:+.2g} %"


def reference_text(one: Judged) -> str:
    """`950 TFLOPS, -5 %`: the value and the tolerance as the contract has them."""
    tolerances = [f"{part * 100:+.4g} %" for part in (one.limits.lower, one.limits.upper) if part]
    return ", ".join([shown(one.limits.reference, one.metric.unit, one.unit), *tolerances])


def measured_text(one: Judged) -> str:
    """In the contract's unit."""
    return UNKNOWN if one.measured is None else shown(one.measured, one.metric.unit, one.unit)


def bar(one: Judged) -> str:
    """The limit in the middle, the measured value as far to the right of it as it is better, to the left as worse."""
    if one.margin is None:
        return ""
    cells = ["·"] * (2 * _HALF + 1)
    cells[_HALF] = "|"
    place = round(min(1.0, max(-1.0, one.margin / _WIDEST)) * _HALF)
    beyond = abs(one.margin) > _WIDEST
    sign = ("»" if one.margin > 0 else "«") if beyond else "●"
    # Beside the limit there is still a side.
    if place == 0 and one.margin < 0:
        place = -1
    cells[_HALF + place] = sign
    return "".join(cells)


def _head(acceptance: Acceptance) -> Iterator[str]:
    request = acceptance.request
    yield acceptance.title
    if request.contract:
        spec = request.contract.spec
        yield f"contract    {request.contract.path} (SHA-256 {request.contract.sha256[:12]}…)" + (
            f", {spec.contract}" if spec.contract else ""
        )
        yield f"system      {spec.system.name}"
        for party in spec.parties:
            yield f"{short(party.role, 11):11} {party.name}"
    if request.baseline:
        yield f"baseline    {request.baseline}, at least {request.ratio:g} times as good"
    for one in acceptance.subjects:
        yield f"judged      {one.sentence}"
        yield f"            recipe {one.recipe_hash}" + (f", campaign {one.campaign}" if one.campaign else "")
    for submission in acceptance.evidence.submissions:
        yield f"submission  {submission.sentence}"
        yield from (f"            IMPLAUSIBLE: {said}" for said in submission.implausible)
        yield from (f"            not checked: {said}" for said in submission.not_checked)
    for source in acceptance.sources:
        yield f"figures     {source.sentence}"
    for campaign in acceptance.evidence.campaigns:
        yield f"campaign    {campaign.path}: {attempts_text(campaign)} (journal {campaign.head[:12]}…)"
    folders = [campaign.path for campaign in acceptance.evidence.campaigns]
    alone = [run for run in acceptance.evidence.runs if run.record.path.parent not in folders]
    for run in alone[:_MOST_RECORDS]:
        yield f"record      {run.name} (last event {run.head[:12]}…)"
    if len(alone) > _MOST_RECORDS:
        yield f"            and {len(alone) - _MOST_RECORDS} more"


def attempts_text(campaign: Campaign) -> str:
    """`13 attempts: 10 done, 3 failed`: nothing that was begun is left out."""
    states = Counter(attempt.status for attempt in campaign.attempts)
    said = ", ".join(f"{number} {status}" for status, number in states.most_common())
    return f"{count(len(campaign.attempts), 'attempt')}: {said}" if said else "no attempt"


def _table(criteria: Sequence[Judged]) -> Iterator[str]:
    rows = [
        (
            one.name,
            contracted(one),
            measured_text(one),
            margin_text(one),
            interval_text(one),
            bar(one),
            _WORDS[one.verdict],
        )
        for one in criteria
    ]
    heading, *lines = aligned([_HEADINGS, *rows], right=range(1, 5))
    yield heading
    for one, line in zip(criteria, lines, strict=True):
        yield line
        if one.note:
            yield f"  {one.note}"
        if one.statistic == "every" and len(one.values) > 1:
            yield f"  each: {', '.join(_values(one))}"
    yield f"(bars: | is the limit, the dot what was measured, either end {_WIDEST * 100:.0f} % of what is contracted)"


def _values(one: Judged) -> Iterator[str]:
    worst = min(one.values, key=one.limits.margin)
    for value in one.values[:_MOST_VALUES]:
        yield shown(value, one.metric.unit, one.unit) + (" (worst)" if value == worst else "")
    if len(one.values) > _MOST_VALUES:
        yield f"and {len(one.values) - _MOST_VALUES} more"
