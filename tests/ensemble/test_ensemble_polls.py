"""What it costs to look at ten thousand members: so many files a poll, whatever happens, and nothing for who waits."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from fakes.slurm import START_S, MadeCluster, MadeMember, plan

from hpcai500.ensemble.journal import Ensemble
from hpcai500.ensemble.members import MOST_FILES, Memory
from hpcai500.ensemble.scheduler import MemberJob
from hpcai500.ensemble.status import Status, percentiles, read_status, status_of


@dataclass
class Seen:
    """What this process did with files, told by the interpreter itself.

    Attributes:
        opened: paths of files, in order.
        written: paths of those opened to be written to, made, moved or removed.
        listed: folders whose entries were read.
        locked: how many locks were asked for.
    """

    opened: list[str] = field(default_factory=list)
    written: list[str] = field(default_factory=list)
    listed: list[str] = field(default_factory=list)
    locked: int = 0


_watched: list[Seen] = []
_CHANGES = {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate", "os.link", "os.symlink", "os.chmod"}


def _hook(event: str, arguments: tuple[object, ...]) -> None:
    if not _watched:
        return
    seen = _watched[-1]
    if event == "open":
        path, _, flags = arguments
        seen.opened.append(str(path))
        if isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            seen.written.append(str(path))
    elif event in ("os.listdir", "os.scandir"):
        seen.listed.append(str(arguments[0]))
    elif event in _CHANGES:
        seen.written.append(str(arguments[0]))
    elif event in ("fcntl.flock", "fcntl.lockf"):
        seen.locked += 1


# It cannot be taken away again: it does nothing unless `watched`.
sys.addaudithook(_hook)


@contextmanager
def watched() -> Iterator[Seen]:
    """Watch what is done with files meanwhile."""
    _watched.append(Seen())
    try:
        yield _watched[-1]
    finally:
        _watched.pop()


def poll(ensemble: Ensemble, jobs: dict[int, MemberJob] | None, memory: Memory) -> tuple[Status, Seen]:
    with watched() as seen:
        status = read_status(ensemble, jobs, memory)
    return status, seen


def of_members(seen: Seen) -> list[str]:
    """Numbers of the members whose files were opened."""
    return [Path(path).parts[Path(path).parts.index("members") + 1] for path in seen.opened if "/members/" in path]


def test_ten_thousand_members_take_so_many_files_a_poll_and_all_that_run_are_seen(tmp_path: Path) -> None:
    """A made-up Slurm: 3000 of 10,000 run at a time, an hour an epoch, and are looked at every ten seconds."""
    cluster = MadeCluster(plan(tmp_path / "e", 10_000), at_once=3000, epoch_seconds=3600.0)
    ensemble, memory = cluster.ensemble, Memory(clock=cluster.clock)
    unseen, polls = set(range(3000)), 0
    while unseen:
        cluster.advance(10)
        with watched() as seen:
            cost = memory.poll(ensemble, cluster.jobs(ensemble))
        opened = of_members(seen)
        assert len(opened) == cost.files <= MOST_FILES
        assert max(map(int, opened)) < 3000, "who waits was looked at"
        assert not seen.listed
        unseen -= set(map(int, opened))
        polls += 1
    # Journal and record of each; and of one that was seen before, the record, in turn.
    assert polls <= 1 + 3 * 3000 // (MOST_FILES - 9)
    # From now on a look opens the progress alone.
    for _ in range(5):
        cluster.advance(10)
        with watched() as seen:
            cost = memory.poll(ensemble, cluster.jobs(ensemble))
        assert {Path(path).name for path in seen.opened if "/members/" in path} == {"progress.json"}
        assert (cost.members, cost.files) == (MOST_FILES - 8, MOST_FILES - 8)
        assert cost.read_bytes < 1000 * cost.files
    status = status_of(ensemble, cluster.jobs(ensemble), memory, [cost])
    assert status.states == {**dict.fromkeys(status.states, 0), "running": 3000, "waiting": 7000}
    assert len(list(status.lines(100))) < 60


def test_whatever_ends_and_begins_every_running_member_is_seen_again_and_again(tmp_path: Path) -> None:
    cluster = MadeCluster(plan(tmp_path / "e", 600, epochs=2), at_once=120, epoch_seconds=30.0)
    files = 64
    memory, last_seen = Memory(files, clock=cluster.clock), dict[int, int]()
    for number in range(40):
        cluster.advance(10)
        jobs = cluster.jobs(cluster.ensemble)
        status, seen = poll(cluster.ensemble, jobs, memory)
        assert status.polls[0].files <= files
        last_seen |= dict.fromkeys(map(int, of_members(seen)), number)
        running = [member for member, job in jobs.items() if job.state == "running"]
        for member in running:
            began = last_seen.setdefault(member, number)
            assert number - began <= 3 * 120 // ((files - 9) // 3)


def test_nothing_is_opened_when_all_is_done_and_known(tmp_path: Path) -> None:
    ensemble = plan(tmp_path / "e", 100)
    for member in ensemble.members:
        one = MadeMember(ensemble, member)
        one.begin(START_S)
        one.end(START_S)
    jobs = {member: MemberJob(member, "ended") for member in ensemble.members}
    memory = Memory()
    assert sum(one.files for one in memory.catch_up(ensemble, jobs)) == 300
    status, seen = poll(ensemble, jobs, memory)
    assert not of_members(seen)
    assert status.states["done"] == 100


def test_nothing_is_written_listed_or_locked(tmp_path: Path) -> None:
    """As anyone may look who can read."""
    ensemble = plan(tmp_path / "e", 10)
    for member in range(8):
        MadeMember(ensemble, member).begin(START_S)
    for jobs in (None, {member: MemberJob(member, "running") for member in ensemble.members}):
        _, seen = poll(ensemble, jobs, Memory())
        assert len(of_members(seen)) > 10
        assert not seen.written
        # A process that is young still lists folders of Python's own.
        assert not [path for path in seen.listed if Path(path).is_relative_to(tmp_path)]
        assert not seen.locked


def test_without_a_scheduler_members_take_turns(tmp_path: Path) -> None:
    ensemble = plan(tmp_path / "e", 100)
    memory, turns = Memory(33, clock=lambda: START_S), list[int]()
    for _ in range(10):
        status, seen = poll(ensemble, None, memory)
        assert status.polls[0].files <= 33
        turns += map(int, of_members(seen))
    assert sorted(turns[:100]) == list(range(100))
    assert turns[:100] == turns[100:200]
    assert status.states["waiting"] == 100


def test_who_ended_is_not_kept_waiting_by_who_runs(tmp_path: Path) -> None:
    cluster = MadeCluster(plan(tmp_path / "e", 200), at_once=200, epoch_seconds=3600.0)
    memory = Memory(40, clock=cluster.clock)
    for _ in memory.catch_up(cluster.ensemble, cluster.jobs(cluster.ensemble)):
        pass
    cluster.finish(150)
    status, _ = poll(cluster.ensemble, cluster.jobs(cluster.ensemble), memory)
    assert status.rows[150].state == "done"


def test_bytes_of_a_poll_are_bounded_and_the_rest_is_read_later(tmp_path: Path) -> None:
    ensemble = plan(tmp_path / "e", 6)
    jobs = {member: MemberJob(member, "running") for member in ensemble.members}
    for member in ensemble.members:
        one = MadeMember(ensemble, member, is_old=True)
        one.begin(START_S)
        one.events.add(START_S, ("ceilings", "x" * 10_000))
    memory = Memory(read_bytes=25_000)
    found = [memory.poll(ensemble, jobs).members for _ in range(2)]
    assert found == [3, 3]


@pytest.mark.parametrize(("values", "expected"), [([3.0], (3, 3, 3)), (list(map(float, range(1, 11))), (1, 5.5, 9))])
def test_percentiles_are_values_that_there_are_and_the_median_lies_in_the_middle(
    values: list[float], expected: tuple[float, ...]
) -> None:
    found = percentiles(values)
    assert found
    assert (found.p10, found.p50, found.p90) == expected
    assert percentiles([]) is None
