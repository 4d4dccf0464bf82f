"""The verdict as a page to sign: one HTML file, one or two sheets of A4 in print."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from markupsafe import Markup

from hpcai500 import __version__
from hpcai500.results.acceptance.contract import PartyTable, shown
from hpcai500.results.acceptance.evidence import Evidence, Requirement, Run
from hpcai500.results.acceptance.measured import CriterionResult
from hpcai500.results.acceptance.verdict import (
    Acceptance,
    attempts_text,
    contracted,
    interval_text,
    margin_text,
    measured_text,
    reference_text,
)
from hpcai500.results.report.blocks import (
    Block,
    Cell,
    Chart,
    Key,
    Row,
    Section,
    Sentences,
    Table,
    Text,
    Tone,
    render,
    without_folders,
)
from hpcai500.results.report.drawing import Axis, drawing, element, label
from hpcai500.results.report.reading import machine_sentence, site_sentence
from hpcai500.results.score import metric_title
from hpcai500.text import UNKNOWN, count, short, table

# ----------------------------------------------------------------------------------------------------
# The chart: a row for each criterion, in per cent of the contracted value.


WIDTH = 400.0
# The name of a criterion is on its own line above the bar, so that it is never cut off or crossed.
_ROW, _FOOT, _TOP, _LEFT, _RIGHT, _NAME = 38.0, 38.0, 4.0, 12.0, 16.0, 16.0
# Values beyond these are drawn at the edge, with their numbers.
_LEAST, _MOST = 75.0, 125.0
_GOOD, _BAD, _RUN = 3, 4, 6
# More dots would not be legible.
_MOST_DOTS = 60


def margins(criteria: Sequence[CriterionResult]) -> Markup:
    """Draw the measured criteria."""
    rows = [one for one in criteria if one.measured is not None]
    height = _TOP + _ROW * len(rows) + _FOOT
    axis = _axis(rows)
    text = "; ".join(f"{title_of(one)}: {_percent(one, one.measured or 0.0):.4g} % of the contract" for one in rows)
    return drawing("Measured against contracted", text, WIDTH, height, _parts(rows, axis, height))


def _axis(rows: Sequence[CriterionResult]) -> Axis:
    """From the lowest to the highest drawn value, between `_LEAST` and `_MOST`."""
    shown = [100.0]
    for one in rows:
        ends = (*one.values, *(one.interval or ()), one.limits.lowest, one.limits.highest)
        shown += [min(_MOST, max(_LEAST, _percent(one, end))) for end in ends if end is not None]
    room = 0.08 * (max(shown) - min(shown)) or 5.0
    return Axis("per cent of the contracted value", min(shown) - room, max(shown) + room)


def _percent(one: CriterionResult, value: float) -> float:
    return value / one.limits.reference * 100


def _parts(rows: Sequence[CriterionResult], axis: Axis, height: float) -> Iterator[Markup]:
    left, right, floor = _LEFT, WIDTH - _RIGHT, height - _FOOT

    def across(percent: float) -> float:
        return left + axis.place(percent) * (right - left)

    for value, name in axis.marks():
        yield label(across(value), floor + 14, name, "tick", "middle")
    yield label((left + right) / 2, height - 6, axis.label, "name", "middle")
    for number, one in enumerate(rows):
        top = _TOP + _ROW * number + _NAME
        for value, _ in axis.marks():
            yield element("line", x1=across(value), x2=across(value), y1=top, y2=top + 20, class_="grid")
        yield from _row(one, top + 10, axis, across)
        yield element("line", x1=across(100), x2=across(100), y1=top, y2=top + 20, class_="level")


def _row(one: CriterionResult, middle: float, axis: Axis, place: Callable[[float], float]) -> Iterator[Markup]:
    left, right = place(axis.low), place(axis.high)

    def across(value: float) -> float:
        return place(_percent(one, value))

    lowest, highest = one.limits.lowest, one.limits.highest
    start, stop = left if lowest is None else across(lowest), right if highest is None else across(highest)
    yield element("rect", x=start, y=middle - 8, width=max(0.5, stop - start), height=16, class_="ground")
    for edge in (lowest, highest):
        if edge is not None:
            yield element("line", x1=across(edge), x2=across(edge), y1=middle - 9, y2=middle + 9, class_="mark")
    if one.interval:
        low, high = map(across, one.interval)
        yield element("line", x1=low, x2=high, y1=middle, y2=middle, class_="mark")
        for end in (low, high):
            yield element("line", x1=end, x2=end, y1=middle - 4, y2=middle + 4, class_="mark")
    if len(one.values) > 1:
        for value in one.values[:_MOST_DOTS]:
            yield element("circle", cx=across(value), cy=middle, r=1.8, class_=f"dot c{_RUN}")
    measured, colour = one.measured or 0.0, _GOOD if one.verdict == "pass" else _BAD
    yield element("circle", cx=across(measured), cy=middle, r=4, class_=f"dot c{colour}")
    percent = _percent(one, measured)
    sign = "◂ " if percent < axis.low else ""
    yield label(left, middle - 14, title_of(one), "label")
    yield label(right, middle - 14, f"{sign}{percent:,.3g} %{' ▸' if percent > axis.high else ''}", "value", "end")


# ----------------------------------------------------------------------------------------------------
# The page.


_MOST_ROWS, _MOST_DRAWN, _MOST_VALUES, _MOST_SUBJECTS = 100, 30, 20, 8
_TONES: Mapping[str, Tone] = {"pass": "good", "fail": "bad", "missing": "bad", "undecided": "flag"}
# Signatures for a comparison without a contract.
_DEFAULT_PARTIES = (PartyTable(role="Customer", name="…"), PartyTable(role="Vendor", name="…"))


def title_of(one: CriterionResult) -> str:
    """The criterion in words: `ic: Time to quality (every run)` for `ic: time_to_quality_seconds (every run)`."""
    return one.name.replace(one.metric.name, metric_title(one.metric.name))


# A command line in a sentence for a terminal; the page leaves commands out.
_COMMAND = re.compile(r"\bhpcai500 \w|(?<!\w)--\w")
# Shortened here; the appendix has the full hashes.
_HASH = re.compile(r"\b([0-9a-f]{12})[0-9a-f]{52}\b")
_IN_BRACKETS = re.compile(r" *\([^()]*\)")


def _without_commands(text: str, remedy: str = "") -> str:
    """`text` without commands to type: `unknown in 3 of 3 runs: not measured`."""
    text = text.removesuffix(f": {remedy}") if remedy else text
    text = _IN_BRACKETS.sub(lambda match: "" if _COMMAND.search(match[0]) else match[0], text)
    parts = re.split(r"(?<=[:;]) ", text)
    kept = [part for part in parts if not _COMMAND.search(part)]
    text = " ".join(kept).rstrip(":; ") if len(kept) < len(parts) else text
    return _HASH.sub(r"\1…", text)


def acceptance_page(acceptance: Acceptance) -> str:
    """Render the page as HTML."""
    request, contract = acceptance.request, acceptance.request.contract
    given = [*request.records, *request.micro, request.scaling, request.baseline, contract and contract.path]
    paths = [path for path in (*given, *(run.record.path for run in acceptance.evidence.runs)) if path]
    return without_folders(_rendered(acceptance), paths)


def _rendered(acceptance: Acceptance) -> str:
    contract = acceptance.request.contract
    return render(
        "acceptance.html.j2",
        title=acceptance.title,
        accepted=acceptance.verdict == "PASS",
        word=acceptance.word.upper(),
        sentence=acceptance.sentence,
        warning=acceptance.warning,
        number=contract.spec.contract if contract else "",
        made=acceptance.made.strftime("%Y-%m-%d %H:%M UTC"),
        facts=list(_facts(acceptance)),
        sections=[
            Section("Criteria", list(_criteria(acceptance.criteria, acceptance.confidence))),
            Section("Requirements", list(_requirements(acceptance.requirements))),
            Section("Worst node", list(_worst(acceptance))),
        ],
        appendix=[Section("Appendix: records and hashes", list(_evidence(acceptance)))],
        parties=(contract.spec.parties if contract else ()) or _DEFAULT_PARTIES,
    )


def _facts(acceptance: Acceptance) -> Iterator[tuple[str, str]]:
    request = acceptance.request
    if request.contract:
        system = request.contract.spec.system
        for party in request.contract.spec.parties:
            yield party.role, party.name
        yield "System", f"{system.name}. {system.description}" if system.description else system.name
    for one in acceptance.subjects[:_MOST_SUBJECTS]:
        yield "Runs checked", one.sentence
    for submission in acceptance.evidence.submissions[:_MOST_SUBJECTS]:
        yield "Submission", submission.sentence
        if submission.implausible:
            yield "Implausible", "; ".join(submission.implausible)
        yield "Not checked", "; ".join(submission.not_checked)
    for source in acceptance.sources[:_MOST_SUBJECTS]:
        yield "Figures", short(source.sentence, 300)
    if acceptance.evidence.runs:
        run = max(acceptance.evidence.runs, key=lambda run: run.result.nodes)
        machine = machine_sentence(run.record.system, run.result.nodes)
        yield "Machine", f"{machine}; {count(run.result.world_size, 'rank')}"
        yield "Site", site_sentence(run.record.system)
    if request.baseline:
        yield "Baseline", f"{request.baseline}, at least {request.ratio:g} times as good"


def _criteria(criteria: Sequence[CriterionResult], confidence: float) -> Iterator[Block]:
    rows: list[Row] = []
    for one in criteria[:_MOST_ROWS]:
        rows.append(
            (
                f"{title_of(one)}{f' [{one.clause}]' if one.clause else ''}",
                _unbroken(reference_text(one)),
                _unbroken(contracted(one)),
                Cell(_unbroken(measured_text(one)), _TONES[one.verdict]),
                _unbroken(margin_text(one)),
                Cell(one.verdict, _TONES[one.verdict]),
                interval_text(one),
            )
        )
    columns = (
        "criterion",
        "contracted",
        "accepted",
        "measured",
        "margin",
        "verdict",
        f"{confidence * 100:g} % interval",
    )
    caption = (
        "The margin is the distance from the nearest limit in per cent of the contracted value; "
        "a criterion with a margin below 0 is missed"
    )
    yield Table(caption, columns, rows, (1, 2, 3, 4, 6), max(0, len(criteria) - _MOST_ROWS))
    if notes := [f"{title_of(one)}: {note}" for one in criteria for note in _notes(one)]:
        yield Sentences(notes[:_MOST_ROWS], "soft")
    measured = [one for one in criteria if one.measured is not None][:_MOST_DRAWN]
    if measured:
        keys = (Key("measured, met", _GOOD, "dot"), Key("measured, missed", _BAD, "dot"))
        note = (
            "Grey field: accepted values; dashed line: contracted value; thin line: interval; small dots: runs; ◂ "
            "and ▸: a value beyond the chart."
        )
        yield Chart("Measured against contracted", margins(measured), note, keys)


def _unbroken(text: str) -> str:
    """Keep a number and its unit on one line."""
    return text.replace(", ", "\0").replace(" ", "\N{NO-BREAK SPACE}").replace("\0", ", ")


def _notes(one: CriterionResult) -> Iterator[str]:
    if one.note:
        yield short(_without_commands(one.note, one.metric.remedy), 300)
    if one.statistic == "every" and len(one.values) > 1:
        values = [shown(value, one.metric.unit, one.unit) for value in one.values[:_MOST_VALUES]]
        more = f" and {len(one.values) - _MOST_VALUES} more" if len(one.values) > _MOST_VALUES else ""
        yield f"each run: {', '.join(values)}{more}"


def _requirements(requirements: Sequence[Requirement]) -> Iterator[Block]:
    rows = [
        (
            one.name,
            _without_commands(one.required),
            _without_commands(one.found),
            Cell(one.verdict, _TONES[one.verdict]),
        )
        for one in requirements
    ]
    yield Table("Requirements of the contract for every run", ("requirement", "required", "found", "verdict"), rows)
    if details := [f"{one.name}: {short(_without_commands(one.detail), 300)}" for one in requirements if one.detail]:
        yield Sentences(details, "soft")


def _worst(acceptance: Acceptance) -> Iterator[Block]:
    worst = acceptance.worst
    yield Text(f"{worst.sentence[:1].upper()}{worst.sentence[1:]}.")
    if details := [*worst.differences, *worst.ceilings]:
        yield Sentences(details)


def _evidence(acceptance: Acceptance) -> Iterator[Block]:
    evidence = acceptance.evidence
    caption = "The hash of a record's last event, or of the last line of a campaign's journal, covers all of it"
    yield Table(
        caption, ("record", "of", "SHA-256"), list(_records(evidence)), left_out=max(0, len(evidence.runs) - _MOST_ROWS)
    )
    if evidence.faults:
        yield Sentences([short(f"{fault.path}: {fault.problem}", 300) for fault in evidence.faults[:20]], "bad")
    yield Table("Recipes, campaigns and software", ("", ""), [*_identities(acceptance), *_software(acceptance)])


def _identities(acceptance: Acceptance) -> Iterator[tuple[str, str]]:
    for one in acceptance.subjects[:_MOST_SUBJECTS]:
        yield f"recipe of {one.benchmark}, SHA-256", one.recipe_hash
        if one.campaign:
            yield f"campaign of {one.benchmark}, identity", one.campaign
    for submission in acceptance.evidence.submissions[:_MOST_SUBJECTS]:
        yield "manifest of a submission, SHA-256", submission.manifest_sha256


def _records(evidence: Evidence) -> Iterator[Row]:
    """Each campaign with its runs below it, then the runs without a campaign."""
    shown_runs = evidence.runs[:_MOST_ROWS]
    for campaign in evidence.campaigns:
        yield (f"campaign {short(evidence.with_submissions(campaign.path), 120)}",)
        yield "its journal", attempts_text(campaign), campaign.head
        yield from (_record(run, run.record.path.name) for run in shown_runs if run.campaign is campaign)
    alone = [run for run in shown_runs if run.campaign is None]
    if alone and evidence.campaigns:
        yield ("other records",)
    yield from (_record(run, run.name) for run in alone)


def _record(run: Run, name: str) -> Row:
    return short(name, 120), f"{run.result.benchmark}, {count(run.result.nodes, 'node')}", run.head


def _software(acceptance: Acceptance) -> Iterator[tuple[str, str]]:
    installations = [table(run.record.system.get("installation")) for run in acceptance.evidence.runs]
    yield "image, SHA-256", _one_or_more("image", "content_sha256", installations, "none: run without an image")
    yield "code, SHA-256", _one_or_more("package", "code_sha256", installations, UNKNOWN)
    yield "compiled core, SHA-256", _one_or_more("package", "core_sha256", installations, UNKNOWN)
    contract = acceptance.request.contract
    if contract:
        yield "contract file, SHA-256", contract.sha256
    yield "checked by", f"hpcai500 {__version__}"


def _one_or_more(part: str, key: str, installations: Sequence[Mapping[str, Any]], absent: str) -> str:
    found = dict.fromkeys(table(one.get(part)).get(key) for one in installations)
    return ", ".join(absent if one is None else short(one, 80) for one in list(found)[:4]) or absent
