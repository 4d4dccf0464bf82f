"""What our processes print. Strangers choose names, paths and values in it, and a terminal obeys what it is sent.

All of it goes through here: each line is one line, whatever is in it, and what a terminal would obey or hide (control
characters, changes of the direction of writing, letters without width, bytes that are no text) is spelt out.
`prepare_streams` does the same for the libraries that print by themselves.
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

_PREFIX = "hpcai500: "


def prepare_streams() -> None:
    """Make stdout and stderr fit for whatever is written to them. Each process that prints calls it first.

    Streams that a caller closed (`hpcai500 … >&-`) lead to nowhere, as a run must not die of its last line. What the
    encoding of a terminal lacks becomes a `?`. All but new lines that cannot be printed is spelt out, in warnings and
    tracebacks also those.
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
    """Print a result on stdout: a document as JSON, with `indent` as json.dumps has it, or one line or more of text."""
    if isinstance(result, Mapping):
        text = json.dumps(result, indent=indent)
    else:
        text = "\n".join(map(spelt_out, [result] if isinstance(result, str) else result))
    print(text)  # noqa: T201 - here all is printed


def say(line: str, *, prefix: str = _PREFIX, stream: TextIO | None = None) -> None:
    """Print `line` on stderr, or on `stream`, behind the name of this program."""
    out = sys.stderr if stream is None else stream
    # In one piece: other threads and processes print there, too.
    out.write(f"{spelt_out(f'{prefix}{line}')}\n")
    out.flush()


def tell(error: Exception | str) -> str:
    """Say `error` on stderr, a line for each mistake in it; returns its text.

    Before it comes where it was raised, if HPCAI500_TRACEBACK is set.
    """
    if os.environ.get("HPCAI500_TRACEBACK") and sys.exc_info()[0]:
        _show_traceback(*sys.exc_info())
    for line in error.lines if isinstance(error, HpcAi500Error) else [str(error)]:
        say(f"error: {line}")
    return str(error)


def tell_at_once(message: str) -> None:
    """Say on stderr what ends this process, where its main thread may hang in the middle of a `say`."""
    os.write(2, f"{spelt_out(f'{_PREFIX}error: {message}')}\n".encode(errors="replace"))


def spelt_out(text: object, most: int | None = None) -> str:
    r"""`text` in one line of printable characters, of no more than `most` letters before they are spelt out.

    What cannot be printed is written as Python writes it: `\n`, `\x1b`, `\u202e`.
    """
    shown = str(text)
    if most is not None and len(shown) > most:
        shown = f"{shown[: most - 1]}…"
    return shown if shown.isprintable() else "".join(map(_letter, shown))


def beneath(stream: TextIO) -> TextIO:
    """`stream` as it was before `prepare_streams`, for displays that draw by control codes.

    Whoever draws there spells out what is shown, and calls `prepare_streams` again if the display puts a stream of its
    own in the place of stderr, as those of rich do.
    """
    return stream.beneath if isinstance(stream, _Printable) else stream


class _Printable:
    """A stream of text in which lines end, and nothing else moves a cursor. All but writing is as `beneath` has it."""

    def __init__(self, beneath: TextIO) -> None:
        self.beneath = beneath

    def __getattr__(self, name: str) -> Any:
        return getattr(self.beneath, name)

    def write(self, text: str) -> int:
        is_printable = text.replace("\n", "").isprintable()
        self.beneath.write(text if is_printable else "\n".join(map(spelt_out, text.split("\n"))))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)


def _letter(letter: str) -> str:
    if letter.isprintable():
        return letter
    # The one that json.dumps leaves as it is; JSON knows no \x.
    return r"\u007f" if letter == "\x7f" else letter.encode("unicode_escape").decode()


def _show_traceback(kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
    # What the error says may have lines: none of them shall look like one of ours.
    sys.stderr.write(textwrap.indent("".join(traceback.format_exception(kind, error, trace)), "  "))


def _warning_line(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    return spelt_out(f"hpcai500: warning: {message} ({category.__name__}, {filename}:{lineno})") + "\n"
