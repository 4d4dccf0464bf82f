"""Where HPCAI500_REQUIRE_ALL=1, a test may be skipped only for what the machine cannot have.

Any other skip fails the run: otherwise, a test whose library or tool is missing from CI would stay green for ever.
On a machine that has a CUDA device, a test that found none is such a skip: a driver that broke, or a torch or a core
that was built without CUDA, would leave all kernels untested. It is told wherever it happens.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

# torch.compile asks setuptools for paths, and setuptools refuses to load after the standard library's distutils, which
# pip's internals load when a test of the set-up asks them something. First come, no quarrel.
with contextlib.suppress(ImportError):
    import setuptools  # noqa: F401

import pytest
from hypothesis import settings

# As the product loads it: OpenMP's threads hardly spin while they wait, for other tests use the same cores.
_BEFORE = set(os.environ)
with contextlib.suppress(ImportError):
    from hpcai500.engine.measurement import load_torch

    load_torch()
for _name in os.environ.keys() - _BEFORE:
    del os.environ[_name]

# What a shell starts in the background ignores Ctrl-C, and what nohup starts SIGHUP: so would what a test stops.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

# A loaded machine is slow, not wrong: speed is measured in benchmarks/.
# CI draws the same examples each time: what a rare one finds belongs to whoever looks for it, not to the next change.
settings.register_profile("hpcai500", deadline=None, derandomize=os.environ.get("HPCAI500_REQUIRE_ALL") == "1")
settings.load_profile("hpcai500")

# The start of each skip reason that excuses a machine. torchvision's wheel wants the torch that it was built beside.
EXCUSED = (
    "no CUDA device",
    "no CUDA compiler",
    "this machine has a CUDA device",
    "torchvision does not import beside this torch",
    "no RAPL on this machine",
    "DALI has no wheel for this processor",
    "this processor has no AVX2",
    "this is no x86-64 processor",
    "this system's packages have no C++ compiler for 64-bit Arm",
)
# Of those, what a machine with a device is not excused by: what follows names something that the device itself lacks.
NEEDS_DEVICE = "no CUDA device"
LACKED_BY_DEVICE = "no CUDA device with "


def is_excused(reason: str, *, has_device: bool) -> bool:
    """Whether a test may be skipped for `reason`, on a machine that has a CUDA device or none."""
    if has_device and reason.startswith(NEEDS_DEVICE) and not reason.startswith(LACKED_BY_DEVICE):
        return False
    return reason.startswith(EXCUSED)


def _has_device() -> bool:
    """Whether this process is shown an NVIDIA device, whether or not torch can use it."""
    try:
        from hpcai500.system.accelerator import find_traces
    except ImportError:
        return False
    return bool(find_traces().devices)


def _skips(reporter: pytest.TerminalReporter, *, has_device: bool) -> list[str]:
    """`test: reason` of each skip without an excuse, once each."""
    found = []
    for report in reporter.stats.get("skipped", []):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        reason = reason.removeprefix("Skipped: ")
        if not hasattr(report, "wasxfail") and not is_excused(reason, has_device=has_device):
            found.append(f"{report.nodeid}: {reason}")
    return list(dict.fromkeys(found))


@pytest.fixture(autouse=True)
def _exact_products_on_a_device(request: pytest.FixtureRequest) -> Iterator[None]:
    """Tests of a device begin with fp32 that is fp32, not TF32 as torch's convolutions, and leave no switch behind."""
    if request.node.get_closest_marker("gpu") is None:
        yield
        return
    import torch

    cudnn, matmul = torch.backends.cudnn, torch.get_float32_matmul_precision()
    before = cudnn.allow_tf32, cudnn.benchmark, cudnn.deterministic
    torch.set_float32_matmul_precision("highest")
    cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(matmul)
        cudnn.allow_tf32, cudnn.benchmark, cudnn.deterministic = before


CHECKOUT = Path(__file__).parent.parent
# What pytest, hypothesis and mypy keep, and builds.
KEPT = {".cache", ".hypothesis", ".mypy_cache", ".pytest_cache", ".ruff_cache", "__pycache__", "build"}
BEFORE = pytest.StashKey[set[str]]()


def pytest_sessionstart(session: pytest.Session) -> None:
    session.stash[BEFORE] = {path.name for path in CHECKOUT.iterdir()}


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Turn a green session red that skipped without an excuse, or left something in the checkout.

    On the process that reports: xdist's workers do not.
    """
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or hasattr(session.config, "workerinput"):
        return
    has_device = _has_device()
    if os.environ.get("HPCAI500_REQUIRE_ALL") != "1":
        if has_device and any(NEEDS_DEVICE in skip for skip in _skips(reporter, has_device=True)):
            reporter.write_line("THIS MACHINE HAS A CUDA DEVICE, AND TESTS WERE SKIPPED FOR LACK OF ONE", red=True)
        return
    skips = _skips(reporter, has_device=has_device)
    left = sorted({path.name for path in CHECKOUT.iterdir()} - session.stash[BEFORE] - KEPT)
    if (skips or left) and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    for name in left:
        reporter.write_line(f"A TEST LEFT {name} IN THE CHECKOUT", red=True)
    for skip in skips:
        reporter.write_line(f"SKIPPED WITHOUT AN EXCUSE {skip}", red=True)


@pytest.fixture(autouse=True)
def _no_signal_of_another_test() -> None:
    """What stopped a command is known all over its process: here, one process runs many of them."""
    if stopping := sys.modules.get("hpcai500.stopping"):
        stopping.Stopped.last = None


@pytest.fixture(autouse=True)
def _no_monitor_left() -> Iterator[None]:
    """A monitor that nobody closes ends its process when nothing moves any more: here, all tests, much later."""
    before = threading.enumerate()
    yield
    left = [thread for thread in threading.enumerate() if thread.name == "monitor" and thread not in before]
    for thread in left:
        thread.join(5)
    assert not any(thread.is_alive() for thread in left), "the monitor of a job was not closed"


@pytest.fixture(autouse=True)
def _no_new_start_of_pytest(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command starts its process again where that imports from the current folder, as pytest's does."""
    with contextlib.suppress(ImportError):  # the core is not built: a test of the set-up
        monkeypatch.setattr("hpcai500.cli.isolate", lambda: None)


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
    from hpcai500.data.climate.synthetic import SyntheticYears, make_years

    root = tmp_path_factory.mktemp("weather")
    make_years(root, SyntheticYears(last_year=1980, images_per_year=10, height=64, width=96), workers=1)
    return root
