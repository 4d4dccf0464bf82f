"""Many pieces, a few threads: what they wait for is storage, and digesting lets go of the interpreter."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait

from hpcai500.data.staging.copying import Stopped
from hpcai500.data.staging.meter import Meter

# A shared file system answers late: more threads than cores keep it busy.
_LEAST_THREADS, _MOST_THREADS = 4, 32


def default_threads() -> int:
    """Two for each core of this job, within reason."""
    return min(_MOST_THREADS, max(_LEAST_THREADS, 2 * len(os.sched_getaffinity(0))))


class Watch:
    """Counts for the meter, and ends the others when one thread has failed."""

    def __init__(self, meter: Meter) -> None:
        self._meter, self._stopped = meter, threading.Event()

    def count(self, count_bytes: int) -> None:
        """Count bytes that are done."""
        self._meter.add(count_bytes)

    def stop(self) -> bool:
        """Whether to give up."""
        return self._stopped.is_set()

    def end(self) -> None:
        """Have all give up."""
        self._stopped.set()


def in_threads(
    work: Callable[[Sequence[int]], None], batches: Iterable[Sequence[int]], threads: int, watch: Watch
) -> None:
    """Do `work` on each of `batches`; the first error ends the others within a block, and is raised."""
    errors: list[BaseException] = []

    def guarded(batch: Sequence[int]) -> None:
        if watch.stop():
            return
        try:
            work(batch)
        except Stopped:
            return
        except BaseException as error:  # noqa: BLE001 - raised below, by the thread that waits
            errors.append(error)
            watch.end()

    with ThreadPoolExecutor(threads, thread_name_prefix="stage") as pool:
        try:
            wait([pool.submit(guarded, batch) for batch in batches])
        except BaseException:
            watch.end()
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    if errors:
        raise errors[0]
