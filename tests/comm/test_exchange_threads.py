"""Exchange threads do things in order, tell what went wrong, and let go of what never ends."""

from __future__ import annotations

import threading
import time

import pytest

from hpcai500.comm import reducer
from hpcai500.comm.reducer import ExchangeThreads


def test_each_thread_does_its_jobs_in_order_beside_the_others() -> None:
    done: list[tuple[int, str]] = []
    threads = ExchangeThreads(2)
    meeting = threading.Barrier(2, timeout=20)
    for number in range(100):
        threads.submit(number % 2, lambda number=number: done.append((number, threading.current_thread().name)))
    for turn in range(2):
        threads.submit(turn, meeting.wait)
    threads.wait()
    for turn in range(2):
        mine = [(number, name) for number, name in done if number % 2 == turn]
        assert mine == [(number, f"hpcai500-exchange-{turn}") for number in range(turn, 100, 2)]
    assert threads.close()


def test_waiting_is_for_all_threads() -> None:
    threads = ExchangeThreads(3)
    done: list[int] = []
    for _ in range(3):
        threads.submit(1, lambda: (time.sleep(0.02), done.append(1)))
        threads.wait()
    assert done == [1, 1, 1]
    assert threads.close()


def test_the_first_error_is_told_to_whoever_waits_and_nothing_is_done_after_it() -> None:
    done: list[int] = []
    threads = ExchangeThreads(1)

    def fail() -> None:
        raise ValueError("first")

    for job in (lambda: done.append(1), fail, lambda: done.append(2), fail):
        threads.submit(0, job)
    for _ in range(2):
        with pytest.raises(ValueError, match="first"):
            threads.wait()
    assert done == [1]
    assert threads.close()


def test_an_error_is_told_although_another_thread_waits_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reducer, "_GOODBYE_SECONDS", 0.05)
    release = threading.Event()
    threads = ExchangeThreads(2)

    def fail() -> None:
        time.sleep(0.05)
        raise ValueError("gone")

    threads.submit(0, release.wait)
    threads.submit(1, fail)
    start = time.monotonic()
    with pytest.raises(ValueError, match="gone"):
        threads.wait()
    assert not threads.close()
    assert time.monotonic() - start < 10
    release.set()
    assert threads.close()


def test_closing_waits_for_all_threads_together_and_not_for_each_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reducer, "_GOODBYE_SECONDS", 1.0)
    release = threading.Event()
    threads = ExchangeThreads(40)
    for number in range(40):
        threads.submit(number, release.wait)
    start = time.monotonic()
    assert not threads.close()
    assert time.monotonic() - start < 20
    release.set()
    assert threads.close()
