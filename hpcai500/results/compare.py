"""`hpcai500 compare`: compares records or series with a first one; differences in the work come first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal

from hpcai500.errors import UsageError
from hpcai500.methodology.goodput import FIGURES, figure
from hpcai500.methodology.nodes import node_differences
from hpcai500.methodology.result import Result
from hpcai500.methodology.samples import samples_of
from hpcai500.methodology.statistics import LEAST_RUNS, Compared, Side, compare, side
from hpcai500.recipe import Difference, table_differences
from hpcai500.results.report.blocks import Block, Cell, Row, Section, Table, Text, Tone, render, without_folders
from hpcai500.results.report.reading import Subject, read_subject
from hpcai500.results.report.sections import curves_section
from hpcai500.results.score import expand, metric_title, why_no_mean
from hpcai500.system.tables import plugin_words
from hpcai500.text import UNKNOWN, aligned, duration, listed, plain, quantity, share, short, table, tables

Better = Literal["higher", "lower", ""]
# Names of the sides compared with A: a page has colours for six curves.
_NAMES = "BCDEF"


@dataclass(frozen=True)
class Metric:
    """A number of a result: its name, its unit, whether higher or lower is better ("" for neither), its getter."""

    name: str
    unit: str
    better: Better
    of: Callable[[Result], float | None]


@dataclass(frozen=True)
class Comparison:
    """Two sides, A and B, each one record or a series.

    Attributes:
        problems: why the numbers are not comparable; shown first.
        recipe: fields in which the recipes differ; `reference` is A's value, `value` B's.
        system: (what, A, B) in which the machines and the software differ.
        name: of the second side: B, or another letter if several are compared with A.
    """

    a: Sequence[Subject]
    b: Sequence[Subject]
    problems: Sequence[str]
    recipe: Sequence[Difference]
    system: Sequence[tuple[str, str, str]]
    numbers: Sequence[tuple[Metric, Compared]]
    name: str = "B"

    @property
    def comparable(self) -> bool:
        """Whether both sides did the same work, and finished it."""
        return not self.problems

    @property
    def why_no_verdict(self) -> str | None:
        """Why no number is called better or worse, although both sides did the same work; None if numbers are."""
        fewest = min(len(self.a), len(self.b))
        if not self.comparable or fewest >= LEAST_RUNS:
            return None
        if len(self.a) == len(self.b) == 1:
            return "one run each: no verdict"
        return f"fewer than {LEAST_RUNS} runs of a side: no verdict"

    def title(self, metric: Metric) -> str:
        return metric_title(metric.name, samples_of(self.a[0].record.tables.get("benchmark")).name)

    def document(self) -> dict[str, Any]:
        return {
            "comparable": self.comparable,
            "problems": list(self.problems),
            "why_no_verdict": self.why_no_verdict,
            "a": [_subject_document(subject) for subject in self.a],
            "b": [_subject_document(subject) for subject in self.b],
            "recipe": [{"layer": d.layer, "field": d.field, "a": d.reference, "b": d.value} for d in self.recipe],
            "system": [{"field": field, "a": a, "b": b} for field, a, b in self.system],
            "numbers": [
                {"name": metric.name, "unit": metric.unit, "better": metric.better or None, **asdict(compared)}
                for metric, compared in self.numbers
            ],
        }


def compare_all(a: Path, others: Sequence[Path]) -> list[Comparison]:
    """Each record, or folder of a series, in `others` compared with `a`; they are named B, C, ...

    Raises:
        RecordError: one is not a record, or is inconsistent.
        UsageError: there are too many to draw, or the same run is on two sides.
    """
    if len(others) > len(_NAMES):
        raise UsageError(f"compare: at most {len(_NAMES) + 1} records or series, got {len(others) + 1}")
    expand([a, *others])
    ours, *rest = ([read_subject(path) for path in expand([one])] for one in (a, *others))
    return [
        Comparison(
            ours,
            theirs,
            problems=list(_problems(ours, theirs, name)),
            recipe=_recipe_differences(ours[0], theirs[0]),
            system=_system_differences(ours[0], theirs[0]),
            numbers=_numbers(ours, theirs),
            name=name,
        )
        for name, theirs in zip(_NAMES, rest, strict=False)
    ]


def compare_records(a: Path, b: Path) -> Comparison:
    """The records, or the folders of series, `a` and `b`; raises as `compare_all`."""
    return compare_all(a, [b])[0]


def metrics_of(results: Sequence[Result]) -> list[Metric]:
    """All numbers to compare, with every quality and class that any of `results` has."""
    qualities = {result.quality.metric: result.quality.better for result in results}
    classes = dict.fromkeys(
        (result.quality.metric, name) for result in results for name in sorted(result.quality.per_class or {})
    )
    samples = results[0].samples
    rates = {name: unit for result in results for name, unit in result.samples.rate_units.items()}
    counted = {"images_per_second": f"{samples.names}/s", "images": samples.names}
    return [
        Metric("vflops", "FLOPS", "higher", lambda result: result.vflops),
        *(Metric(quality, "", better, _quality(quality)) for quality, better in qualities.items()),
        *(Metric(f"{quality} {name}", "", qualities[quality], _class_of(quality, name)) for quality, name in classes),
        *(Metric(name, unit, "higher", _rate(name)) for name, unit in rates.items() if name not in counted),
        *(Metric(name, counted.get(name, unit), better, attrgetter(name)) for name, unit, better in _FIELDS),
        *(Metric(name, unit, better, _goodput(name)) for name, (unit, better) in FIGURES.items()),
        *(Metric(f"step {part}", "fraction", "", _part_of_step(part)) for part in _STEP_PARTS),
    ]


_FIELDS: tuple[tuple[str, str, Better], ...] = (
    ("flops", "FLOPS", "higher"),
    ("utilisation", "fraction", "higher"),
    ("images_per_second", "images/s", "higher"),
    ("seconds", "s", "lower"),
    ("time_to_quality_seconds", "s", "lower"),
    ("evaluation_seconds", "s", "lower"),
    ("energy_joules", "J", "lower"),
    ("watts", "W", "lower"),
    ("flops_per_watt", "FLOPS/W", "higher"),
    ("vflops_per_watt", "FLOPS/W", "higher"),
    ("data_wait_fraction", "fraction", "lower"),
    ("communication_fraction", "fraction", "lower"),
    ("parallel_efficiency", "fraction", "higher"),
    ("flops_per_image", "FLOP", ""),
    ("images", "images", ""),
    ("world_size", "ranks", ""),
    ("nodes", "nodes", ""),
    ("restarts", "restarts", "lower"),
    ("downtime_seconds", "s", "lower"),
)
_STEP_PARTS = ("data_wait", "compute", "communication", "other")


def _quality(metric: str) -> Callable[[Result], float | None]:
    return lambda result: result.quality.achieved if result.quality.metric == metric else None


def _class_of(metric: str, name: str) -> Callable[[Result], float | None]:
    return lambda result: (result.quality.per_class or {}).get(name) if result.quality.metric == metric else None


def _rate(name: str) -> Callable[[Result], float | None]:
    return lambda result: result.rates.get(name)


def _goodput(name: str) -> Callable[[Result], float | None]:
    return lambda result: figure(result.goodput, name)


def _part_of_step(part: str) -> Callable[[Result], float | None]:
    return lambda result: getattr(getattr(result, "step_split", None), part, None)


def _numbers(ours: Sequence[Subject], theirs: Sequence[Subject]) -> list[tuple[Metric, Compared]]:
    left, right = ([subject.result for subject in side_ if subject.result] for side_ in (ours, theirs))
    if not left and not right:
        return []
    found = [
        (metric, compare(side([metric.of(one) for one in left]), side([metric.of(one) for one in right])))
        for metric in metrics_of([*left, *right])
    ]
    # Numbers that are zero or unknown on both sides, as restarts mostly are, get no line.
    return [(metric, both) for metric, both in found if any(one and one.mean for one in (both.a, both.b))]


def _problems(ours: Sequence[Subject], theirs: Sequence[Subject], other: str) -> Iterator[str]:
    for name, one in (("A", ours), (other, theirs)):
        for subject in one:
            if subject.result is None or subject.verdict == "INVALID":
                yield f"{name} has no result: {short(subject.path)}: {short(subject.problem)}"
            elif not subject.verified:
                yield f"{name} is inconsistent: {short(subject.problem)}"
        good = [subject.path for subject in one if subject.result]
        if len(good) > 1 and (reason := why_no_mean(good)):
            yield f"the runs of {name} do not belong together: {short(reason)}"
    left, right = ours[0].record.tables, theirs[0].record.tables
    for key in ("benchmark", "edition"):
        if left.get(key) != right.get(key):
            yield f"different {key}: A is {short(left.get(key), 60)}, {other} is {short(right.get(key), 60)}"
    if left.get("benchmark") == right.get("benchmark"):
        yield from (
            f"the problem (layer 9) differs: {_words(one.field.removeprefix('problem.'))} is "
            f"{short(one.reference, 60)} in A, {short(one.value, 60)} in {other}"
            for one in _recipe_differences(ours[0], theirs[0])
            if one.layer == 9
        )
    yield from _other_work(ours[0], theirs[0], other)


def _other_work(one: Subject, two: Subject, other: str) -> Iterator[str]:
    left, right = one.last("dataset"), two.last("dataset")
    key = (
        "content_fingerprint" if left.get("content_fingerprint") and right.get("content_fingerprint") else "fingerprint"
    )
    if left.get(key) != right.get(key):
        found = [short(side_.get(key), 16) for side_ in (left, right)]
        yield f"different data: the {_words(key)} is {found[0]} in A, {found[1]} in {other}"
    if one.result and two.result:
        for name in ("flops_convention", "input"):
            values = [getattr(subject.result, name, None) for subject in (one, two)]
            if values[0] != values[1]:
                yield f"different {name.replace('_', ' ')}: A has {values[0]}, {other} has {values[1]}"


def _recipe_differences(one: Subject, other: Subject) -> list[Difference]:
    ignored = {"hyperparameters.seed"}
    found = table_differences(other.record.tables, one.record.tables)
    return [difference for difference in found if difference.field not in ignored]


def _system_differences(one: Subject, other: Subject) -> list[tuple[str, str, str]]:
    """Differences of ranks, nodes and software, and of the first nodes of both sides."""
    rows = [
        (what, short(ours, 200), short(theirs, 200))
        for what, ours, theirs in zip(_WORLD, _world(one), _world(other), strict=True)
        if ours != theirs
    ]
    left, right = (tables(subject.record.system.get("nodes"))[:1] for subject in (one, other))
    if left and right:
        pair = [{**left[0], "host": "A"}, {**right[0], "host": "B"}]
        for difference in node_differences(pair):
            values = {node: variant.value for variant in difference.variants for node in variant.nodes}
            rows.append((difference.field, short(values.get("A"), 200), short(values.get("B"), 200)))
    return rows


_WORLD = ("ranks", "nodes", "backend", "library", "image", "code", "compiled core", "plug-in")


def _world(subject: Subject) -> tuple[Any, ...]:
    start = subject.last("run_start")
    installation = table(subject.record.system.get("installation"))
    package = table(installation.get("package"))
    return (
        *(start.get(key) for key in ("world_size", "nodes", "backend", "library")),
        table(installation.get("image")).get("content_sha256"),
        package.get("code_sha256"),
        package.get("core_sha256"),
        "; ".join(plugin_words(one) for one in tables(installation.get("plugins"))) or None,
    )


def _subject_document(subject: Subject) -> Mapping[str, Any]:
    return {"record": str(subject.path), "verdict": subject.verdict, "problem": subject.problem}


# ----------------------------------------------------------------------------------------------------
# A comparison for a terminal and as a page.


_MOST_ROWS = 200
# A ratio as near to 1 as this is shown as "the same".
_SAME = 5e-4


def comparison_lines(comparison: Comparison) -> Iterator[str]:
    """What differs first, then each number and its ratio."""
    yield from _side_lines("A", comparison.a)
    yield from _side_lines(comparison.name, comparison.b)
    if comparison.problems:
        yield ""
        yield "NOT COMPARABLE"
        yield from (f"  ! {problem}" for problem in comparison.problems)
    yield ""
    yield "recipes differ in" if comparison.recipe else "recipes are the same (but for the seed)"
    for one in comparison.recipe[:_MOST_ROWS]:
        yield f"  {one.layer} {one.field:36} {_value(one.reference):28} {_value(one.value)}"
    yield ""
    yield "systems differ in" if comparison.system else "systems are the same, as far as the records show"
    rows = [
        (f"  {short(_words(field), 60):37}", f"{short(a, 40):27}", short(b, 40))
        for field, a, b in comparison.system[:_MOST_ROWS]
    ]
    yield from aligned(rows)
    if comparison.numbers:
        yield ""
        if comparison.why_no_verdict:
            yield f"{comparison.why_no_verdict} (repeat the runs: --trials {LEAST_RUNS})"
        yield f"{'':34} {'A':>22} {comparison.name:>22} {f'{comparison.name}/A':>8}"
        for metric, compared in comparison.numbers:
            a, b = (_with_spread(metric, one) for one in (compared.a, compared.b))
            verdict = _verdict(metric, compared) if comparison.comparable else ""
            yield f"{comparison.title(metric):34} {a:>22} {b:>22} {_ratio(compared):>8}  {verdict}".rstrip()


def comparison_page(*comparisons: Comparison) -> str:
    """The comparison as a page in the report's style, with the curves of all sides in one chart."""
    first = comparisons[0]
    sides = [("A", first.a), *((one.name, one.b) for one in comparisons)]
    sections = [Section("The sides", [_side_table(sides)])]
    if curves := curves_section([(name, subjects[0]) for name, subjects in sides]):
        sections.append(curves)
    for one in comparisons:
        of = f": {one.name}" if len(comparisons) > 1 else ""
        sections.append(Section(f"What differs{of}", list(_differences(one))))
        numbers = [_number_table(one)] if one.numbers else [Text("Neither has a result.", "flag")]
        sections.append(Section(f"Numbers{of}", numbers))
    html = render(
        "compare.html.j2",
        title=f"HPC AI500: {'two' if len(sides) == 2 else len(sides)} sides compared",
        comparable=all(one.comparable for one in comparisons),
        has_verdicts=not any(one.why_no_verdict for one in comparisons),
        names=[one.name for one in comparisons if not one.comparable],
        problems=list(dict.fromkeys(problem for one in comparisons for problem in one.problems)),
        sentences=[_sentence(one) for one in comparisons],
        sections=sections,
    )
    return without_folders(html, [subject.path for _, subjects in sides for subject in subjects])


