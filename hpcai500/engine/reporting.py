"""Reports of a rank: events for the record, errors for the other ranks, counts of an epoch, progress on stderr.

Rank 0 writes the record (`RecordWriter`) and shows progress; the other ranks have journals that write nothing.
"""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from hpcai500.engine.ranks import Ranks
from hpcai500.errors import HpcAi500Error, PeerError, RunError
from hpcai500.methodology.samples import IMAGES, Samples
from hpcai500.methodology.sampling import Coverage
from hpcai500.record import RecordWriter
from hpcai500.streams import escaped, prepare_streams, say, underlying
from hpcai500.workloads.base import TrainingBatch

# ----------------------------------------------------------------------------------------------------
# Journals: where a rank's events go.


class SilentJournal:
    """The journal of all ranks except the first; it writes nothing. The methods are those of `RecordWriter`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def event(self, key: str, value: Any = None) -> None: ...

    def step(self, done: int, loss: float | None = None) -> None: ...

    def write_system(self, system: Mapping[str, Any]) -> None: ...

    def write_picture(self, name: str, content: bytes) -> None: ...

    def write_trace(self, name: str, content: bytes) -> None: ...

    def write_predictions(self, kind: str, samples: int, write: Callable[[IO[bytes]], None]) -> None: ...


Journal = RecordWriter | SilentJournal
"""What the engine writes into a record."""


# ----------------------------------------------------------------------------------------------------
# Errors that end a rank.


@contextmanager
def reporting_errors(ranks: Ranks) -> Iterator[None]:
    """Report the error that ends this rank to the others; if another rank was lost first, raise an error naming it."""
    try:
        yield
    except HpcAi500Error as error:
        explained = ranks.explained(error)
        if explained is not error:
            raise explained from error
        if ranks.leads:
            raise
        if ranks.rank_0_has_same_error(error):
            peer_error = PeerError(str(error))
            peer_error.exit_code = error.exit_code
            raise peer_error from error
        raise _base_class(error)(f"{ranks.name}: {error}") from error
    except BaseException as error:
        ranks.explained(RunError(in_words(error)))
        raise


def _base_class(error: HpcAi500Error) -> type[HpcAi500Error]:
    """The nearest class of `error` in hpcai500.errors, whose only argument is a message."""
    return next(kind for kind in type(error).__mro__ if kind.__module__ == HpcAi500Error.__module__)


def in_words(error: BaseException) -> str:
    """`error` as text, for a record or another rank."""
    if isinstance(error, KeyboardInterrupt):
        return "stopped by a second SIGINT"
    return "".join(traceback.format_exception_only(error)).strip()


# ----------------------------------------------------------------------------------------------------
# The tally of an epoch: kept in checkpoints, written into the record at the epoch's end.


_SUMMED = ("samples", "padded_samples", "warnings", "indexed_samples")
_SPENT = ("seconds", "data_wait_seconds", "compute_seconds", "communication_wait_seconds")
_AVERAGED = ("loss_sum", *_SPENT)


@dataclass
class EpochTally:
    """Counts and times (in seconds) of one epoch, on one rank or, once merged, on all of them.

    A merged tally has the samples of all ranks, and the mean over ranks of loss and times.
    """

    steps: int = 0
    samples: int = 0
    padded_samples: int = 0
    warnings: int = 0
    indexed_samples: int = 0
    loss_sum: float = 0.0
    losses_seen: int = 0
    seconds: float = 0.0
    data_wait_seconds: float = 0.0
    compute_seconds: float = 0.0
    communication_wait_seconds: float = 0.0
    coverage: Coverage = field(default_factory=Coverage)

    def add(self, batch: TrainingBatch) -> None:
        """Count the batch of one backward pass; steps are counted and timed elsewhere."""
        self.samples += len(batch.samples)
        self.padded_samples += batch.padded
        self.warnings += batch.warnings
        self.indexed_samples += batch.indexed
        self.data_wait_seconds += batch.wait_seconds or 0.0
        self.coverage = self.coverage.add(batch.samples)

    def spend(self, compute_seconds: float, communication_wait_seconds: float = 0.0) -> None:
        """Add the times of a step, except the wait for data, which `add` takes from the batches."""
        self.compute_seconds += compute_seconds
        self.communication_wait_seconds += communication_wait_seconds

    def merged(self, ranks: Sequence[dict[str, Any]]) -> EpochTally:
        """This tally and what all `ranks` have done since (their `state()`)."""
        whole = EpochTally.from_state(self.state())
        parts = [EpochTally.from_state(state) for state in ranks]
        for name in _SUMMED:
            setattr(whole, name, getattr(whole, name) + sum(getattr(part, name) for part in parts))
        for name in _AVERAGED:
            setattr(whole, name, getattr(whole, name) + sum(getattr(part, name) for part in parts) / len(parts))
        for part in parts:
            whole.coverage = whole.coverage.merge(part.coverage)
        whole.steps += parts[0].steps
        whole.losses_seen += parts[0].losses_seen
        return whole

    def state(self) -> dict[str, Any]:
        """Plain numbers, for a checkpoint."""
        numbers = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "coverage"}
        return {**numbers, "coverage": self.coverage.state()}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> EpochTally:
        return cls(**{**state, "coverage": Coverage.from_state(state["coverage"])})

    def summary(self) -> dict[str, Any]:
        """The value of the record's `epoch_stop`."""
        return {
            "steps": self.steps,
            "samples": self.samples,
            "padded_samples": self.padded_samples,
            "warnings": self.warnings,
            "indexed_samples": self.indexed_samples,
            "loss": self.loss_sum / self.steps if self.steps else None,
            **self.times(),
            "coverage": self.coverage.digest,
        }

    def times(self) -> dict[str, float]:
        """Seconds in all, and in each kind of work and waiting."""
        return {name: round(getattr(self, name), 6) for name in _SPENT}


