"""Hosts for the tests of a site, and a place for what they measure."""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hosts import Site, why_not
from image import Image, why_no_image
from slurm import Slurm, why_no_slurm


@pytest.fixture
def two_hosts() -> Iterator[Site]:
    """Hosts h1 and h2 on one switch; `shape` limits their links."""
    if reason := why_not():
        pytest.skip(reason)
    with Site("h1", "h2") as site:
        yield site


@pytest.fixture(scope="session")
def slurm() -> Iterator[Slurm]:
    """A Slurm of two nodes, n1 and n2."""
    if reason := why_not() or why_no_slurm():
        pytest.skip(reason)
    with Site("n1", "n2") as site:
        yield Slurm(site)


@pytest.fixture(scope="session")
def image() -> Iterator[Image]:
    """The CPU image, where an ordinary user reaches it."""
    if reason := why_no_image():
        pytest.skip(reason)
    image = Image()
    yield image
    image.close()


# Two files that every worker can open, for their locks alone.
_DOOR, _ROOM = Path(__file__), Path(__file__).with_name("hosts.py")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Let a test that is marked `alone` run while no other worker's does, its fixtures too."""
    with _DOOR.open() as door, _ROOM.open() as room:
        # Who waits for the room keeps the door shut: nobody else may enter first, again and again.
        fcntl.flock(door, fcntl.LOCK_EX)
        fcntl.flock(room, fcntl.LOCK_EX if item.get_closest_marker("alone") else fcntl.LOCK_SH)
        fcntl.flock(door, fcntl.LOCK_UN)
        return (yield)


@pytest.fixture
def measured(record_property: Callable[[str, object], None]) -> Callable[[str, float, str], None]:
    """`measured(what, value, unit)`: into the report of the test, and into the summary at the end."""
    return lambda what, value, unit: record_property("measured", f"{what}: {value:.3f} {unit}")


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List what was measured, also where all is well."""
    reports = [report for group in terminalreporter.stats.values() for report in group]
    lines = [line for report in reports if getattr(report, "when", "") == "call" for line in report.user_properties]
    if lines:
        terminalreporter.section("measured")
        for _, line in lines:
            terminalreporter.write_line(str(line))
