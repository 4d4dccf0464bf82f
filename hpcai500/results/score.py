"""The score of a record, computed from its events again, never copied from its `result.json`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcai500.editions import benchmark_rules
from hpcai500.errors import RecordError, WrongAnswerError
from hpcai500.methodology.result import ANALYTIC, Result, derive
from hpcai500.methodology.trials import TrialSummary, summarise
from hpcai500.record import Record, json_object, read_record

# The metrics of V2.0 section 5.3.2, and the rate that they come from.
TRIAL_METRICS = ("vflops", "flops", "images_per_second", "time_to_quality_seconds", "seconds")
# Another Python or C library may round the last digit of a sum or a power otherwise.
_ROUNDING = 1e-9


def score_record(path: Path, edition: str | None = None, convention: str = ANALYTIC) -> Result:
    """The result of the record at `path`, under its own edition and count of operations, or other ones.

    Raises:
        RecordError: it is no complete record, or its chain of events is broken.
        WrongAnswerError: its `result.json` says something else than its events.
    """
    record = read_record(path)
    result = _derive(record, str(record.tables.get("edition")), ANALYTIC)
    if (path / "result.json").is_file():
        _compare(path / "result.json", result.as_json())
    if edition is None and convention == ANALYTIC:
        return result
    return _derive(record, edition or result.edition, convention)


def summarise_trials(results: Sequence[Result], records: Sequence[Path]) -> dict[str, TrialSummary]:
    """Each metric over all runs of one recipe; a metric that a run does not have is left out.

    Returns nothing for runs that do not belong together: those whose recipes differ in more than the seed.
    """
    recipes = [_without_seed(read_record(record).tables) for record in records]
    if len(results) < 2 or any(recipe != recipes[0] for recipe in recipes):
        return {}
    values = {name: [getattr(result, name) for result in results] for name in TRIAL_METRICS}
    values[results[0].quality.metric] = [result.quality.achieved for result in results]
    return {name: summarise(numbers) for name, numbers in values.items() if None not in numbers}


def _derive(record: Record, edition: str, convention: str) -> Result:
    tables = {**record.tables, "edition": edition}
    try:
        return derive(tables, benchmark_rules(edition, str(tables.get("benchmark"))), record.events, convention)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        # Chained, and still not what this version expects: written by a hand, or by a version that is not known yet.
        raise RecordError(f"{record.path}: events or recipe lack something: {type(error).__name__} {error}") from error


def _without_seed(tables: Mapping[str, Any]) -> dict[str, Any]:
    policy = {key: value for key, value in tables["hyperparameters"].items() if key != "seed"}
    return {**tables, "hyperparameters": policy}


def _compare(path: Path, computed: Mapping[str, Any]) -> None:
    written = json_object(path)
    keys = sorted(key for key in {*computed, *written} if not _same(computed.get(key), written.get(key)))
    if keys:
        key = keys[0]
        raise WrongAnswerError(
            f"{path}: {key} is {written.get(key)!r}, but the events give {computed.get(key)!r}"
            + (f" ({len(keys)} keys differ)" if len(keys) > 1 else "")
            + "; the file was changed, or written by another version"
        )


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=_ROUNDING)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    return bool(one == other)
