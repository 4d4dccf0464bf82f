"""Output that is safe for a terminal, although names and values in it may be untrusted, and that never ends a run.

Each line is printed as one line, with unprintable characters escaped: control characters, changes of the writing
direction, zero-width letters and undecodable bytes. `prepare_streams` does the same for libraries that print directly.

What cannot be written (a full disk, a reader or a terminal that has gone) is lost, and nothing is raised: `lost_output`
returns since when. A run notes it in its record; a command whose result is lost ends with an error.
"""

from __future__ import annotations

import errno
import io
import json
import os
import select
import sys
import textwrap
import time
import traceback
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, TextIO, cast

from hpcai500.errors import ExitCode, HpcAi500Error
from hpcai500.files import as_utf8

_PREFIX = "hpcai500: "


def prepare_streams() -> None:
    """Make stdout and stderr safe for any text. Each process that prints calls it first.

    Streams that the caller closed (`hpcai500 … >&-`) are opened on the null device, so that printing never ends a run.
    Characters that the terminal's encoding lacks become `?`. Unprintable characters except new lines are escaped, in
    warnings also new lines; tracebacks are indented. Text that cannot be written is lost.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115, PTH123 - lives as long as we do
    both: tuple[Literal["stdout", "stderr"], ...] = ("stdout", "stderr")
    for name in both:
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
        if not isinstance(stream, _Printable):
            setattr(sys, name, _Printable(_Lossy(stream, name)))
    sys.excepthook = _show_traceback
    warnings.formatwarning = _warning_line


def kept_stderr() -> TextIO:
    """The stderr of now, for a process that will put a file in its place."""
    return cast(TextIO, _Printable(_Lossy(os.fdopen(os.dup(2), "w", encoding="utf-8", errors="replace"), "stderr")))


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
    say_bare(f"{escaped(f'{_PREFIX}error: {message}')}\n")


def say_bare(text: str) -> None:
    """Write `text`, which is printable, on stderr by a bare write: for a signal handler, and where `say` may hang.

    It never raises, and does not wait for a reader that does not read.
    """
    try:
        _write_soon(2, text.encode(errors="replace"), 0.0)
    except OSError as error:
        _lose("stderr", error)


# ----------------------------------------------------------------------------------------------------
# Output that cannot be written.


@dataclass(frozen=True)
class Loss:
    """Output that was lost: the stream, the first error, and when it came (UNIX milliseconds)."""

    stream: Literal["stdout", "stderr"]
    reason: str
    time_ms: int
    # The reader has gone by itself, as `head` does.
    is_closed: bool


def lost_output(stream: Literal["stdout", "stderr"]) -> Loss | None:
    """The first loss of this process on `stream`; None while all was written."""
    return _losses.get(stream)


def with_result_printed(code: int) -> int:
    """The exit code of a program that ended with `code`; 1 instead of 0 if its result was not written to stdout."""
    sys.stdout.flush()
    loss = lost_output("stdout")
    if loss is None:
        return code
    if not loss.is_closed:  # `hpcai500 score … | head` is not an error
        print_error(f"cannot write the result to stdout: {loss.reason}")
    return code or ExitCode.RUN_FAILED


_losses: dict[str, Loss] = {}
# How long progress waits for a slow reader, such as a terminal that Ctrl-S has stopped. Then it is lost: no run waits
# for its reader.
_PATIENCE_SECONDS = 5.0
# What a pipe takes at once if poll(2) finds it writable (PIPE_BUF of Linux).
_AT_ONCE_BYTES = 4096


class _Lossy:
    """A text stream over `beneath` that loses what cannot be written.

    The lines of stderr are written at once, and not later than `_PATIENCE_SECONDS`. stdout waits for its reader, as a
    pager may read slowly.
    """

    def __init__(self, beneath: TextIO, name: Literal["stdout", "stderr"]) -> None:
        self._beneath, self._name = beneath, name
        # Not for a stream that a display has put before the terminal.
        self._is_direct = name == "stderr" and isinstance(beneath, io.TextIOWrapper) and _has_descriptor(beneath)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._beneath, name)

    def write(self, text: str) -> int:
        try:
            if self._is_direct:
                patience = 0.0 if self._name in _losses else _PATIENCE_SECONDS
                encoded = text.encode(self._beneath.encoding or "utf-8", "replace")
                _write_soon(self._beneath.fileno(), encoded, patience)
            else:
                self._beneath.write(text)
        except OSError as error:
            self._drop(error)
        return len(text)

    def flush(self) -> None:
        try:
            self._beneath.flush()
        except OSError as error:
            self._drop(error)

    def _drop(self, error: OSError) -> None:
        """Note the loss, and drop what the buffer holds, which Python would try to write again at exit."""
        _lose(self._name, error)
        if not self._is_direct and _has_descriptor(self._beneath):
            descriptor = self._beneath.fileno()
            kept, null = os.dup(descriptor), os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
            os.dup2(null, descriptor)
            self._beneath.flush()
            os.dup2(kept, descriptor)
            os.close(kept)
            os.close(null)


def _has_descriptor(stream: TextIO) -> bool:
    try:
        return stream.fileno() >= 0
    except (OSError, ValueError):
        return False


def _write_soon(descriptor: int, content: bytes, patience_seconds: float) -> None:
    """Write `content`; raises OSError if that fails, or if its reader does not read for `patience_seconds`."""
    writable = select.poll()
    writable.register(descriptor, select.POLLOUT)
    view = memoryview(content)
    while view:
        if not writable.poll(1000 * patience_seconds):
            raise TimeoutError(errno.ETIMEDOUT, "its reader does not read")
        view = view[os.write(descriptor, view[:_AT_ONCE_BYTES]) :]


def _lose(stream: Literal["stdout", "stderr"], error: OSError) -> None:
    # A terminal that has gone gives EIO.
    is_closed = error.errno in (errno.EPIPE, errno.EIO)
    _losses.setdefault(stream, Loss(stream, error.strerror or str(error), time.time_ns() // 1_000_000, is_closed))


# ----------------------------------------------------------------------------------------------------
# Escapes.


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
    """`stream` without escapes, for displays that draw with control codes; what cannot be written is still lost.

    The caller escapes what it shows, and calls `prepare_streams` again if the display replaces stderr, as rich does.
    """
    return cast(TextIO, stream.beneath) if isinstance(stream, _Printable) else stream


class _Printable:
    """A text stream over `beneath` that escapes all unprintable characters except new lines."""

    def __init__(self, beneath: _Lossy) -> None:
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
