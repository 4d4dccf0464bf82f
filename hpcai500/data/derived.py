"""Files derived from a data set, and code shared by commands that write sets.

Derived files are kept inside the set, or in the user's cache if the set is read-only.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.context import SpawnContext
from pathlib import Path
from typing import Any, TypeVar

from hpcai500.errors import DataError, RunError
from hpcai500.files import HeldFolder, write_unsynced
from hpcai500.stopping import STOPPING, end_with_parent
from hpcai500.streams import say

# ----------------------------------------------------------------------------------------------------
# Where derived files are kept.


def derived_paths(root: Path, name: str) -> tuple[Path, ...]:
    """Possible paths of a file derived from the set at `root`: in the set, or in the user's cache."""
    try:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:
        # A container may run under a user id that has no home.
        return (root / name,)
    place = hashlib.sha256(os.fsencode(root.resolve())).hexdigest()[:32]
    return root / name, cache / "hpcai500" / place / name.removeprefix(".")


def write_derived(root: Path, name: str, content: bytes) -> None:
    """Keep `content` for later runs in the first writable place; without one, later runs compute it again."""
    for path in derived_paths(root, name):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_unsynced(path, content)
        except OSError:
            continue
        return


# ----------------------------------------------------------------------------------------------------
# A folder for unfinished files, removed by the call that writes them or by the next call.


@contextmanager
def part_folder(root: Path) -> Iterator[Path]:
    """Make a temporary folder in `root` for a `with` block.

    Folders that killed processes have left are removed first: they can be as large as the set. Raises OSError when
    `root` cannot be written.
    """
    with HeldFolder(root, ".hpcai500-part-") as folder:
        yield Path(folder)


# ----------------------------------------------------------------------------------------------------
# The file that records the parameters of a synthetic set, so that different sets do not mix.


MANIFEST = ".hpcai500-synthetic.json"


def claim_folder(
    root: Path, parameters: Mapping[str, Any], occupied_by: Sequence[str], notes: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Claim `root` for the set with `parameters` (JSON values), or check that it already belongs to it.

    `notes` are written beside the parameters of a new set, and may differ from those of an old one. Returns all that
    the set's manifest has.

    Raises:
        DataError: it holds a set with other parameters, or files of others (`occupied_by`).
        OSError: it cannot be made or written.
    """
    manifest = root / MANIFEST
    ours = json.loads(json.dumps(dict(parameters)))
    noted = {**ours, **(notes or {})}
    if manifest.exists():
        found = _read(manifest)
        if {key: value for key, value in found.items() if key in ours or key not in noted} != ours:
            different = [f"{key} {found.get(key)}, not {ours[key]}" for key in ours if found.get(key) != ours[key]]
            raise DataError(
                f"{root} holds a synthetic set made with {'; '.join(different) or 'other parameters'}: "
                "choose another folder, or remove this one first"
            )
        return found
    if occupied_by:
        raise DataError(
            f"{root} already has {' and '.join(occupied_by)}, not made by this command: choose another folder"
        )
    root.mkdir(parents=True, exist_ok=True)
    write_unsynced(manifest, (json.dumps(noted, indent=1) + "\n").encode())
    return noted


def _read(manifest: Path) -> dict[str, object]:
    try:
        found = json.loads(manifest.read_bytes())
    except ValueError as error:
        raise DataError(f"{manifest} is damaged ({error}): remove {manifest.parent} and make the set again") from error
    if not isinstance(found, dict):
        raise DataError(f"{manifest} is damaged (no JSON object): remove {manifest.parent} and make the set again")
    return found


# ----------------------------------------------------------------------------------------------------
# Work shared by processes or threads: results in the order of the tasks, a bounded number of tasks at a time.


def workers_or_all(
    requested: int | None, *, work: str = "work", kind: str = "processes", option: str = "--workers"
) -> int:
    """The number of workers: as `requested`, or one per core of this job.

    Raises:
        DataError: fewer than one.
    """
    if requested is None:
        return len(os.sched_getaffinity(0))
    if requested < 1:
        raise DataError(f"cannot {work} with {requested} {kind}: {option} must be at least 1")
    return requested


Task = TypeVar("Task")
Result = TypeVar("Result")


def map_in_order(
    function: Callable[[Task], Result], tasks: Iterable[Task], workers: int, *, what: str
) -> Generator[Result, None, None]:
    """Yield `function(task)` for each task, in order, from `workers` processes (one worker: from this process).

    `function` and tasks must be picklable. With more than one worker, a script's main module must be importable, as
    always with Python's "spawn". `what` completes "a process that …" in the error message.

    Raises:
        RunError: a worker process was killed.
    """
    if workers == 1:
        yield from map(function, tasks)
        return
    # Spawned, not forked: a child forked from a process with torch threads can hang.
    context = multiprocessing.get_context("spawn")
    if reason := _no_processes_reason(context):
        say(f"{reason}: working with one process instead of {workers}")
        yield from map(function, tasks)
        return
    resource_tracker.ensure_running()
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_die_with_parent)
    try:
        yield from _windowed(pool, function, tasks, window=4 * workers)
    except BrokenProcessPool as error:
        raise RunError(
            f"a process that {what} was killed, perhaps for lack of memory: to continue, run the command again "
            "with fewer workers"
        ) from error
    finally:
        # Python 3.11 takes a thread for ended where an exception comes out of its join. That of the pool would go on,
        # its pipes would be closed under it, and the workers would wait for ever.
        with _held(*STOPPING):
            pool.shutdown(wait=True, cancel_futures=True)


def map_in_threads(
    function: Callable[[Task], Result], tasks: Iterable[Task], threads: int, *, name: str
) -> Generator[Result, None, None]:
    """Yield `function(task)` for each task, in order, from `threads` threads, whose names begin with `name`."""
    pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
    try:
        yield from _windowed(pool, function, tasks, window=4 * threads)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _no_processes_reason(context: SpawnContext) -> str | None:
    """Why this host cannot run worker processes, or None: their semaphores are files in /dev/shm."""
    try:
        context.Lock()
    except OSError as error:
        return f"/dev/shm cannot be used ({error.strerror})"  # noqa: S108 - a message, not a path that is opened
    return None


def _die_with_parent() -> None:
    """End when the parent ends, even if it is killed: an orphan would wait for work for ever."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    assert parent.pid is not None
    end_with_parent(parent.pid)


def _windowed(
    pool: Executor, function: Callable[[Task], Result], tasks: Iterable[Task], window: int
) -> Iterator[Result]:
    """Keep at most `window` tasks in the pool."""
    pending: deque[Future[Result]] = deque()
    for task in tasks:
        with _held(signal.SIGINT):
            pending.append(pool.submit(function, task))
        if len(pending) == window:
            yield pending.popleft().result()
    while pending:
        yield pending.popleft().result()


@contextmanager
def _held(*numbers: signal.Signals) -> Iterator[None]:
    """Hold back these signals, here and in child processes that start meanwhile.

    Ctrl-C reaches the whole process group, and the parent ends its children, without a traceback. A child inherits the
    signal mask; an initializer would run too late for a child that is still importing. In this process another thread,
    of a library, may take the signal, and Python would then interrupt this one before it has told the child what to do.
    """
    came: list[int] = []
    # Handlers run in the main thread, and only one that Python has set can be put back.
    is_main = threading.current_thread() is threading.main_thread()
    before = {number: handler for number in numbers if is_main and (handler := signal.getsignal(number)) is not None}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    for number in before:
        signal.signal(number, lambda number, _: came.append(number))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if came:
            signal.raise_signal(came[0])
