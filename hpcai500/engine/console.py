"""Progress of a run on stderr: a live bar on a terminal, a plain line every few seconds elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from hpcai500.streams import beneath, prepare_streams, say, spelt_out

_PLAIN_INTERVAL_SECONDS = 10.0
_RATE_WINDOW_SECONDS = 10.0


@dataclass
class Status:
    """What the bar shows."""

    epoch: int
    epochs: int
    step: int
    steps_per_epoch: int
    loss: float | None = None
    quality: float | None = None


class Console:
    """Shows epoch, samples a second, loss, quality and time left. Other lines go through `say`, above the bar."""

    def __init__(
        self,
        benchmark: str,
        metric: str,
        samples_per_step: int,
        done_steps: int,
        total_steps: int,
        *,
        quiet: bool = False,
    ) -> None:
        """`quiet`: show nothing: of many ranks, one shows."""
        self._quiet = quiet
        self._benchmark = benchmark
        self._metric = metric
        self._samples_per_step = samples_per_step
        self._done_steps, self._total_steps = done_steps, total_steps
        self._rate: float | None = None
        self.start()
        self._steps_here = 0
        self._bar: Any = None

    def __enter__(self) -> Console:
        if sys.stderr.isatty() and not self._quiet:
            self._bar = _live_bar(self._benchmark, self._total_steps, self._done_steps)
            self._bar.start()
            prepare_streams()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar:
            self._bar.stop()

    def start(self) -> None:
        """Begin to measure rates and time left: now, and not while things are still being set up."""
        self._start_seconds = self._printed_seconds = time.monotonic()
        self._rate_from = (self._start_seconds, self._done_steps)

    def say(self, line: str) -> None:
        """Print a line that stays."""
        if not self._quiet:
            say(line)

    def step(self, status: Status) -> None:
        """Count one training step and show it when it is time to."""
        self._done_steps += 1
        self._steps_here += 1
        now = time.monotonic()
        self._measure_rate(now)
        if self._bar:
            self._bar.update(0, completed=self._done_steps, text=self._text(status))
        elif now - self._printed_seconds >= _PLAIN_INTERVAL_SECONDS:
            self._printed_seconds = now
            self.say(f"{self._benchmark}: {self._text(status)}{self._left(now)}")

    def evaluating(self, status: Status, samples: int) -> None:
        """Show how many samples of the evaluation set were seen, when it is time to."""
        text = f"epoch {status.epoch}/{status.epochs} evaluating, {samples} images"
        now = time.monotonic()
        if self._bar:
            self._bar.update(0, text=text)
        elif now - self._printed_seconds >= _PLAIN_INTERVAL_SECONDS:
            self._printed_seconds = now
            self.say(f"{self._benchmark}: {text}")

    def epoch_done(self, status: Status, seconds: float, per_class: Mapping[str, float | None]) -> None:
        """Print the line of a finished epoch; `per_class` is the quality of each class, where there is such."""
        quality = "unknown" if status.quality is None else f"{status.quality:.4f}"
        loss = "" if status.loss is None else f", loss {status.loss:.3f}"
        classes = ", ".join(f"{name} {'-' if value is None else f'{value:.2f}'}" for name, value in per_class.items())
        self.say(
            f"{self._benchmark}: epoch {status.epoch}/{status.epochs}: "
            f"{self._metric} {quality}{f' ({classes})' if classes else ''}{loss}, {seconds:.1f} s"
        )

    def _measure_rate(self, now: float) -> None:
        since, steps = self._rate_from
        if now - since >= _RATE_WINDOW_SECONDS or (self._rate is None and self._done_steps - steps >= 5):
            self._rate = (self._done_steps - steps) * self._samples_per_step / (now - since)
            self._rate_from = (now, self._done_steps)

    def _text(self, status: Status) -> str:
        parts = [f"epoch {status.epoch}/{status.epochs} step {status.step}/{status.steps_per_epoch}"]
        if self._rate is not None:
            parts.append(f"{self._rate:.0f} images/s" if self._rate >= 10 else f"{self._rate:.2g} images/s")
        if status.loss is not None:
            parts.append(f"loss {status.loss:.3f}")
        if status.quality is not None:
            parts.append(f"{self._metric} {status.quality:.4f}")
        return spelt_out(", ".join(parts))

    def _left(self, now: float) -> str:
        seconds = (now - self._start_seconds) / self._steps_here * (self._total_steps - self._done_steps)
        hours, rest = divmod(round(seconds), 3600)
        return f", {hours}:{rest // 60:02d}:{rest % 60:02d} left"


def _live_bar(description: str, total: int, done: int) -> Any:
    # rich costs 0.1 s to import; a batch job never needs it.
    from rich.console import Console as RichConsole  # noqa: PLC0415
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn  # noqa: PLC0415
    from rich.table import Column  # noqa: PLC0415

    bar = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=12),
        TextColumn("{task.percentage:>3.0f}%"),
        # Before the text: what is cut off on a narrow terminal is the end of the line.
        TimeRemainingColumn(),
        TextColumn("{task.fields[text]}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis")),
        console=RichConsole(file=beneath(sys.stderr)),
    )
    bar.add_task(spelt_out(description), total=total, completed=done, text="starting")
    return bar
