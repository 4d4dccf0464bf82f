"""Output that is safe for a terminal, although names, paths and values in it may be untrusted.

Each line is printed as one line, with unprintable characters escaped: control characters, changes of the writing
direction, zero-width letters and undecodable bytes. `prepare_streams` does the same for libraries that print directly.
"""

from __future__ import annotations

import io
import json
import os
import sys
import textwrap
import traceback
import warnings
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, TextIO

from hpcai500.errors import HpcAi500Error
from hpcai500.files import as_utf8

_PREFIX = "hpcai500: "


def prepare_streams() -> None:
    """Make stdout and stderr safe for any text. Each process that prints calls it first.

    Streams that the caller closed (`hpcai500 … >&-`) are opened on the null device, so that printing never ends a run.
    Characters that the terminal's encoding lacks become `?`. Unprintable characters except new lines are escaped, in
    warnings also new lines; tracebacks are indented.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115, PTH123 - lives as long as we do
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
        if not isinstance(stream, _Printable):
            setattr(sys, name, _Printable(stream))
    sys.excepthook = _show_traceback
    warnings.formatwarning = _warning_line


def show(result: Mapping[str, Any] | Iterable[str], indent: int | None = None) -> None:
    """Print a result on stdout: a mapping as JSON, indented as by json.dumps, or one or more lines of text."""
    if isinstance(result, Mapping):
        text = json.dumps(result, indent=indent)
    else:
        text = "\n".join(map(escaped, [result] if isinstance(result, str) else result))
    print(text)  # noqa: T201 - all results are printed here


def say(line: str, *, prefix: str = _PREFIX, stream: TextIO | None = None) -> None:
    """Print `line`, after the name of this program, on stderr or `stream`."""
    out = sys.stderr if stream is None else stream
    # In one write, because other threads and processes print there, too.
    out.write(f"{escaped(f'{prefix}{line}')}\n")
    out.flush()


def print_error(error: Exception | str) -> str:
    """Print `error` on stderr, a line for each mistake in it; returns its text.

    If HPCAI500_TRACEBACK is set, the traceback is printed first.
    """
    if os.environ.get("HPCAI500_TRACEBACK") and sys.exc_info()[0]:
        _show_traceback(*sys.exc_info())
    for line in error.lines if isinstance(error, HpcAi500Error) else [str(error)]:
        say(f"error: {line}")
    return str(error)


def report_fatal(message: str) -> None:
    """Print the error that ends this process, by a bare write, because the main thread may hang inside `say`."""
    os.write(2, f"{escaped(f'{_PREFIX}error: {message}')}\n".encode(errors="replace"))


def escaped(text: object, most: int | None = None) -> str:
    r"""`text` in one line of printable characters; others are escaped as in Python: `\n`, `\x1b`, `\u202e`.

    It is cut to `most` characters before these are escaped.
    """
    shown = _read_as_utf8(str(text))
    if most is not None and len(shown) > most:
        shown = f"{shown[: most - 1]}…"
    return shown if shown.isprintable() else "".join(map(_escaped, shown))


def _read_as_utf8(text: str) -> str:
    """`text` with the names of files read as UTF-8, if they are that but the locale has another encoding."""
    if sys.getfilesystemencoding() == "utf-8" or text.isascii():
        return text
    try:
        named = as_utf8(text)
    except UnicodeEncodeError:
        return text  # has letters that no name has in this locale
    return text if any("\udc80" <= letter <= "\udcff" for letter in named) else named


def underlying(stream: TextIO) -> TextIO:
    """`stream` as it was before `prepare_streams`, for displays that draw with control codes.

    The caller escapes what it shows, and calls `prepare_streams` again if the display replaces stderr, as rich does.
    """
    return stream.beneath if isinstance(stream, _Printable) else stream


class _Printable:
    """A text stream over `beneath` that escapes all unprintable characters except new lines."""

    def __init__(self, beneath: TextIO) -> None:
        self.beneath = beneath

    def __getattr__(self, name: str) -> Any:
        return getattr(self.beneath, name)

    def write(self, text: str) -> int:
        is_printable = text.replace("\n", "").isprintable()
        self.beneath.write(text if is_printable else "\n".join(map(escaped, text.split("\n"))))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)


def _escaped(character: str) -> str:
    if character.isprintable():
        return character
    # The only one that json.dumps does not escape; JSON has no \x.
    return r"\u007f" if character == "\x7f" else character.encode("unicode_escape").decode()


def _show_traceback(kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
    # Indented, so that no line of the error's text looks like a line of this program.
    sys.stderr.write(textwrap.indent("".join(traceback.format_exception(kind, error, trace)), "  "))


def _warning_line(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    return escaped(f"hpcai500: warning: {message} ({category.__name__}, {filename}:{lineno})") + "\n"
