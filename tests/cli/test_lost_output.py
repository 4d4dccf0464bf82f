"""Long commands whose output cannot be written go on; the exit code says that a result could not be printed."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest
from builders.commands import HPCAI500
from builders.ranks import clean_environment
from builders.runs import TINY, TINY_WEATHER, member_recipe, written

from hpcai500.data.climate.synthetic import SyntheticYears, make_years
from hpcai500.findings import read_findings
from hpcai500.record import iterate, read_record

# ----------------------------------------------------------------------------------------------------
# Outputs that cannot be written, as a file descriptor to write to.


@contextmanager
def full_disk() -> Iterator[int]:
    descriptor = os.open("/dev/full", os.O_WRONLY)
    yield descriptor
    os.close(descriptor)


@contextmanager
def reader_that_has_gone() -> Iterator[int]:
    reading, writing = os.pipe()
    os.close(reading)
    yield writing
    os.close(writing)


@contextmanager
def terminal_that_has_gone() -> Iterator[int]:
    controller, terminal = os.openpty()
    os.close(controller)
    yield terminal
    os.close(terminal)


@contextmanager
def reader_that_sleeps(wakes_after_seconds: float | None = None) -> Iterator[int]:
    """A pipe that is full, and is read later or never: a terminal after Ctrl-S."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    try:
        while True:
            os.write(writing, bytes(4096))
    except BlockingIOError:
        os.set_blocking(writing, True)
    read_all = partial(deque, iter(partial(os.read, reading, 1 << 16), b""), 0)
    waking = threading.Timer(wakes_after_seconds or 0.0, read_all)
    if wakes_after_seconds is not None:
        waking.start()
    yield writing
    os.close(writing)
    if wakes_after_seconds is not None:
        waking.join()
    os.close(reading)


@contextmanager
def closed() -> Iterator[int]:
    yield -1


FAULTS = {
    "full": full_disk,
    "gone": reader_that_has_gone,
    "terminal": terminal_that_has_gone,
    "slow": partial(reader_that_sleeps, 8.0),
    "asleep": reader_that_sleeps,
    "closed": closed,
}
# Of stdout; a pager may read slowly, and a closed one is not wanted. One that nobody ever reads blocks.
LOSES_RESULT = ("full", "gone", "terminal")
OF_STDOUT = ("full", "gone", "terminal", "slow", "closed")


def run(words: list[str], folder: Path, fault: str, *, stdout: bool) -> int:
    """The exit code of a command with this fault on stderr, and on stdout or not."""
    with FAULTS[fault]() as descriptor:
        streams = (1, 2) if stdout else (2,)

        def close() -> None:
            for number in streams:
                os.close(number)

        there = descriptor if descriptor >= 0 else None
        return subprocess.run(
            [*HPCAI500, *words],
            cwd=folder,
            env={**clean_environment(), "OMP_NUM_THREADS": "1"},
            stdout=there if stdout else subprocess.DEVNULL,
            stderr=there,
            preexec_fn=close if descriptor < 0 else None,
            check=False,
        ).returncode


# ----------------------------------------------------------------------------------------------------
# Long commands, and what they leave.


def is_done(*records: str) -> Callable[[Path], bool]:
    return lambda folder: all(read_record(folder / record).status == "done" for record in records)


def has(*names: str) -> Callable[[Path], bool]:
    return lambda folder: all((folder / name).exists() for name in names)


@dataclass(frozen=True)
class Long:
    """A command, which may need one before it, and whether it has left its result."""

    line: str
    is_complete: Callable[[Path], bool] = field(default=lambda folder: True)
    before: str = ""
    code: int = 0


def options(settings: tuple[str, ...]) -> str:
    return shlex.join(word for setting in settings for word in ("--set", setting))


