"""What a reader needs to tell this record, its code and its data from any other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hpcai500.chain import line_hash
from hpcai500.recipe import tables_hash
from hpcai500.results.report.blocks import Section, Table, Text
from hpcai500.results.report.reading import Subject
from hpcai500.results.report.words import UNKNOWN, listed, short, table, tables

_MOST_FILES = 30


def hash_section(subject: Subject) -> Section:
    """Hashes of recipe, events, image, code, data and files."""
    rows = [(what, short(value, 200)) for what, value in _hashes(subject)]
    return Section(
        "Hashes",
        [
            Text(
                "Each event carries the hash of the one before it; the chain, the recipe and the system of this record "
                "were checked when this page was made. The last event's hash stands for all of them."
            ),
            Table("SHA-256 unless another kind is named", ("of", "hash"), rows),
        ],
    )


def _hashes(subject: Subject) -> Iterator[tuple[str, str]]:
    record = subject.record
    yield "recipe", tables_hash(record.tables)
    yield "last event", last_event_hash(subject)
    installation = table(record.system.get("installation"))
    image, package = table(installation.get("image")), table(installation.get("package"))
    yield "image", listed(image.get("content_sha256")) if image else "none: the run was made by an installation"
    yield "code", listed(package.get("code_sha256"))
    yield "compiled core", listed(package.get("core_sha256"))
    for plugin in tables(installation.get("plugins"))[:10]:
        yield f"plug-in {short(plugin.get('package'), 40)}", listed(plugin.get("code_sha256"))
    yield "source revision", listed(package.get("revision"))
    for edition, content in list(table(installation.get("editions")).items())[:10]:
        yield f"rules {short(edition, 40)}", listed(content)
    data = subject.last("dataset")
    yield "data set, names and sizes", listed(data.get("fingerprint"))
    yield "data set, content", listed(data.get("content_fingerprint"))
    yield from _files(subject)


def _files(subject: Subject) -> Iterator[tuple[str, str]]:
    named = {
        str(value["file"]): str(value["sha256"])
        for event in subject.record.events
        for value in _with_files(event.get("value"))
    }
    shown = list(named.items())[-_MOST_FILES:]
    if len(named) > len(shown):
        yield "files", f"{len(named) - len(shown):,} older ones are left out"
    yield from ((f"file {short(name, 120)}", content) for name, content in shown)


def _with_files(value: Any) -> Iterator[Mapping[str, Any]]:
    """The tables in an event that name a file and its hash: its value, or one of the nodes in it."""
    found = [table(value), *tables(table(value).get("nodes"))]
    yield from (one for one in found if one.get("file") and one.get("sha256"))


def last_event_hash(subject: Subject) -> str:
    """What DONE carries in a finished record: the hash of the last line of `events.jsonl`."""
    content = (subject.path / "events.jsonl").read_bytes()
    lines = content.split(b"\n")[:-1]
    return line_hash(lines[-1]) if lines else UNKNOWN
