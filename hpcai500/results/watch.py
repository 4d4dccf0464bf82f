"""`hpcai500 watch`: shows the progress of a run or a campaign from its files, once or until it ends.

Each look reads only what was added since the last one. It writes nothing and holds no lock for long, so it cannot
disturb the run. It does not check the chain of events; `hpcai500 score` does.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any

from hpcai500.campaign.journal import is_campaign, read_campaign
from hpcai500.errors import RecordError
from hpcai500.files import why_not
from hpcai500.methodology.communication import with_stragglers
from hpcai500.methodology.passes import better_of, goal
from hpcai500.methodology.samples import samples_of
from hpcai500.record import is_being_written
from hpcai500.results.report.page import write_page
from hpcai500.run_progress import PROGRESS, Progress, parse_progress
from hpcai500.streams import escaped
from hpcai500.system.power_samples import BESIDE, FOLDER, Row, parse_samples
from hpcai500.text import duration, number, progress_bar, quantity, short, table
from hpcai500.toml_source import parse_toml

# A run that no process on this machine writes is taken as ended after so long without a change.
_PATIENCE_SECONDS = 120.0
# How much of a file of power samples is read, and how old a sample of the current power may be.
_TAIL_BYTES = 2**13
_FRESH_SECONDS = 30.0
_MOST_NAMES = 4


@dataclass(frozen=True)
class Look:
    """The state of a run or campaign at one moment.

    Attributes:
        path: of the record or campaign.
        is_over: whether it has ended.
        headline: a summary in one line.
        lines: for a terminal.
        share: share of all epochs that is done, from 0 to 1.
    """

    path: Path
    is_over: bool
    headline: str
    lines: tuple[str, ...]
    share: float


class RecordWatch:
    """Looks at one record. `clock` gives UNIX seconds."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        """Raises RecordError if `path` is not a record."""
        if why := why_not("folder", path):
            raise RecordError(f"{path}: {why}; give a folder that a run writes: runs/NAME")
        if not (path / "recipe.toml").is_file():
            raise RecordError(f"{path}: not a record, campaign or ensemble; give a folder that a run writes: runs/NAME")
        self.path, self._clock = path, clock
        try:
            content = (path / "recipe.toml").read_bytes()
        except OSError as error:
            raise RecordError(f"{path / 'recipe.toml'}: cannot be read: {error.strerror}") from error
        self._tables = parse_toml(content, str(path / "recipe.toml"), RecordError)
        self._problem = table(self._tables.get("problem"))
        self._read, self._rest, self._lines = 0, b"", 0
        self._progress = Progress()
        self._values: dict[str, Any] = {}
        self._samples = samples_of(self._tables.get("benchmark"))

    def look(self) -> Look:
        """Read what is new.

        Raises:
            RecordError: a file of the record cannot be read.
        """
        state, is_over = self._state()
        self._read_events()
        seen = self._latest()
        epochs = number(self._problem.get("epochs")) or 0
        share = min(1.0, self._epochs_done(seen) / epochs) if epochs else 0.0
        if is_over and state == "done":
            share = 1.0
        now_s = self._clock()
        age = max(0.0, now_s - seen.last_ms / 1000) if seen.last_ms is not None else None
        if state == "silent":
            is_over = age is not None and age > max(_PATIENCE_SECONDS, 3 * (seen.pace_seconds or 0.0))
        left = None if is_over else self._left_seconds(seen, epochs, age)
        place = self._place(seen, state, epochs, is_over=is_over)
        rate = None if is_over and state != "done" else self._rate(seen)
        parts = [place]
        if seen.loss is not None:
            parts.append(f"loss {seen.loss:.3f}")
        if seen.quality is not None:
            parts.append(f"{self._metric} {seen.quality:.4f}")
        if rate is not None:
            shown = self._samples.rate(rate)
            parts.append(f"{f'{shown:.3g}' if shown < 1000 else f'{shown:.0f}'} {self._samples.rate_unit}")
        if left is not None:
            parts.append(f"about {duration(left)} left")
        headline = escaped(", ".join(parts))
        lines = tuple(map(escaped, self._shown(seen, place, share, left, rate, age, is_over=is_over)))
        return Look(self.path, is_over, headline, lines, share)

    @property
    def _metric(self) -> str:
        return short(table(self._values.get("eval_accuracy")).get("metric") or "quality", 40)

    def _state(self) -> tuple[str, bool]:
        """Read before the events, because DONE and ERROR are written after the last event."""
        if (self.path / "DONE").exists():
            return "done", True
        if (self.path / "ERROR").exists():
            return "ended", True
        try:
            return ("running", False) if is_being_written(self.path) else ("silent", False)
        except OSError:
            return "running", False  # its log does not exist yet

    def _read_events(self) -> None:
        path = self.path / "events.jsonl"
        try:
            with path.open("rb") as stream:
                stream.seek(self._read)
                added = stream.read()
        except FileNotFoundError:
            return
        except OSError as error:
            raise RecordError(f"{path}: cannot be read: {error.strerror}") from error
        self._read += len(added)
        *lines, self._rest = (self._rest + added).split(b"\n")
        for line in lines:
            self._lines += 1
            try:
                event = json.loads(line)
                self._values[str(event["key"])] = event.get("value")
                if event["key"] == "dataset":
                    self._samples = samples_of(self._tables.get("benchmark"), table(event.get("value")))
                self._progress.fold([event])
            except RecordError as error:
                raise RecordError(f"{path}: {error}") from error
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
                raise RecordError(f"{path}:{self._lines}: not an event: {type(error).__name__}") from error

    def _latest(self) -> Progress:
        """Progress from the events, or from progress.json if that is newer: it has the steps between events."""
        path = self.path / PROGRESS
        try:
            noted = parse_progress(path.read_bytes(), str(path))
        except (OSError, RecordError):
            return self._progress
        return noted if (noted.last_ms or 0) >= (self._progress.last_ms or 0) else self._progress

    def _epochs_done(self, seen: Progress) -> float:
        is_within = seen.epoch is not None and seen.epoch > seen.epochs_done and seen.steps
        return seen.epochs_done + (min(1.0, seen.step / seen.steps) if is_within and seen.steps else 0.0)

    def _left_seconds(self, seen: Progress, epochs: float, age: float | None) -> float | None:
        done = self._epochs_done(seen)
        pace = seen.pace_seconds
        if pace is None and seen.epoch_began_ms is not None and seen.last_ms is not None and 0 < done < 1:
            pace = (seen.last_ms - seen.epoch_began_ms) / 1000 / done
        return None if pace is None else max(0.0, (epochs - done) * pace - min(age or 0.0, pace))

    def _rate(self, seen: Progress) -> float | None:
        """Images a second in this epoch, or else over the last one."""
        dataset = table(self._values.get("dataset"))
        samples = number(table(dataset.get("drawn")).get("draws") or dataset.get("training_samples"))
        is_within = seen.phase == "training" and seen.steps and 0 < seen.step < seen.steps
        if is_within and samples and seen.steps and seen.epoch_began_ms is not None and seen.last_ms is not None:
            seconds = (seen.last_ms - seen.epoch_began_ms) / 1000
            return samples * seen.step / seen.steps / seconds if seconds > 0 else seen.images_per_second
        return seen.images_per_second

    def _place(self, seen: Progress, state: str, epochs: float, *, is_over: bool) -> str:
        if state == "done":
            return "done"
        at = "" if seen.epoch is None else f", epoch {seen.epoch} of {epochs:.0f}, step {seen.step} of {seen.steps}"
        if state == "ended":
            return f"ended without a result{at}"
        return f"{'silent' if is_over else seen.phase}{at}"

    def _shown(
        self,
        seen: Progress,
        place: str,
        share: float,
        left: float | None,
        rate: float | None,
        age: float | None,
        *,
        is_over: bool,
    ) -> Iterator[str]:
        kind = f"{self._tables.get('benchmark')}, edition {self._tables.get('edition')}"
        yield f"record      {self.path}: {kind}"
        yield f"state       {place}"
        more = "" if left is None else f", about {duration(left)} left"
        yield f"progress    {progress_bar(share)} {int(100 * share + 1e-9)} %{more}"
        if seen.loss is not None:
            yield f"loss        {seen.loss:.4f}"
        if seen.quality is not None:
            target = number(self._problem.get("target_quality"))
            shown = "" if target is None else f" (target {goal(target, better_of(self._problem))})"
            yield f"quality     {self._metric} {seen.quality:.4f}{shown}"
        if rate is not None:
            yield f"rate        {self._samples.rate_text(rate)}"
        yield from self._ranks(seen)
        if (watts := self._watts()) is not None:
            yield f"power       {quantity(watts, 'W')}"
        if not is_over and age is not None and age >= _FRESH_SECONDS:
            yield f"silent for  {duration(age)}"
        error = seen.diverged or seen.error
        if error and "done" not in place:
            yield f"error       {error}"

    def _ranks(self, seen: Progress) -> Iterator[str]:
        ranks = number(table(self._values.get("run_resume") or self._values.get("run_start")).get("world_size"))
        if ranks is None:
            return
        hosts = list(dict.fromkeys(seen.hosts))
        more = f" and {len(hosts) - _MOST_NAMES} more" if len(hosts) > _MOST_NAMES else ""
        yield f"ranks       {ranks:.0f} on {', '.join(hosts[:_MOST_NAMES])}{more}"
        slow = with_stragglers(table(self._values.get("communication")))["stragglers"]
        if slow:
            more = f" and {len(slow) - _MOST_NAMES} more" if len(slow) > _MOST_NAMES else ""
            yield f"stragglers  {', '.join(short(one, 60) for one in slow[:_MOST_NAMES])}{more}"

    def _watts(self) -> float | None:
        """The current power of all nodes that have samples; None if a file has no recent sample."""
        files = [path for path in sorted((self.path / FOLDER).glob("*.csv")) if BESIDE not in path.name]
        found = [_last_watts(path, self._clock()) for path in files]
        known = [one for one in found if one is not None]
        return sum(known) if known and len(known) == len(found) else None


def _last_watts(path: Path, now_s: float) -> float | None:
    try:
        with path.open("rb") as stream:
            header = stream.readline()
            size = stream.seek(0, 2)
            stream.seek(max(len(header), size - _TAIL_BYTES))
            tail = stream.read()
        if size - _TAIL_BYTES > len(header):
            tail = tail[tail.find(b"\n") + 1 :]
        rows = parse_samples(header + tail, str(path)).rows
    except (OSError, RecordError):
        return None
    if not rows or now_s - rows[-1].unix_s > _FRESH_SECONDS:
        return None
    return rows[-1].watts if rows[-1].watts is not None else _by_counter(rows)


def _by_counter(rows: tuple[Row, ...]) -> float | None:
    """Power between the last two samples, for sources that count energy."""
    if len(rows) < 2:
        return None
    before, last = rows[-2:]
    if before.joules is None or last.joules is None or last.joules < before.joules or last.time_s <= before.time_s:
        return None
    return (last.joules - before.joules) / (last.time_s - before.time_s)


class CampaignWatch:
    """Looks at a campaign: how many runs are done, and the last run. `clock` gives UNIX seconds."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self.path, self._clock = path, clock
        self._record: RecordWatch | None = None

    def look(self) -> Look:
        """Read what is new.

        Raises:
            RecordError: the journal, or a file of the record, cannot be read.
        """
        campaign = read_campaign(self.path)
        trials, done = len(campaign.trials), len(campaign.done())
        counts = f"{done} of {trials} runs done"
        lines = [f"campaign    {self.path}: {campaign.benchmark}, edition {campaign.edition}", f"runs        {counts}"]
        if not campaign.attempts:
            return Look(self.path, True, f"{counts}, none started", (*lines, "no run was started"), 0.0)
        last = campaign.attempts[-1]
        record = campaign.record(last)
        age = max(0.0, self._clock() - campaign.events[-1]["time_ms"] / 1000)
        try:
            if self._record is None or self._record.path != record:
                self._record = RecordWatch(record, self._clock)
            look = self._record.look()
        except RecordError:
            if last.status != "running" or age > _PATIENCE_SECONDS:
                raise
            return Look(self.path, False, f"{counts}, {last.name}: starting", (*lines, f"{last.name} starts"), 0.0)
        share = (done + (look.share if last.status == "running" else 0.0)) / trials
        # Between two runs nothing is written for a moment.
        is_over = look.is_over and (done == trials or age > _PATIENCE_SECONDS or last.status in ("failed", "stopped"))
        headline = f"{counts}, {last.name}: {look.headline}"
        return Look(self.path, is_over, headline, (*lines, f"last run    {last.name}", *look.lines), min(1.0, share))


