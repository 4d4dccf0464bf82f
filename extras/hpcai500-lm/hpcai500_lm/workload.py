"""Training and evaluating the language model; runs in the job."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from hpcai500.data.derived import MANIFEST
from hpcai500.data.samplers import SampleIds, Shares, epoch_order, evaluation_passes, training_samples
from hpcai500.errors import DataError
from hpcai500.workloads.base import Evaluation, Place, TrainingBatch, gather_rows
from hpcai500.workloads.models.parts import Chain
from hpcai500.workloads.models.parts import Part as Link
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module
from torch.nn import functional as F

from hpcai500_lm import LmRecipe, Shape
from hpcai500_lm.model import Block, Transformer, initialised
from hpcai500_lm.optimizer import ClippedAdamW
from hpcai500_lm.tokens import Part, Sequences, open_set
from hpcai500_lm.voting import SCORES, TARGETS, loss_of, sums_of

Payload = tuple[Tensor, Tensor]


def build(recipe: LmRecipe, data: Path, place: Place) -> LanguageModel:
    """The workload of one rank.

    Raises:
        DataError: the set is broken, or has tokens that the model does not know.
    """
    return LanguageModel(recipe, data, place)


def counted(recipe: LmRecipe, classes: int) -> tuple[nn.Module, tuple[Tensor]]:
    """The model and one sequence, on torch's `meta` device: shapes alone, so that 70 billion weights take no memory.

    `classes` is for classifiers.
    """
    shape = recipe.workload
    with torch.device("meta"):
        # Recomputed activations are not operations of the model.
        model = Transformer(shape.model_copy(update={"recompute_activations": False}))
        return model, (torch.zeros(1, shape.sequence_length, dtype=torch.int64),)


def _sharded(shape: Shape, place: Place) -> Transformer:
    """The model in shards on all ranks, with the weights of a whole model; tensor ranks divide heads and widths."""
    replicas = place.world_size // place.tensor_ranks
    mesh = place.device_mesh((replicas, place.tensor_ranks), ("samples", "tensor"))
    policy = MixedPrecisionPolicy()
    if place.input_dtype == torch.bfloat16:
        # Weights travel as bf16; sums of gradients stay float32.
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    columns = ("attention.query", "attention.key", "attention.value", "feed_forward.gate", "feed_forward.up")
    rows = ("attention.output", "feed_forward.down")

    def shard(part: nn.Module) -> None:
        if isinstance(part, Block) and place.tensor_ranks > 1:
            plan: dict[str, ParallelStyle] = {name: ColwiseParallel() for name in columns}
            plan |= {name: RowwiseParallel() for name in rows}
            parallelize_module(part, mesh["tensor"], plan)
        if isinstance(part, Block) and replicas > 1:
            fully_shard(part, mesh=mesh["samples"], mp_policy=policy)

    model = initialised(shape, after=shard)
    if replicas > 1:
        fully_shard(model, mesh=mesh["samples"], mp_policy=policy)
    return model


class LanguageModel:
    """Learns which token comes next; its quality is the mean loss on the evaluation set, in nats a token."""

    metric = "validation_loss"

    def __init__(self, recipe: LmRecipe, data: Path, place: Place) -> None:
        self._recipe, self._place, self._shape = recipe, place, recipe.workload
        self._set = open_set(data)
        if self._set.vocabulary > self._shape.vocabulary:
            raise DataError(
                f"{data}: has a vocabulary of {self._set.vocabulary}, but the model knows {self._shape.vocabulary} "
                f"tokens: --set workload.vocabulary={self._set.vocabulary}"
            )
        length = self._shape.sequence_length
        self._training = self._set.sequences(Part.TRAINING, length)
        self._evaluation = self._set.sequences(Part.EVALUATION, length)
        self._samples = training_samples(recipe, len(self._training), {})
        self.drawn = self._samples.drawn
        self._shares = Shares(
            len(self._samples), recipe.hyperparameters.batch_size, place.total_shares, place.shares, self._shape.tail
        )
        self.steps_per_epoch = self._shares.steps_per_epoch
        in_shards = recipe.is_sharded and place.world_size > 1
        self.model: nn.Module = _sharded(self._shape, place) if in_shards else initialised(self._shape)
        self.model.to(place.device)
        self._held: list[Payload] = []

    def dataset(self) -> dict[str, Any]:
        """Facts of the set for the record."""
        return {
            "root": str(self._set.root.resolve()),
            "fingerprint": self._set.fingerprint,
            "content_fingerprint": self._set.content_fingerprint(),
            "training_samples": len(self._training),
            "evaluation_samples": len(self._evaluation),
            "coverage": self._samples.coverage,
            "synthetic": (self._set.root / MANIFEST).is_file(),
            "unit": {"name": "tokens", "per_sample": self._shape.sequence_length},
            **self._samples.facts,
        }

    def counted(self) -> tuple[nn.Module, tuple[Tensor, ...]]:
        return counted(self._recipe, 0)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """AdamW, whose weight decay leaves out the norms."""
        return ClippedAdamW(model, self._recipe, self._place)

    def blank_payload(self) -> Payload:
        shape = (self._shares.batch_size, self._shape.sequence_length)
        tokens = torch.randint(self._shape.vocabulary, shape, generator=torch.Generator().manual_seed(0))
        tokens = tokens.to(self._place.device)
        return tokens, tokens.roll(-1, 1)

    def hold_in_memory(self, count: int) -> None:
        self._held = [batch.payload for batch in islice(self.training_batches(1, 0), count)]

    def training_batches(self, epoch: int, first_step: int) -> Generator[TrainingBatch]:
        """Batches of `epoch` from step `first_step` on; payload: tokens and targets, both (N, length)."""
        order = epoch_order(self._shares.samples, self._recipe.hyperparameters.seed, epoch)
        for number, share in enumerate(self._shares.of_epoch(order, first_step)):
            start, ids = time.perf_counter(), self._samples.ids(share.ids)
            payload = self._held[number % len(self._held)] if self._held else self._read(self._training, ids)
            yield TrainingBatch(
                samples=ids[: share.real],
                padded=len(ids) - share.real,
                payload=payload,
                wait_seconds=time.perf_counter() - start,
            )

    def loss(self, model: nn.Module, payload: Payload) -> Tensor:
        tokens, targets = self._on_device(payload)
        return _loss(model(tokens), targets)

    def evaluate(self, model: nn.Module, on_batch: Callable[[int], None]) -> Evaluation:
        """The mean loss over the evaluation set; each rank computes its share of the samples."""
        ids, ranks = np.arange(len(self._evaluation)), self._place.evaluation_ranks
        rows = [sums_of(scores.numpy()) for _, scores in self._scored(model, self._evaluation, ids, on_batch)]
        share = torch.from_numpy(np.concatenate([*rows, np.empty(0)]))
        sums = gather_rows(share[:, None], ranks)
        found = None if sums is None else loss_of(sums[:, 0].numpy(), self._shape.sequence_length)
        whole: Evaluation = ranks.broadcast_object(found)
        return whole

    def predictions(
        self, model: nn.Module, samples: SampleIds | None, on_batch: Callable[[int], None]
    ) -> Mapping[str, npt.NDArray[Any]]:
        """Of each sample: the tokens that came next, and the logarithms of the model's probabilities of them."""
        sequences = self._evaluation if samples is None else self._training
        ids = np.arange(len(sequences)) if samples is None else samples
        found = list(self._scored(model, sequences, ids, on_batch))
        empty = torch.empty(0, self._shape.sequence_length)
        ranks = self._place.evaluation_ranks
        scores = gather_rows(torch.cat([*(scores for _, scores in found), empty]), ranks)
        targets = gather_rows(torch.cat([*(targets for targets, _ in found), empty.long()]), ranks)
        if self._place.rank != 0 or scores is None or targets is None:
            return {}
        return {"samples": ids, TARGETS: targets.numpy(), SCORES: scores.numpy()}

    def chain(self) -> Chain:
        """The embedding, each block, and the last norm with the output."""
        model = self.model
        assert isinstance(model, Transformer)
        parts = (
            Link(model.embedding, ("embedding",)),
            *(Link(block, (f"blocks.{number}",)) for number, block in enumerate(model.blocks)),
            Link(nn.Sequential(model.norm, model.output), ("norm", "output")),
        )
        return Chain(
            parts,
            inputs=lambda payload: payload[0].to(self._place.device),
            targets=lambda payload: payload[1],
            pick=lambda targets, which: targets[which],
            loss=lambda outputs, targets: _loss(outputs[0], targets.to(self._place.device)),
        )

    def pictures(self) -> dict[str, bytes]:
        return {}

    def close(self) -> None:
        """Do nothing: there are no threads to stop."""

    def _scored(
        self, model: nn.Module, sequences: Sequences, ids: SampleIds, on_batch: Callable[[int], None]
    ) -> Iterator[Payload]:
        """This rank's share of the samples: targets, and log probabilities of them, both (N, length) on the host."""
        ranks = self._place.evaluation_ranks
        done = 0
        for share in evaluation_passes(len(ids), self._shares.batch_size, ranks.size, ranks.rank):
            tokens, targets = self._read(sequences, ids[share.ids])
            scores = -_losses(model(tokens.to(self._place.device)), targets.to(self._place.device))
            yield targets[: share.real], scores[: share.real].cpu()
            done += share.real
            on_batch(done * ranks.size)

    def _read(self, sequences: Sequences, ids: SampleIds) -> Payload:
        tokens = torch.from_numpy(sequences.read(ids))
        if int(tokens.max()) >= self._shape.vocabulary:
            raise DataError(
                f"{self._set.root}: has the token {int(tokens.max())}, which is not in its vocabulary: "
                f"hpcai500 data check {self._recipe.benchmark} {self._set.root}"
            )
        return tokens[:, :-1], tokens[:, 1:]

    def _on_device(self, payload: Payload) -> Payload:
        tokens, targets = (tensor.to(self._place.device, non_blocking=True) for tensor in payload)
        return tokens, targets


def _loss(logits: Tensor, targets: Tensor) -> Tensor:
    """The mean loss of all tokens, in nats; logits (N, length, vocabulary), targets (N, length)."""
    return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


def _losses(logits: Tensor, targets: Tensor) -> Tensor:
    """The loss of each token (N, length), in nats."""
    return F.cross_entropy(logits.float().transpose(1, 2), targets, reduction="none")
