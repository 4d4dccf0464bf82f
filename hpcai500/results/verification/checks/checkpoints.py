"""The last checkpoint of each trial: what `--replay` evaluates again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from hpcai500.record import Record
from hpcai500.results.submission.manifest import CAMPAIGN, FileEntry
from hpcai500.results.verification.context import Context
from hpcai500.results.verification.facts import values
from hpcai500.results.verification.finding import Finding
from hpcai500.results.verification.guard import fail, note, skipped

_NAME = "checkpoints"


def check_checkpoints(context: Context) -> Iterator[Finding]:
    """Whether each checkpoint here is one that the events name, and the last one is that of the last epoch."""
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
        elif path_of(name, last) in context.submission.entries:
            good += not found
        elif path_of(name, last) in left_out:
            absent += 1
        else:
            yield fail(_NAME, f"{name}: {last.get('file')} is missing, and not said to be left out")
    if good:
        yield note(_NAME, f"the last checkpoints of {good} trials are here, as their events name them")
    if absent:
        yield skipped(
            _NAME, f"those of {absent} trials were left out: ask for them to replay their quality (--replay DATA)"
        )


def last_checkpoint(record: Record) -> Mapping[str, object] | None:
    """What the events tell of the last checkpoint."""
    told = values(record, "checkpoint")
    return told[-1] if told else None


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
