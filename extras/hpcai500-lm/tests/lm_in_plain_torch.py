"""Twins of the package in plain torch, written from the papers' formulas: slow, short, and with none of its code."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from hpcai500_lm import Shape


def logits(
    weights: Mapping[str, Tensor], tokens: Tensor, *, heads: int, shared: int, theta: float, epsilon: float
) -> Tensor:
    """Tokens (samples, length) -> logits (samples, length, vocabulary), head by head and position by position.

    `weights` are named as in the package's model; `shared` is the number of heads of keys and values.
    """
    values = weights["embedding.weight"][tokens]
    layers = 1 + max(int(name.split(".")[1]) for name in weights if name.startswith("blocks."))
    for layer in range(layers):
        of_layer = {
            name.removeprefix(f"blocks.{layer}."): one
            for name, one in weights.items()
            if name.startswith(f"blocks.{layer}.")
        }
        normed = rms_norm(values, of_layer["attention_norm.weight"], epsilon)
        values = values + attention(of_layer, normed, heads, shared, theta)
        normed = rms_norm(values, of_layer["feed_forward_norm.weight"], epsilon)
        gate = normed @ of_layer["feed_forward.gate.weight"].T
        up = normed @ of_layer["feed_forward.up.weight"].T
        values = values + (gate * torch.sigmoid(gate) * up) @ of_layer["feed_forward.down.weight"].T
    return rms_norm(values, weights["norm.weight"], epsilon) @ weights["output.weight"].T


def rms_norm(values: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    return values / (values.pow(2).mean(-1, keepdim=True) + epsilon).sqrt() * weight


def attention(weights: Mapping[str, Tensor], inputs: Tensor, heads: int, shared: int, theta: float) -> Tensor:
    length = inputs.shape[1]
    width = weights["attention.query.weight"].shape[0] // heads
    causal = torch.ones(length, length).tril().bool()
    outputs = []
    for head in range(heads):
        group = head * shared // heads
        query = turn(inputs @ weights["attention.query.weight"][head * width : (head + 1) * width].T, theta)
        key = turn(inputs @ weights["attention.key.weight"][group * width : (group + 1) * width].T, theta)
        value = inputs @ weights["attention.value.weight"][group * width : (group + 1) * width].T
        scores = (query @ key.transpose(1, 2) / math.sqrt(width)).masked_fill(~causal, -math.inf)
        outputs.append(scores.softmax(-1) @ value)
    return torch.cat(outputs, -1) @ weights["attention.output.weight"].T


def turn(values: Tensor, theta: float) -> Tensor:
    """Rotary positions as rotations of neighbours: (samples, length, width), pairs 2i and 2i + 1."""
    length, width = values.shape[1:]
    turned = torch.empty_like(values)
    for pair in range(width // 2):
        angles = torch.arange(length, dtype=torch.float64) * theta ** (-2 * pair / width)
        cosine, sine = angles.cos().to(values.dtype), angles.sin().to(values.dtype)
        first, second = values[..., 2 * pair], values[..., 2 * pair + 1]
        turned[..., 2 * pair] = first * cosine - second * sine
        turned[..., 2 * pair + 1] = first * sine + second * cosine
    return turned


def loss(scores: Tensor, targets: Tensor) -> Tensor:
    return -scores.log_softmax(-1).gather(-1, targets[..., None]).mean()


class AdamW:
    """Loshchilov and Hutter 2019, algorithm 2, after the gradients were scaled to a norm of at most `largest`."""

    def __init__(
        self, weights: Mapping[str, Tensor], betas: tuple[float, float], epsilon: float, decay: float, largest: float
    ):
        self.weights, self.betas, self.epsilon, self.decay, self.largest = weights, betas, epsilon, decay, largest
        self.first = {name: torch.zeros_like(one) for name, one in weights.items()}
        self.second = {name: torch.zeros_like(one) for name, one in weights.items()}
        self.steps = 0

    def step(self, rate: float) -> None:
        self.steps += 1
        norm = math.sqrt(sum(float(one.grad.double().square().sum()) for one in self.weights.values()))
        scale = min(1.0, self.largest / (norm + 1e-6))
        with torch.no_grad():
            for name, weight in self.weights.items():
                gradient = weight.grad * scale
                self.first[name] = self.betas[0] * self.first[name] + (1 - self.betas[0]) * gradient
                self.second[name] = self.betas[1] * self.second[name] + (1 - self.betas[1]) * gradient**2
                first = self.first[name] / (1 - self.betas[0] ** self.steps)
                second = self.second[name] / (1 - self.betas[1] ** self.steps)
                weight.sub_(rate * (self.decay if weight.dim() > 1 else 0.0) * weight)
                weight.sub_(rate * first / (second.sqrt() + self.epsilon))
                weight.grad = None


# ----------------------------------------------------------------------------------------------------
# Operations in closed form.


def weights_in_products(shape: Shape) -> int:
    """Weights that every token is multiplied by: all matrices but the embedding, which is a look-up."""
    attention = shape.width * shape.head_width * 2 * (shape.heads + shape.key_value_heads)
    feed_forward = 3 * shape.width * shape.hidden_width
    return shape.layers * (attention + feed_forward) + shape.width * shape.vocabulary


def training_flops(shape: Shape) -> int:
    """FLOPs of one sequence, forward and backward.

    A multiply-add is two operations, and a backward pass takes twice the forward pass: 6 for each weight and token
    (Kaplan et al. 2020), and for attention 12 x length^2 x heads x head_width in each layer, of the whole square of
    scores, as is usual, although half of it is masked (Chowdhery et al. 2022, appendix B). Recomputing does not count.
    """
    weights = 6 * weights_in_products(shape) * shape.sequence_length
    attention = 12 * shape.layers * shape.sequence_length**2 * shape.heads * shape.head_width
    return weights + attention
