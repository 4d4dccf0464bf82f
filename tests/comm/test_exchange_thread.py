"""The exchange thread does things in order, tells what went wrong, and lets go of what never ends."""

from __future__ import annotations

import threading
import time

import pytest

from hpcai500.comm import exchange_thread
from hpcai500.comm.exchange_thread import ExchangeThread


def test_jobs_are_done_in_order_on_one_other_thread() -> None:
    done: list[tuple[int, str]] = []
    thread = ExchangeThread()
    for number in range(100):
        thread.submit(lambda number=number: done.append((number, threading.current_thread().name)))
    thread.wait()
    assert done == [(number, "hpcai500-exchange") for number in range(100)]
    assert thread.close()


def test_the_first_error_is_told_to_whoever_waits_and_nothing_is_done_after_it() -> None:
    done: list[int] = []
    thread = ExchangeThread()

    def fail() -> None:
        raise ValueError("first")

    for job in (lambda: done.append(1), fail, lambda: done.append(2), fail):
        thread.submit(job)
    for _ in range(2):
        with pytest.raises(ValueError, match="first"):
            thread.wait()
    assert done == [1]
    assert thread.close()


def test_a_job_that_never_returns_does_not_hold_up_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange_thread, "_GOODBYE_SECONDS", 0.05)
    release = threading.Event()
    thread = ExchangeThread()
    thread.submit(release.wait)
    start = time.monotonic()
    assert not thread.close()
    assert time.monotonic() - start < 10
    release.set()
    assert thread.close()