RUN = f"--recipe ic/smoke --data {{images}} {options(TINY)}"
COMMANDS = {
    "ic": Long(f"ic {RUN} --out r", is_done("r")),
    "ic-2": Long(f"ic {RUN} --set hyperparameters.batch_size=4 --procs 2 --oversubscribe --out r", is_done("r")),
    # Its tiny detector misses the target.
    "ewa": Long(f"ewa --recipe ewa/smoke --data {{years}} {options(TINY_WEATHER)} --out r", is_done("r"), code=2),
    "campaign": Long("campaign run c", is_done("c/trial-01", "c/trial-02"), f"campaign init c {RUN} --trials 2"),
    "ensemble": Long(
        "ensemble run e",
        is_done("e/members/00000/trial-01", "e/members/00001/trial-01"),
        "ensemble plan e --recipe {member} --data {images} --members 2",
    ),
    "scale": Long(f"scale ic --procs 1,2 --oversubscribe {RUN}"),
    "profile": Long(f"profile ic {RUN} --out p", has("p")),
    "micro": Long("micro copy --recipe ic/smoke --seconds 1 -o m.json", has("m.json")),
    "doctor": Long("doctor ic --quick --set accelerator.device=cpu"),
    "make": Long("data make ic s --classes 2 --train-per-class 2 --val-per-class 1", has("s/train", "s/val")),
    "make-ewa": Long("data make ewa s --years 1979 --images-per-year 1 --height 64 --width 96", has("s/climo_1979.h5")),
    "check": Long("data check ic {images}"),
    "check-ewa": Long("data check ewa {years}"),
    "repack": Long("data repack ewa {years} s", has("s/climo_1979.h5")),
    "stage": Long("data stage ic {images} s", has("s/train", "s/val")),
}


@pytest.fixture(scope="module")
def sets(images: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    years = tmp_path_factory.mktemp("years")
    make_years(years, SyntheticYears(last_year=1980, images_per_year=10, height=64, width=96), workers=1)
    member = written(member_recipe("ic"), years / "member.toml")
    return {"images": images, "years": years, "member": member}


@pytest.mark.parametrize(("name", "fault"), [(name, OF_STDOUT[at % 5]) for at, name in enumerate(COMMANDS)])
def test_a_long_command_ends_although_nothing_can_be_printed(
    sets: dict[str, Path], tmp_path: Path, name: str, fault: str
) -> None:
    command = COMMANDS[name]
    if command.before:
        prepared = subprocess.run(
            [*HPCAI500, *shlex.split(command.before.format(**sets))], cwd=tmp_path, capture_output=True, check=False
        )
        assert prepared.returncode == 0, prepared.stderr
    code = run(shlex.split(command.line.format(**sets)), tmp_path, fault, stdout=True)
    assert code == (command.code or (1 if fault in LOSES_RESULT else 0))
    assert command.is_complete(tmp_path)


@pytest.mark.parametrize("fault", ["full", "gone", "terminal", "asleep", "closed"])
def test_a_run_whose_progress_is_lost_passes_and_notes_since_when(
    sets: dict[str, Path], tmp_path: Path, fault: str
) -> None:
    assert run(shlex.split(COMMANDS["ic"].line.format(**sets)), tmp_path, fault, stdout=False) == 0
    record = read_record(tmp_path / "r")
    assert record.status == "done"
    assert len(list(iterate(record.events, "output_lost"))) == (0 if fault == "closed" else 1)


# One part: the whole self-test takes half a minute.
@pytest.mark.parametrize("fault", ["full", "gone", "terminal", "asleep"])
def test_a_self_test_whose_lines_are_lost_makes_all_its_checks(tmp_path: Path, fault: str) -> None:
    code = (
        "import sys\nfrom hpcai500 import streams\nfrom hpcai500.self_test.command import begin\n"
        "streams._PATIENCE_SECONDS = 0.1\nhere = begin(sys.argv[1:])\n"
        "for name in 'ab': here.findings.check(name, str)"
    )
    with FAULTS[fault]() as descriptor:
        words = [sys.executable, "-c", code, str(tmp_path), "60"]
        ended = subprocess.run(words, stderr=descriptor, check=False, timeout=120)
    assert ended.returncode == 0
    assert [one.name for one in read_findings(tmp_path / "findings.jsonl").ended] == ["a", "b"]
