"""`result.json` is what the events give."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hpcai500.campaign.written_result import differing_keys
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
        if not is_of_our_version(context.done[name]):
            found += _different(name, written, computed, differing_keys(written, computed))
            continue
        found += _different(name, written, computed, sorted(written))
        if missing := sorted(computed.keys() - written.keys()):
            found.append(fail(_NAME, f"{name}: result.json does not say {', '.join(missing)}: taken out"))
    yield from found
    if not found:
        yield note(
            _NAME, f"{len(context.claimed.results)} results, computed from their events, are those of result.json"
        )


def _different(
    name: str, written: Mapping[str, Any], computed: Mapping[str, Any], keys: Sequence[str]
) -> Iterator[Finding]:
    for key in keys:
        if not same_document(computed.get(key), written[key]):
            yield fail(
                _NAME, f"{name}: result.json says {key} is {written[key]!r}; its events give {computed.get(key)!r}"
            )
