"""Names that strangers chose, as a ranking shows them: one line, nothing hidden, nothing that overflows.

Characters that cannot be printed, such as those that turn the direction of writing, are spelt out: a committee shall
see that they are there.
"""

from __future__ import annotations

import unicodedata
from datetime import UTC, date, datetime

from hpcai500.results.report.words import short
from hpcai500.streams import spelt_out

# More signs than these on one letter serve to paint over the lines above and below.
_MOST_MARKS = 2
_MOST_LETTERS = 120
_MOST_READ = 2000


def shown(text: object, letters: int = _MOST_LETTERS) -> str:
    """`text` in one line of at most `letters`."""
    return short(_without_towers(spelt_out(short(text, _MOST_READ))), letters) or "unnamed"


def day(text: object) -> date | None:
    """The day (UTC) of a time that is written as ISO 8601 wants it; None where it is not."""
    try:
        moment = datetime.fromisoformat(str(text).strip())
        return (moment.astimezone(UTC) if moment.tzinfo else moment).date()
    except (ValueError, OverflowError):
        return None


def _without_towers(text: str) -> str:
    kept, marks = [], 0
    for letter in text:
        marks = marks + 1 if unicodedata.combining(letter) else 0
        if marks <= _MOST_MARKS:
            kept.append(letter)
    return "".join(kept)
