"""How often `hpcai500 track` raises an alarm without a change, and how soon and how often it finds one:
`python benchmarks/track_false_alarms.py [--series 4000] [--json FILE]`.

Each series is one metric of a machine, measured once a day. Without a change its noise is normal, heavy-tailed
(Student's t with 2.5 degrees of freedom), autocorrelated (AR(1), coefficients 0.3 and 0.6), or has two parts: that of a
day, and that of each of five records of this day, whose median counts. With a change, it is lower by 1 %, 2 % or 5 % in
the middle or for the last few values only; the noise is 0.5 %, 1 % or 2 %. Measured are

- the rate of false alarms of one series, for several limits of p, with the correction for autocorrelation;
- that of a folder of 20 series of 52 values each, which share half of their noise, at the limit of the command;
- that of a year of weekly looks at one series that grows from 8 to 60 values;
- how often a step is found, how far its position is off, and how often the intervals contain position and size;
- how many values after a step the command needs until it raises an alarm.

All is seeded. Exit code 1 where a rate of independent series exceeds the stated one by more than chance.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcai500.methodology.changes import FALSE_ALARMS, Series, best_split, find_changes

Floats = NDArray[np.float64]
Noise = Callable[[np.random.Generator, int, int], Floats]

LENGTHS = (10, 20, 50, 100, 200)
LIMITS = (0.05, 0.01, 0.001)
STEPS, NOISES = (0.01, 0.02, 0.05), (0.005, 0.01, 0.02)
FOLDER_SERIES, FOLDER_VALUES, SHARED = 20, 52, 0.5
FIRST_LOOK, LAST_LOOK = 8, 60
BEFORE, MOST_AFTER = 40, 40


def normal(random: np.random.Generator, series: int, count: int) -> Floats:
    """Independent values."""
    return random.standard_normal((series, count))


def heavy(random: np.random.Generator, series: int, count: int) -> Floats:
    """Independent values with outliers."""
    return random.standard_t(2.5, (series, count))


def autocorrelated(coefficient: float) -> Noise:
    """An AR(1) process with a variance of 1."""

    def make(random: np.random.Generator, series: int, count: int) -> Floats:
        values = random.standard_normal((series, count))
        for place in range(1, count):
            values[:, place] = coefficient * values[:, place - 1] + math.sqrt(1 - coefficient**2) * values[:, place]
        return values

    return make


def days(random: np.random.Generator, series: int, count: int) -> Floats:
    """Medians of five records of a day, which share what is the day's own."""
    own = random.standard_normal((series, count, 1))
    return np.median(own + random.standard_normal((series, count, 5)), axis=2)


