"""Writes a campaign anew without names: files first, then journal and records, which name each other's hashes."""

from __future__ import annotations

import getpass
import hashlib
import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tomli_w

from hpcai500.campaign.reading import JOURNAL, Campaign, read_campaign
from hpcai500.chain import FIRST_PREVIOUS, Event, event_line, last_hash, line_hash, parse_events
from hpcai500.errors import UsageError
from hpcai500.recipe import tables_hash
from hpcai500.results.submission.anonymising.names import find_names, pseudonyms, user_pseudonyms
from hpcai500.results.submission.anonymising.replacing import Replacer
from hpcai500.results.submission.claim import claim_of
from hpcai500.results.submission.gathering import Content, Gathered
from hpcai500.results.submission.layout import kind_of
from hpcai500.results.submission.manifest import ACCOUNTING, CAMPAIGN, LOGS, Anonymised, LeftOut

_JOURNAL = f"{CAMPAIGN}/{JOURNAL}"
_LONGEST_TRACE_BYTES = 64 * 2**20
_HASH_LENGTH = hashlib.sha256().digest_size * 2


def anonymise(
    campaign: Campaign,
    gathered: Gathered,
    folder: Path,
    here: str,
    user: str | None = None,
    *,
    longest_trace: int = _LONGEST_TRACE_BYTES,
) -> Anonymised:
    """Replace the files in `gathered` by ones without names, which are written into `folder`.

    Args:
        campaign: what is submitted.
        gathered: its files; checkpoints, which hold numbers alone, and sources stay.
        folder: a new one; the campaign is in its `campaign/` then.
        here: name of this host.
        user: who submits; None asks the system.
        longest_trace: bytes; longer ones are left out.

    Raises:
        RecordError: the chain of a log is broken, so that nothing can be computed again.
        UsageError: a name cannot be replaced without damage.
    """
    files = _Files(gathered)
    _leave_unread_traces(gathered, files, longest_trace)
    user = _user() if user is None else user
    found = find_names(files.documents(), files.texts(), here, user)
    names = pseudonyms(found, here)
    rewriting = _Rewriting(files, folder, Replacer(names, user_pseudonyms(found)))
    gathered.files = rewriting.rewritten()
    gathered.left_out = [rewriting.left_out(one) for one in gathered.left_out]
    _require_same_claim(campaign, read_campaign(folder / CAMPAIGN))
    hosts = {word for name, word in names.items() if name in {host.lower() for host in found.hosts}}
    return Anonymised(hosts=len(hosts), original_campaign=campaign.identity, original_heads=rewriting.original_heads)


def _leave_unread_traces(gathered: Gathered, files: _Files, longest_bytes: int) -> None:
    """A trace names hosts: what nobody reads through cannot go. Reading one takes ten times its size in memory."""
    traces = {path for path in files.paths("bytes") if "/trace/" in path}
    for path in sorted(traces | set(files.traces())):
        if not path.endswith(".json"):
            gathered.leave(path, "--anonymise: no JSON, so that names in it would not be found")
        elif files.size_bytes(path) > longest_bytes:
            gathered.leave(path, f"--anonymise: over {longest_bytes >> 20} MiB, too long to look for names in it")
        else:
            continue
        del gathered.files[path]


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""


def _require_same_claim(before: Campaign, after: Campaign) -> None:
    one, other = claim_of(before), claim_of(after)
    if (one.level, one.rankable, one.metrics, len(one.reasons)) != (
        other.level,
        other.rankable,
        other.metrics,
        len(other.reasons),
    ):
        raise UsageError(
            f"{before.path}: --anonymise would change the result: the name of a host or a user is a word that records "
            "use themselves: submit it without --anonymise"
        )


class _Files:
    """The gathered files, read by what they hold."""

    def __init__(self, gathered: Gathered) -> None:
        self.all = gathered.files

    def content(self, path: str) -> bytes:
        source = self.all[path]
        return source if isinstance(source, bytes) else source.read_bytes()

    def paths(self, form: str) -> list[str]:
        return [path for path in sorted(self.all) if (kind := kind_of(path)) and kind.form == form]

    def events(self, path: str) -> list[Event]:
        """Of a log; what a crash left of a last line is no event."""
        return parse_events(whole_lines(self.content(path)), path)[0]

    def traces(self) -> list[str]:
        return [path for path in self.paths("bytes") if path.endswith(".json")]

    def document(self, path: str) -> Any:
        try:
            return json.loads(self.content(path))
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{path}: not JSON, so that names in it cannot be replaced: {error}") from error

    def size_bytes(self, path: str) -> int:
        source = self.all[path]
        return len(source) if isinstance(source, bytes) else source.stat().st_size

    def documents(self) -> Iterator[Any]:
        for path in self.paths("json lines"):
            yield from self.events(path)
        for path in (*self.paths("json"), *self.traces()):
            yield self.document(path)
        for path in self.paths("toml"):
            yield tomllib.loads(self.content(path).decode())

    def texts(self) -> Iterator[str]:
        for path in self.paths("text"):
            yield path
            yield self.content(path).decode("utf-8", errors="replace")
        yield from self.paths("csv")


