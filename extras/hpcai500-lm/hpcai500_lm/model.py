"""A decoder-only transformer as Llama 3 (Grattafiori et al. 2024)."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from hpcai500_lm import Shape

# Standard deviation of all matrices (Radford et al. 2019); those that write to the residual stream get less.
_DEVIATION = 0.02


class Attention(nn.Module):
    """Causal grouped-query attention (Ainslie et al. 2023) with rotary positions (Su et al. 2021)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.head_width, self.theta = shape.head_width, shape.rope_theta
        self.is_grouped = shape.key_value_heads < shape.heads
        self.query = nn.Linear(shape.width, shape.heads * shape.head_width, bias=False)
        self.key = nn.Linear(shape.width, shape.key_value_heads * shape.head_width, bias=False)
        self.value = nn.Linear(shape.width, shape.key_value_heads * shape.head_width, bias=False)
        self.output = nn.Linear(shape.heads * shape.head_width, shape.width, bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        """(samples, length, width) -> the same."""
        samples, length, _ = inputs.shape
        # The number of heads comes from the weights: with tensor parallelism a rank has a part of them.
        query, key, value = (
            product(inputs).view(samples, length, -1, self.head_width) for product in (self.query, self.key, self.value)
        )
        table = rotary_table(length, self.head_width, self.theta, inputs.device)
        # (samples, heads, length, head_width)
        query, key, value = (one.transpose(1, 2) for one in (rotated(query, table), rotated(key, table), value))
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=self.is_grouped)
        outputs: Tensor = self.output(mixed.transpose(1, 2).reshape(samples, length, -1))
        return outputs


class FeedForward(nn.Module):
    """SwiGLU (Shazeer 2020)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate = nn.Linear(shape.width, shape.hidden_width, bias=False)
        self.up = nn.Linear(shape.width, shape.hidden_width, bias=False)
        self.down = nn.Linear(shape.hidden_width, shape.width, bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        """(samples, length, width) -> the same."""
        outputs: Tensor = self.down(F.silu(self.gate(inputs)) * self.up(inputs))
        return outputs


class Block(nn.Module):
    """Attention and feed-forward network, each behind an RMSNorm (Zhang and Sennrich 2019) and beside a residual."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(shape.width, eps=shape.norm_epsilon)
        self.attention = Attention(shape)
        self.feed_forward_norm = nn.RMSNorm(shape.width, eps=shape.norm_epsilon)
        self.feed_forward = FeedForward(shape)
        self._recompute = shape.recompute_activations

    def forward(self, inputs: Tensor) -> Tensor:
        """(samples, length, width) -> the same."""
        if self._recompute and self.training:
            outputs: Tensor = checkpoint(self._forward, inputs, use_reentrant=False)
            return outputs
        return self._forward(inputs)

    def _forward(self, inputs: Tensor) -> Tensor:
        inputs = inputs + self.attention(self.attention_norm(inputs))
        outputs: Tensor = inputs + self.feed_forward(self.feed_forward_norm(inputs))
        return outputs


class Transformer(nn.Module):
    """Tokens (samples, length), int64 -> logits (samples, length, vocabulary) of each next token."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embedding = nn.Embedding(shape.vocabulary, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.width, eps=shape.norm_epsilon)
        self.output = nn.Linear(shape.width, shape.vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        values = self.embedding(tokens)
        for block in self.blocks:
            values = block(values)
        logits: Tensor = self.output(self.norm(values))
        return logits


def initialised(shape: Shape, after: Callable[[nn.Module], None] = lambda part: None) -> Transformer:
    """A model on the host with weights from torch's generator, made part by part.

    `after` is called with the embedding, each block, the last norm and the output, as soon as each has its weights. It
    may move or shard them, so that a host need not hold the whole model.
    """
    with torch.device("meta"):
        model = Transformer(shape)
    residual = _DEVIATION / math.sqrt(2 * shape.layers)
    for part in (model.embedding, *model.blocks, model.norm, model.output):
        part.to_empty(device="cpu")
        for name, weight in part.named_parameters():
            if weight.dim() == 1:
                nn.init.ones_(weight)
            else:
                writes = name in ("attention.output.weight", "feed_forward.down.weight")
                nn.init.normal_(weight, std=residual if writes else _DEVIATION)
        after(part)
    return model


# ----------------------------------------------------------------------------------------------------
# Rotary positions.


@lru_cache(maxsize=8)
def rotary_table(length: int, head_width: int, theta: float, device: torch.device) -> Tensor:
    """Of each position and pair i of a head: the complex number of angle position x theta^(-2i / head_width).

    (length, 1, head_width / 2), complex64.
    """
    # Evaluation calls this, too, and what inference mode makes is of no use in training.
    with torch.inference_mode(False):
        rates = theta ** (-torch.arange(0, head_width, 2, dtype=torch.float64, device=device) / head_width)
        angles = torch.arange(length, dtype=torch.float64, device=device)[:, None, None] * rates
        return torch.polar(torch.ones_like(angles), angles).to(torch.complex64)


def rotated(heads: Tensor, table: Tensor) -> Tensor:
    """Rotate each pair of neighbours of heads (samples, length, heads, head_width) by its position's angle."""
    pairs = torch.view_as_complex(heads.float().unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * table).flatten(-2).to(heads.dtype)