def watch_of(path: Path) -> RecordWatch | CampaignWatch:
    """The watch for the record or campaign in the folder `path`.

    Raises:
        RecordError: it is neither.
    """
    return CampaignWatch(path) if is_campaign(path) else RecordWatch(path)


def follow(
    look: Callable[[], Look],
    show: Callable[[Look], None],
    interval_seconds: float,
    page: Path | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> Look:
    """Look and show until it has ended; returns the last look. Each look is also written to `page`.

    Raises:
        RecordError: the record or campaign cannot be read.
        UsageError: `page` cannot be written.
    """
    while True:
        found = look()
        if page is not None:
            refresh = None if found.is_over else interval_seconds
            write_page(page, watch_page(found.path.name or str(found.path), found.lines, found.share, refresh))
        show(found)
        if found.is_over:
            return found
        sleep(interval_seconds)


def watch_page(title: str, lines: Sequence[str], share: float, refresh_seconds: float | None) -> str:
    """A page of one look, which reloads itself after `refresh_seconds`, without a script."""
    reload = f'<meta http-equiv="refresh" content="{max(1, round(refresh_seconds))}">\n' if refresh_seconds else ""
    note = f"Updated every {refresh_seconds:g} s." if refresh_seconds else "Ended: this page is no longer updated."
    text = escape("\n".join(map(escaped, lines)))
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
{reload}<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{escape(escaped(title))}</title>
<style>
body {{ margin: 0 auto; max-width: 60em; padding: 1em; font-family: sans-serif }}
progress {{ width: 100%; height: 1.5em }}
pre {{ overflow-x: auto; line-height: 1.5 }}
</style>
</head>
<body>
<h1>{escape(escaped(title))}</h1>
<progress max="100" value="{100 * share:.1f}">{int(100 * share + 1e-9)} %</progress>
<pre>{text}</pre>
<footer>{note} Last look: {datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC.</footer>
</body>
</html>
"""
