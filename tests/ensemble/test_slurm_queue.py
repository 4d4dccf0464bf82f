"""What squeue and sacct print of arrays, recorded from Slurm 22.05.8: pending elements in one line, and oddities."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcai500.errors import RunError
from hpcai500.launch.slurm.queue import Element, read_accounts, read_queue

# Three elements run, one has come back and waits, the rest waits; another job waits behind them.
QUEUE = """\
1|49,64,81,100,121-123%7|PENDING||0|JobArrayTaskLimit|
1|4|PENDING||1|BeginTime|
1|36|RUNNING|n2|0|JobArrayTaskLimit|
1|0|COMPLETING|n[1-2]|1|None|
2|N/A|PENDING||0|Dependency|
"""
# A cancelled array: what ran has lines of its own, what waited one without a host.
ACCOUNTS = """\
1_0|REQUEUED|n1|0:0
1_1|COMPLETED|n1|0:0
1_0|COMPLETED|n2|0:0
1_2|FAILED|n2|1:0
1_49|CANCELLED by 0|n1|0:15
1_[49,64,81%7]|CANCELLED by 0|None assigned|0:0
2|COMPLETED|n1|0:0
"""


def test_a_compressed_line_stands_for_each_of_its_elements() -> None:
    queue = read_queue(QUEUE)
    assert sorted(task for job, task in queue if job == "1" and task is not None) == [
        *(0, 4, 36, 49, 64, 81, 100),
        *(121, 122, 123),
    ]
    assert queue["1", 122] == Element("1", 122, "waiting", "PENDING", (), 0, "JobArrayTaskLimit")
    assert queue["1", 4].restarts == 1
    assert queue["1", 0] == Element("1", 0, "running", "COMPLETING", ("n1", "n2"), 1, "")
    assert queue["2", None].state == "waiting"


def test_numbers_with_a_step_are_counted_by_it() -> None:
    (low, *_, high) = read_queue("8|0-400:2|PENDING||0|JobHeldUser|").values()
    assert (low.task, high.task) == (0, 400)
    assert len(read_queue("8|0-400:2%3|PENDING||0|None|")) == 201


def test_runs_of_one_element_are_one_with_its_restarts() -> None:
    accounts = read_accounts(ACCOUNTS)
    assert accounts["1", 0] == Element("1", 0, "ended", "COMPLETED", ("n2",), 1)
    assert (accounts["1", 2].state, accounts["1", 2].reason) == ("failed", "exit code 1")
    assert accounts["2", None].state == "ended"


def test_a_cancelled_rest_does_not_hide_what_ran() -> None:
    accounts = read_accounts(ACCOUNTS)
    assert (accounts["1", 49].state, accounts["1", 49].hosts) == ("cancelled", ("n1",))
    assert (accounts["1", 64].state, accounts["1", 64].hosts) == ("cancelled", ())


def test_a_state_that_we_do_not_know_is_unknown() -> None:
    (element,) = read_queue("1|0|DREAMING|n1|0|None|").values()
    assert element.state == "unknown"


@pytest.mark.parametrize(
    "line",
    [
        "slurm_load_jobs error: Unable to contact slurm controller",
        "1|0|RUNNING|n1|0",
        "x|0|RUNNING|n1|0|None|",
        "1|0-x|RUNNING|n1|0|None|",
        "1|3-1|PENDING||0|None|",
        "1|0-999999999|PENDING||0|None|",
        "1|0|\x1b[31m|n1|0|None|",
        "1|0|RUNNING|n1;rm -rf|0|None|",
        "1|0|RUNNING|n[1-|0|None|",
    ],
)
def test_what_is_not_of_squeue_is_refused_with_the_line(line: str) -> None:
    with pytest.raises(RunError, match=r"^squeue: "):
        read_queue(line)


@pytest.mark.parametrize(
    "line", ["", "1_0|COMPLETED|n1", "1_0.batch|COMPLETED|n1|0:0", "1_[0-|PENDING||0:0", "a|B|c|d"]
)
def test_what_is_not_of_sacct_is_refused_with_the_line(line: str) -> None:
    with pytest.raises(RunError, match=r"^sacct: "):
        read_accounts(f"{line}\n")


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=80))
def test_any_text_is_read_or_refused(text: str) -> None:
    said = []
    for read in (read_queue, read_accounts):
        try:
            said += [element.job for element in read(text).values()]
        except RunError as error:
            said.append(str(error))
    assert all("\n" not in line for line in said)
