"""What a device did at each moment: nothing counts twice, and all of the time is something or idle."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcai500.methodology.kernel_classes import KINDS, Stretch, gaps, lane, seconds_of, timeline

WORKS = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 9), st.sampled_from(KINDS)).map(
        lambda one: Stretch(one[0], one[0] + one[1], one[2])
    ),
    min_size=1,
    max_size=25,
)


@given(WORKS)
def test_every_moment_is_the_first_kind_of_what_ran_in_it(works: list[Stretch]) -> None:
    found = timeline(works)
    for moment in (number + 0.5 for number in range(50)):
        running = {work.kind for work in works if work.start < moment < work.end}
        expected = next((kind for kind in KINDS if kind in running), None)
        now = [one.kind for one in found if one.start < moment < one.end]
        assert now == ([expected] if expected else [])


@given(WORKS)
def test_busy_and_idle_are_all_of_the_time(works: list[Stretch]) -> None:
    found = timeline(works)
    if not found:
        assert all(work.seconds == 0 for work in works)
        return
    busy, idle = sum(seconds_of(found).values()), sum(end - start for start, end in gaps(found))
    assert busy + idle == found[-1].end - found[0].start
    rows = lane(found, found[0].start, found[-1].end, 7)
    length = (found[-1].end - found[0].start) / 7
    for column, kind in enumerate(KINDS, 1):
        assert sum(row[column] for row in rows) * length == pytest.approx(seconds_of(found)[kind], abs=1e-3)


def test_gaps_of_less_than_the_clocks_rounding_are_none() -> None:
    found = timeline([Stretch(0, 1, "compute"), Stretch(1.001, 2, "compute"), Stretch(3, 4, "copy")])
    assert gaps(found, 0.01) == [(2, 3)]
    assert gaps(found) == [(1, 1.001), (2, 3)]
    assert timeline([]) == []