# ----------------------------------------------------------------------------------------------------
# Progress on stderr: a live bar on a terminal, a plain line every few seconds elsewhere.


_PLAIN_INTERVAL_SECONDS = 10.0
_RATE_WINDOW_SECONDS = 10.0


@dataclass
class Status:
    """What `Console` shows."""

    epoch: int
    epochs: int
    step: int
    steps_per_epoch: int
    loss: float | None = None
    quality: float | None = None


class Console:
    """Shows epoch, samples a second, loss, quality and time left; a quiet one shows nothing.

    Other lines go through `say`, above the bar.
    """

    def __init__(
        self,
        benchmark: str,
        metric: str,
        samples_per_step: int,
        done_steps: int,
        total_steps: int,
        *,
        samples: Samples = IMAGES,
        quiet: bool = False,
    ) -> None:
        self._quiet = quiet
        self._benchmark = benchmark
        self._metric = metric
        self._samples = samples
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
        """Start measuring the rate and the time left; called when training begins."""
        self._start_seconds = self._printed_seconds = time.monotonic()
        self._rate_from = (self._start_seconds, self._done_steps)

    def say(self, line: str) -> None:
        if not self._quiet:
            say(line)

    def step(self, status: Status) -> None:
        """Count one training step; show it if the interval has passed."""
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
        """Show the number of evaluated samples if the interval has passed."""
        text = f"epoch {status.epoch}/{status.epochs} evaluating, {samples} {self._samples.names}"
        now = time.monotonic()
        if self._bar:
            self._bar.update(0, text=text)
        elif now - self._printed_seconds >= _PLAIN_INTERVAL_SECONDS:
            self._printed_seconds = now
            self.say(f"{self._benchmark}: {text}")

    def epoch_done(self, status: Status, seconds: float, per_class: Mapping[str, float | None]) -> None:
        """Print the line of a finished epoch; `per_class` is the quality of each class, if it is measured."""
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
            rate = self._samples.rate(self._rate)
            parts.append(f"{f'{rate:.0f}' if rate >= 10 else f'{rate:.2g}'} {self._samples.rate_unit}")
        if status.loss is not None:
            parts.append(f"loss {status.loss:.3f}")
        if status.quality is not None:
            parts.append(f"{self._metric} {status.quality:.4f}")
        return escaped(", ".join(parts))

    def _left(self, now: float) -> str:
        seconds = (now - self._start_seconds) / self._steps_here * (self._total_steps - self._done_steps)
        hours, rest = divmod(round(seconds), 3600)
        return f", {hours}:{rest // 60:02d}:{rest % 60:02d} left"


def _live_bar(description: str, total: int, done: int) -> Any:
    # rich costs 0.1 s to import; a batch job never needs it.
    from rich.console import Console as RichConsole
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.table import Column

    bar = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=12),
        TextColumn("{task.percentage:>3.0f}%"),
        # Before the text: a narrow terminal cuts off the end of the line.
        TimeRemainingColumn(),
        TextColumn("{task.fields[text]}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis")),
        console=RichConsole(file=underlying(sys.stderr)),
    )
    bar.add_task(escaped(description), total=total, completed=done, text="starting")
    return bar