def _sentence(comparison: Comparison) -> str:
    """The summary of a page: the ratio of the first number that both sides have."""
    name = comparison.name
    text = f"A and {name} did the same work and finished it"
    if comparison.why_no_verdict:
        return f"{text}; {comparison.why_no_verdict}."
    for metric, compared in comparison.numbers:
        if compared.ratio is not None and (verdict := _verdict(metric, compared)):
            return (
                f"{text}. {comparison.title(metric)}: {name} has {compared.ratio:.3f} times the value of A ({verdict})."
            )
    return f"{text}."


def _words(field: str) -> str:
    """A field of a recipe or of a machine in words: `communication: bucket bytes`."""
    return field.replace("_", " ").replace(".", ": ")


def _side_lines(name: str, subjects: Sequence[Subject]) -> Iterator[str]:
    for subject in subjects:
        yield f"{name}           {subject.path}  {subject.verdict}" + (
            f": {subject.problem}" if subject.problem else ""
        )
        if subject.result and subject.result.why_no_vflops:
            yield f"            VFLOPS not shown: {subject.result.why_no_vflops}"


def _side_table(sides: Sequence[tuple[str, Sequence[Subject]]]) -> Table:
    rows: list[Row] = [
        (
            side,
            short(subject.path, 200),
            short(subject.record.tables.get("benchmark", ""), 20),
            f"{subject.world_size:,}",
            Cell(subject.verdict, "good" if subject.verdict == "PASS" else "bad"),
            short(subject.problem or ""),
        )
        for side, subjects in sides
        for subject in subjects[:_MOST_ROWS]
    ]
    return Table("Each is compared with A", ("side", "record", "benchmark", "ranks", "verdict", "why"), rows, (3,))


