"""Buckets of gradients: which travel together, and in which order they may leave."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from hpcai500.comm.reducer import Readiness, make_buckets, trained
from hpcai500.errors import UsageError

SIZES = st.lists(st.integers(1, 400), max_size=60)
BYTES = st.integers(4, 2000)


@given(SIZES, BYTES)
def test_every_parameter_is_in_one_bucket_in_reverse_order_of_registration(sizes: list[int], most: int) -> None:
    buckets = make_buckets(sizes, most)
    assert [index for bucket in buckets for index in bucket.members] == list(range(len(sizes)))[::-1]
    assert [bucket.number for bucket in buckets] == list(range(len(buckets)))
    assert all(bucket.elements == sum(sizes[index] for index in bucket.members) for bucket in buckets)


@given(SIZES, BYTES)
def test_buckets_are_as_full_as_they_may_be(sizes: list[int], most: int) -> None:
    buckets = make_buckets(sizes, most)
    assert all(bucket.gradient_bytes <= most or len(bucket.members) == 1 for bucket in buckets)
    assert all(one.gradient_bytes + 4 * sizes[other.members[0]] > most for one, other in pairwise(buckets))


def test_a_parameter_larger_than_a_bucket_travels_alone() -> None:
    assert [bucket.members for bucket in make_buckets([10, 5000, 10, 10], 100)] == [(3, 2), (1,), (0,)]


def test_shared_parameters_count_once_frozen_and_empty_ones_not_at_all() -> None:
    shared, frozen = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(2), requires_grad=False)
    last = nn.Parameter(torch.ones(4))
    found = trained([shared, frozen, nn.Parameter(torch.ones(0)), shared, last])
    assert [id(parameter) for parameter in found] == [id(shared), id(last)]


def test_weights_that_are_not_float32_are_refused() -> None:
    with pytest.raises(UsageError, match=r"parameter 1 \[2\] is torch.float16.*keep weights in float32"):
        trained([nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(2, dtype=torch.float16))])


def test_a_model_without_trained_parameters_is_refused() -> None:
    with pytest.raises(UsageError, match="no parameter is trained"):
        trained([nn.Parameter(torch.ones(1), requires_grad=False)])


@given(SIZES, BYTES, st.randoms(use_true_random=False), st.data())
def test_whatever_the_order_of_arrival_buckets_leave_in_order_and_once(
    sizes: list[int], most: int, order: random.Random, data: st.DataObject
) -> None:
    buckets = make_buckets(sizes, most)
    readiness = Readiness(buckets)
    arrivals = list(range(len(sizes)))
    order.shuffle(arrivals)
    arrivals = arrivals[: data.draw(st.integers(0, len(sizes)))]
    left, arrived = [], set()
    for index in arrivals:
        assert readiness.awaits(index)
        leaving = readiness.arrive(index)
        arrived.add(index)
        assert not readiness.awaits(index)
        left += leaving
        # Neither before it is complete, nor later than it could.
        assert all(arrived.issuperset(bucket.members) for bucket in left)
        assert left == buckets or not arrived.issuperset(buckets[len(left)].members)
    assert left + readiness.rest() == buckets
    assert readiness.rest() == []
