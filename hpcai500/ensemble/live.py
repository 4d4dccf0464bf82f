"""The status of an ensemble while it runs: on a terminal a table that is drawn again, elsewhere a line now and then."""

from __future__ import annotations

import os
import shutil
import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, TextIO

from hpcai500.ensemble.memory import Jobs, Memory
from hpcai500.ensemble.reading import Ensemble
from hpcai500.ensemble.status import Source, Status, read_status
from hpcai500.ensemble.status_text import clock, headline, trouble
from hpcai500.progress import PLAIN_INTERVAL_SECONDS
from hpcai500.streams import beneath, prepare_streams, say, spelt_out

if TYPE_CHECKING:
    from rich.live import Live as RichLive

# A look may cost this share of the time at most.
_SHARE = 0.05
_LEAST_SECONDS = 1.0
# Lines around the rows of the table: summary, map with its legend, heads and empty lines.
_OTHER_LINES = 24
_LEAST_ROWS = 5
_MOST_TROUBLES = 10
_LOUD = {r"\b(failed|diverged|lost)\b": "bold red", r"\bsilent\b": "yellow", r"\brunning\b": "green"}


class Screen:
    """Shows one status after the other.

    Args:
        stream: a terminal, or anything else: there, a line is written for all, and one for each member in trouble.
        interval_seconds: between two such lines, unless a member has got into trouble.
        prefix: of each such line.
    """

    def __init__(
        self, stream: TextIO, interval_seconds: float = PLAIN_INTERVAL_SECONDS, prefix: str = "hpcai500: "
    ) -> None:
        self._stream, self._interval_seconds, self._prefix = stream, interval_seconds, prefix
        self._is_terminal = is_terminal(stream)
        self._live: RichLive | None = None
        self._told: set[tuple[int, str]] = set()
        self._printed_s: float | None = None
        self._last_line = ""

    def __enter__(self) -> Screen:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()

    def show(self, status: Status, *, is_last: bool = False) -> None:
        """Show `status` now, instead of the one before it; `is_last`: whatever interval there is."""
        if self._is_terminal:
            self._draw(status)
        else:
            self._print(status, is_last=is_last)

    def _draw(self, status: Status) -> None:
        size = shutil.get_terminal_size((100, 40))
        rows = max(_LEAST_ROWS, size.lines - _OTHER_LINES)
        lines = status.lines(size.columns, rows, ascii_only=is_ascii(self._stream), whole=False)
        if self._live is None:
            self._live = _live(self._stream)
            self._live.start()
            prepare_streams()
        self._live.update(_painted("\n".join(map(spelt_out, lines))), refresh=True)

    def _print(self, status: Status, *, is_last: bool) -> None:
        troubles = [sentence for sentence in trouble(status) if sentence not in self._told]
        now = time.monotonic()
        is_early = self._printed_s is not None and now - self._printed_s < self._interval_seconds
        if is_early and not troubles and not is_last:
            return
        for _, sentence in troubles[:_MOST_TROUBLES]:
            self._say(sentence)
        if len(troubles) > _MOST_TROUBLES:
            self._say(f"and so {len(troubles) - _MOST_TROUBLES} more")
        self._told.update(troubles)
        line = headline(status)
        if line != self._last_line:
            self._say(f"{clock(1000 * status.now_s)} UTC: {line}")
        self._printed_s, self._last_line = now, line

    def _say(self, line: str) -> None:
        say(line, prefix=self._prefix, stream=self._stream)


class Live:
    """Shows on stderr how the members of an ensemble stand, for whoever runs them.

    Args:
        ensemble: which.
        total: members of it that are run.
        stream: where it is shown; None: stderr.
        memory: of the records; None: one of its own.
    """

    def __init__(
        self, ensemble: Ensemble, total: int, stream: TextIO | None = None, memory: Memory | None = None
    ) -> None:
        self._ensemble = ensemble
        members = ensemble.shape.members
        self._source = Source("local" if total == members else f"local, which runs {total} of {members} members")
        self._screen = Screen(sys.stderr if stream is None else stream)
        self._memory = memory or Memory()
        self._next_s, self._jobs = 0.0, None  # type: float, Jobs | None

    def __enter__(self) -> Live:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None and self._jobs is not None:
                self._look(self._jobs, is_last=True)
        finally:
            self._screen.__exit__(kind, error, trace)

    def update(self, jobs: Jobs) -> None:
        """Look, and show what there is to see; so often called as one likes, it looks once a second at most."""
        self._jobs = jobs
        if time.monotonic() >= self._next_s:
            start = time.monotonic()
            self._look(jobs)
            now = time.monotonic()
            self._next_s = now + max(_LEAST_SECONDS, (now - start) / _SHARE)

    def _look(self, jobs: Jobs, *, is_last: bool = False) -> None:
        self._screen.show(read_status(self._ensemble, jobs, self._memory, self._source), is_last=is_last)


def is_terminal(stream: TextIO) -> bool:
    """Whether `stream` is a terminal on which lines can be drawn again."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def is_ascii(stream: TextIO) -> bool:
    """Whether `stream` lacks the letters that bars are drawn by."""
    try:
        "▁█…".encode(stream.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return True
    return False


def _live(stream: TextIO) -> RichLive:
    # rich costs about 0.1 s to import: only a terminal pays for it.
    from rich.console import Console  # noqa: PLC0415
    from rich.live import Live as RichLive  # noqa: PLC0415

    return RichLive(console=Console(file=beneath(stream)), auto_refresh=False, vertical_overflow="crop")


def _painted(text: str) -> Any:
    from rich.text import Text  # noqa: PLC0415

    painted = Text(text, no_wrap=True, overflow="crop")
    for pattern, style in _LOUD.items():
        painted.highlight_regex(pattern, style)
    return painted
