"""Boxes that follow an image around the globe."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hpcai500.data.climate.boxes import Truth, most_boxes, moved, truths_of

WIDTH = 100


def truth(*boxes: tuple[float, float, float, float]) -> Truth:
    return Truth(np.array(boxes, np.float32).reshape(-1, 4), np.arange(1, len(boxes) + 1))


def test_rows_become_corners_and_labels_from_one() -> None:
    rows = np.array([[10, 20, 30, 60, 0], [1, 2, 3, 4, 3], [-1, -1, -1, -1, -1]], np.int32)
    (found,) = truths_of(rows[None], 100, 100)
    assert found.boxes.tolist() == [[20, 10, 60, 30], [2, 1, 4, 3]]
    assert found.labels.tolist() == [1, 4]


def test_rows_that_cannot_be_boxes_are_left_out_and_edges_cut() -> None:
    inverted, outside, over = [30, 20, 10, 60, 0], [10, 120, 30, 140, 1], [-5, 90, 20, 110, 2]
    (found,) = truths_of(np.array([[inverted, outside, over]], np.int32), 100, 100)
    assert found.boxes.tolist() == [[90, 0, 100, 20]]
    assert found.labels.tolist() == [3]


def test_a_roll_moves_boxes_east() -> None:
    found = moved(truth((10, 5, 20, 9)), 30, WIDTH, WIDTH)
    assert found.boxes.tolist() == [[40, 5, 50, 9]]


def test_a_box_over_the_edge_becomes_two() -> None:
    found = moved(truth((80, 0, 100, 9)), 10, WIDTH, WIDTH)
    assert found.boxes.tolist() == [[90, 0, 100, 9], [0, 0, 10, 9]]
    assert found.labels.tolist() == [1, 1]


def test_a_sliver_at_the_edge_is_no_truth() -> None:
    found = moved(truth((80, 0, 100, 9)), 4, WIDTH, WIDTH)
    assert found.boxes.tolist() == [[84, 0, 100, 9]]


def test_a_crop_cuts_boxes_and_drops_what_is_outside() -> None:
    found = moved(truth((10, 0, 30, 9), (60, 0, 90, 9), (45, 0, 65, 9)), 0, WIDTH, 50)
    assert found.boxes.tolist() == [[10, 0, 30, 9], [45, 0, 50, 9]]
    assert found.labels.tolist() == [1, 3]


@given(
    st.integers(0, WIDTH - 1),
    st.lists(st.tuples(st.integers(0, 79), st.integers(1, 20)), min_size=1, max_size=10),
)
def test_boxes_mark_the_pixels_that_moved_with_them(roll: int, spans: list[tuple[int, int]]) -> None:
    """Each box marks its columns of a row; rolling the row and rolling the box mark the same, but for dropped parts."""
    for start, length in spans:
        row = np.zeros(WIDTH)
        row[start : start + length] = 1
        marked = np.zeros(WIDTH)
        for x1, _, x2, _ in moved(truth((start, 0, start + length, 1)), roll, WIDTH, WIDTH).boxes.astype(int):
            marked[x1:x2] = 1
        missing = np.roll(row, roll) - marked
        assert missing.min() >= 0
        assert missing.sum() < max(0.25 * length, 1)


@given(
    st.lists(st.lists(st.tuples(st.integers(0, 79), st.integers(1, 20)), max_size=6), max_size=3),
    st.booleans(),
)
def test_no_roll_leaves_more_boxes_than_is_said(images: list[list[tuple[int, int]]], rolled: bool) -> None:
    truths = [truth(*((start, 0, start + length, 9) for start, length in spans)) for spans in images]
    rolls = range(WIDTH) if rolled else range(1)
    found = [len(moved(one, roll, WIDTH, WIDTH).labels) for one in truths for roll in rolls]
    said = most_boxes(truths, rolled=rolled)
    assert max(found, default=0) <= said <= 2 * max(map(len, images), default=0)
    if not rolled:
        assert said == max(found, default=0)


def test_as_many_boxes_are_said_as_a_roll_that_cuts_them_leaves() -> None:
    one = truth((10, 0, 30, 9), (20, 0, 40, 9), (30, 0, 50, 9), (60, 0, 70, 9))
    assert most_boxes([one], rolled=True) == len(moved(one, WIDTH - 25, WIDTH, WIDTH).labels) == 6
    assert most_boxes([one], rolled=False) == 4


def test_a_whole_turn_changes_nothing() -> None:
    before = truth((10, 5, 20, 9), (70, 0, 99, 4))
    np.testing.assert_array_equal(moved(before, WIDTH, WIDTH, WIDTH).boxes, before.boxes)
