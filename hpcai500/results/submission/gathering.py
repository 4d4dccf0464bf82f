"""What goes into a submission, from a campaign's folder and this installation; and what stays out, with the reason."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hpcai500.campaign.reading import JOURNAL, RECIPE, Attempt, Campaign
from hpcai500.chain import iterate
from hpcai500.errors import RecordError, UsageError
from hpcai500.methodology.passes import target_checkpoint
from hpcai500.record import read_record
from hpcai500.results.submission.claim import plain
from hpcai500.results.submission.layout import FILE_NAME, RECORD_NAME, kind_of
from hpcai500.results.submission.manifest import CAMPAIGN, CODE, LOGS, LeftOut
from hpcai500.system.versions import code_files

Content = Path | bytes

_CHECKPOINTS = "checkpoints"
_FOLDERS = ("pictures", "power", "predictions", "trace")
_FOREIGN = "no file of a record or a campaign"
NOT_NEEDED = "of checkpoints only the last one of a run that is done is needed, and the first at its target quality"


@dataclass
class Gathered:
    """Files by their path in the submission, and what was left out."""

    files: dict[str, Content] = field(default_factory=dict)
    left_out: list[LeftOut] = field(default_factory=list)

    def leave(self, path: str, reason: str) -> None:
        """Leave `path` out, and say why."""
        self.left_out.append(LeftOut(path=plain(path), reason=plain(reason)))


def gather_campaign(campaign: Campaign, *, with_checkpoints: bool) -> Gathered:
    """Recipe, journal and records of `campaign`, those of failed and stopped attempts too."""
    found = Gathered()
    for name in (RECIPE, JOURNAL):
        found.files[f"{CAMPAIGN}/{name}"] = campaign.path / name
    attempts = {attempt.record: attempt for attempt in campaign.attempts}
    for entry in _listed(campaign.path):
        if entry.is_dir() and RECORD_NAME.fullmatch(entry.name):
            _gather_record(found, entry, attempts.get(entry.name), with_checkpoints=with_checkpoints)
        elif entry.name not in (RECIPE, JOURNAL):
            found.leave(f"{CAMPAIGN}/{entry.name}", _FOREIGN)
    return found


def gather_code(package: Path) -> dict[str, Content]:
    """The Python sources below `package`: what a code hash is computed over.

    They are read at once: what is hashed is what is packed.
    """
    return {f"{CODE}/{path.relative_to(package).as_posix()}": path.read_bytes() for path in code_files(package)}


def gather_logs(logs: Sequence[Path]) -> dict[str, Content]:
    """Logs that were given by hand, as text in UTF-8.

    Raises:
        UsageError: one is missing, or two have one name.
    """
    found: dict[str, Content] = {}
    for log in logs:
        name = re.sub(r"[^A-Za-z0-9_.-]", "_", log.name).lstrip(".-") or "log"
        path = f"{LOGS}/{name[:200]}"
        if path in found:
            raise UsageError(f"--log {log}: two logs are named {name}: rename one")
        try:
            content = log.read_bytes()
        except OSError as error:
            raise UsageError(f"--log {log}: cannot be read: {error.strerror}") from error
        _require_room(path, len(content), f"--log {log}")
        # Programs print what is no text at times; what is packed must be.
        found[path] = content.decode("utf-8", errors="replace").replace("\0", "\ufffd").encode()
    return found


def _gather_record(found: Gathered, folder: Path, attempt: Attempt | None, *, with_checkpoints: bool) -> None:
    for entry in _listed(folder):
        path = f"{CAMPAIGN}/{folder.name}/{entry.name}"
        if entry.is_dir() and entry.name == _CHECKPOINTS:
            _gather_checkpoints(found, folder, attempt, with_checkpoints=with_checkpoints)
        elif entry.is_dir() and entry.name in _FOLDERS:
            for file in _listed(entry):
                _take(found, f"{path}/{file.name}", file)
        else:
            _take(found, path, entry)


def _take(found: Gathered, path: str, file: Path) -> None:
    kind = kind_of(path)
    if kind is None or not file.is_file():
        found.leave(path, _FOREIGN)
        return
    _require_room(path, file.stat().st_size, str(file))
    found.files[path] = file


def _require_room(path: str, size: int, name: str) -> None:
    kind = kind_of(path)
    if kind and kind.most_bytes is not None and size > kind.most_bytes:
        raise UsageError(f"{name}: {size} bytes; a submission holds at most {kind.most_bytes} of such a file")


def _gather_checkpoints(found: Gathered, record: Path, attempt: Attempt | None, *, with_checkpoints: bool) -> None:
    needed = _needed_checkpoints(record) if attempt and attempt.status == "done" else set()
    for file in _listed(record / _CHECKPOINTS):
        path = f"{CAMPAIGN}/{record.name}/{_CHECKPOINTS}/{file.name}"
        if file.name not in needed:
            found.leave(path, NOT_NEEDED)
        elif not with_checkpoints:
            found.leave(path, "--no-checkpoints")
        elif file.is_file() and FILE_NAME.fullmatch(file.name):
            found.files[path] = file
    for name in sorted(needed):
        if not (record / _CHECKPOINTS / name).is_file():
            found.leave(f"{CAMPAIGN}/{record.name}/{_CHECKPOINTS}/{name}", "its file is missing")


def _needed_checkpoints(record: Path) -> set[str]:
    """Names of those that a replay evaluates again."""
    try:
        read = read_record(record)
        saved = [event["value"] for event in iterate(read.events, "checkpoint")]
        target = target_checkpoint(read.events, read.tables["problem"]["target_quality"])
        names = [told["file"] for told in (target, *saved[-1:]) if told]
    except (RecordError, KeyError, TypeError):
        # What is wrong with the record, the campaign's standing says.
        return set()
    return {name for name in names if isinstance(name, str) and FILE_NAME.fullmatch(name)}


def _listed(folder: Path) -> Iterator[Path]:
    """What lies in `folder` in the order of names; files that a crash or an editor left there begin with a dot."""
    if not folder.is_dir():
        return iter(())
    return iter(sorted((path for path in folder.iterdir() if not path.name.startswith(".")), key=lambda one: one.name))
