"""Hosts for the tests of a site, and a place for what they measure."""

from __future__ import annotations

from collections.abc import Callable, Iterator

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