def records(random: np.random.Generator, series: int, count: int) -> Floats:
    """The same, if each record counted: why a day does."""
    own = np.repeat(random.standard_normal((series, -(-count // 5))), 5, axis=1)[:, :count]
    return own + random.standard_normal((series, count))


KINDS: dict[str, Noise] = {
    "normal": normal,
    "heavy tails": heavy,
    "days of five records": days,
    "AR(1), 0.3": autocorrelated(0.3),
    "AR(1), 0.6": autocorrelated(0.6),
    "five records of a day, each for itself (--by record)": records,
}
INDEPENDENT = ("normal", "heavy tails", "days of five records")


def p_of(values: Floats) -> float:
    """The p-value of one series."""
    found = best_split(values.tolist())
    return found.p if found else 1.0


def false_alarms(random: np.random.Generator, series: int) -> list[dict[str, Any]]:
    """Rates of single series without a change."""
    rows = []
    for kind, make in KINDS.items():
        for count in LENGTHS:
            p = np.array([p_of(one) for one in make(random, series, count)])
            rates = {f"{limit:g}": float(np.mean(p <= limit)) for limit in LIMITS}
            rows.append({"noise": kind, "values": count, "series": series, "rates": rates})
            print(f"{kind:52} {count:4} values: " + ", ".join(f"{rate:.4f}" for rate in rates.values()), flush=True)
    return rows


def folders(random: np.random.Generator, number: int) -> dict[str, Any]:
    """The share of folders of 20 series without a change in which any is found."""
    alarms = 0
    for _ in range(number):
        common, own = normal(random, 1, FOLDER_VALUES), normal(random, FOLDER_SERIES, FOLDER_VALUES)
        values = 100 + math.sqrt(SHARED) * common + math.sqrt(1 - SHARED) * own
        alarms += any(find_changes([Series(one.tolist()) for one in values]))
    return {
        "folders": number, "series": FOLDER_SERIES, "values": FOLDER_VALUES, "limit": FALSE_ALARMS,
        "rate": alarms / number,
    }  # fmt: skip


def weekly_looks(random: np.random.Generator, series: int) -> list[dict[str, Any]]:
    """The share of series in which any of 53 looks, at 8, 9, ... 60 values, finds a change."""
    rows = []
    for kind in ("normal", "AR(1), 0.3"):
        values = KINDS[kind](random, series, LAST_LOOK)
        looks = range(FIRST_LOOK, LAST_LOOK + 1)
        alarms = sum(any(p_of(one[:count]) <= FALSE_ALARMS for count in looks) for one in values)
        rows.append(
            {"noise": kind, "series": series, "looks": len(looks), "limit": FALSE_ALARMS, "rate": alarms / series}
        )
    return rows


def power(random: np.random.Generator, series: int) -> list[dict[str, Any]]:
    """How often a step in the middle is found, and what is said of it."""
    rows = []
    for count in (20, 50, 100):
        for noise in NOISES:
            for step in STEPS:
                drawn = 100 * np.exp(noise * normal(random, series, count))
                drawn[:, count // 2 :] *= 1 - step
                found = [find_changes([Series(one.tolist())])[0] for one in drawn]
                firsts = [min(one, key=lambda change: abs(change.position - count // 2)) for one in found if one]
                off = [abs(one.position - count // 2) for one in firsts]
                rows.append(
                    {
                        "values": count, "noise": noise, "step": step, "series": series,
                        "found": len(firsts) / series,
                        "median_positions_off": float(np.median(off)) if off else None,
                        "position_in_interval": _share(
                            [one.earliest <= count // 2 <= one.latest for one in firsts]
                        ),
                        "size_in_interval": _share([one.low <= -step <= one.high for one in firsts]),
                        "more_than_one": _share([len(one) > 1 for one in found if one]),
                    }
                )  # fmt: skip
                print(rows[-1], flush=True)
    return rows


def delay(random: np.random.Generator, series: int) -> list[dict[str, Any]]:
    """Values after a step, of 40 before it, until the first alarm, for one series and for one among 20."""
    rows = []
    for among in (1, FOLDER_SERIES):
        for noise, step in ((0.005, 0.02), (0.005, 0.05), (0.01, 0.02), (0.01, 0.05), (0.02, 0.05)):
            drawn = 100 * np.exp(noise * normal(random, series, BEFORE + MOST_AFTER))
            drawn[:, BEFORE:] *= 1 - step
            needed = []
            for one in drawn:
                limit = FALSE_ALARMS / among
                after = range(1, MOST_AFTER + 1)
                needed.append(next((more for more in after if p_of(one[: BEFORE + more]) <= limit), math.inf))
            middle, late = np.quantile(needed, [0.5, 0.9], method="inverted_cdf")
            rows.append(
                {
                    "noise": noise, "step": step, "series_in_folder": among, "series": series,
                    "median_values": None if math.isinf(middle) else int(middle),
                    "nine_of_ten_values": None if math.isinf(late) else int(late),
                }
            )  # fmt: skip
            print(rows[-1], flush=True)
    return rows


def _share(found: list[bool]) -> float | None:
    return sum(found) / len(found) if found else None


def main() -> int:
    """Measure, print, and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--series", type=int, default=4000, help="series of each kind")
    parser.add_argument("--json", type=Path, help="write the results there")
    options = parser.parse_args()
    begun, random = time.perf_counter(), np.random.default_rng(2026)
    few = max(10, options.series // 8)
    document: dict[str, Any] = {
        "seed": 2026,
        "false_alarms": false_alarms(random, options.series),
        "folders": folders(random, few),
        "weekly_looks": weekly_looks(random, few),
        "power": power(random, few),
        "delay": delay(random, max(10, few // 2)),
    }
    for name in ("folders", "weekly_looks"):
        print(name, document[name])
    print(f"{time.perf_counter() - begun:.0f} s")
    if options.json:
        options.json.write_text(f"{json.dumps(document, indent=2)}\n", encoding="utf-8")
    too_many = [
        (row["noise"], row["values"], limit, rate)
        for row in document["false_alarms"]
        if row["noise"] in INDEPENDENT
        for limit, rate in row["rates"].items()
        if rate > float(limit) + 3 * math.sqrt(float(limit) / options.series)
    ]
    for row in too_many:
        print("more false alarms than stated:", *row)
    return bool(too_many)


if __name__ == "__main__":
    sys.exit(main())