def whole_lines(content: bytes) -> bytes:
    """`content` without a last line that has no end."""
    return content[: content.rfind(b"\n") + 1]


class _Rewriting:
    """Writes each file anew; hashes that were computed over old content are replaced by those over the new."""

    def __init__(self, files: _Files, folder: Path, replacer: Replacer) -> None:
        self._files, self._folder, self._replacer = files, folder, replacer
        self._hashes: dict[str, str] = {}
        self._new: dict[str, Content] = {}
        self.original_heads: dict[str, str] = {}

    def rewritten(self) -> dict[str, Content]:
        """All files by their new paths."""
        logs = self._files.paths("json lines")
        for path in self._files.all:
            self._rewrite_plain(path)
        self._rewrite_journal()
        # Runs that the journal does not know of lie beside those that it knows.
        for path in logs:
            if path not in self._new:
                self._rewrite_log(path)
        for path in self._files.all:
            if path.endswith("/DONE"):
                head = self._files.content(path).decode("utf-8", errors="replace").strip()
                self._write(path, f"{self._hashes.get(head, head)}\n".encode())
        return self._new

    def left_out(self, one: LeftOut) -> LeftOut:
        """The same without names."""
        return LeftOut(path=self._replacer.text(one.path)[:1000], reason=self._replacer.text(one.reason)[:1000])

    def _rewrite_plain(self, path: str) -> None:
        """What names no hash of a log."""
        kind = kind_of(path)
        form = kind.form if kind else "bytes"
        if form == "json lines" or path.endswith("/DONE"):
            return
        if form == "checkpoint" or not path.startswith((f"{CAMPAIGN}/", f"{ACCOUNTING}/", f"{LOGS}/")):
            self._new[path] = self._files.all[path]
            return
        content = self._files.content(path)
        if form == "toml":
            changed = self._recipe(content)
        elif form == "json" or path.endswith(".json"):
            changed = self._document(content, indent=2 if form == "json" else None)
        elif form == "csv":
            # Rows are numbers; the header names devices.
            header, end, rows = content.partition(b"\n")
            changed = self._text(header) + end + rows
        else:
            changed = self._text(content) if form == "text" else content
        self._hashes[hashlib.sha256(content).hexdigest()] = hashlib.sha256(changed).hexdigest()
        parent, _, name = path.rpartition("/")
        self._write(f"{parent}/{self._replacer.text(name)}", changed)

    def _recipe(self, content: bytes) -> bytes:
        tables = tomllib.loads(content.decode())
        changed = self._replacer.value(tables)
        self._hashes[tables_hash(tables)] = tables_hash(changed)
        return content if changed == tables else tomli_w.dumps(changed).encode()

    def _document(self, content: bytes, indent: int | None) -> bytes:
        document = json.loads(content)
        changed = self._replacer.value(document)
        if changed == document:
            return content
        return (json.dumps(changed, indent=indent, allow_nan=False) + ("\n" if indent else "")).encode()

    def _text(self, content: bytes) -> bytes:
        return self._replacer.text(content.decode("utf-8", errors="replace")).encode()

    def _rewrite_journal(self) -> None:
        """Line by line: a record is begun by the line before it, and the line after it vouches for its end."""
        content = whole_lines(self._files.content(_JOURNAL))
        old = content.split(b"\n")
        lines: list[bytes] = []
        for event, line in zip(self._files.events(_JOURNAL), old, strict=False):
            lines.append(self._next_line(event, line, lines))
            if event["key"] == "attempt_start":
                path = f"{CAMPAIGN}/{event['value']['record']}/events.jsonl"
                if path in self._files.all:
                    self._rewrite_log(path)
        self._write_lines(_JOURNAL, content, lines)

    def _rewrite_log(self, path: str) -> None:
        content = whole_lines(self._files.content(path))
        lines: list[bytes] = []
        for event, line in zip(self._files.events(path), content.split(b"\n"), strict=False):
            lines.append(self._next_line(event, line, lines))
        self._write_lines(path, content, lines)

    def _next_line(self, event: Event, old: bytes, lines: list[bytes]) -> bytes:
        previous = line_hash(lines[-1]) if lines else FIRST_PREVIOUS
        value = self._rehashed(self._replacer.value(event.get("value")))
        line = event_line({**event, "prev": previous, "value": value})
        self._hashes[line_hash(old)] = line_hash(line)
        return line

    def _rehashed(self, value: Any) -> Any:
        """`value` with the new hash wherever it names an old one."""
        if isinstance(value, str):
            return self._hashes.get(value, value) if len(value) == _HASH_LENGTH else value
        if isinstance(value, list):
            return [self._rehashed(inner) for inner in value]
        if isinstance(value, dict):
            return {key: self._rehashed(inner) for key, inner in value.items()}
        return value

    def _write_lines(self, path: str, old: bytes, lines: list[bytes]) -> None:
        if lines:
            self.original_heads[path] = last_hash(old)
        self._write(path, b"".join(line + b"\n" for line in lines))

    def _write(self, path: str, content: bytes) -> None:
        target = self._folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
        self._new[path] = target
