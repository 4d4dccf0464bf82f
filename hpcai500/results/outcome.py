"""The output of a command that made or scored runs: one verdict, as text, as lines for harnesses, or as JSON.

Stable lines for harnesses are `HPCAI500 FOM <name>=<value> <unit>` (FOM: figure of merit) and, last, `HPCAI500 RESULT
<verdict>`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

from hpcai500.campaign.journal import is_campaign, read_campaign
from hpcai500.campaign.standing import Standing, standing
from hpcai500.errors import ExitCode, HpcAi500Error, RecordError
from hpcai500.methodology.goodput import FIGURES, Goodput, figure, in_turn, total
from hpcai500.methodology.result import Quality, Result
from hpcai500.methodology.samples import IMAGES, Samples
from hpcai500.methodology.trials import TrialSummary
from hpcai500.record import iterate, json_object, read_record
from hpcai500.results.score import summarise_trials, why_no_mean
from hpcai500.results.timeline import bytes_in_words
from hpcai500.system.container import short_image
from hpcai500.text import aligned, count, next_lines, scaled

# ----------------------------------------------------------------------------------------------------
# One result as text, and as stable lines.


INPUTS = {
    "real": "real data",
    "synthetic": "synthetic data, made by `hpcai500 data make`",
    "memory": "none: a few batches repeated from memory",
}
# At most this many names in a line; `hpcai500 timeline` lists all stragglers.
_MOST_NAMES = 4


def not_rankable_lines(reasons: Sequence[str]) -> Iterator[str]:
    """Why a result cannot be ranked: the only reason in one line, several as a list."""
    several = len(reasons) > 1
    yield f"HPCAI500 NOTE not rankable: {f'{len(reasons)} reasons' if several else reasons[0]}"
    yield from (f"  - {reason}" for reason in reasons if several)


def summary_lines(result: Result) -> Iterator[str]:
    """The result for a terminal."""
    quality = result.quality
    achieved = "unknown" if quality.achieved is None else f"{quality.achieved:.4f}"
    backend = f"{result.backend} ({result.communication_library})" if result.communication_library else result.backend
    processes = count(result.world_size, "process", "processes")
    yield f"benchmark   {result.benchmark}, edition {result.edition}, {processes}, {backend}"
    yield from _level_line(result)
    yield f"quality     {quality.metric} {achieved} (target {quality.goal})"
    for name, value in (quality.per_class or {}).items():
        yield f"  {name:22} " + ("does not occur" if value is None else f"{value:.4f}")
    yield f"time        {result.seconds:.1f} s ({result.evaluation_seconds:.1f} s of it evaluation)"
    if result.time_to_quality_seconds is not None:
        yield f"to quality  {result.time_to_quality_seconds:.1f} s"
    yield f"rate        {result.samples.rate_text(result.images_per_second)}"
    yield f"input       {INPUTS[result.input]}"
    if result.step_split is not None:
        split = result.step_split
        yield (
            f"steps       {split.data_wait:.1%} data wait, {split.compute:.1%} compute, "
            f"{split.communication:.1%} communication, {split.other:.1%} other"
        )
    elif result.data_wait_fraction is not None:
        yield f"data wait   {result.data_wait_fraction:.1%} of training time"
    yield from _communication_lines(result)
    per_sample = f"{scaled(result.flops_per_image, 'FLOP')} {result.samples.one}"
    yield f"FLOPS       {scaled(result.flops, 'FLOPS')} ({per_sample}, {result.flops_convention})"
    if result.utilisation is not None:
        yield f"  in training steps      {result.utilisation:.1%} of the matrix-product rate measured in this run"
    else:
        yield f"  share of the matrix-product rate unknown: {result.utilisation_note}"
    if result.vflops is not None:
        yield f"VFLOPS      {scaled(result.vflops, 'FLOPS')} (quality factor {result.penalty_coefficient:.4f})"
    else:
        yield f"VFLOPS      not shown: {result.why_no_vflops}"
    yield from _power_lines(result)
    if result.restarts:
        until = f"{result.downtime_seconds:.1f} s until it trained again"
        yield f"restarts    {result.restarts}, {until}, counted as run time"
    yield from goodput_lines(result.goodput)
    if not result.rankable:
        yield f"NOT RANKABLE: {result.reasons[0]}" + (
            f" (and {len(result.reasons) - 1} more)" if result.reasons[1:] else ""
        )


def goodput_lines(found: Goodput | None) -> Iterator[str]:
    """Where the wall-clock time went; no line if nothing is known of it."""
    if found is None or not found.wall_seconds:
        return
    whole = found.wall_seconds
    fraction = "unknown" if found.fraction is None else f"{found.fraction:.1%}"
    yield f"goodput     {fraction} of {whole:.1f} s of wall-clock time were steps that count; the rest:"
    parts = {part: seconds for part, seconds in found.seconds.model_dump().items() if part != "steps"}
    names = [f"{part} {seconds / whole:.1%}" for part, seconds in parts.items() if seconds]
    yield f"  {', '.join(names) or 'nothing'}"
    if found.interruptions:
        between = found.mean_between_interruptions_seconds
        text = f"{count(found.interruptions, 'interruption')}, {between:.1f} s of running for each"
        recovery = found.recovery_seconds
        yield f"  {text}" + ("" if recovery is None else f"; {recovery:.1f} s from an interruption to the next step")
    if found.checkpoint_seconds is not None:
        yield f"  {count(found.checkpoints, 'checkpoint')}, {found.checkpoint_seconds:.2f} s each"


def _level_line(result: Result) -> Iterator[str]:
    """The recipe's level, and the changes that force it; no line if the edition does not know the benchmark."""
    if result.level_changes is None:
        return
    more = len(result.level_changes) - _MOST_NAMES
    named = ", ".join(result.level_changes[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
    if not result.level:
        yield f"level       none: no level allows these changes of the recipe: {named}"
    else:
        yield f"level       {result.level} " + (f"(the recipe changes {named})" if named else "(from the recipe)")


def _power_lines(result: Result) -> Iterator[str]:
    """Energy and FLOPS per watt, or why they are unknown."""
    if result.energy_joules is None or result.watts is None:
        yield f"energy      unknown: {result.power_note or 'not in the record'}"
        return
    source = f"{result.power_source}, scope {result.power_scope}"
    yield f"energy      {scaled(result.energy_joules, 'J')}, mean {scaled(result.watts, 'W')} ({source})"
    if result.power_note:
        yield f"  {result.power_note}"
    if result.flops_per_watt is not None:
        valid = result.vflops_per_watt
        also = f", {scaled(valid, 'VFLOPS')}/W" if valid is not None else ""
        yield f"per watt    {scaled(result.flops_per_watt, 'FLOPS')}/W{also}"


def image_lines(system: Mapping[str, Any]) -> Iterator[str]:
    """The container image of a run, from its system.json; no line if there was none."""
    image = (system.get("installation") or {}).get("image")
    if image:
        yield f"image       {short_image(image)}"


def _communication_lines(result: Result) -> Iterator[str]:
    """The cost of communication between ranks; no lines for one process."""
    if result.parallel_efficiency is not None and result.parallel_efficiency_interval is not None:
        low, high = result.parallel_efficiency_interval
        estimate = f"{result.parallel_efficiency:.2f} ({low:.2f} to {high:.2f})"
        yield f"efficiency  {estimate}: estimated from steps with and without communication"
    elif result.parallel_efficiency_note:
        yield f"efficiency  unknown: {result.parallel_efficiency_note}"
    sizes = result.bytes_per_step
    if sizes is not None and sizes.gradient is not None and sizes.sent is not None:
        yield f"bytes       {bytes_in_words(sizes.gradient, sizes.sent)}"
    if result.stragglers:
        yield f"stragglers  {', '.join(result.stragglers[:_MOST_NAMES])}" + (
            f" and {len(result.stragglers) - _MOST_NAMES} more" if len(result.stragglers) > _MOST_NAMES else ""
        )


def figure_of_merit_lines(result: Result) -> Iterator[str]:
    """`HPCAI500 FOM <name>=<value> <unit>` for each known number."""
    sizes = result.bytes_per_step
    figures: dict[str, tuple[float | None, str]] = {
        "vflops": (result.vflops, "FLOPS"),
        "flops": (result.flops, "FLOPS"),
        **{name: (result.rates[name], unit) for name, unit in result.samples.rate_units.items()},
        "utilisation": (result.utilisation, "fraction"),
        result.quality.metric: (result.quality.achieved, result.quality.unit),
        **{
            f"{result.quality.metric}_{name.replace(' ', '_')}": (value, result.quality.unit)
            for name, value in (result.quality.per_class or {}).items()
        },
        "seconds": (result.seconds, "s"),
        "time_to_quality_seconds": (result.time_to_quality_seconds, "s"),
        "data_wait_fraction": (result.data_wait_fraction, "fraction"),
        "compute_fraction": (result.step_split.compute if result.step_split else None, "fraction"),
        "communication_fraction": (result.communication_fraction, "fraction"),
        "gradient_bytes_per_step": (sizes.gradient if sizes else None, "B"),
        "sent_bytes_per_step": (sizes.sent if sizes else None, "B"),
        "stragglers": (None if result.stragglers is None else len(result.stragglers), "ranks"),
        "energy_joules": (result.energy_joules, "J"),
        "watts": (result.watts, "W"),
        "flops_per_watt": (result.flops_per_watt, "FLOPS/W"),
        "vflops_per_watt": (result.vflops_per_watt, "FLOPS/W"),
    }
    yield from _figure_lines({**figures, **_goodput_figures(result.goodput)})


def _goodput_figures(found: Goodput | None) -> dict[str, tuple[float | None, str]]:
    if found is None:
        return {}
    parts = found.seconds.model_dump()
    return {
        "wall_seconds": (found.wall_seconds, "s"),
        **{f"goodput_{part}_seconds": (seconds, "s") for part, seconds in parts.items()},
        "interruptions": (found.interruptions, "interruptions"),
        **{name: (figure(found, name), unit) for name, (unit, _) in FIGURES.items() if " " not in name},
    }


def _figure_lines(figures: Mapping[str, tuple[float | None, str]]) -> Iterator[str]:
    for name, (value, unit) in figures.items():
        if value is not None:
            yield f"HPCAI500 FOM {name}={value:.6g} {unit}"


_UNITS = {
    "vflops": "FLOPS",
    "flops": "FLOPS",
    "energy_joules": "J",
    "watts": "W",
    "flops_per_watt": "FLOPS/W",
    "vflops_per_watt": "FLOPS/W",
}


def _unit(name: str, samples: Samples) -> str:
    return samples.rate_units.get(name) or _UNITS.get(name, "s" if name.endswith("seconds") else "fraction")


def with_unit(name: str, value: float, samples: Samples = IMAGES) -> str:
    """The value of the metric `name` with its unit: `"vflops", 1.066e9` -> `1.07 GFLOPS`."""
    unit = _unit(name, samples)
    if unit == "fraction":
        return f"{value:.4f}"
    return f"{value:.1f} {unit}" if unit == "s" or name in samples.rate_units else scaled(value, unit)


def mean_lines(summaries: Mapping[str, TrialSummary], samples: Samples) -> Iterator[str]:
    """The metrics over all trials."""
    dropped = any(summary.dropped_lowest is not None for summary in summaries.values())
    averaged = "without the highest and the lowest run" if dropped else "of all runs"
    yield f"all trials  mean {averaged}; variation: standard deviation / mean of all runs"
    rows: list[tuple[str, ...]] = []
    for name, one in summaries.items():
        variation = "unknown" if one.variation is None else f"{one.variation:.2%}"
        mean = f"{with_unit(name, one.mean, samples):16}"
        rows.append((f"  {name:23}", mean, f"variation {variation}  ({one.runs} runs)"))
    yield from aligned(rows)


def trial_lines(summaries: Mapping[str, TrialSummary], quality: Quality, samples: Samples) -> Iterator[str]:
    """The metrics over all trials, then their means and variations as figures of merit."""
    yield from mean_lines(summaries, samples)
    for name, summary in summaries.items():
        unit = quality.unit if name == quality.metric else _unit(name, samples)
        yield f"HPCAI500 FOM {name}={summary.mean:.6g} {unit}"
        if summary.variation is not None:
            yield f"HPCAI500 FOM {name}_variation={summary.variation:.6g} fraction"


# ----------------------------------------------------------------------------------------------------
# The outcome of a command.


@dataclass(frozen=True)
class RunOutcome:
    """One run: its record, and its result or why there is none."""

    record: Path
    result: Result | None = None
    error: str | None = None
    exit_code: int = ExitCode.PASS

    @property
    def system(self) -> Mapping[str, Any]:
        path = self.record / "system.json"
        return json_object(path) if path.is_file() else {}


@dataclass(frozen=True)
class CampaignOutcome:
    """The campaign that runs belong to."""

    folder: Path
    identity: str
    standing: Standing

    def document(self) -> dict[str, Any]:
        return {
            "path": str(self.folder),
            "identity": self.identity,
            "rankable": self.standing.rankable,
            "reasons": list(self.standing.reasons),
        }


@dataclass(frozen=True)
class CommandOutcome:
    """All runs of a command, and the error that ended it, if any."""

    runs: Sequence[RunOutcome]
    error: str | None = None
    error_code: int = ExitCode.PASS

    @property
    def exit_code(self) -> int:
        """The code of the first failure; else WRONG_ANSWER when a quality was missed; else PASS."""
        failures = [code for code in (*(run.exit_code for run in self.runs), self.error_code) if code != ExitCode.PASS]
        if failures:
            return failures[0]
        return ExitCode.PASS if all(_passed(run.result) for run in self.runs) else ExitCode.WRONG_ANSWER

    @property
    def verdict(self) -> str:
        """PASS; FAIL if a result is wrong; INVALID if there is none."""
        if all(run.result for run in self.runs) and self.error is None:
            return "PASS" if self.exit_code == ExitCode.PASS else "FAIL"
        return "FAIL" if self.exit_code == ExitCode.WRONG_ANSWER else "INVALID"

    def lines(self) -> Iterator[str]:
        """The outcome for a terminal, with the stable lines for harnesses last."""
        no_mean = self._why_no_mean()
        for run in self.runs:
            if run.record.exists():
                yield f"record      {run.record}"
            if run.error:
                yield f"error       {run.error}"
            if run.result:
                yield from summary_lines(run.result)
                yield from image_lines(run.system)
        if no_mean:
            yield f"no mean: {no_mean}"
        elif not all(run.result for run in self.runs):
            pass  # a harness would take the remaining runs for all of them
        elif len(self._good) > 1:
            yield from trial_lines(self._summaries(), self._good[0].quality, self._good[0].samples)
            yield from goodput_lines(self._goodput())
            yield from _figure_lines(_goodput_figures(self._goodput()))
        elif self._good:
            yield from figure_of_merit_lines(self._good[0])
        campaign = self._campaign
        if campaign:
            yield f"campaign    {campaign.folder}, identity {campaign.identity}"
        # Without a campaign, the reasons of the first run that is not rankable.
        of_runs = next((result.reasons for result in self._good if not result.rankable), ())
        if reasons := campaign.standing.reasons if campaign else of_runs:
            yield from not_rankable_lines(reasons)
        for result in self._good:
            if not _passed(result):
                quality = result.quality
                yield f"FAILED: {quality.metric} {quality.achieved} is {quality.miss}"
        yield f"HPCAI500 RESULT {self.verdict}"

    def next_lines(self) -> Iterator[str]:
        """The commands to type next; none if no run has a result."""
        if self._good:
            done = [run.record for run in self.runs if run.result]
            yield from next_lines(list(self._after_campaign(done) if is_campaign(done[0].parent) else _after(done[-1])))

    def _after_campaign(self, done: Sequence[Path]) -> Iterator[Step]:
        folder = done[0].parent
        yield ("campaign", "status", folder), "all attempts, and whether it is rankable"
        yield ("report", folder, "-o", f"{folder.name}.html"), "a page: score, curves, machine"
        try:
            campaign = read_campaign(folder)
        except RecordError:
            return
        if len(campaign.done()) < len(campaign.trials):
            yield ("campaign", "run", folder), "run what is not done yet"
        else:
            names = ("--system", "NAME", "--organisation", "NAME", "--key", "SSHKEY")
            yield ("submit", folder, "-o", f"{folder.name}.zip", *names), "one signed file"

    def document(self) -> dict[str, Any]:
        """As JSON: `result.json` for one good run, a summary of all for anything else."""
        if len(self.runs) == 1 and self.error is None and self.runs[0].result:
            return self.runs[0].result.as_json()
        return {
            "verdict": self.verdict,
            "exit_code": int(self.exit_code),
            "error": self.error,
            "runs": [
                {
                    "record": str(run.record),
                    "exit_code": int(run.exit_code),
                    "error": run.error,
                    "result": run.result.as_json() if run.result else None,
                }
                for run in self.runs
            ],
            "trials": {name: asdict(summary) for name, summary in self._summaries().items()},
            "no_mean": self._why_no_mean(),
            "goodput": found.model_dump(mode="json") if (found := self._goodput()) else None,
            "campaign": self._campaign.document() if self._campaign else None,
        }

    @property
    def _good(self) -> list[Result]:
        return [run.result for run in self.runs if run.result]

    @cached_property
    def _campaign(self) -> CampaignOutcome | None:
        """The campaign of these runs; None unless they are exactly its finished runs."""
        finished = [run.record for run in self.runs if run.result]
        folders = {record.parent for record in finished}
        if len(folders) != 1 or not is_campaign(folder := folders.pop()):
            return None
        try:
            campaign = read_campaign(folder)
        except RecordError:
            return None  # the user named single records, not the campaign
        if {campaign.record(attempt) for attempt in campaign.done()} != set(finished):
            return None
        return CampaignOutcome(folder, campaign.identity, standing(campaign, self._good[0].edition))

    def _why_no_mean(self) -> str | None:
        return why_no_mean([run.record for run in self.runs if run.result]) if len(self._good) > 1 else None

    def _goodput(self) -> Goodput | None:
        """Over all runs that have a result; of a campaign, also the time between them."""
        together = in_turn if self._campaign else total
        return together(result.goodput for result in self._good)

    def _summaries(self) -> dict[str, TrialSummary]:
        return summarise_trials(self._good) if len(self._good) > 1 and not self._why_no_mean() else {}


Step = tuple[Sequence[object], str]


def _after(record: Path) -> Iterator[Step]:
    """The commands to type after one run."""
    yield ("report", record, "-o", "report.html"), "a page: score, curves, machine"
    benchmark, root = benchmark_of(record), record.parent
    if benchmark is None:
        return
    if (before := _earlier(record, benchmark)) is not None and _compare(before, record):
        yield ("compare", before, record), "with the run before it"
    folders = (root / f"{benchmark}-campaign{number}" for number in ("", *(f"-{count}" for count in range(2, 1000))))
    folder = next((one for one in folders if not one.exists()), None)
    if folder is not None:
        data: Mapping[str, Any] = next((event["value"] for event in iterate(read_record(record).events, "dataset")), {})
        where = () if data.get("synthetic") or not data.get("root") else ("--data", data["root"])
        words = ("campaign", "init", folder, "--recipe", record / "recipe.toml", *where)
        yield words, "plan all runs of a result"


_MOST_RECORDS = 1000


def benchmark_of(record: Path) -> str | None:
    """The benchmark in the recipe of a record; None if the recipe cannot be read."""
    try:
        name = tomllib.loads((record / "recipe.toml").read_text(encoding="utf-8")).get("benchmark")
    except (OSError, ValueError):
        return None
    return name if isinstance(name, str) else None


def _earlier(record: Path, benchmark: str) -> Path | None:
    """The last complete record of `benchmark` in the same folder that ended before `record`."""
    try:
        ended = (record / "DONE").stat().st_mtime_ns
        found = []
        for done in islice(record.parent.glob("*/DONE"), _MOST_RECORDS):
            moment = done.stat().st_mtime_ns
            if moment < ended and done.parent.name != record.name:
                found.append((moment, done.parent))
    except OSError:
        return None
    newest_first = (folder for _, folder in sorted(found, reverse=True))
    return next((folder for folder in newest_first if benchmark_of(folder) == benchmark), None)


def _compare(before: Path, record: Path) -> bool:
    """Whether `hpcai500 compare` finds that the two runs did the same work."""
    from hpcai500.results.compare import compare_records  # its pages are needed only here

    try:
        return compare_records(before, record).comparable
    except HpcAi500Error:
        return False


def _passed(result: Result | None) -> bool:
    return result is not None and result.quality.is_reached
