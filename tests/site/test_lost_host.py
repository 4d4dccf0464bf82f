"""A host that disappears in the middle of a run: the others end in time with its name, and the run goes on later."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from builders.runs import train_arguments
from hosts import Site
from site_ranks import finish, layout, start_ranks

from hpcai500.comm.liveness import bound_seconds
from hpcai500.record import iterate, read_record

pytestmark = pytest.mark.alone

TIMEOUT = 4.0
HOSTS = ("h1", "h2")
HPCAI500 = Path(sys.executable).with_name("hpcai500")


def wait_for(record: Path, key: str, count: int, processes: Sequence[subprocess.Popen[str]]) -> None:
    """Until the record has `count` events named `key`."""
    log, needle = record / "events.jsonl", f'"key":"{key}"'.encode()
    limit = time.monotonic() + 90
    while not log.exists() or log.read_bytes().count(needle) < count:
        for process in processes:
            assert process.poll() is None, f"ended before {count} events {key}: {process.communicate()[0]}"
        assert time.monotonic() < limit, f"no {count} events {key} in 90 s"
        time.sleep(0.05)


@pytest.fixture
def settings() -> list[str]:
    return [*layout(HOSTS), "communication.backend=torch", f"communication.timeout_seconds={TIMEOUT}"]


def ended_after(left: subprocess.Popen[str], start: float) -> tuple[str, float]:
    """What the survivor said, and when it had ended."""
    output = left.communicate(timeout=90)[0]
    seconds = time.monotonic() - start
    assert left.returncode == 1, output
    # The interpreter needs time to end too, on a machine that plays two hosts.
    assert TIMEOUT - 1 < seconds < bound_seconds(TIMEOUT) + 2, output
    return output, seconds


def test_a_host_that_disappears_ends_the_job_in_time_with_its_name_and_the_run_goes_on(
    two_hosts: Site, images: Path, tmp_path: Path, settings: list[str], measured: Callable[[str, float, str], None]
) -> None:
    record = tmp_path / "record"
    arguments = train_arguments(images, record, "problem.epochs=5000", "hyperparameters.batch_size=4", *settings)
    ranks = start_ranks(two_hosts, HOSTS, [HPCAI500, "ic", *arguments])
    wait_for(record, "checkpoint", 2, ranks)
    two_hosts.power_off("h2")
    output, seconds = ended_after(ranks[0], time.monotonic())
    measured(f"rank 0 ended after the host of rank 1 (bound {bound_seconds(TIMEOUT):.1f} s)", seconds, "s")
    named = "rank 1 on host h2: no sign of life for "
    assert named in output
    assert (record / "ERROR").read_text().startswith(named)
    assert read_record(record).status == "error"
    _goes_on(two_hosts, record, "h2")


def test_a_rank_whose_rank_0_disappears_ends_in_time_with_its_name(
    two_hosts: Site, images: Path, tmp_path: Path, settings: list[str], measured: Callable[[str, float, str], None]
) -> None:
    record = tmp_path / "record"
    arguments = train_arguments(images, record, "problem.epochs=5000", "hyperparameters.batch_size=4", *settings)
    ranks = start_ranks(two_hosts, HOSTS, [sys.executable, "-m", "hpcai500.train", *arguments])
    wait_for(record, "checkpoint", 1, ranks)
    two_hosts.power_off("h1")
    output, seconds = ended_after(ranks[1], time.monotonic())
    measured(f"rank 1 ended after the host of rank 0 (bound {bound_seconds(TIMEOUT):.1f} s)", seconds, "s")
    assert "rank 0 on host h1: no sign of life for " in output


def _goes_on(site: Site, record: Path, victim: str) -> None:
    """The victim is back: the run continues at its last checkpoint, and then stops when it is told to."""
    saved = [event["value"]["epoch"] for event in iterate(read_record(record).events, "checkpoint")]
    site.plug_in(victim)
    ranks = start_ranks(site, HOSTS, [HPCAI500, "ic", "--resume", "--out", record])
    wait_for(record, "checkpoint", len(saved) + 2, ranks)
    for host in HOSTS:
        site.signal(host, signal.SIGTERM)
    output = finish(site, ranks, 60)
    assert "stopped by SIGTERM" in output
    events = read_record(record).events
    (resumed,) = iterate(events, "run_resume")
    assert resumed["value"]["epoch"] == saved[-1]
