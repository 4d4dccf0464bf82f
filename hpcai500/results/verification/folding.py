"""Notes of many runs in one line: what was found right in each of them needs to be read once."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest

from hpcai500.results.verification.finding import Finding
from hpcai500.results.verification.guard import note

_NUMBER = re.compile(r"(?<![\w.])[+-]?\d+(?:\.\d+)?(?:e[+-]?\d+)?(?![\w.]*\w)")


def folded(found: Mapping[str, Sequence[Finding]]) -> Iterator[Finding]:
    """The findings of all runs: notes that say the same but for numbers as one, all others with the name of their run.

    Args:
        found: by the name of the run.
    """
    alike: dict[tuple[str, str], dict[str, str]] = {}
    for name, findings in found.items():
        for one in findings:
            if one.severity == "note":
                alike.setdefault((one.name, _NUMBER.sub("0", one.evidence)), {})[name] = one.evidence
            else:
                yield replace(one, evidence=f"{name}: {one.evidence}")
    for (kind, _), evidence in alike.items():
        if len(evidence) == 1:
            yield from (note(kind, f"{name}: {text}") for name, text in evidence.items())
        else:
            yield note(kind, f"{len(evidence)} runs: {_ranged(list(evidence.values()))}")


def _ranged(texts: Sequence[str]) -> str:
    """Sentences that differ in numbers alone as one, each number that differs as `lowest to highest`."""
    words = _NUMBER.split(texts[0])
    numbers = zip(*(_NUMBER.findall(text) for text in texts), strict=True)
    return "".join(word + number for word, number in zip_longest(words, map(_range, numbers), fillvalue=""))


def _range(numbers: Iterable[str]) -> str:
    ordered = sorted(numbers, key=float)
    return ordered[0] if float(ordered[0]) == float(ordered[-1]) else f"{ordered[0]} to {ordered[-1]}"
