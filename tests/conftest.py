"""Where HPCAI500_REQUIRE_ALL=1, a test may be skipped only for what the machine cannot have.

Any other skip fails the run: otherwise, a test whose library or tool is missing from CI would stay green for ever.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

# torch.compile asks setuptools for paths, and setuptools refuses to load after the standard library's distutils, which
# pip's internals load when a test of the set-up asks them something. First come, no quarrel.
with contextlib.suppress(ImportError):
    import setuptools  # noqa: F401

import pytest
from hypothesis import settings

# A loaded machine is slow, not wrong: speed is measured in benchmarks/.
settings.register_profile("hpcai500", deadline=None)
settings.load_profile("hpcai500")

# The start of each skip reason that excuses a machine. torchvision's wheel wants the torch that it was built beside.
EXCUSED = (
    "no CUDA device",
    "this machine has a CUDA device",
    "torchvision does not import beside this torch",
    "no RAPL on this machine",
)


def _unexcused_skips(reporter: pytest.TerminalReporter) -> list[str]:
    """`test: reason` of each skip without an excuse, once each."""
    found = []
    for report in reporter.stats.get("skipped", []):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        reason = reason.removeprefix("Skipped: ")
        if not hasattr(report, "wasxfail") and not reason.startswith(EXCUSED):
            found.append(f"{report.nodeid}: {reason}")
    return list(dict.fromkeys(found))


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Turn a green session with unexcused skips red, on the process that reports (xdist's workers do not)."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if os.environ.get("HPCAI500_REQUIRE_ALL") != "1" or reporter is None or hasattr(session.config, "workerinput"):
        return
    skips = _unexcused_skips(reporter)
    if skips and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    for skip in skips:
        reporter.write_line(f"SKIPPED WITHOUT AN EXCUSE {skip}", red=True)


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small image set in ImageNet's layout."""
    from hpcai500.data.imagenet.synthetic import SyntheticSet, make_images

    root = tmp_path_factory.mktemp("images")
    make_images(root, SyntheticSet(classes=3, train_per_class=11, val_per_class=4), workers=1)
    return root


@pytest.fixture(scope="session")
def weather(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two small climate years, 1979 and 1980, one chunk an image."""
    from hpcai500.data.climate.weather.synthetic import SyntheticYears, make_years

    root = tmp_path_factory.mktemp("weather")
    make_years(root, SyntheticYears(last_year=1980, images_per_year=10, height=64, width=96), workers=1)
    return root
