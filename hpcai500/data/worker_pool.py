"""Work shared by processes: results in the order of the tasks, a bounded number of them under way."""

from __future__ import annotations

import multiprocessing
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.context import SpawnContext
from typing import TypeVar

from hpcai500.errors import RunError
from hpcai500.stopping import end_with_parent
from hpcai500.streams import say

Task = TypeVar("Task")
Result = TypeVar("Result")


def map_in_order(
    function: Callable[[Task], Result], tasks: Iterable[Task], workers: int, *, what: str
) -> Iterator[Result]:
    """Yield `function(task)` for each task, in order, from `workers` processes (one worker: from this process).

    `function` and tasks must be picklable. With more than one worker, a script's main module must be importable, as
    always with Python's "spawn". `what` completes "a process that …" in the error message.

    Raises:
        RunError: a worker process was killed.
    """
    if workers == 1:
        yield from map(function, tasks)
        return
    # Spawned, not forked: a forked child of a process that has run torch's threads can hang.
    context = multiprocessing.get_context("spawn")
    if reason := _why_alone(context):
        say(f"{reason}: one process does the work of {workers}")
        yield from map(function, tasks)
        return
    resource_tracker.ensure_running()
    try:
        with ProcessPoolExecutor(workers, mp_context=context, initializer=_die_with_parent) as pool:
            try:
                yield from _windowed(pool, function, tasks, window=4 * workers)
            except BaseException:
                pool.shutdown(wait=True, cancel_futures=True)
                raise
    except BrokenProcessPool as error:
        raise RunError(
            f"a process that {what} was killed, perhaps for memory: run the command again to continue, "
            "with fewer workers"
        ) from error


def _why_alone(context: SpawnContext) -> str | None:
    """Why processes cannot talk to each other here, or None: semaphores are files in /dev/shm."""
    try:
        context.Lock()
    except OSError as error:
        return f"/dev/shm cannot be used ({error.strerror})"  # noqa: S108 - its name, and not a file in it
    return None


def _die_with_parent() -> None:
    """End when the parent ends, also when it was killed: an orphan would wait for work for ever."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    assert parent.pid is not None
    end_with_parent(parent.pid)


def _windowed(
    pool: ProcessPoolExecutor, function: Callable[[Task], Result], tasks: Iterable[Task], window: int
) -> Iterator[Result]:
    """Keep `window` tasks in the pool, however many there are."""
    pending: deque[Future[Result]] = deque()
    for task in tasks:
        with _interrupts_kept_from_children():
            pending.append(pool.submit(function, task))
        if len(pending) == window:
            yield pending.popleft().result()
    while pending:
        yield pending.popleft().result()


@contextmanager
def _interrupts_kept_from_children() -> Iterator[None]:
    """Let a process that starts meanwhile never see Ctrl-C: the parent ends it in order, without a traceback.

    Ctrl-C reaches the whole process group. A child inherits the mask; an initializer would come too late for a child
    that is still importing.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
