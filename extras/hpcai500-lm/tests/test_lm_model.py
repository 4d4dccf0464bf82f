"""The model: equal to formulas in plain torch, and its closed forms equal to counts."""

from __future__ import annotations

from typing import Any

import lm_in_plain_torch as plain
import pytest
import torch
from hpcai500.measure.flops import count_flops
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from torch.nn import functional as F

from hpcai500_lm import Shape
from hpcai500_lm.model import Transformer, initialised

SMALL: dict[str, Any] = {
    "vocabulary": 37,
    "layers": 2,
    "width": 24,
    "heads": 4,
    "key_value_heads": 2,
    "head_width": 6,
    "hidden_width": 40,
    "rope_theta": 10_000.0,
    "norm_epsilon": 1e-5,
    "sequence_length": 16,
    "recompute_activations": False,
    "tail": "pad",
}


def shape(**changes: Any) -> Shape:
    return Shape(**{**SMALL, **changes})


def model_of(options: Shape) -> Transformer:
    torch.manual_seed(3)
    return initialised(options)


def tokens_of(options: Shape, samples: int = 3) -> torch.Tensor:
    return torch.randint(
        options.vocabulary, (samples, options.sequence_length), generator=torch.Generator().manual_seed(5)
    )


@pytest.mark.parametrize("shared", [1, 2, 4])
def test_logits_equal_the_formulas(shared: int) -> None:
    options = shape(key_value_heads=shared)
    model, tokens = model_of(options).double(), tokens_of(options)
    expected = plain.logits(dict(model.named_parameters()), tokens, heads=4, shared=shared, theta=1e4, epsilon=1e-5)
    torch.testing.assert_close(model(tokens), expected, rtol=0, atol=1e-6)


def test_a_token_changes_nothing_before_it() -> None:
    options = shape()
    model, tokens = model_of(options), tokens_of(options)
    changed = tokens.clone()
    changed[:, 9] = (changed[:, 9] + 1) % options.vocabulary
    before, after = model(tokens), model(changed)
    assert torch.equal(before[:, :9], after[:, :9])
    assert not torch.equal(before[:, 9:], after[:, 9:])


def test_recomputed_activations_give_the_same_gradients() -> None:
    found = []
    for recompute in (False, True):
        model, tokens = model_of(shape(recompute_activations=recompute)), tokens_of(shape())
        F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
        found.append([weight.grad for weight in model.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


@settings(deadline=None, max_examples=25)
@given(
    layers=st.integers(1, 3),
    shared=st.sampled_from([1, 2, 4]),
    head_width=st.sampled_from([2, 8, 16]),
    width=st.integers(4, 40),
    hidden=st.integers(1, 50),
    length=st.integers(2, 33),
    vocabulary=st.integers(2, 70),
    recompute=st.booleans(),
)
def test_operations_in_closed_form_equal_a_walk_over_the_graph(
    layers: int, shared: int, head_width: int, width: int, hidden: int, length: int, vocabulary: int, recompute: bool
) -> None:
    options = shape(
        layers=layers,
        key_value_heads=shared,
        head_width=head_width,
        width=width,
        hidden_width=hidden,
        sequence_length=length,
        vocabulary=vocabulary,
    )
    with torch.device("meta"):
        model = Transformer(options)
    count = count_flops(model, torch.zeros(2, length, dtype=torch.int64, device="meta"))
    assert count.training_flops == plain.training_flops(options)
    assert all(row.forward_flops * 3 == row.training_flops for row in count.operators)


def test_the_reference_has_the_published_sizes() -> None:
    """Llama 3: 8.03 and 70.6 billion weights (Grattafiori et al. 2024; the model cards)."""
    eight = {"layers": 32, "width": 4096, "heads": 32, "key_value_heads": 8, "head_width": 128, "hidden_width": 14_336}
    seventy = {**eight, "layers": 80, "width": 8192, "heads": 64, "hidden_width": 28_672}
    for sizes, expected in ((eight, 8_030_261_248), (seventy, 70_553_706_496)):
        options = shape(vocabulary=128_256, sequence_length=8192, **sizes)
        with torch.device("meta"):
            model = Transformer(options)
        assert sum(weight.numel() for weight in model.parameters()) == expected
        norms = options.width * (2 * options.layers + 1)
        assert plain.weights_in_products(options) == expected - norms - options.vocabulary * options.width


def test_heads_that_cannot_be_shared_are_refused() -> None:
    with pytest.raises(ValidationError, match=r"key_value_heads: expected a divisor of heads \(4\), got 3"):
        shape(key_value_heads=3)
