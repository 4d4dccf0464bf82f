"""What anchors and proposals learn from."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from hpcai500.workloads.models.detector import BACKGROUND, IGNORED, Targets, match, sample

TRUTH = torch.tensor([[0.0, 0, 10, 10], [20, 20, 40, 40]])


def matched(candidates: torch.Tensor, *, every_truth: bool = False) -> list[int]:
    """What the candidates of one image, which holds both truths, stand for."""
    present = torch.ones(1, 2, dtype=torch.bool)
    found = match(TRUTH[None], present, candidates, foreground=0.7, background=0.3, every_truth=every_truth)
    return found[0].tolist()


def test_a_candidate_answers_for_what_it_overlaps_most() -> None:
    candidates = torch.tensor([[0.0, 0, 10, 9], [0, 0, 10, 5], [0, 0, 10, 2], [21, 21, 40, 40], [60, 60, 70, 70]])
    assert matched(candidates) == [0, IGNORED, BACKGROUND, 1, BACKGROUND]


def test_every_truth_is_answered_for_when_asked() -> None:
    candidates = torch.tensor([[0.0, 0, 10, 2], [60, 60, 70, 70], [30, 30, 60, 60]])
    assert matched(candidates) == [BACKGROUND] * 3
    assert matched(candidates, every_truth=True) == [0, BACKGROUND, 1]


def test_a_truth_that_nothing_touches_takes_no_candidate() -> None:
    candidates = torch.tensor([[0.0, 0, 10, 10], [100, 100, 110, 110]])
    assert matched(candidates, every_truth=True) == [0, BACKGROUND]


def test_without_truth_everything_is_background() -> None:
    nowhere = torch.zeros(1, 0, 4), torch.zeros(1, 0, dtype=torch.bool)
    for truth, present in (nowhere, (TRUTH[None], torch.tensor([[False, False]]))):
        matches = match(truth, present, TRUTH, foreground=0.7, background=0.3, every_truth=True)
        assert matches.tolist() == [[BACKGROUND] * 2]


def test_images_are_matched_each_for_itself() -> None:
    """A place that holds no box is nobody's truth, whatever lies there and wherever it is."""
    truth = torch.stack([TRUTH, TRUTH.flip(0), TRUTH])
    present = torch.tensor([[True, True], [False, True], [True, False]])
    candidates = torch.tensor([[0.0, 0, 10, 9], [21, 21, 40, 40]])
    matches = match(truth, present, candidates, foreground=0.7, background=0.3, every_truth=True)
    assert matches.tolist() == [[0, 1], [1, BACKGROUND], [0, BACKGROUND]]
    of_images = torch.stack([candidates, candidates.flip(0), candidates.flip(0)])
    matches = match(truth, present, of_images, foreground=0.7, background=0.3, every_truth=True)
    assert matches.tolist() == [[0, 1], [BACKGROUND, 1], [BACKGROUND, 0]]


def drawn(matches: torch.Tensor, keys: torch.Tensor, size: int, fraction: float) -> tuple[list[int], list[int]]:
    """Positives and negatives of one image."""
    found = sample(matches[None], keys[None], size, fraction)
    assert found.places.shape == found.positive.shape == found.used.shape == (1, min(size, len(matches)))
    places, positive, used = (tensor[0] for tensor in (found.places, found.positive, found.used))
    assert not positive[found.most_positives :].any()
    assert not (positive & ~used).any()
    assert found.count().item() == max(used.sum().item(), 1)
    return places[positive].tolist(), places[used & ~positive].tolist()


def keys_of(seed: int, count: int) -> torch.Tensor:
    return torch.rand(count, generator=torch.Generator().manual_seed(seed))


@given(
    st.integers(0, 60),
    st.integers(0, 60),
    st.integers(0, 3),
    st.integers(1, 40),
    st.sampled_from([0.0, 0.25, 0.5, 1.0]),
)
def test_a_sample_keeps_its_size_and_share(
    positive: int, negative: int, ignored: int, size: int, fraction: float
) -> None:
    kinds = [torch.zeros(positive), torch.full((negative,), BACKGROUND), torch.full((ignored,), IGNORED)]
    matches = torch.cat(kinds).long()
    positives, negatives = drawn(matches, keys_of(1, len(matches)), size, fraction)
    assert len(positives) == min(positive, int(size * fraction))
    assert len(negatives) == min(negative, size - len(positives))
    assert (matches[positives] >= 0).all()
    assert (matches[negatives] == BACKGROUND).all()
    assert len(set(positives)) == len(positives)
    assert len(set(negatives)) == len(negatives)


def test_the_largest_keys_are_drawn_of_each_image() -> None:
    matches = torch.tensor([[0, BACKGROUND, 0, IGNORED, BACKGROUND, BACKGROUND], [BACKGROUND] * 6])
    keys = torch.tensor([[0.1, 0.2, 0.3, 0.9, 0.0, 0.4], [0.1, 0.2, 0.3, 0.9, 0.0, 0.4]])
    found = sample(matches, keys, 3, 0.5)
    assert found.places.tolist() == [[2, 5, 1], [3, 5, 2]]
    assert found.positive.tolist() == [[True, False, False], [False] * 3]
    assert found.used.all()
    assert found.count().item() == 6


def test_every_candidate_is_equally_likely() -> None:
    matches = torch.full((20,), BACKGROUND)
    counts = torch.zeros(20)
    for seed in range(2000):
        counts[drawn(matches, keys_of(seed, 20), 5, 0.5)[1]] += 1
    # 500 expected each, standard deviation 19.4.
    assert (counts - 500).abs().max() < 5 * 19.4


def test_an_images_keys_follow_from_its_seed_alone() -> None:
    """Not from the images beside it, and not from how many more are drawn."""
    empty = torch.zeros(0, 1, 4), torch.zeros(0, 1, dtype=torch.int64)
    keys = Targets(*empty, torch.tensor([3, 2**62, 3])).keys(50)
    assert torch.equal(keys[0], keys[2])
    assert not torch.equal(keys[0], keys[1])
    assert torch.equal(Targets(*empty, torch.tensor([2**62])).keys(2000)[0, :50], keys[1])
    assert torch.equal(keys[0], keys_of(3, 50))
    assert keys.min() >= 0
    assert keys.max() < 1
