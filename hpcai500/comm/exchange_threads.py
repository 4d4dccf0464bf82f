"""The threads of a process that talk to other ranks about gradients, each strictly in order."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable

# For all threads together. Idle ones end at once; one that waits for a rank that is gone may wait for ever, and is left
# behind.
_GOODBYE_SECONDS = 2.0

Job = Callable[[], object]


class ExchangeThreads:
    """Do jobs, on each thread in the order in which it was given them. After the first that fails, the rest is left."""

    def __init__(self, count: int) -> None:
        self._error: BaseException | None = None
        # What a wait is for: None from each thread that has come so far, or an error from one that has failed.
        self._reports: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        self._jobs: list[queue.SimpleQueue[Job | None]] = [queue.SimpleQueue() for _ in range(count)]
        # Daemons: a process whose collective never returns must still be able to end.
        self._threads = [
            threading.Thread(target=self._work, args=(jobs,), name=f"hpcai500-exchange-{number}", daemon=True)
            for number, jobs in enumerate(self._jobs)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, number: int, job: Job) -> None:
        """Do `job` on thread `number`, after all that it was given before."""
        self._jobs[number].put(job)

    def wait(self) -> None:
        """Wait until all jobs so far are done, on all threads.

        Raises:
            Exception: what the first job that failed raised, now and in every later call; not waiting for the others.
        """
        for jobs in self._jobs:
            jobs.put(self._report)
        for _ in self._threads:
            if self._error or self._reports.get():
                break
        if self._error:
            raise self._error

    def close(self) -> bool:
        """End the threads; returns whether they have ended. Waits two seconds at most for jobs that do not return."""
        for jobs in self._jobs:
            jobs.put(None)
        deadline = time.monotonic() + _GOODBYE_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _report(self) -> None:
        self._reports.put(None)

    def _work(self, jobs: queue.SimpleQueue[Job | None]) -> None:
        while (job := jobs.get()) is not None:
            if self._error is None:
                try:
                    job()
                except BaseException as error:  # noqa: BLE001  (raised again by whoever waits)
                    self._error = error
                    self._reports.put(error)
