"""Text for people: numbers with their units, values of any type, and columns for a terminal.

Unknown values are shown as `unknown`, never as 0. Values may come from a record, which may contain anything.
"""

from __future__ import annotations

import math
import os
import re
import shlex
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from hpcai500.streams import escaped

# ----------------------------------------------------------------------------------------------------
# Columns for a terminal.


def aligned(rows: Sequence[Sequence[str]], right: Collection[int] = ()) -> Iterator[str]:
    """Each row as a line, in columns; those in `right` (from 0) are aligned to the right."""
    widths = [max(map(_width, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (
            _padded(cell, width, to_right=index in right)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        yield "  ".join(cells).rstrip()


def _padded(cell: str, width: int, *, to_right: bool) -> str:
    room = " " * (width - _width(cell))
    return room + cell if to_right else cell + room


def _width(text: str) -> int:
    """Columns that `text` takes on a terminal: two for a wide letter (Chinese, Japanese, Korean), 0 for an accent."""
    return sum(
        0 if unicodedata.combining(letter) else 2 if unicodedata.east_asian_width(letter) in "WF" else 1
        for letter in text
    )


def text_table(title: str, rows: Sequence[Sequence[str]], header: Sequence[str] | None = None) -> list[str]:
    """Lines with `rows` in columns, indented under `title`; no lines without rows. "" gives neither title nor indent.

    With a `header`, all columns but the first and the last are right-aligned, for numbers.
    """
    if not rows:
        return []
    lines = [[escaped(cell) for cell in row] for row in ([header, *rows] if header else rows)]
    right = range(1, len(header) - 1) if header else ()
    return [title, *(f"  {line}" for line in aligned(lines, right))] if title else list(aligned(lines, right))


_BAR = 30


def progress_bar(share: float) -> str:
    """`[######------]` for a share from 0 to 1."""
    done = round(_BAR * min(max(share, 0.0), 1.0))
    return f"[{'#' * done}{'-' * (_BAR - done)}]"


def next_lines(steps: Sequence[tuple[Sequence[object], str]]) -> Iterator[str]:
    """Suggested next commands: the words of each (paths are quoted for a shell), and what it does."""
    if steps:
        rows = [(escaped(shlex.join(["hpcai500", *map(str, words)])), gives) for words, gives in steps]
        for index, line in enumerate(aligned(rows)):
            yield f"{'' if index else 'next':12}{line}"


def shell_bytes(token: str) -> str:
    """`token` as one word of ASCII for bash, with all other bytes written out, so that what looks the same differs."""
    plain = set(range(0x20, 0x7F)) - set(rb"\'")
    letters = (chr(byte) if byte in plain else rf"\x{byte:02x}" for byte in os.fsencode(token))
    return f"$'{''.join(letters)}'"


def size(count_bytes: int) -> str:
    """Bytes in GB, or in MB if less than one GB."""
    return f"{count_bytes / 1e9:.3g} GB" if count_bytes >= 1e9 else f"{count_bytes / 1e6:.3g} MB"


# ----------------------------------------------------------------------------------------------------
# Amounts in the text of `hpcai500 system`.


UNKNOWN = "unknown"


def binary(size: float | None) -> str:
    """`32 KiB`, `1.5 TiB`: memory and caches."""
    return _scaled(size, 1024, ("B", "KiB", "MiB", "GiB", "TiB", "PiB"))


def decimal(amount: float | None, unit: str) -> str:
    """`200 Gb/s`, `2.4 GHz`: rates, frequencies, disks."""
    return _scaled(amount, 1000, tuple(f"{prefix}{unit}" for prefix in ("", "k", "M", "G", "T", "P")))


def _scaled(amount: float | None, base: int, units: tuple[str, ...]) -> str:
    if amount is None:
        return UNKNOWN
    for unit in units[:-1]:
        # A value that three digits would round to 1000 takes the next unit.
        if abs(amount) < min(base, 999.5):
            return f"{amount:.3g} {unit}"
        amount /= base
    return f"{amount:.3g} {units[-1]}"


def counted(things: Iterable[str]) -> list[str]:
    """`8 x NVIDIA H100`: equal things counted, in the order of first occurrence."""
    return [f"{count} x {thing}" for thing, count in Counter(things).items()]


def known(*parts: str | None) -> str:
    """The known parts, joined by commas; `unknown` if there is none."""
    return ", ".join(part for part in parts if part and UNKNOWN not in part) or UNKNOWN


def switched(value: bool | None) -> str | None:
    """`on`, `off`; None is unknown."""
    return None if value is None else "on" if value else "off"


# ----------------------------------------------------------------------------------------------------
# Values of any type.


_MINUTE, _HOUR, _DAY = 60.0, 3600.0, 86400.0
# Longer than any sentence of a genuine record.
_MOST_LETTERS = 600
# All but printable ASCII, which is most of any page; escaped decides which of it is invisible.
_HIDDEN = re.compile("[^\\n\\t\\xa0\\x20-\\x7e]+")


def is_number(value: object) -> bool:
    """Whether `value` is a finite number and not a bool."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def number(value: object) -> float | None:
    """`value` as a float if it is a finite number, else None."""
    return float(value) if isinstance(value, int | float) and is_number(value) else None


def quantity(value: object, unit: str) -> str:
    """`28e9, "FLOPS"` -> `28 GFLOPS`."""
    known = number(value)
    return UNKNOWN if known is None else scaled(known, unit)


def share(value: object) -> str:
    """`0.125` -> `12.5 %`."""
    known = number(value)
    return UNKNOWN if known is None else f"{known:.1%}".replace("%", " %")


def plain(value: object, form: str = ".4g") -> str:
    """A number without a unit."""
    known = number(value)
    return UNKNOWN if known is None else format(known, form)


def count(value: object, one: str, many: str | None = None) -> str:
    """`1, "node"` -> `1 node`; `12000, "rank"` -> `12,000 ranks`."""
    known = number(value)
    if known is None:
        return f"{UNKNOWN} number of {many or one + 's'}"
    return f"{known:,.0f} {one if known == 1 else many or one + 's'}"


def duration(seconds: object) -> str:
    """`13.2 ms`, `115.9 s`, `12 min 3 s`, `3 h 12 min`, `2.3 days`."""
    known = number(seconds)
    if known is None:
        return UNKNOWN
    size = abs(known)
    if size < 2 * _MINUTE:
        return _short_duration(known)
    if size < 2 * _HOUR:
        minutes, rest = divmod(round(known), 60)
        return f"{minutes} min {rest} s"
    if size < 2 * _DAY:
        hours, rest = divmod(round(known / _MINUTE), 60)
        return f"{hours} h {rest} min"
    return f"{known / _DAY:.1f} days"


def _short_duration(seconds: float) -> str:
    if seconds == 0:
        return "0 s"
    if abs(seconds) < 1e-3:
        return f"{seconds * 1e6:.3g} µs"
    return f"{seconds * 1e3:.3g} ms" if abs(seconds) < 1 else f"{seconds:.1f} s"


def moment(time_ms: object) -> str:
    """A wall-clock time in UTC, from milliseconds since 1970."""
    known = number(time_ms)
    if known is None or not 0 <= known < 2.5e14:
        return UNKNOWN
    return datetime.fromtimestamp(known / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def short(text: object, letters: int = _MOST_LETTERS) -> str:
    """`text` in one line of at most `letters` letters."""
    line = " ".join(str(text).split())
    return line if len(line) <= letters else f"{line[: letters - 1]}…"


def legible(text: str) -> str:
    r"""`text` for a page, a drawing or an XML file, with invisible characters escaped (`\x1b`, `\u202e`, `\u200b`).

    New lines, tabs and no-break spaces are kept: pages need them, and they cannot hide text.
    """
    return text if text.isprintable() else _HIDDEN.sub(lambda found: escaped(found[0]), text)


def mistake(detail: Mapping[str, Any]) -> str:
    """What is wrong with a value, from one of the `errors()` of pydantic's ValidationError."""
    match detail["type"]:
        case "missing":
            return "is missing"
        case "value_error" | "assertion_error":
            return str(detail["ctx"]["error"])
        case "literal_error":
            return f"expected {detail['ctx']['expected']}, got {detail['input']!r}"
        case _:
            return f"{detail['msg'].lower().replace('input should be', 'expected')}, got {detail['input']!r}"


def listed(value: Any) -> str:
    """A value of a recipe or a document in one line."""
    if value is None:
        return UNKNOWN
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return short(", ".join(listed(one) for one in value)) if value else "none"
    return short(value)


def table(value: object) -> Mapping[str, Any]:
    """`value` if it is a table, else an empty one."""
    return value if isinstance(value, dict) else {}


def tables(value: object) -> list[Mapping[str, Any]]:
    """The tables in `value` if it is a list, else none."""
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


PREFIXES = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def prefix_of(value: float) -> tuple[float, str]:
    """`2.4e10` -> `(1e9, "G")`: the largest prefix in which `value` is one or more; (1, "") below a thousand."""
    return next(((factor, prefix) for factor, prefix in PREFIXES if abs(value) >= factor), (1.0, ""))


def scaled(value: float, unit: str, digits: int = 3) -> str:
    """`24299077632, "FLOP"` -> `24.3 GFLOP`."""
    factor, prefix = prefix_of(value)
    return f"{value / factor:.{digits}g} {prefix}{unit}"
