"""What is alike in many runs in one line: what holds in each of them needs to be read once."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest

from hpcai500.results.verification.finding import Finding, Severity
from hpcai500.results.verification.guard import cleaned

_NUMBER = re.compile(r"(?<![\w.])[+-]?\d+(?:\.\d+)?(?:e[+-]?\d+)?(?![\w.]*\w)")


def folded(found: Mapping[str, Sequence[Finding]]) -> Iterator[Finding]:
    """The findings of all runs: what holds or was not looked at as one where it says the same but for numbers.

    Fails and warnings stay, each with the name of its run.

    Args:
        found: by the name of the run.
    """
    alike: dict[tuple[str, Severity, str], dict[str, str]] = {}
    for name, findings in found.items():
        for one in findings:
            if one.severity in ("note", "skipped"):
                alike.setdefault((one.name, one.severity, _NUMBER.sub("0", one.evidence)), {})[name] = one.evidence
            else:
                yield replace(one, evidence=f"{name}: {one.evidence}")
    for (kind, severity, _), evidence in alike.items():
        if len(evidence) == 1:
            told = next(f"{name}: {text}" for name, text in evidence.items())
        else:
            told = f"{len(evidence)} runs: {_ranged(list(evidence.values()))}"
        yield cleaned(Finding(kind, severity, told))


def _ranged(texts: Sequence[str]) -> str:
    """Sentences that differ in numbers alone as one, each number that differs as `lowest to highest`."""
    words = _NUMBER.split(texts[0])
    numbers = zip(*(_NUMBER.findall(text) for text in texts), strict=True)
    return "".join(word + number for word, number in zip_longest(words, map(_range, numbers), fillvalue=""))


def _range(numbers: Iterable[str]) -> str:
    ordered = sorted(numbers, key=float)
    return ordered[0] if float(ordered[0]) == float(ordered[-1]) else f"{ordered[0]} to {ordered[-1]}"