def _differences(comparison: Comparison) -> Iterator[Block]:
    if comparison.recipe:
        recipe = [
            (_words(one.field), str(one.layer), _value(one.reference), _value(one.value))
            for one in comparison.recipe[:_MOST_ROWS]
        ]
        left_out = max(0, len(comparison.recipe) - _MOST_ROWS)
        yield Table("Recipes differ in", ("field", "layer", "A", comparison.name), recipe, (1,), left_out)
    else:
        yield Text("The recipes are the same (but for the seed).", "good")
    if comparison.system:
        left_out = max(0, len(comparison.system) - _MOST_ROWS)
        rows = [
            (short(_words(field), 60), short(a, 60), short(b, 60)) for field, a, b in comparison.system[:_MOST_ROWS]
        ]
        yield Table("Systems differ in", ("field", "A", comparison.name), rows, left_out=left_out)
    else:
        yield Text("The systems are the same, as far as the records show.", "good")


def _number_table(comparison: Comparison) -> Table:
    rows: list[Row] = []
    for metric, compared in comparison.numbers:
        verdict = _verdict(metric, compared) if comparison.comparable else ""
        tone: Tone = "good" if "better" in verdict else "bad" if "worse" in verdict else ""
        a, b = (_with_spread(metric, one) for one in (compared.a, compared.b))
        rows.append((comparison.title(metric), a, b, _ratio(compared), Cell(verdict, tone)))
    name = comparison.name
    return Table(
        f"{name} compared with A; ± is the coefficient of variation (standard deviation / mean) of the runs",
        ("number", "A", name, f"{name}/A", f"{name} is"),
        rows,
        (1, 2, 3),
    )


