"""Real processes under a monitor, to which something happens. `python monitored_ranks.py FOLDER`.

Every scene runs at once, as processes forked from this one, which has imported what they need: most of them only wait.
Leaves FOLDER/report.json: for each scene and rank the exit code, seconds from the event to its end, and what it heard.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from file_mailbox import communicator

from hpcai500.comm.communicator import LocalCommunicator
from hpcai500.comm.liveness import COMPUTING, EVALUATING, READING, WAITING, LossDetector, Lost, Monitor
from hpcai500.engine.ranks import Ranks
from hpcai500.engine.signals import StopRequest
from hpcai500.errors import CommunicationError, RunError
from hpcai500.hosts import Placement
from hpcai500.system.mounts import unreachable

TIMEOUT = 2.0
HOSTS = ("here", "here", "here")


class Scene:
    """What one rank of a scene has at hand."""

    def __init__(self, folder: Path, rank: int) -> None:
        self.folder, self.rank = folder, rank
        self.ranks = communicator(folder, rank, HOSTS)

    def event(self) -> None:
        """Note the moment from which the others' time counts."""
        if not (self.folder / "event").exists():
            self.note("event", repr(time.monotonic()))
            (self.folder / f"event.{self.rank}").rename(self.folder / "event")

    def note(self, name: str, text: str) -> None:
        (self.folder / f"{name}.{self.rank}").write_text(text)

    def monitor(self) -> Monitor:
        def on_lost(lost: Lost) -> None:
            self.note("lost", lost.message)

        def last_words(message: str) -> None:
            self.note("last_words", message)

        return Monitor(self.ranks, TIMEOUT, on_lost=on_lost, last_words=last_words)


def victim_of(culprit: int, deed: Callable[[Scene, Monitor], None]) -> Callable[[Scene], None]:
    """One rank does something; the others wait for its sum, as if their collective had just failed."""

    def play(scene: Scene) -> None:
        with scene.monitor() as monitor:
            monitor.phase(READING if scene.rank == culprit else WAITING)
            scene.ranks.barrier()
            if scene.rank == culprit:
                scene.event()
                deed(scene, monitor)
            else:
                # Much longer than any wait: a verdict that never comes is a failure, not a slow test.
                lost = monitor.wait_for_verdict(60)
                raise RunError(f"the sum failed: {lost.message if lost else 'nobody knows why'}")

    return play


def by_signal(number: signal.Signals) -> Callable[[Scene, Monitor], None]:
    def deed(scene: Scene, monitor: Monitor) -> None:
        os.kill(os.getpid(), number)
        time.sleep(60)

    return deed


def hang(scene: Scene, monitor: Monitor) -> None:
    while True:
        sum(range(1000))


def fail(scene: Scene, monitor: Monitor) -> None:
    raise RunError("year 1980 cannot be read:\nits disk is gone")


def speak_nonsense(scene: Scene, monitor: Monitor) -> None:
    """A heartbeat with a number that no float holds."""
    (connection,) = monitor._watch._peers.values()
    connection.stream.send(b'{"kind": "beat", "progress": 1, "phase": "computing", "allowance": 1e999}\n')
    time.sleep(60)


def stop_watching(scene: Scene, monitor: Monitor) -> None:
    """The thread that watches meets an error that nobody thought of."""

    def look(detector: LossDetector, now: float) -> None:
        raise ArithmeticError("what nobody thought of")

    with patch.object(LossDetector, "look", look):
        time.sleep(60)


def hang_after_a_failed_sum(scene: Scene) -> None:
    """A sum of rank 1 fails, and nobody ends for it; then rank 1 hangs."""
    if scene.rank != 1:
        return victim_of(1, hang)(scene)

    def fail_at_once() -> None:
        raise CommunicationError("the library has lost its way")

    ranks = _ranks(scene, scene.ranks, TIMEOUT)
    ranks.phase(READING)
    scene.ranks.barrier()
    with patch.object(scene.ranks, "barrier", fail_at_once), suppress(CommunicationError):
        ranks.world.barrier()
    scene.event()
    while True:
        sum(range(1000))


def hang_in_a_sum(scene: Scene) -> None:
    """Rank 1 is killed; the others' sums never return."""
    monitor = scene.monitor()
    monitor.phase(WAITING)
    scene.ranks.barrier()
    if scene.rank == 1:
        scene.event()
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


def hang_in_the_clean_up(scene: Scene) -> None:
    """Rank 1 is killed; the others then hang in a library that lets no other thread of Python run."""
    monitor = scene.monitor()
    scene.ranks.barrier()
    if scene.rank == 1:
        scene.event()
        os.kill(os.getpid(), signal.SIGKILL)
    monitor.wait_for_verdict(60)
    ctypes.PyDLL(None).sleep(60)


def end_in_any_order(scene: Scene) -> None:
    """Rank 0 is done first, the others later than any timeout."""
    with scene.monitor() as monitor:
        scene.ranks.barrier()
        scene.event()
        time.sleep(scene.rank * 1.5 * TIMEOUT)
        assert monitor.verdict() is None


def evaluate_for_long(scene: Scene) -> None:
    """Rank 0 evaluates for longer than the timeout, as it has said, while the others wait."""
    with scene.monitor() as monitor:
        if scene.rank == 0:
            monitor.phase(EVALUATING, allowance_seconds=60)
            time.sleep(2 * TIMEOUT)
        else:
            monitor.phase(WAITING)
        scene.event()
        scene.ranks.barrier()
        assert monitor.verdict() is None


