"""Scores records, always from their events, never from `result.json`; finds the runs of a path and averages them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcai500.campaign.journal import is_campaign, read_campaign
from hpcai500.campaign.standing import RESULT, difference, differing_keys
from hpcai500.errors import EnvironmentLacksError, RecordError, UsageError, WrongAnswerError
from hpcai500.methodology.result import ANALYTIC, Result, derive, training_seconds
from hpcai500.methodology.samples import IMAGES
from hpcai500.methodology.trials import TrialSummary, summarise
from hpcai500.recipe import rulebook
from hpcai500.record import Record, json_object, line_hash, read_record
from hpcai500.system.power_samples import check_power

# The metrics of V2.0 section 5.3.2, and the rate they are computed from.
TRIAL_METRICS = (
    "vflops",
    "flops",
    "images_per_second",
    "time_to_quality_seconds",
    "seconds",
    "energy_joules",
    "watts",
    "flops_per_watt",
    "vflops_per_watt",
)


# Titles of the numbers of results and of `hpcai500 micro`, by their names in JSON.
_TITLES = {
    "vflops": "VFLOPS",
    "flops": "FLOPS",
    "quality": "Quality",
    "utilisation": "Share of the matrix-product rate",
    "seconds": "Run time",
    "time_to_quality_seconds": "Time to quality",
    "evaluation_seconds": "Evaluation time",
    "downtime_seconds": "From interruptions until it trained again",
    "energy_joules": "Energy",
    "watts": "Power",
    "flops_per_watt": "FLOPS per watt",
    "vflops_per_watt": "VFLOPS per watt",
    "data_wait_fraction": "Data wait, share of time",
    "communication_fraction": "Communication wait, share of time",
    "parallel_efficiency": "Parallel efficiency",
    "world_size": "Ranks",
    "nodes": "Nodes",
    "restarts": "Restarts",
    "goodput": "Goodput",
    "mean_between_interruptions_seconds": "Mean time between interruptions",
    "recovery_seconds": "Interruption to next step",
    "checkpoint_seconds": "Time of a checkpoint",
    "step data_wait": "Step time: data wait",
    "step compute": "Step time: compute",
    "step communication": "Step time: communication",
    "step other": "Step time: other",
    "copy": "Memory bandwidth (copy)",
    "pairs slowest": "Bandwidth of the slowest pair of nodes",
    "pairs share": "Slowest pair of nodes, share of the median",
    "pairs latency": "Latency of the slowest pair of nodes",
    "pairs bisection": "Bandwidth of all pairs at once, slowest round",
    "device from host": "Copy from host to device",
    "device to host": "Copy from device to host",
    "device to device": "Slowest pair of devices of a node",
}
# Those that name samples.
_OF_SAMPLES = {
    "images_per_second": "{}s per second",
    "flops_per_image": "FLOPs per {}",
    "images": "{}s",
}
_KINDS = {"gemm": "Matrix product (GEMM)", "conv": "Convolution", "input": "Input pipeline"}
_COLLECTIVES = {
    "allreduce": "All-reduce",
    "allgather": "All-gather",
    "reducescatter": "Reduce-scatter",
    "alltoall": "All-to-all",
    "broadcast": "Broadcast",
}
_PLACES = {"node": "within a node", "network": "between nodes", "system": "of all ranks"}


def metric_title(name: str, sample: str = IMAGES.name) -> str:
    """The title of the metric `name`: `Time to quality` for `time_to_quality_seconds`; a quality keeps its name.

    `sample` is what the benchmark calls a sample.
    """
    if name.startswith("variation of "):
        return f"Variation of {metric_title(name.removeprefix('variation of '), sample)}"
    if name.startswith("share of "):
        return f"Wall-clock time: {name.removeprefix('share of ')}"
    kind, _, which = name.partition(" ")
    if kind in _KINDS:
        return f"{_KINDS[kind]}, {which}"
    if kind in _COLLECTIVES and which in _PLACES:
        return f"{_COLLECTIVES[kind]} {_PLACES[which]}"
    if title := _OF_SAMPLES.get(name, "").format(sample):
        return title[0].upper() + title[1:]
    words = name.replace("_", " ")
    return _TITLES.get(name, words.capitalize() if words.endswith(" per second") else words)


def score_record(path: Path, edition: str | None = None, convention: str = ANALYTIC) -> Result:
    """The result of the record at `path`, by its own edition unless another is given.

    `convention` is how operations are counted.

    Raises:
        RecordError: it is not a complete record, or its chain of events is broken.
        EnvironmentLacksError: the edition's reference recipe was changed.
        WrongAnswerError: its `result.json` or its power samples differ from its events.
    """
    return score(read_record(path), edition, convention)


def score(record: Record, edition: str | None = None, convention: str = ANALYTIC) -> Result:
    """As `score_record`, for a record that is already read."""
    path = record.path
    result = _derive(record, str(record.tables.get("edition")), ANALYTIC)
    complete = record.status == "done" and (path / RESULT).is_file()
    if complete:
        check_power(record)
    if (path / RESULT).is_file():
        _compare(path / RESULT, result.as_json())
    if edition is not None or convention != ANALYTIC:
        result = _derive(record, edition or result.edition, convention)
    if complete:
        return result
    reason = "the record is not complete: DONE or result.json is missing"
    return result.model_copy(update={"rankable": False, "reasons": [*result.reasons, reason]})


@dataclass(frozen=True)
class ScoredRun:
    """A record with its result."""

    record: Record
    result: Result

    @property
    def path(self) -> Path:
        return self.record.path

    @property
    def training_seconds(self) -> float:
        return training_seconds(self.record.events)

    @property
    def images_per_second(self) -> float:
        """Images a second in the training steps alone (V2.0 section 7.2: images per process and second x processes).

        Evaluations and checkpoints take nearly as long on many processes as on few, but an epoch has fewer steps, so a
        rate that included them would not show weak scaling. Images that pad the last batch of an epoch count as work.
        """
        return (self.result.images + self.result.padded_images) / self.training_seconds


def read_runs(paths: Sequence[Path]) -> list[ScoredRun]:
    """The records at `paths` and their results.

    Raises:
        HpcAi500Error: as `score_record`.
    """
    records = [read_record(path) for path in paths]
    return [ScoredRun(record, score(record)) for record in records]


def expand(paths: Sequence[Path]) -> list[Path]:
    """`paths` with each campaign replaced by its finished runs, and each other folder of runs by its records.

    Raises:
        UsageError: a run is named twice or was copied, so it would count twice; or a campaign has no finished run.
        RecordError: the journal of a campaign is broken.
    """
    records = [record for path in paths for record in _runs_in(path)]
    seen: dict[str, Path] = {}
    for record in records:
        log = record / "events.jsonl"
        first = log.read_bytes().partition(b"\n")[0] if log.is_file() else b""
        if first and (other := seen.setdefault(line_hash(first), record)) is not record:
            raise UsageError(f"{record}: the same run as {other}; name each run once")
    return records


def _runs_in(path: Path) -> list[Path]:
    if not is_campaign(path):
        return sorted(path.glob("trial-*")) or [path]
    campaign = read_campaign(path)
    finished = [campaign.record(attempt) for attempt in campaign.done()]
    if not finished:
        raise UsageError(f"{path}: a campaign without a finished run; see `hpcai500 campaign status {path}`")
    return finished


def why_no_mean(records: Sequence[Path]) -> str | None:
    """Why runs do not belong together; None if they do.

    They do if their recipes differ only in the seed, and if they ran on the same data, with the same numbers of ranks
    and nodes of one kind, and with the same software, backend and library.
    """
    read = [read_record(record) for record in records]
    if different := next(filter(None, (difference(read[0], other) for other in read[1:])), None):
        return different
    seeds = [one.tables["hyperparameters"]["seed"] for one in read]
    return f"two runs have the seed {max(seeds, key=seeds.count)}" if len(set(seeds)) < len(seeds) else None


def summarise_trials(results: Sequence[Result]) -> dict[str, TrialSummary]:
    """Each metric over all runs of one recipe; metrics that a run lacks are left out."""
    values = {name: [getattr(result, name) for result in results] for name in TRIAL_METRICS}
    values |= {name: [result.rates.get(name) for result in results] for name in results[0].rates}
    values[results[0].quality.metric] = [result.quality.achieved for result in results]
    return {name: summarise(numbers) for name, numbers in values.items() if None not in numbers}


def _derive(record: Record, edition: str, convention: str) -> Result:
    tables = {**record.tables, "edition": edition}
    rules = rulebook(edition, str(tables.get("benchmark")))
    if "reference_error" in rules:
        raise EnvironmentLacksError(rules["reference_error"])
    try:
        return derive(tables, rules, record.events, convention)
    except RecordError as error:
        raise RecordError(f"{record.path}: {error}") from error
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        # The chain is intact, but the record was written by hand or by a newer version.
        raise RecordError(f"{record.path}: events or recipe are incomplete: {type(error).__name__} {error}") from error


def _compare(path: Path, computed: Mapping[str, Any]) -> None:
    written = json_object(path)
    if keys := differing_keys(written, computed):
        key = keys[0]
        raise WrongAnswerError(
            f"{path}: {key} is {written.get(key)!r}, but the events give {computed.get(key)!r}"
            + (f" ({len(keys)} keys differ)" if len(keys) > 1 else "")
            + "; the file was changed, or written by another version"
        )
