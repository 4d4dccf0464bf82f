"""The processes that worked on a run, one after the other: all of them say what they work on, and lose nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hpcai500.methodology.integrity.values import Checkpoint, Dataset, Flops, Model, Resume, Value
from hpcai500.methodology.passes import lost_evaluations
from hpcai500.recipe import tables_hash
from hpcai500.results.verification.finding import Finding
from hpcai500.results.verification.guard import fail, warning
from hpcai500.results.verification.records.run import Run, judged

_NAME, _AGAIN = "restarts", "trained-again"
# What one run cannot change by going on.
_FIXED: dict[str, type[Value]] = {"dataset": Dataset, "model": Model, "flops": Flops}


def check_sessions(run: Run) -> Iterator[Finding]:
    """What each process said first with the recipe, and with each other."""
    yield from judged(_NAME, _faults(run), fail)
    yield from judged(_NAME, _oddities(run), warning)
    lost = [f"{one['epoch']} ({one['metric']} {one['value']!r})" for one in _lost(run)]
    if lost:
        yield warning(_AGAIN, f"trained again after their quality was seen: the epochs {', '.join(lost[:10])}")


def _lost(run: Run) -> Iterator[Mapping[str, Any]]:
    return (event["value"] for event in lost_evaluations(run.record.events))


def _faults(run: Run) -> Iterator[str]:
    tables = run.record.tables
    expected = {
        "benchmark": tables.get("benchmark"),
        "edition": tables.get("edition"),
        "recipe_hash": tables_hash(tables),
    }
    for number, start in enumerate(run.log.starts, 1):
        for name, value in expected.items():
            if getattr(start, name) != value:
                yield f"start {number} names the {name} {getattr(start, name)}, expected {value}"
    for key, kind in _FIXED.items():
        told = run.log.values(kind, key)
        if any(_differ(one, told[0]) for one in told):
            yield f"the event {key} is not the same after each of {len(told)} starts"


def _differ(one: Value, other: Value) -> bool:
    """In what both tell, as an older version may have begun the run; its data may have been moved, and checked."""
    both = (one.model_fields_set & other.model_fields_set) - {"root", "content_fingerprint"}
    return any(getattr(one, name) != getattr(other, name) for name in both)


def _oddities(run: Run) -> Iterator[str]:
    """Training again what a checkpoint had saved can be a search for luck; its time is counted."""
    versions = list(dict.fromkeys(start.version for start in run.log.starts))
    if len(versions) > 1:
        yield f"the run went on with other versions of hpcai500: {', '.join(versions)}"
    newest = (1, 0)
    for moment in run.log.named("checkpoint", "run_resume"):
        if moment.key == "checkpoint":
            saved = moment.told(Checkpoint)
            newest = (saved.epoch, saved.step)
        else:
            value = moment.told(Resume)
            if (value.epoch, value.step) != newest:
                yield (
                    f"line {moment.line}: it went on at epoch {value.epoch}, step {value.step}, although epoch "
                    f"{newest[0]}, step {newest[1]} was saved (that file must have been damaged or missing)"
                )
