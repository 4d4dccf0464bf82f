"""Averages gradients over ranks while the backward pass still runs (V2.0 section 5.1.6)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hpcai500.comm.base import Communicator
from hpcai500.comm.buckets import Bucket, make_buckets, trained
from hpcai500.comm.conversation import Conversation
from hpcai500.comm.exchange_threads import ExchangeThreads
from hpcai500.comm.gradient_update import GradientUpdate
from hpcai500.comm.lanes import make_exchange_lane
from hpcai500.comm.timeline.spans import SpanSink
from hpcai500.comm.topologies.base import ranks_by_host
from hpcai500.comm.working_memory import Residuals
from hpcai500.errors import RunError
from hpcai500.layers import Communication

# While one bucket is packed or added up, others are on their way: over Gloo, two together take four fifths of the time
# of one after the other, three somewhat less. NCCL fills a device by itself, and wants one conversation at a time.
_CONVERSATIONS = {"cpu": 3, "cuda": 1}


class Reducer:
    """Makes each parameter's gradient the average over all ranks, in fp32.

    Between `begin` and `finish`, gradients leave in buckets as soon as they, and all buckets before them, are there.
    Threads pack, sum and unpack them; buckets take turns on the threads, so that each has the same order on all ranks.
    The averages are the same on all ranks to the bit; a value that is no number on one rank is none on all.

    Averages are in `parameter.grad`, as tensors that have the parameter's memory layout. Without compression those are
    views of buffers, which the next update overwrites; with it, what autograd left there. Where only other ranks used a
    parameter, this rank gives zeros to the average and gets it; where no rank did, `parameter.grad` stays as it was.

    Outside `begin` and `finish`, backward passes are this rank's own affair.

    Args:
        parameters: the model's, registered alike on all ranks; at least one of them trained.
        communicator: all ranks, at least two. The reducer makes groups of its own, so others may use it meanwhile.
        settings: the recipe's table.
        bucket_bytes: fp32 gradients that travel together.
        threads: of the processor for packing and unpacking; torch's number by default.
        sink: where the time of each bucket is told, by `finish`.

    Attributes:
        sink: may be changed between updates.
        buckets: how gradients travel.
        waited_seconds: of the last update, from the end of the backward pass to the last sum: what was not overlapped.
        own_norm: of the last update, the sum of the L2 norms of this rank's own gradients, before they were added to
            those of others (float64, on their device); not finite where a value of theirs was not.

    Raises:
        RecipeError: the topology cannot be laid over these ranks.
        UsageError: a trained parameter is not float32.
        RunError: ranks have different parameters, or one is gone.
    """

    def __init__(
        self,
        parameters: Iterable[Tensor],
        communicator: Communicator,
        settings: Communication,
        *,
        bucket_bytes: int,
        threads: int | None = None,
        sink: SpanSink | None = None,
    ) -> None:
        assert communicator.size > 1
        self._parameters = trained(parameters)
        self._settings, self.sink = settings, sink
        device = self._parameters[0].device
        self._lane = make_exchange_lane(device)
        self.waited_seconds = 0.0
        self.own_norm = torch.zeros((), dtype=torch.float64, device=device)
        self._set_buckets(bucket_bytes)
        self._require_alike(communicator)
        self._residuals = Residuals(device) if settings.error_feedback else None
        # Groups of their own: collectives of the training thread (synchronised batch norm has some) run beside them.
        self._conversations = [
            Conversation(communicator, settings, self._lane, self._residuals, device=device, threads=threads)
            for _ in range(_CONVERSATIONS[device.type])
        ]
        self._threads = ExchangeThreads(len(self._conversations))
        self._place = (communicator.rank, ranks_by_host(communicator.hosts))
        self._update: GradientUpdate | None = None
        self._accumulating = False
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(partial(self._on_gradient, index))
            for index, parameter in enumerate(self._parameters)
        ]

    @property
    def gradient_bytes(self) -> int:
        """Size of all gradients in fp32."""
        return sum(bucket.gradient_bytes for bucket in self.buckets)

    @property
    def sent_bytes(self) -> int:
        """What this rank sends in one update, by the topology's count, without the status."""
        return sum(self._conversation(bucket).sent(bucket) for bucket in self.buckets)

    @property
    def sent_between_nodes(self) -> int:
        """The part of `sent_bytes` that goes to other hosts."""
        return sum(self._conversation(bucket).sent_between_nodes(bucket) for bucket in self.buckets)

    def begin(self, step: int) -> None:
        """Begin update `step` of the run: call it before the first forward pass."""
        self._update = GradientUpdate(step, self._parameters, self.buckets, self._lane)

    @contextmanager
    def accumulate(self) -> Iterator[None]:
        """Backward passes inside only add to the gradients; the sums leave with the last pass, outside.

        The average is over ranks only: divide each pass's loss by their number.
        """
        self._accumulating = True
        try:
            yield
        finally:
            self._accumulating = False

    def backward_begins(self) -> None:
        """The last backward pass begins now. For the timeline only: without it, that is when the update began."""
        assert self._update
        self._update.backward_start = self._lane.mark()

    def finish(self, status: Sequence[float]) -> list[float]:
        """After the last backward pass: wait until all gradients are averages.

        Args:
            status: numbers of the caller, as many on each rank.

        Returns:
            Their sums over all ranks, in float64.

        Raises:
            RunError: a rank is gone. Then nothing can be reduced any more: only `close` is left.
            Exception: whatever else went wrong in the exchange.
        """
        update = self._update
        assert update
        self._update = None
        self._send(update, update.end())
        self._threads.submit(0, partial(self._conversations[0].add_up, update, [*update.used, *status]))
        self._threads.wait()
        self.waited_seconds = update.waited_seconds()
        if self.sink:
            for bucket in self.buckets:
                self.sink.bucket(update.span(bucket, self._conversation(bucket).sent(bucket)))
        update.hand_over()
        self.own_norm = torch.cat(update.norms).sum()
        return update.sums[len(self._parameters) :]

    def set_bucket_bytes(self, bucket_bytes: int) -> None:
        """Let gradients travel in other buckets, on all ranks alike, between updates. Residuals begin again with 0."""
        assert self._update is None
        self._set_buckets(bucket_bytes)
        for conversation in self._conversations:
            conversation.forget()

    def state(self) -> dict[str, Any]:
        """For a checkpoint: what compression lost on this rank and is still to be added (error feedback)."""
        return {"layout": self._layout(), "residuals": self._residuals.state() if self._residuals else {}}

    def restore(self, state: dict[str, Any]) -> bool:
        """Go on with what `state` returned on this rank.

        Returns False, and changes nothing, where it does not fit: another number of ranks or other shares of them on
        hosts, another rank, other buckets, topology or compression. The run then goes on without what one step's
        compression had lost.
        """
        if state["layout"] != self._layout():
            return False
        if self._residuals:
            self._residuals.restore(state["residuals"])
        return True

    def close(self) -> None:
        """Leave the parameters alone, end the threads, close the groups. Never waits for a rank that is gone."""
        for hook in self._hooks:
            hook.remove()
        # A thread that still waits for other ranks uses its groups: they end with the process.
        if self._threads.close():
            for conversation in self._conversations:
                conversation.close()

    def _set_buckets(self, bucket_bytes: int) -> None:
        self.buckets = make_buckets([parameter.numel() for parameter in self._parameters], bucket_bytes)

    def _on_gradient(self, index: int, parameter: Tensor) -> None:
        if self._update is None:
            return
        self._send(self._update, self._update.arrive(index, leaving=not self._accumulating))

    def _send(self, update: GradientUpdate, buckets: Sequence[Bucket]) -> None:
        for bucket in buckets:
            self._threads.submit(self._turn(bucket), partial(self._conversation(bucket).average, update, bucket))

    def _turn(self, bucket: Bucket) -> int:
        return bucket.number % len(self._conversations)

    def _conversation(self, bucket: Bucket) -> Conversation:
        return self._conversations[self._turn(bucket)]

    def _layout(self) -> str:
        """What a residual's meaning depends on."""
        settings = (self._settings.topology, self._settings.torus_columns, self._settings.compression)
        return repr((*self._place, settings, [bucket.members for bucket in self.buckets]))

    def _require_alike(self, communicator: Communicator) -> None:
        """A rank with other gradients would hang the others, or add up what does not belong together."""
        facts = [(tuple(parameter.shape), parameter.stride()) for parameter in self._parameters]
        text = repr((facts, [bucket.members for bucket in self.buckets]))
        everybody = communicator.gather_objects((len(facts), hashlib.sha256(text.encode()).hexdigest()))
        for rank, theirs in enumerate(everybody):
            if theirs != everybody[0]:
                raise RunError(
                    f"rank {rank} on {communicator.hosts[rank]} trains {theirs[0]} parameters in an order, shape or "
                    f"memory layout that is not that of the {everybody[0][0]} of rank 0 on {communicator.hosts[0]}: "
                    "start the same code and the same recipe on all ranks"
                )
