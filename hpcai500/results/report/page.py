"""`hpcai500 report`: from records to the page."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcai500.errors import HpcAi500Error, RecordError, UsageError
from hpcai500.machine import Machine
from hpcai500.results.given_files import GivenFile, given_machine
from hpcai500.results.report.banner import banner, score_tiles
from hpcai500.results.report.blocks import Part, Section, Text
from hpcai500.results.report.communication import communication_section
from hpcai500.results.report.happened import event_section
from hpcai500.results.report.hashes import hash_section, last_event_hash
from hpcai500.results.report.numbers import number_section
from hpcai500.results.report.overview import overview_sections
from hpcai500.results.report.pictures import picture_section
from hpcai500.results.report.power import power_section
from hpcai500.results.report.profile import given_profile, profile_section
from hpcai500.results.report.reading import Subject, read_subject
from hpcai500.results.report.recipe import recipe_section
from hpcai500.results.report.rendering import render
from hpcai500.results.report.roofline import roofline_section
from hpcai500.results.report.steps import step_section, straggler_section
from hpcai500.results.report.system import system_section
from hpcai500.results.report.training import training_section
from hpcai500.results.report.words import count, moment, short
from hpcai500.results.score import expand

# Beyond these, a page has the summary of each record and the sections of the first ones only.
_MOST_PARTS = 20
_Ceilings = tuple[Machine, tuple[GivenFile, ...]]


@dataclass(frozen=True)
class Report:
    """A page and what a terminal says about it."""

    html: str
    verdicts: Sequence[str]


def make_report(paths: Sequence[Path], machine: str | None = None, profile: Path | None = None) -> Report:
    """The page of the records at `paths`; a folder of a series stands for its records.

    Args:
        paths: records.
        machine: ceilings for the roofline: a TOML file, a shipped name, or a JSON file of `hpcai500 micro`.
        profile: a folder that `hpcai500 profile` wrote; a record's own is found without.

    Raises:
        RecordError: one is no record, or does not hold together.
        UsageError: a run is named twice, or the machine cannot be read.
        WrongAnswerError: the signature of the machine's file or of a profile is not one of it.
    """
    subjects = [read_subject(path) for path in expand(paths)]
    if not subjects:
        raise UsageError("report: name a record: hpcai500 report RECORD -o report.html")
    ceilings = given_machine(machine) if machine else None
    given = given_profile(profile) if profile else None
    if given:
        _require_profile_of(given, subjects)
    parts = [_part(subject, index, ceilings, given) for index, subject in enumerate(subjects[:_MOST_PARTS], 1)]
    title = f"{_name(subjects[0])}" if len(subjects) == 1 else f"HPC AI500: {count(len(subjects), 'record')}"
    html = render(
        "page.html.j2",
        title=title,
        overview=overview_sections(subjects),
        parts=parts,
        left_out=len(subjects) - len(parts),
    )
    return Report(html, [f"{subject.path}: {subject.verdict_sentence}" for subject in subjects])


def _require_profile_of(profile: GivenFile, subjects: Sequence[Subject]) -> None:
    of = profile.tables().get("benchmark")
    if of is not None and all(subject.record.tables.get("benchmark") != of for subject in subjects):
        raise UsageError(
            f"--profile {profile.path.parent}: a profile of {of}, and no record here is of it: give the right folder"
        )


def _part(subject: Subject, index: int, machine: _Ceilings | None, profile: GivenFile | None) -> Part:
    begin = subject.record.events[0].get("time_ms") if subject.record.events else None
    last = last_event_hash(subject)
    subtitle = f"{short(subject.path, 200)} · {moment(begin)} · last event {last[:12]}…"
    sections = [section for section in _sections(subject, machine, profile) if section is not None]
    return Part(f"record-{index}", _name(subject), subtitle, banner(subject), sections)


def _sections(subject: Subject, machine: _Ceilings | None, profile: GivenFile | None) -> Iterator[Section | None]:
    # The one that is given is of one benchmark; records of others keep their own.
    of_this = profile and profile.tables().get("benchmark") in (None, subject.record.tables.get("benchmark"))
    yield Section("Score", [score_tiles(subject)])
    yield _shown("Quality and loss", lambda: training_section(subject))
    yield _shown("Where the time goes", lambda: step_section(subject))
    yield _shown("Stragglers", lambda: straggler_section(subject))
    yield _shown("Communication", lambda: communication_section(subject))
    yield _shown("Roofline", lambda: roofline_section(subject, *machine) if machine else None)
    yield _shown("Profile", lambda: profile_section(subject.path, profile if of_this else None))
    yield _shown("Power", lambda: power_section(subject))
    yield _shown("Pictures", lambda: picture_section(subject))
    yield _shown("System", lambda: system_section(subject))
    yield _shown("Recipe", lambda: recipe_section(subject))
    yield _shown("Events", lambda: event_section(subject))
    yield number_section(subject.result) if subject.result else None
    yield hash_section(subject)


def _shown(title: str, make: Callable[[], Section | None]) -> Section | None:
    """The section, or why it cannot be shown: other versions, and hands, may have written what this one cannot read."""
    try:
        return make()
    except Exception as error:
        if isinstance(error, HpcAi500Error) and not isinstance(error, RecordError):
            # About this command or this machine, not about the record.
            raise
        said = f"This part of the record cannot be shown: {type(error).__name__}: {short(error, 200)}."
        return Section(title, [Text(said, "bad")])


def _name(subject: Subject) -> str:
    tables = subject.record.tables
    benchmark, edition = short(tables.get("benchmark", "?"), 40), short(tables.get("edition", "?"), 40)
    return f"HPC AI500 {benchmark.upper()}, edition {edition}, {count(subject.world_size, 'rank')}"
