"""A coverage digest tells a complete epoch from every other."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcai500.data.samplers import epoch_order
from hpcai500.methodology.sampling import Coverage, SampleIds

IDS = st.lists(st.integers(0, 10**9), max_size=50)
WORD = 2**64


def of(ids: list[int]) -> Coverage:
    return Coverage().add(np.array(ids, dtype=np.int64))


def mixed(sample: int, lane: int) -> int:
    """splitmix64's output function, in Python's own integers."""
    word = (sample + 1) * lane % WORD
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 % WORD
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB % WORD
    return word ^ (word >> 31)


@given(IDS)
def test_the_digest_equals_its_definition(ids: list[int]) -> None:
    expected = Coverage(
        len(ids),
        sum(mixed(i, 0x9E3779B97F4A7C15) for i in ids) % WORD,
        sum(mixed(i, 0x5851F42D4C957F2D) for i in ids) % WORD,
    )
    assert of(ids) == expected


@given(IDS, IDS)
def test_a_merge_is_the_union_in_any_order(left: list[int], right: list[int]) -> None:
    union = of(left + right)
    assert of(left).merge(of(right)) == of(right).merge(of(left)) == union
    assert of((left + right)[::-1]) == union


def test_batches_of_a_shuffled_epoch_give_the_expected_coverage() -> None:
    samples = 300_001
    coverage = Coverage()
    for batch in np.array_split(epoch_order(samples, 1, 1), 97):
        coverage = coverage.add(batch)
    assert coverage == Coverage.expected(samples)


@pytest.mark.parametrize(
    "change",
    [
        lambda ids: ids[1:],
        lambda ids: [*ids, ids[0]],
        lambda ids: [*ids[1:], ids[1]],
        lambda ids: [*ids[1:], 100],
        lambda ids: [*ids[1:], -1],
        # Keeps the count and the sum of ids.
        lambda ids: [ids[0] + 1, ids[1] - 1, *ids[2:]],
    ],
    ids=["missed", "doubled", "missed and doubled", "foreign", "negative", "same sum"],
)
def test_a_wrong_epoch_has_another_digest(change) -> None:  # type: ignore[no-untyped-def]
    ids = [40, 7, *(i for i in range(100) if i not in (40, 7))]
    assert of(ids).digest == Coverage.expected(100).digest
    assert of(change(ids)).digest != Coverage.expected(100).digest


def test_digests_of_many_sizes_share_their_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stranger's submission may have a size of its own in each record."""
    words = 0
    add = Coverage.add

    def counted(self: Coverage, ids: SampleIds) -> Coverage:
        nonlocal words
        words += ids.size
        return add(self, ids)

    largest, sizes = 2**22, 20
    whole = {size: of(list(range(size))) for size in (2**18 - 1, 2**18, 2**18 + 1)}
    monkeypatch.setattr(Coverage, "add", counted)
    found = {size: Coverage.expected(size) for size in range(largest, largest - sizes, -1)}
    assert words <= largest + sizes * 2**18, "one sweep of the largest, and a part of it for each"
    assert [one.count for one in found.values()] == list(found)
    assert {size: Coverage.expected(size) for size in whole} == whole


def test_the_digest_of_an_epoch_never_changes() -> None:
    assert Coverage.expected(1_281_167).digest == "1281167-a5df98fb2ce65dc40334a97958204d1a"
    assert Coverage().digest == "0-" + 32 * "0"


@given(IDS)
def test_a_checkpoint_keeps_the_state(ids: list[int]) -> None:
    state = json.loads(json.dumps(of(ids).state()))
    assert Coverage.from_state(state) == of(ids)
