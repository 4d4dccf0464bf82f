"""`hpcai500 report`: from records to the page.

If this version cannot read a part of a record, the page says so in place of that part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcai500.errors import HpcAi500Error, RecordError, UsageError
from hpcai500.files import write_atomically
from hpcai500.machine import Machine
from hpcai500.methodology.passes import better_of, goal
from hpcai500.methodology.result import Result
from hpcai500.results.given_files import GivenFile, given_machine
from hpcai500.results.profile import why_not_of_run
from hpcai500.results.report.blocks import (
    Banner,
    Cell,
    Chart,
    Key,
    Part,
    Row,
    Section,
    Table,
    Text,
    Tile,
    Tiles,
    render,
    without_folders,
)
from hpcai500.results.report.drawing import Axis, Line, Plot, Spot
from hpcai500.results.report.reading import Subject, machine_sentence, read_subject, site_sentence
from hpcai500.results.report.sections import (
    event_section,
    goodput_section,
    hash_section,
    last_event_hash,
    number_section,
    picture_section,
    recipe_section,
    system_section,
    training_section,
)
from hpcai500.results.report.speed import (
    communication_section,
    given_profile,
    power_section,
    profile_section,
    roofline_section,
    step_section,
    straggler_section,
)
from hpcai500.results.scaling import Scaling, read_scaling
from hpcai500.results.score import expand, metric_title, summarise_trials, why_no_mean
from hpcai500.text import (
    UNKNOWN,
    count,
    duration,
    is_number,
    moment,
    number,
    plain,
    quantity,
    share,
    short,
    table,
    tables,
)

# ----------------------------------------------------------------------------------------------------
# The overview of several records: a line for each, the mean of a series, the weak scaling of several sizes.


_MOST_ROWS = 200
_UNITS = {"vflops": "FLOPS", "flops": "FLOPS"}


def overview_sections(subjects: Sequence[Subject]) -> list[Section]:
    """The summary of all records of a page; empty for a single one."""
    if len(subjects) < 2:
        return []
    sections = [Section("All records", [_record_table(subjects)])]
    sizes = {subject.world_size for subject in subjects}
    good = [subject for subject in subjects if subject.result]
    if len(sizes) > 1:
        benchmarks = {str(subject.record.tables.get("benchmark")) for subject in good}
        return [*sections, _scaling_section(good)] if len(good) > 1 and len(benchmarks) == 1 else sections
    return [*sections, _mean_section(good)] if len(good) > 1 else sections


def _record_table(subjects: Sequence[Subject]) -> Table:
    rows: list[Row] = []
    for index, subject in enumerate(subjects[:_MOST_ROWS]):
        result = subject.result
        rankable = Cell("yes", "good") if result and result.rankable else Cell("no", "flag")
        tables = subject.record.tables
        rows.append(
            (
                f"{index + 1}. {short(subject.path.name, 60)}",
                Cell(subject.verdict, "good" if subject.verdict == "PASS" else "bad"),
                rankable,
                short(tables.get("benchmark", ""), 20),
                f"{subject.world_size:,}",
                quantity(result.vflops, "FLOPS") if result else "",
                quantity(result.flops, "FLOPS") if result else "",
                plain(result.quality.achieved, ".4f") if result else "",
                duration(result.seconds) if result else "",
                quantity(result.energy_joules, "J") if result else "",
            )
        )
    return Table(
        "One line for each record",
        ("record", "verdict", "rankable", "benchmark", "ranks", "VFLOPS", "FLOPS", "quality", "time", "energy"),
        rows,
        numeric=(4, 5, 6, 7, 8, 9),
        left_out=len(subjects) - len(rows),
    )


def _mean_section(subjects: Sequence[Subject]) -> Section:
    """Mean and variation of runs that belong together, or why there is none."""
    reason = why_no_mean([subject.path for subject in subjects])
    results = [subject.result for subject in subjects if subject.result]
    if reason:
        return Section("Mean", [Text(f"No mean: {short(reason)}.", "flag")])
    samples = results[0].samples
    units = {**_UNITS, **samples.rate_units}
    rows = [
        (metric_title(name, samples.name), _metric(name, one.mean, units), share(one.variation), str(one.runs))
        for name, one in summarise_trials(results).items()
    ]
    averaged = "without the highest and the lowest run (V2.0 section 5.3.2)" if len(results) > 2 else "of all runs"
    text = f"The mean is {averaged}; variation: coefficient of variation (standard deviation / mean) of all runs."
    caption = f"Mean of {count(len(results), 'run')} of one recipe"
    return Section("Mean", [Text(text), Table(caption, ("metric", "mean", "variation", "runs"), rows, (1, 2, 3))])


def _metric(name: str, value: float, units: Mapping[str, str]) -> str:
    if name.endswith("seconds"):
        return duration(value)
    return quantity(value, units[name]) if name in units else plain(value, ".4f")


def _scaling_section(subjects: Sequence[Subject]) -> Section:
    """FLOPS over processes below the ideal line (V2.0 Fig. 12), or why there is no scaling."""
    try:
        scaling = read_scaling([subject.path for subject in subjects])
    except HpcAi500Error as error:
        return Section("Scaling", [Text(short(error), "flag")])
    rows = [
        (
            f"{point.processes:,}",
            f"{point.nodes:,}",
            f"{plain(scaling.samples.rate(point.images_per_second))} {scaling.samples.rate_unit}",
            quantity(point.flops, "FLOPS"),
            plain(point.speedup, ".2f"),
            plain(point.parallel_efficiency, ".2f"),
            share(point.communication_fraction) if point.communication_fraction is not None else "",
        )
        for point in scaling.points
    ]
    table = Table(
        f"Weak scaling of {scaling.benchmark}: the same batch a process; efficiency against the smallest",
        ("processes", "nodes", "rate in steps", "FLOPS in steps", "speed-up", "efficiency", "communication wait"),
        rows,
        numeric=range(7),
    )
    return Section("Scaling", [_scaling_chart(scaling), table])


def _scaling_chart(scaling: Scaling) -> Chart:
    points = [(float(point.processes), point.flops) for point in scaling.points]
    base = points[0][1] / points[0][0]
    ideal = [(processes, base * processes) for processes, _ in points]
    heights = [flops for _, flops in (*points, *ideal)]
    axis = Axis("processes", points[0][0] / 1.15, points[-1][0] * 1.25, log=True, ticks=[at for at, _ in points])
    text = "; ".join(
        f"{point.processes} processes: efficiency {point.parallel_efficiency:.2f}" for point in scaling.points
    )
    drawing = Plot(
        "Weak scaling",
        text,
        axis,
        Axis("FLOPS in training steps", min(heights) / 1.4, max(heights) * 1.4, log=True),
        [Line(ideal, 6, dashed=True), Line(points, 1, marked=True)],
        spots=[
            Spot(point.processes, point.flops, f"{point.parallel_efficiency:.2f}", is_above=True)
            for point in scaling.points[1:]
        ],
    ).draw()
    return Chart(
        "Weak scaling",
        drawing,
        "FLOPS of the training steps; the numbers are the parallel efficiency",
        [Key("measured", 1, "line"), Key("ideal", 6, "dashes")],
    )


# ----------------------------------------------------------------------------------------------------
# The verdict, and the most important numbers.


def banner(subject: Subject) -> Banner:
    """PASS, FAIL or INVALID, whether it is rankable, and why."""
    result = subject.result
    return Banner(
        verdict=subject.verdict,
        rankable=result.rankable if result else None,
        sentence=_verdict_sentence(subject),
        reasons=[short(reason) for reason in result.reasons] if result else [],
    )


def _verdict_sentence(subject: Subject) -> str:
    """The verdict and its first reason."""
    result, problem = subject.result, short(subject.problem or "").rstrip(".")
    if subject.verdict == "INVALID" or result is None:
        return f"There is no valid result: {problem or 'the record has none'}."
    ranked = "it is rankable"
    if not result.rankable:
        reasons = [short(reason) for reason in result.reasons]
        more = f" (and {count(len(reasons) - 1, 'more reason')})" if len(reasons) > 1 else ""
        ranked = f"it is not rankable because {reasons[0]}{more}" if reasons else "it is not rankable"
    if subject.verdict == "FAIL":
        return f"The run failed: {problem}; {ranked}."
    quality = result.quality
    reached = f"{quality.metric} is {plain(quality.achieved, '.4f')}, the target is {quality.goal}"
    return f"The run passed ({reached}){' and' if result.rankable else ', but it'} {ranked.removeprefix('it ')}."


def score_tiles(subject: Subject) -> Tiles:
    """VFLOPS, quality, time, FLOPS, energy; for a run without a result, its progress. A loss has no VFLOPS."""
    result = subject.result
    return Tiles(list(_of_result(subject, result) if result else _of_unfinished(subject)))


def _of_result(subject: Subject, result: Result) -> Iterator[Tile]:
    quality = result.quality
    reached = quality.is_reached
    valid = f"valid FLOPS: FLOPS x quality factor {plain(result.penalty_coefficient)}"
    if quality.better == "higher":
        yield Tile("VFLOPS", quantity(result.vflops, "FLOPS"), result.why_no_vflops or valid)
    yield Tile(
        f"Quality, {quality.metric}",
        plain(quality.achieved, ".4f"),
        f"target {quality.goal}: {'reached' if reached else 'missed'}",
        "good" if reached else "bad",
    )
    to_quality = duration(result.time_to_quality_seconds) if result.time_to_quality_seconds is not None else "never"
    yield Tile("Time", duration(result.seconds), f"to target quality: {to_quality}")
    samples = result.samples
    per_sample = f"{quantity(result.flops_per_image, 'FLOP')} {samples.one}, {result.flops_convention}"
    if result.utilisation is not None:
        per_sample += f"; training steps reach {share(result.utilisation)} of the matrix-product rate of this run"
    elif result.utilisation_note:
        per_sample += f"; share of the matrix-product rate unknown: {result.utilisation_note}"
    yield Tile("FLOPS", quantity(result.flops, "FLOPS"), per_sample)
    rate = samples.rate(result.images_per_second)
    shown = f"{plain(rate, ',.0f' if rate >= 1000 else '.4g')} {samples.rate_unit}"
    alone = f"{plain(result.images_per_second)} {samples.names}/s, " if samples.unit else ""
    yield Tile("Rate", shown, f"{alone}{count(result.images, samples.name)}")
    yield _energy(subject, result)
    if result.vflops_per_watt is not None:
        yield Tile("Efficiency", quantity(result.vflops_per_watt, "FLOPS/W"), "VFLOPS per watt")
    yield _size(subject)


def _energy(subject: Subject, result: Result) -> Tile:
    if result.energy_joules is None:
        reason = result.power_note or subject.last("power").get("reason")
        return Tile("Energy", UNKNOWN, short(reason, 50) if reason else "power was not measured", "soft")
    source = f" by {result.power_source}" if result.power_source else ""
    watts = f"{quantity(result.watts, 'W')} mean{source}" if is_number(result.watts) else source.strip()
    return Tile("Energy", quantity(result.energy_joules, "J"), watts)


def _size(subject: Subject) -> Tile:
    start = subject.last("run_start")
    backend, library = start.get("backend"), start.get("library")
    name = f"{backend} ({library})" if backend and library not in (None, "none") else backend
    nodes = start.get("nodes")
    detail = ", ".join(
        part for part in (count(nodes, "node") if nodes else "", short(name, 40) if name else "") if part
    )
    return Tile("Size", count(subject.world_size, "rank"), detail)


def _of_unfinished(subject: Subject) -> Iterator[Tile]:
    problem = table(subject.record.tables.get("problem"))
    target, epochs = number(problem.get("target_quality")), problem.get("epochs")
    wanted = UNKNOWN if target is None else goal(target, better_of(problem))
    done = max(
        (int(epoch) for value in subject.values("epoch_stop") if (epoch := number(value.get("epoch")))), default=0
    )
    last = subject.last("eval_accuracy")
    if better_of(problem) == "higher":
        yield Tile("VFLOPS", UNKNOWN, "no score before the last epoch", "soft")
    metric = short(last.get("metric") or problem.get("metric") or "", 30)
    yield Tile(f"Quality so far, {metric}", plain(last.get("value"), ".4f"), f"target {wanted}")
    yield Tile("Epochs trained", f"{done} of {plain(epochs, '.0f')}", f"ended as: {subject.record.status}")
    yield _size(subject)


# ----------------------------------------------------------------------------------------------------
# The page.


# Further records appear only in the summary.
_MOST_PARTS = 20
_Ceilings = tuple[Machine, tuple[GivenFile, ...]]


@dataclass(frozen=True)
class Report:
    """A page, and a line about each record for the terminal."""

    html: str
    verdicts: Sequence[str]


def make_report(paths: Sequence[Path], machine: str | None = None, profile: Path | None = None) -> Report:
    """The page of the records at `paths`; a folder of a series stands for its records.

    Args:
        machine: ceilings for the roofline: a TOML file, a shipped name, or a JSON file of `hpcai500 micro`.
        profile: a folder that `hpcai500 profile` wrote, for the records whose recipe and machine it has; the others,
            and all without it, show their own profile.

    Raises:
        RecordError: one is not a record, or is inconsistent.
        UsageError: a run is named twice, the machine cannot be read, or `profile` belongs to none of the records.
        WrongAnswerError: the signature of the machine's file or of a profile does not match it.
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
    html = without_folders(html, [*paths, *(subject.path for subject in subjects), *([profile] if profile else [])])
    return Report(html, [f"{subject.path}: {subject.verdict_sentence}" for subject in subjects])


