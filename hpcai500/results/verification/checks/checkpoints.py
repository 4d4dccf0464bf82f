"""The last checkpoint of each trial, and the first at its target: what `--replay` evaluates again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from hpcai500.methodology.passes import target_checkpoint
from hpcai500.record import Record
from hpcai500.results.submission.manifest import CAMPAIGN, FileEntry
from hpcai500.results.verification.context import Context
from hpcai500.results.verification.facts import values
from hpcai500.results.verification.finding import Finding
from hpcai500.results.verification.guard import fail, note, skipped
from hpcai500.results.verification.software import is_of_our_version

_NAME = "checkpoints"


def check_checkpoints(context: Context) -> Iterator[Finding]:
    """Whether each checkpoint here is one that the events name, and those are here that a replay evaluates again."""
    left_out = {left.path for left in context.submission.manifest.left_out}
    good, absent = 0, 0
    for name, record in context.done.items():
        found = [*_of(name, record, context.submission.entries)]
        yield from found
        found += (repeated := [*_repeated(name, record)])
        yield from repeated
        last = last_checkpoint(record)
        if last is None or last.get("epoch") != record.tables["problem"]["epochs"] + 1 or last.get("step") != 0:
            yield fail(_NAME, f"{name}: its last checkpoint is not that after the last epoch")
            continue
        at_target = earlier_at_target(record)
        wanted = [last, at_target] if at_target and is_of_our_version(record) else [last]
        missing = [told for told in wanted if path_of(name, told) not in context.submission.entries]
        for told in missing:
            if path_of(name, told) not in left_out:
                yield fail(_NAME, f"{name}: {told.get('file')} is missing, and not said to be left out")
        good += not (found or missing)
        absent += bool(missing)
    if good:
        yield note(_NAME, f"the checkpoints of {good} trials are here, as their events name them")
    if absent:
        yield skipped(
            _NAME, f"those of {absent} trials were left out: ask for them to replay their quality (--replay DATA)"
        )


def last_checkpoint(record: Record) -> Mapping[str, object] | None:
    """What the events tell of the last checkpoint."""
    told = values(record, "checkpoint")
    return told[-1] if told else None


def earlier_at_target(record: Record) -> Mapping[str, object] | None:
    """What the events tell of the checkpoint with which the target was reached first, where it is not the last one."""
    told, last = target_checkpoint(record.events, record.tables["problem"]["target_quality"]), last_checkpoint(record)
    return told if told and last and told.get("file") != last.get("file") else None


def path_of(name: str, checkpoint: Mapping[str, object]) -> str:
    """Where the checkpoint of the record `name` lies in a submission."""
    return f"{CAMPAIGN}/{name}/checkpoints/{checkpoint.get('file')}"


def _of(name: str, record: Record, entries: Mapping[str, FileEntry]) -> Iterator[Finding]:
    """Checkpoints of one record that are not its own."""
    told = {path_of(name, value): value for value in values(record, "checkpoint")}
    for path in sorted(path for path in entries if path.startswith(f"{CAMPAIGN}/{name}/checkpoints/")):
        expected = told.get(path)
        if expected is None:
            yield fail(_NAME, f"{path}: no checkpoint that the events tell of")
        elif (entries[path].sha256, entries[path].bytes) != (expected.get("sha256"), expected.get("bytes")):
            yield fail(_NAME, f"{path}: has the hash {entries[path].sha256}, the events tell {expected.get('sha256')}")


def _repeated(name: str, record: Record) -> Iterator[Finding]:
    """One content at two places of a run: nothing was learnt between them, or one of them is of another moment."""
    places: dict[object, tuple[object, object]] = {}
    for value in values(record, "checkpoint"):
        place = (value.get("epoch"), value.get("step"))
        before = places.setdefault(value.get("sha256"), place)
        if before != place:
            told = " and ".join(f"epoch {epoch}, step {step}" for epoch, step in (before, place))
            yield fail(_NAME, f"{name}: the checkpoints at {told} have one content")
