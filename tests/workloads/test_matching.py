"""What anchors and proposals learn from."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from hpcai500.workloads.models.matching import BACKGROUND, IGNORED, match, sample

TRUTH = torch.tensor([[0.0, 0, 10, 10], [20, 20, 40, 40]])


def test_a_candidate_answers_for_what_it_overlaps_most() -> None:
    candidates = torch.tensor([[0.0, 0, 10, 9], [0, 0, 10, 5], [0, 0, 10, 2], [21, 21, 40, 40], [60, 60, 70, 70]])
    matches = match(TRUTH, candidates, foreground=0.7, background=0.3)
    assert matches.tolist() == [0, IGNORED, BACKGROUND, 1, BACKGROUND]


def test_every_truth_is_answered_for_when_asked() -> None:
    candidates = torch.tensor([[0.0, 0, 10, 2], [60, 60, 70, 70], [30, 30, 60, 60]])
    assert match(TRUTH, candidates, foreground=0.7, background=0.3).tolist() == [BACKGROUND] * 3
    assert match(TRUTH, candidates, foreground=0.7, background=0.3, every_truth=True).tolist() == [0, BACKGROUND, 1]


def test_a_truth_that_nothing_touches_takes_no_candidate() -> None:
    candidates = torch.tensor([[0.0, 0, 10, 10], [100, 100, 110, 110]])
    assert match(TRUTH, candidates, foreground=0.7, background=0.3, every_truth=True).tolist() == [0, BACKGROUND]


def test_without_truth_everything_is_background() -> None:
    assert match(torch.zeros(0, 4), torch.ones(3, 4), foreground=0.7, background=0.3).tolist() == [BACKGROUND] * 3


@given(st.integers(0, 60), st.integers(0, 60), st.integers(1, 40), st.sampled_from([0.0, 0.25, 0.5, 1.0]))
def test_a_sample_keeps_its_size_and_share(positive: int, negative: int, size: int, fraction: float) -> None:
    matches = torch.cat([torch.zeros(positive), torch.full((negative,), BACKGROUND), torch.tensor([IGNORED])]).long()
    positives, negatives = sample(matches, size, fraction, torch.Generator().manual_seed(1))
    assert len(positives) == min(positive, int(size * fraction))
    assert len(negatives) == min(negative, size - len(positives))
    assert (matches[positives] >= 0).all()
    assert (matches[negatives] == BACKGROUND).all()
    assert len(set(positives.tolist())) == len(positives)


def test_the_draw_is_that_of_the_generator() -> None:
    matches = torch.full((100,), BACKGROUND)
    draws = [sorted(sample(matches, 10, 0.5, torch.Generator().manual_seed(seed))[1].tolist()) for seed in (1, 1, 2)]
    assert draws[0] == draws[1] != draws[2]


def test_every_candidate_is_equally_likely() -> None:
    matches = torch.full((20,), BACKGROUND)
    counts = torch.zeros(20)
    for seed in range(2000):
        counts[sample(matches, 5, 0.5, torch.Generator().manual_seed(seed))[1]] += 1
    # 500 expected each, standard deviation 19.4.
    assert (counts - 500).abs().max() < 5 * 19.4