def _require_profile_of(profile: GivenFile, subjects: Sequence[Subject]) -> None:
    reasons = [why_not_of_run(profile.tables(), subject.record) for subject in subjects]
    if None not in reasons:
        raise UsageError(
            f"--profile {profile.path.parent}: not of {subjects[0].path}"
            f"{' or another of the records' if reasons[1:] else ''}: {reasons[0]}: give the profile of a record"
        )


def _part(subject: Subject, index: int, machine: _Ceilings | None, profile: GivenFile | None) -> Part:
    begin = subject.record.events[0].get("time_ms") if subject.record.events else None
    last = last_event_hash(subject)
    subtitle = f"{short(subject.path.name, 200)} · {moment(begin)} · last event {last[:12]}…"
    system, nodes = subject.record.system, number(subject.last("run_start").get("nodes"))
    facts = [
        ("Machine", machine_sentence(system, int(nodes or len(tables(system.get("nodes"))) or 1))),
        ("Site", site_sentence(system)),
    ]
    sections = [section for section in _sections(subject, machine, profile) if section is not None]
    return Part(f"record-{index}", _name(subject), subtitle, facts, banner(subject), sections)


def _sections(subject: Subject, machine: _Ceilings | None, profile: GivenFile | None) -> Iterator[Section | None]:
    yield Section("Score", [score_tiles(subject)])
    yield _shown("Quality and loss", lambda: training_section(subject))
    yield _shown("Where the time goes", lambda: step_section(subject))
    yield _shown("Goodput", lambda: goodput_section(subject))
    yield _shown("Stragglers", lambda: straggler_section(subject))
    yield _shown("Communication", lambda: communication_section(subject))
    yield _shown("Roofline", lambda: roofline_section(subject, *machine) if machine else None)
    yield _shown("Profile", lambda: profile_section(subject, profile))
    yield _shown("Power", lambda: power_section(subject))
    yield _shown("Pictures", lambda: picture_section(subject))
    yield _shown("System", lambda: system_section(subject))
    yield _shown("Recipe", lambda: recipe_section(subject))
    yield _shown("Events", lambda: event_section(subject))
    yield number_section(subject.result) if subject.result else None
    yield hash_section(subject)


def _shown(title: str, make: Callable[[], Section | None]) -> Section | None:
    """The section, or why it cannot be shown: the record may be of another version, or edited by hand."""
    try:
        return make()
    except Exception as error:
        if isinstance(error, HpcAi500Error) and not isinstance(error, RecordError):
            # Errors about this command or this machine, not about the record.
            raise
        text = f"This part of the record cannot be shown: {type(error).__name__}: {short(error, 200)}."
        return Section(title, [Text(text, "bad")])


def _name(subject: Subject) -> str:
    tables = subject.record.tables
    benchmark, edition = short(tables.get("benchmark", "?"), 40), short(tables.get("edition", "?"), 40)
    return f"HPC AI500 {benchmark.upper()}, edition {edition}, {count(subject.world_size, 'rank')}"


def write_page(target: Path, html: str) -> None:
    """Write `html` to `target`, whole or not at all.

    Raises:
        UsageError: it cannot be written there.
    """
    try:
        # A record may contain half of a surrogate pair, which UTF-8 cannot encode.
        write_atomically(target, html.encode("utf-8", errors="replace"))
    except OSError as error:
        raise UsageError(f"{target}: cannot be written: {error.strerror}; give another -o FILE") from error
