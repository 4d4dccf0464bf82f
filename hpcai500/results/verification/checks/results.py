"""`result.json` is what the events give."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hpcai500.record import json_object
from hpcai500.results.verification.context import Context
from hpcai500.results.verification.finding import Finding
from hpcai500.results.verification.guard import fail, note
from hpcai500.results.verification.metrics import same_document
from hpcai500.results.verification.software import is_of_our_version

_NAME = "result"


def check_results(context: Context) -> Iterator[Finding]:
    """Each done record, computed from its events under the edition that it was run under."""
    found = [
        fail(_NAME, f"{name}: its events give no result: {reason}") for name, reason in context.claimed.unscored.items()
    ]
    for name, result in context.claimed.results.items():
        path = context.done[name].path / "result.json"
        if not path.is_file():
            found.append(fail(_NAME, f"{name}: result.json is missing"))
            continue
        written, computed = json_object(path), result.as_json()
        found += _different(name, written, computed)
        missing = sorted(computed.keys() - written.keys())
        if missing and is_of_our_version(context.done[name]):
            found.append(fail(_NAME, f"{name}: result.json does not say {', '.join(missing)}: taken out"))
    yield from found
    if not found:
        yield note(
            _NAME, f"{len(context.claimed.results)} results, computed from their events, are those of result.json"
        )


def _different(name: str, written: Mapping[str, Any], computed: Mapping[str, Any]) -> Iterator[Finding]:
    # A file of an older version lacks keys that are derived today, and says nothing wrong by that.
    for key in sorted(key for key in written if not same_document(computed.get(key), written[key])):
        told, found = written[key], computed.get(key)
        yield fail(_NAME, f"{name}: result.json says {key} is {told!r}; its events give {found!r}")