def _with_spread(metric: Metric, side: Side | None) -> str:
    if side is None:
        return UNKNOWN
    shown = _number(metric, side.mean)
    if side.deviation is None or not side.mean:
        return shown
    return f"{shown} ±{side.deviation / abs(side.mean):.1%}".replace("%", " %")


def _number(metric: Metric, value: float) -> str:
    if metric.unit == "s":
        return duration(value)
    if metric.unit == "fraction":
        return share(value)
    if metric.unit in ("FLOPS", "FLOP", "J", "W", "FLOPS/W"):
        return quantity(value, metric.unit)
    counted = metric.unit in ("ranks", "nodes", "restarts")
    return f"{plain(value, ',.6g')} {'' if counted else metric.unit}".strip()


def _ratio(compared: Compared) -> str:
    return "" if compared.ratio is None else f"{compared.ratio:.3f}"


def _verdict(metric: Metric, compared: Compared) -> str:
    """Better or worse beyond the spread of the runs, or within it; nothing if there are too few runs to say."""
    if compared.ratio is None or compared.exceeds_spread is None or not metric.better:
        return ""
    if abs(compared.ratio - 1) < _SAME:
        return "the same"
    word = "better" if (compared.ratio > 1) == (metric.better == "higher") else "worse"
    return f"{word}, beyond the spread" if compared.exceeds_spread else "within the spread"


def _value(value: object) -> str:
    return "-" if value is None else short(listed(value), 60)
