"""The score of a record, computed from its events again, never copied from its `result.json`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hpcai500.editions import benchmark_rules
from hpcai500.errors import WrongAnswerError
from hpcai500.methodology.result import ANALYTIC, Result, derive
from hpcai500.methodology.trials import TrialSummary, summarise
from hpcai500.record import read_record

# The metrics of V2.0 section 5.3.2, and the rate that they come from.
TRIAL_METRICS = ("vflops", "flops", "images_per_second", "time_to_quality_seconds", "seconds")


def score_record(path: Path, edition: str | None = None, convention: str = ANALYTIC) -> Result:
    """The result of the record at `path`, under its own edition and count of operations, or other ones.

    Raises:
        RecordError: it is no complete record, or its chain of events is broken.
        WrongAnswerError: its `result.json` says something else than its events.
    """
    record = read_record(path)
    recipe = record.recipe.model_dump(mode="json")
    result = derive(recipe, benchmark_rules(recipe["edition"], recipe["benchmark"]), record.events)
    _compare(path, result.as_json())
    if edition is None and convention == ANALYTIC:
        return result
    other = {**recipe, "edition": edition or recipe["edition"]}
    return derive(other, benchmark_rules(other["edition"], recipe["benchmark"]), record.events, convention)


def summarise_trials(results: list[Result]) -> dict[str, TrialSummary]:
    """Each metric over all runs; a metric that a run does not have is left out."""
    values = {name: [getattr(result, name) for result in results] for name in TRIAL_METRICS}
    complete = {name: numbers for name, numbers in values.items() if None not in numbers}
    qualities = [result.quality.achieved for result in results if result.quality.achieved is not None]
    return {name: summarise(numbers) for name, numbers in {**complete, "quality": qualities}.items() if numbers}


def _compare(path: Path, computed: dict[str, Any]) -> None:
    written_path = path / "result.json"
    if not written_path.is_file():
        return
    written = json.loads(written_path.read_text(encoding="utf-8"))
    keys = sorted(key for key in {*computed, *written} if computed.get(key) != written.get(key))
    if keys:
        key = keys[0]
        raise WrongAnswerError(
            f"{written_path}: {key} is {written.get(key)!r}, but the events give {computed.get(key)!r}"
            + (f" ({len(keys)} keys differ)" if len(keys) > 1 else "")
            + "; the file was changed, or written by another version"
        )