def read_dead_data(patience_seconds: float, *, asked: bool) -> Callable[[Scene], None]:
    """All ranks wait for data, and none for another; `asked`: after a signal to stop."""

    def play(scene: Scene) -> None:
        ranks, stop = _ranks(scene, scene.ranks, patience_seconds), StopRequest(announce=False)
        with _nothing_answers(), ranks.reading(scene.folder / "data", stop):
            ranks.phase(READING)
            scene.ranks.barrier()
            scene.event()
            stop.signal = signal.SIGTERM if asked else None
            time.sleep(60)

    return play


def read_dead_data_alone(scene: Scene) -> None:
    """Three jobs of one rank each."""
    scene.ranks.barrier()
    ranks = _ranks(scene, LocalCommunicator(), TIMEOUT)
    with _nothing_answers(), ranks.reading(scene.folder / "data", StopRequest(announce=False)):
        scene.event()
        time.sleep(60)


def hang_alone(scene: Scene) -> None:
    """Three jobs of one rank each, which hang in their second update."""
    with (scene.folder / f"stderr.{scene.rank}").open("wb") as stderr:
        os.dup2(stderr.fileno(), 2)
    scene.ranks.barrier()
    ranks = _ranks(scene, LocalCommunicator(), TIMEOUT / 4)
    for phase in (COMPUTING, READING):
        ranks.phase(phase)
        # For some heartbeats.
        time.sleep(TIMEOUT / 8)
    ranks.phase(COMPUTING)
    scene.event()
    hang(scene, ranks._monitor)


def read_slow_data(scene: Scene) -> None:
    """All wait for longer than the timeout for data that answer."""
    ranks, stop = _ranks(scene, scene.ranks, TIMEOUT), StopRequest(announce=False)
    with ranks.reading(scene.folder, stop):
        ranks.phase(READING)
        stop.signal = signal.SIGTERM if scene.rank else None
        time.sleep(2 * TIMEOUT)
        scene.event()
    scene.ranks.barrier()


def _ranks(scene: Scene, communicator: Any, timeout_seconds: float) -> Ranks:
    ranks = Ranks(Placement(1, len(HOSTS), 1, len(HOSTS), "mpirun", None, None), communicator, timeout_seconds)
    ranks.on_lost(lambda message: scene.note("lost", message))
    return ranks


def _nothing_answers() -> AbstractContextManager[Any]:
    """In no time nothing does."""
    return patch("hpcai500.engine.ranks.unreachable", partial(unreachable, seconds=0))


def be_suspended(scene: Scene) -> None:
    """All ranks are stopped for longer than the timeout, as by a scheduler, and do not go on at the same moment."""
    with scene.monitor() as monitor:
        monitor.phase(WAITING if scene.rank else READING)
        scene.ranks.barrier()
        pause = 1.5 * TIMEOUT + 0.2 * scene.rank
        subprocess.Popen(["sh", "-c", f"sleep {pause}; kill -CONT {os.getpid()}"])
        os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(TIMEOUT / 2)
        scene.event()
        assert monitor.verdict() is None


SCENES: dict[str, Callable[[Scene], None]] = {
    "rank 1 is killed": victim_of(1, by_signal(signal.SIGKILL)),
    "rank 2 is stopped": victim_of(2, by_signal(signal.SIGSTOP)),
    "rank 1 hangs": victim_of(1, hang),
    "rank 2 fails": victim_of(2, fail),
    "rank 0 is killed": victim_of(0, by_signal(signal.SIGKILL)),
    "rank 0 is stopped": victim_of(0, by_signal(signal.SIGSTOP)),
    "rank 0 hangs": victim_of(0, hang),
    "rank 0 fails": victim_of(0, fail),
    "rank 1 speaks nonsense": victim_of(1, speak_nonsense),
    "rank 0 watches no more": victim_of(0, stop_watching),
    "rank 2 watches no more": victim_of(2, stop_watching),
    "rank 1 hangs after a failed sum": hang_after_a_failed_sum,
    "sums never return": hang_in_a_sum,
    "the clean-up never returns": hang_in_the_clean_up,
    "all end well": end_in_any_order,
    "a long evaluation": evaluate_for_long,
    "a suspended job": be_suspended,
    "dead data": read_dead_data(TIMEOUT, asked=False),
    "dead data, asked to stop": read_dead_data(600.0, asked=True),
    "dead data, one rank": read_dead_data_alone,
    "slow data": read_slow_data,
    "alone and hanging": hang_alone,
}


def run(play: Callable[[Scene], None], folder: Path, rank: int) -> None:
    code = 70
    try:
        play(Scene(folder, rank))
        code = 0
    except RunError as error:
        (folder / f"error.{rank}").write_text(str(error))
        code = 1
    finally:
        os._exit(code)


def heard(folder: Path, rank: int) -> dict[str, str]:
    return {
        name: path.read_text()
        for name in ("error", "lost", "last_words", "stderr")
        if (path := folder / f"{name}.{rank}").exists()
    }


def main(root: Path) -> None:
    running: dict[int, tuple[str, int]] = {}
    for number, (name, play) in enumerate(SCENES.items()):
        folder = root / str(number)
        folder.mkdir()
        for rank in range(len(HOSTS)):
            process = os.fork()
            if process == 0:
                run(play, folder, rank)
            running[process] = name, rank
    report: dict[str, list[dict[str, Any]]] = {name: [{} for _ in HOSTS] for name in SCENES}
    stopped = {process for process, (name, rank) in running.items() if name == f"rank {rank} is stopped"}
    while len(running) > len(stopped):
        process, status = os.wait()
        name, rank = running.pop(process)
        folder = root / str(list(SCENES).index(name))
        seconds = time.monotonic() - float((folder / "event").read_text())
        code = os.waitstatus_to_exitcode(status)
        report[name][rank] = {"code": code, "seconds": seconds, **heard(folder, rank)}
    for process in stopped:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
    (root / "report.json").write_text(json.dumps(report))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
