"""Content of a submission's files: plain enough that whatever reads it later meets no surprise.

Python's JSON knows NaN, keys that come twice, integers of a thousand digits, nesting without end, and characters that
no file can hold. An honest record has none of them; code that reads records should not have to think of them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from hpcai500.errors import WrongAnswerError
from hpcai500.results.submission import layout, limits
from hpcai500.toml_source import parse_toml

_STRUCTURE = (b",", b"[", b"{", b":")


class Budget:
    """How many JSON values may still come, over all files.

    Args:
        values: so many.
    """

    def __init__(self, values: int = limits.MOST_VALUES_IN_ALL) -> None:
        self._left = values

    def take(self, values: int, name: str) -> None:
        """Count so many, of the file `name`; raises WrongAnswerError where there are too many."""
        self._left -= values
        if self._left < 0:
            raise WrongAnswerError(f"{name}: too many JSON values in this submission: no honest one has so many")


def parse_json(content: bytes, name: str, budget: Budget, most_values: int = limits.MOST_VALUES) -> Any:
    """The JSON document `content`, found at `name`.

    Raises:
        WrongAnswerError: it is none, or holds something that no JSON of ours holds.
    """
    # No value comes without one of these before it: so many there are at most, and that is known before any is made.
    values = 1 + sum(map(content.count, _STRUCTURE))
    if values > most_values:
        raise WrongAnswerError(f"{name}: about {values} JSON values, expected at most {most_values}")
    budget.take(values, name)
    try:
        document = json.loads(content.decode("utf-8"), object_pairs_hook=_object, parse_constant=_no_number)
    except RecursionError as error:
        raise WrongAnswerError(f"{name}: JSON nested too deeply: expected at most {limits.DEEPEST} levels") from error
    except ValueError as error:
        raise WrongAnswerError(f"{name}: not plain JSON: {_first_words(error)}") from error
    _require_plain(document, name)
    return document


def check_file(path: Path, form: layout.Form, name: str, budget: Budget) -> None:
    """Look at the extracted file `path`, which is `name` in the submission.

    Raises:
        WrongAnswerError: it does not hold what its name says.
    """
    checks: dict[layout.Form, Callable[[Path, str, Budget], None]] = {
        "json": _check_json,
        "json lines": _check_lines,
        "toml": _check_toml,
        "csv": _check_rows,
        "text": _check_text,
    }
    if check := checks.get(form):
        check(path, name, budget)


def _check_json(path: Path, name: str, budget: Budget) -> None:
    if not isinstance(parse_json(path.read_bytes(), name, budget), dict):
        raise WrongAnswerError(f"{name}: expected a JSON object")


def _check_lines(path: Path, name: str, budget: Budget) -> None:
    values = 0
    with path.open("rb") as stream:
        for number, line in enumerate(iter(lambda: stream.readline(limits.LINE_BYTES + 1), b""), 1):
            place = f"{name}:{number}"
            if number > limits.MOST_EVENTS:
                raise WrongAnswerError(f"{place}: more than {limits.MOST_EVENTS} events: no run has so many")
            if len(line) > limits.LINE_BYTES:
                raise WrongAnswerError(f"{place}: a line of more than {limits.LINE_BYTES} bytes")
            if not line.endswith(b"\n"):
                # A line that a crash cut off is no event, and nobody reads it.
                return
            values += sum(map(line.count, _STRUCTURE))
            if values > limits.MOST_VALUES:
                raise WrongAnswerError(f"{place}: more than {limits.MOST_VALUES} JSON values in one log")
            event = parse_json(line, place, budget)
            _check_journal(event, name, place)


def _check_journal(event: Any, name: str, place: str) -> None:
    """Readers join the folder of a record to that of the campaign: it must be a name, and no path."""
    if not isinstance(event, dict) or not name.endswith(".jsonl") or event.get("key") != "attempt_start":
        return
    value = event.get("value")
    record = value.get("record") if isinstance(value, dict) else None
    if not isinstance(record, str) or not layout.RECORD_NAME.fullmatch(record):
        raise WrongAnswerError(f"{place}: record: expected a name like trial-01, got {str(record)[:60]!r}")


def _check_toml(path: Path, name: str, budget: Budget) -> None:
    content = path.read_bytes()
    # A byte is more than a value: a million recipes would be refused after few.
    budget.take(len(content), name)
    _require_plain(parse_toml(content, name, WrongAnswerError), name)


def _check_rows(path: Path, name: str, budget: Budget) -> None:
    del budget
    with path.open("rb") as stream:
        for number, line in enumerate(iter(lambda: stream.readline(limits.CELL_BYTES + 1), b""), 1):
            if number > limits.POWER_ROWS or len(line) > limits.CELL_BYTES:
                raise WrongAnswerError(f"{name}:{number}: too many samples, or too long a row: no meter writes so many")
            if not line.isascii() or b"\0" in line:
                raise WrongAnswerError(f"{name}:{number}: not a row of samples")


def _check_text(path: Path, name: str, budget: Budget) -> None:
    del budget
    try:
        with path.open(encoding="utf-8", newline="") as stream:
            clean = all("\0" not in block for block in iter(lambda: stream.read(limits.MIB), ""))
    except UnicodeDecodeError as error:
        raise WrongAnswerError(f"{name}: not a text file in UTF-8") from error
    if not clean:
        raise WrongAnswerError(f"{name}: not a text file: it holds NUL")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key comes twice in one object")
    return found


def _no_number(text: str) -> None:
    raise ValueError(f"{text} is no number")


def _require_plain(document: Any, name: str) -> None:
    """No depth, no number and no character that later code would stumble over."""
    level: list[Any] = [document]
    for _ in range(limits.DEEPEST):
        if not level:
            return
        level = [inner for value in level for inner in _inner(value, name)]
    raise WrongAnswerError(f"{name}: nested too deeply: expected at most {limits.DEEPEST} levels")


def _inner(value: Any, name: str) -> Iterable[Any]:
    if isinstance(value, dict):
        # Keys are strings: to be looked at like values.
        return [*value, *value.values()]
    if isinstance(value, list):
        return value
    if isinstance(value, str) and not value.isascii():
        _require_characters(value, name)
    elif isinstance(value, float) and not math.isfinite(value):
        raise WrongAnswerError(f"{name}: {value} is no number")
    elif isinstance(value, int) and abs(value) > limits.LARGEST_INTEGER:
        raise WrongAnswerError(f"{name}: an integer of more than 64 bits")
    elif not isinstance(value, str | float | int | None):
        raise WrongAnswerError(f"{name}: a {type(value).__name__}, which no recipe has")
    return ()


def _require_characters(text: str, name: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise WrongAnswerError(f"{name}: a character that no file can hold (half of a surrogate pair)") from error


def require_one_line(text: str, what: str) -> None:
    """A name that people will read holds nothing that could draw over what stands beside it.

    Raises:
        WrongAnswerError: it holds control characters, or ones that turn the direction of writing.
    """
    if not text.isprintable() or text != text.strip():
        raise WrongAnswerError(f"{what}: holds characters that cannot be shown, or blanks around it: {text[:60]!r}")


def _first_words(error: ValueError) -> str:
    return str(error).splitlines()[0][:200]
