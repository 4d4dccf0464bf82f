"""The split of training time: shares of a whole, whatever the clocks say."""

from __future__ import annotations

import pytest
from builders.events import complete
from hypothesis import given
from hypothesis import strategies as st

from hpcai500.methodology.result import step_split

SECONDS = st.floats(0, 1e6)


def epoch(seconds: float, data: float, compute: float, communication: float) -> dict[str, float]:
    return {
        "seconds": seconds,
        "data_wait_seconds": data,
        "compute_seconds": compute,
        "communication_wait_seconds": communication,
    }


def test_a_split_by_hand() -> None:
    split = step_split([epoch(10, 1, 6, 2), epoch(10, 3, 6, 0)])
    assert split is not None
    assert split.model_dump() == pytest.approx({"data_wait": 0.2, "compute": 0.6, "communication": 0.1, "other": 0.1})


@given(st.lists(st.builds(epoch, SECONDS, SECONDS, SECONDS, SECONDS), max_size=5))
def test_shares_are_of_a_whole(epochs: list[dict[str, float]]) -> None:
    split = step_split(epochs)
    if split is not None:
        shares = split.model_dump().values()
        assert all(0 <= share <= 1 for share in shares)
        assert sum(shares) == pytest.approx(1)


@pytest.mark.parametrize("epochs", [[], [{"seconds": 3.0, "data_wait_seconds": 1.0}], [epoch(0, 0, 0, 0)]])
def test_what_is_not_known_is_none(epochs: list[dict[str, float]]) -> None:
    assert step_split(epochs) is None


def test_a_record_older_than_the_split_is_still_scored() -> None:
    result = complete().result()
    assert result.step_split is None
    assert result.data_wait_fraction == pytest.approx(0.25)
    assert result.input == "real"


def test_the_result_has_the_split_of_its_epochs() -> None:
    split = complete(compute_seconds=40.0, communication_wait_seconds=16.0).result().step_split
    assert split.model_dump() == pytest.approx({"data_wait": 0.25, "compute": 0.5, "communication": 0.2, "other": 0.05})
