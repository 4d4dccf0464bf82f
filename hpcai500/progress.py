"""Progress on stderr: a live bar on a terminal, a plain line every few seconds anywhere else.

Functions that take long accept a `Tracker`: `track` shows progress, `silent` does not. Stdout is for results only.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from hpcai500.errors import RunError
from hpcai500.streams import escaped, prepare_streams, say, underlying

if TYPE_CHECKING:
    from rich.live import Live as RichLive

PLAIN_INTERVAL_SECONDS = 5.0


class Progress(Protocol):
    """Counts finished items. Callable from any thread."""

    def advance(self, n: int = 1) -> None:
        """Count `n` more finished items."""


Tracker = Callable[[int, str, str], AbstractContextManager[Progress]]
"""`tracker(total, description, unit)`: shows progress while its context is open."""


class _Silent:
    def advance(self, n: int = 1) -> None: ...


@contextmanager
def silent(total: int, description: str, unit: str) -> Iterator[Progress]:
    """Show nothing: the default tracker of functions that other code calls."""
    del total, description, unit
    yield _Silent()


@contextmanager
def track(total: int, description: str, unit: str, doing: Callable[[], str] | None = None) -> Iterator[Progress]:
    """Show on stderr how many of `total` items are done, their rate and the seconds left.

    `unit` is the items' plural noun ("images"). If stderr is not a terminal, nothing is printed for a task that ends
    before the first interval. `doing` returns the current activity, for items that take long and differ: it is shown
    instead of rate and seconds left, also while no item ends.
    """
    if is_terminal(sys.stderr):
        with _live_bar(total, description, unit, doing) as bar:
            yield bar
        return
    lines = PlainLines(total, description, unit, sys.stderr, doing=doing)
    try:
        yield lines
    finally:
        lines.close()


class PlainLines:
    """Prints one line per interval, and a last one if any was printed before."""

    def __init__(
        self,
        total: int,
        description: str,
        unit: str,
        stream: TextIO,
        interval_seconds: float = PLAIN_INTERVAL_SECONDS,
        doing: Callable[[], str] | None = None,
    ) -> None:
        self._total = total
        self._description = description
        self._unit = unit
        self._stream = stream
        self._interval_seconds = interval_seconds
        self._lock = threading.Lock()
        self._start_seconds = self._printed_seconds = time.monotonic()
        self._done = 0
        self._printed_any = False
        self._doing = doing
        self._closed = threading.Event()
        if doing:
            threading.Thread(target=self._repeat, name="progress", daemon=True).start()

    def advance(self, n: int = 1) -> None:
        """Count `n` more items; print when the interval is over."""
        with self._lock:
            self._done += n
            now_seconds = time.monotonic()
            if now_seconds - self._printed_seconds >= self._interval_seconds:
                self._print(now_seconds)

    def close(self) -> None:
        """Print the final count, unless the task was too short for any line."""
        self._closed.set()
        with self._lock:
            if self._printed_any:
                self._print(time.monotonic())

    def _repeat(self) -> None:
        while not self._closed.wait(self._interval_seconds):
            self.advance(0)

    def _print(self, now_seconds: float) -> None:
        rate = self._done / max(now_seconds - self._start_seconds, 1e-9)
        left_seconds = (self._total - self._done) / rate if rate > 0 else float("inf")
        percent = 100.0 * self._done / self._total if self._total else 100.0
        pace = f"{rate:.0f} {self._unit}/s, {max(left_seconds, 0.0):.0f} s left"
        say(
            f"{self._description}: {self._done}/{self._total} {self._unit} ({percent:.0f} %), "
            f"{self._doing() if self._doing else pace}",
            stream=self._stream,
        )
        self._printed_seconds = now_seconds
        self._printed_any = True


@contextmanager
def _live_bar(total: int, description: str, unit: str, doing: Callable[[], str] | None = None) -> Iterator[Progress]:
    # Importing rich takes about 0.1 s, so it is imported for a terminal only.
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, ProgressColumn, Task, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as RichProgress
    from rich.text import Text

    class _Doing(ProgressColumn):
        def render(self, task: Task) -> Text:
            return Text(escaped(doing() if doing else ""))

    bar = RichProgress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(escaped(unit), markup=False),
        _Doing() if doing else TimeRemainingColumn(),
        console=Console(file=underlying(sys.stderr)),
    )
    with bar:
        prepare_streams()
        task = bar.add_task(escaped(description), total=total)

        class _Bar:
            def advance(self, n: int = 1) -> None:
                bar.advance(task, n)

        yield _Bar()


# ----------------------------------------------------------------------------------------------------
# Waiting for others.


# A longer wait is announced on stderr.
QUIET_SECONDS = 10.0


class Waiting:
    """A wait of at most `patience` seconds for `what`. After ten, one line says so if this process `says` it."""

    def __init__(self, what: Callable[[], str], patience: float, says: bool = True) -> None:
        self._what, self._patience, self._says = what, patience, says
        self._start = time.monotonic()
        self._pause = 0.01

    def seconds_left(self) -> float:
        """Below zero when the time is over; to be called every second or so, since it prints the line."""
        waited = time.monotonic() - self._start
        if QUIET_SECONDS < waited < self._patience and self._says:
            self._says = False
            say(f"waiting for {self._what()}, for {self._patience / 60:.0f} minutes at most")
        return self._patience - waited

    def pause(self) -> None:
        """Sleep a little, longer each time.

        Raises:
            RunError: the time is over.
        """
        if self.seconds_left() < 0:
            raise RunError(
                f"waited {self._patience:.0f} s for {self._what()}: look for its error message, and check that this "
                "host can reach it (a firewall?)"
            )
        time.sleep(self._pause)
        self._pause = min(2 * self._pause, 0.5)


# ----------------------------------------------------------------------------------------------------
# Lines that are redrawn in place.


def is_terminal(stream: TextIO) -> bool:
    """Whether `stream` is a terminal on which lines can be redrawn."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def is_ascii(stream: TextIO) -> bool:
    """Whether the encoding of `stream` lacks the characters of the bars."""
    try:
        "▁█…".encode(stream.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return True
    return False


class Redrawn:
    """Lines on a terminal that are redrawn in place. `styles` maps patterns to rich's styles."""

    def __init__(self, stream: TextIO, styles: Mapping[str, str]) -> None:
        self._stream, self._styles = stream, styles
        self._live: RichLive | None = None

    def draw(self, lines: Iterable[str]) -> None:
        """Show `lines` in place of the previous ones."""
        if self._live is None:
            # Importing rich takes about 0.1 s, so it is imported for a terminal only.
            from rich.console import Console
            from rich.live import Live

            console = Console(file=underlying(self._stream))
            self._live = Live(console=console, auto_refresh=False, vertical_overflow="crop")
            self._live.start()
            prepare_streams()
        self._live.update(self._painted("\n".join(map(escaped, lines))), refresh=True)

    def close(self) -> None:
        """Leave the last lines on the terminal."""
        if self._live:
            self._live.stop()

    def _painted(self, text: str) -> Any:
        from rich.text import Text

        painted = Text(text, no_wrap=True, overflow="crop")
        for pattern, style in self._styles.items():
            painted.highlight_regex(pattern, style)
        return painted
