"""`hpcai500 compare`: two records, or two series of them, side by side: what differs in the work comes first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from hpcai500.methodology.comparison import Compared, compare, side
from hpcai500.methodology.node_differences import node_differences
from hpcai500.methodology.result import Result
from hpcai500.recipe import Difference
from hpcai500.recipe_tables import table_differences
from hpcai500.results.report.reading import Subject, read_subject
from hpcai500.results.report.words import short, table, tables
from hpcai500.results.score import expand, why_no_mean

Better = Literal["higher", "lower", ""]


@dataclass(frozen=True)
class Metric:
    """A number of a result: its name, unit, which way is better, and where it stands."""

    name: str
    unit: str
    better: Better
    of: Callable[[Result], float | None]


@dataclass(frozen=True)
class Comparison:
    """Everything about two sides, A and B.

    Attributes:
        a: subjects of the first side: one, or a series.
        b: those of the second.
        problems: why the numbers are not comparable; said loudest.
        recipe: fields in which the recipes differ; `reference` is A's value, `value` B's.
        system: (what, A, B) in which the machines and the software differ.
        numbers: (metric, compared).
    """

    a: Sequence[Subject]
    b: Sequence[Subject]
    problems: Sequence[str]
    recipe: Sequence[Difference]
    system: Sequence[tuple[str, str, str]]
    numbers: Sequence[tuple[Metric, Compared]]

    @property
    def comparable(self) -> bool:
        """Whether both sides did the same work, and finished it."""
        return not self.problems

    def document(self) -> dict[str, Any]:
        """For programs."""
        return {
            "comparable": self.comparable,
            "problems": list(self.problems),
            "a": [_subject_document(subject) for subject in self.a],
            "b": [_subject_document(subject) for subject in self.b],
            "recipe": [{"layer": d.layer, "field": d.field, "a": d.reference, "b": d.value} for d in self.recipe],
            "system": [{"field": field, "a": a, "b": b} for field, a, b in self.system],
            "numbers": [
                {"name": metric.name, "unit": metric.unit, "better": metric.better or None, **asdict(compared)}
                for metric, compared in self.numbers
            ],
        }


def compare_records(a: Path, b: Path) -> Comparison:
    """The records, or the folders of series, `a` and `b`.

    Raises:
        RecordError: one is no record, or does not hold together.
        UsageError: the same run is on both sides.
    """
    expand([a, b])
    ours, theirs = ([read_subject(path) for path in expand([one])] for one in (a, b))
    return Comparison(
        ours,
        theirs,
        problems=list(_problems(ours, theirs)),
        recipe=_recipe_differences(ours[0], theirs[0]),
        system=_system_differences(ours[0], theirs[0]),
        numbers=_numbers(ours, theirs),
    )


def metrics_of(results: Sequence[Result]) -> list[Metric]:
    """All numbers that results are compared by."""
    qualities = dict.fromkeys(result.quality.metric for result in results)
    classes = dict.fromkeys(
        (result.quality.metric, name) for result in results for name in sorted(result.quality.per_class or {})
    )
    return [
        Metric("vflops", "FLOPS", "higher", lambda result: result.vflops),
        *(Metric(quality, "", "higher", _quality(quality)) for quality in qualities),
        *(Metric(f"{quality} {name}", "", "higher", _class_of(quality, name)) for quality, name in classes),
        *(Metric(name, unit, better, _field(name)) for name, unit, better in _FIELDS),
        *(Metric(f"step {part}", "fraction", "", _part_of_step(part)) for part in _STEP_PARTS),
    ]


_FIELDS: tuple[tuple[str, str, Better], ...] = (
    ("flops", "FLOPS", "higher"),
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


def _field(name: str) -> Callable[[Result], float | None]:
    return lambda result: getattr(result, name, None)


def _quality(metric: str) -> Callable[[Result], float | None]:
    return lambda result: result.quality.achieved if result.quality.metric == metric else None


def _class_of(metric: str, name: str) -> Callable[[Result], float | None]:
    return lambda result: (result.quality.per_class or {}).get(name) if result.quality.metric == metric else None


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
    # Nothing on both sides, as restarts mostly are, is not worth a line.
    return [(metric, both) for metric, both in found if any(one and one.mean for one in (both.a, both.b))]


def _problems(ours: Sequence[Subject], theirs: Sequence[Subject]) -> Iterator[str]:
    for name, one in (("A", ours), ("B", theirs)):
        for subject in one:
            if subject.result is None or subject.verdict == "INVALID":
                yield f"{name} has no result: {short(subject.path)}: {short(subject.problem)}"
            elif not subject.verified:
                yield f"{name} does not hold together: {short(subject.problem)}"
        good = [subject.path for subject in one if subject.result]
        if len(good) > 1 and (reason := why_no_mean(good)):
            yield f"the runs of {name} do not belong together: {short(reason)}"
    left, right = ours[0].record.tables, theirs[0].record.tables
    for key in ("benchmark", "edition"):
        if left.get(key) != right.get(key):
            yield f"other {key}: A is {short(left.get(key), 60)}, B is {short(right.get(key), 60)}"
    if left.get("benchmark") == right.get("benchmark"):
        yield from (
            f"layer 9 differs: {one.field} is {short(one.reference, 60)} in A, {short(one.value, 60)} in B"
            for one in _recipe_differences(ours[0], theirs[0])
            if one.layer == 9
        )
    yield from _other_work(ours[0], theirs[0])


def _other_work(one: Subject, other: Subject) -> Iterator[str]:
    left, right = one.last("dataset"), other.last("dataset")
    key = (
        "content_fingerprint" if left.get("content_fingerprint") and right.get("content_fingerprint") else "fingerprint"
    )
    if left.get(key) != right.get(key):
        yield f"other data: A has {short(left.get(key), 16)}, B has {short(right.get(key), 16)} ({key})"
    if one.result and other.result:
        for name in ("flops_convention", "input"):
            values = [getattr(subject.result, name, None) for subject in (one, other)]
            if values[0] != values[1]:
                yield f"other {name.replace('_', ' ')}: A has {values[0]}, B has {values[1]}"


def _recipe_differences(one: Subject, other: Subject) -> list[Difference]:
    ignored = {"hyperparameters.seed"}
    found = table_differences(other.record.tables, one.record.tables)
    return [difference for difference in found if difference.field not in ignored]


def _system_differences(one: Subject, other: Subject) -> list[tuple[str, str, str]]:
    """Where they ran and by what, and how a node of A differs from one of B."""
    rows = [
        (what, short(ours, 200), short(theirs, 200))
        for what, ours, theirs in zip(_COMPANY, _company(one), _company(other), strict=True)
        if ours != theirs
    ]
    left, right = (tables(subject.record.system.get("nodes"))[:1] for subject in (one, other))
    if left and right:
        pair = [{**left[0], "host": "A"}, {**right[0], "host": "B"}]
        for difference in node_differences(pair):
            values = {node: variant.value for variant in difference.variants for node in variant.nodes}
            rows.append((difference.field, short(values.get("A"), 200), short(values.get("B"), 200)))
    return rows


_COMPANY = ("ranks", "nodes", "backend", "library", "image", "code", "compiled core", "plug-in")


def _company(subject: Subject) -> tuple[Any, ...]:
    start = subject.last("run_start")
    installation = table(subject.record.system.get("installation"))
    package = table(installation.get("package"))
    return (
        *(start.get(key) for key in ("world_size", "nodes", "backend", "library")),
        table(installation.get("image")).get("content_sha256"),
        package.get("code_sha256"),
        package.get("core_sha256"),
        [one.get("code_sha256") for one in tables(installation.get("plugins"))] or None,
    )


def _subject_document(subject: Subject) -> Mapping[str, Any]:
    return {"record": str(subject.path), "verdict": subject.verdict, "problem": subject.problem}
