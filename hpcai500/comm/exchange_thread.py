"""The one thread of a process that talks to other ranks about gradients, and does so strictly in order."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

# An idle thread ends at once; one that waits for a rank that is gone may wait for ever, and is left behind.
_GOODBYE_SECONDS = 2.0

Job = Callable[[], None]


class ExchangeThread:
    """Does jobs in the order in which they were given. After the first one that fails, the rest is left undone."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._error: BaseException | None = None
        # A daemon: a process whose collective never returns must still be able to end.
        self._thread = threading.Thread(target=self._work, name="hpcai500-exchange", daemon=True)
        self._thread.start()

    def submit(self, job: Job) -> None:
        """Do `job` after all that were given before."""
        self._jobs.put(job)

    def wait(self) -> None:
        """Wait until all jobs so far are done.

        Raises:
            Exception: what the first job that failed raised, now and in every later call.
        """
        done = threading.Event()
        # Not skipped after an error, as jobs are: whoever waits must be woken.
        self._jobs.put(_Wake(done))
        done.wait()
        if self._error:
            raise self._error

    def close(self) -> bool:
        """End the thread; returns whether it has ended. Never waits long for a job that does not return."""
        self._jobs.put(None)
        self._thread.join(_GOODBYE_SECONDS)
        return not self._thread.is_alive()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            if isinstance(job, _Wake):
                job()
            elif self._error is None:
                try:
                    job()
                except BaseException as error:  # noqa: BLE001  (raised again by whoever waits)
                    self._error = error


class _Wake:
    def __init__(self, done: threading.Event) -> None:
        self._done = done

    def __call__(self) -> None:
        self._done.set()
