"""Averages gradients over ranks, in buckets, while the backward pass still runs (V2.0 section 5.1.6)."""

from __future__ import annotations

import hashlib
import queue
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hpcai500.comm import kernels
from hpcai500.comm.codecs import Buffers, Residuals, make_codec
from hpcai500.comm.communicator import Communicator, Traffic
from hpcai500.comm.timeline import BucketSpan, SpanSink
from hpcai500.comm.topologies import make_topology
from hpcai500.errors import RunError, UsageError
from hpcai500.layers import Communication
from hpcai500.methodology.cost import fused
from hpcai500.side_stream import SideStream

# ----------------------------------------------------------------------------------------------------
# Buckets (tensor fusion): "grouping layers to overlap communication" (V2.0 section 5.1.6).


# Gradients are fp32 before and after the exchange, with any codec.
BYTES_AN_ELEMENT = 4


@dataclass(frozen=True)
class Bucket:
    """Gradients that are sent together.

    `number` is its place in the order of sending, from 0; `members` are indices of parameters, in their order in the
    buffer; `elements` is the number of elements of all members.
    """

    number: int
    members: tuple[int, ...]
    elements: int

    @property
    def gradient_bytes(self) -> int:
        return self.elements * BYTES_AN_ELEMENT


def trained(parameters: Iterable[Tensor]) -> list[Tensor]:
    """The parameters that get gradients, in the order of registration; shared ones once, no empty or frozen ones.

    Raises:
        UsageError: no parameter gets a gradient, or one is not float32.
    """
    found = [parameter for parameter in dict.fromkeys(parameters) if parameter.requires_grad and parameter.numel()]
    if not found:
        raise UsageError("model: no parameter is trained: let at least one require a gradient")
    for index, parameter in enumerate(found):
        if parameter.dtype != torch.float32:
            raise UsageError(
                f"model: trained parameter {index} {list(parameter.shape)} is {parameter.dtype}, but gradients are "
                "summed over ranks from float32 only: keep weights in float32 (accelerator.precision mixes the rest)"
            )
    return found


def make_buckets(sizes: Sequence[int], bucket_bytes: int, most_tensors: int | None = None) -> list[Bucket]:
    """Group parameters of `sizes` elements into buckets of at most `bucket_bytes` of fp32 gradients.

    A bucket has at most `most_tensors` parameters (`kernels.most_tensors`); None is any number.

    The order is the reverse of registration, which is roughly the order in which a backward pass computes gradients;
    each bucket takes as many of the next parameters as fit. A parameter larger than `bucket_bytes` has its own bucket.
    """
    assert bucket_bytes > 0
    order = range(len(sizes))[::-1]
    groups = [
        tuple(order[place] for place in group)
        for group in fused((sizes[index] * BYTES_AN_ELEMENT for index in order), bucket_bytes, most_tensors)
    ]
    return [Bucket(number, group, sum(sizes[index] for index in group)) for number, group in enumerate(groups)]


class Readiness:
    """Tracks which buckets of one update may be sent.

    Buckets are sent strictly in order: ranks whose gradients become ready in different orders still send the same
    bucket at the same time, without negotiation (as Horovod calls it).
    """

    def __init__(self, buckets: Sequence[Bucket]) -> None:
        self._buckets = buckets
        self._bucket_of = {index: bucket for bucket in buckets for index in bucket.members}
        self._missing = [set(bucket.members) for bucket in buckets]
        self._next = 0

    def bucket_of(self, index: int) -> Bucket:
        return self._bucket_of[index]

    def awaits(self, index: int) -> bool:
        """Whether the gradient of parameter `index` has not arrived yet."""
        return index in self._missing[self._bucket_of[index].number]

    def complete(self, bucket: Bucket) -> bool:
        """Whether all gradients of `bucket` have arrived."""
        return not self._missing[bucket.number]

    def arrive(self, index: int) -> list[Bucket]:
        """Note that the gradient of parameter `index` is ready; returns the buckets to send now, in order."""
        self._missing[self._bucket_of[index].number].remove(index)
        leaving = []
        while self._next < len(self._buckets) and not self._missing[self._next]:
            leaving.append(self._buckets[self._next])
            self._next += 1
        return leaving

    def rest(self) -> list[Bucket]:
        """The buckets that were not sent yet, in order, when no more gradients will arrive."""
        leaving = list(self._buckets[self._next :])
        self._next = len(self._buckets)
        return leaving


# ----------------------------------------------------------------------------------------------------
# The threads of a process that exchange gradients with other ranks.


# For all threads together. Idle ones end at once; one that waits for a lost rank may wait for ever and is abandoned.
_GOODBYE_SECONDS = 2.0

Job = Callable[[], object]


class ExchangeThreads:
    """Run jobs, each thread in the order of submission. After the first failure, the other jobs are dropped."""

    def __init__(self, count: int) -> None:
        self._error: BaseException | None = None
        # Read by `wait`: None from each thread that has finished its earlier jobs, or the error of one that failed.
        self._reports: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        self._jobs: list[queue.SimpleQueue[Job | None]] = [queue.SimpleQueue() for _ in range(count)]
        # Daemons: a process whose collective never returns must be able to end.
        self._threads = [
            threading.Thread(target=self._work, args=(jobs,), name=f"hpcai500-exchange-{number}", daemon=True)
            for number, jobs in enumerate(self._jobs)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, number: int, job: Job) -> None:
        """Queue `job` for thread `number`."""
        self._jobs[number].put(job)

    def wait(self) -> None:
        """Wait until all jobs so far are done, on all threads.

        Raises:
            Exception: of the first failed job, without waiting for the others, in this and all later calls.
        """
        for jobs in self._jobs:
            jobs.put(self._report)
        for _ in self._threads:
            if self._error or self._reports.get():
                break
        if self._error:
            raise self._error

    def close(self) -> bool:
        """End the threads; returns whether they have ended. Waits two seconds at most."""
        for jobs in self._jobs:
            jobs.put(None)
        deadline = time.monotonic() + _GOODBYE_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _report(self) -> None:
        self._reports.put(None)

    def _work(self, jobs: queue.SimpleQueue[Job | None]) -> None:
        while (job := jobs.get()) is not None:
            if self._error is None:
                try:
                    job()
                except BaseException as error:  # noqa: BLE001  (raised again by `wait`)
                    self._error = error
                    self._reports.put(error)


# ----------------------------------------------------------------------------------------------------
# Order of the exchange: after the gradients it needs, concurrent with the rest of the backward pass.


# A point in the work whose time is known only later (with CUDA an event); made and read by the same stream.
Mark = Any
# An ordered sequence of work (with CUDA a stream): hashable; made and read by the same stream.
Queue = Any


class ExchangeStream:
    """Orders the exchange relative to the computation, and gives the time of each mark.

    This one is for the CPU: work is done when its call returns, so there is nothing to order.
    """

    def queue(self) -> Queue:
        """The current queue of the calling thread; marks of one queue are reached in order."""
        return 0

    def mark(self, queue: Queue = None) -> Mark:
        """A mark after the work in `queue` so far; by default in the calling thread's queue."""
        return time.perf_counter()

    @contextmanager
    def after(self, *marks: Mark) -> Iterator[None]:
        """Inside, work of the calling thread runs concurrently with the computation, after all `marks`."""
        yield

    def let_go(self, tensors: Sequence[Tensor]) -> None:
        """Allow the computation's `tensors` to be freed once the work queued so far has read them. Inside `after`."""

    def settle(self) -> None:
        """Wait until all queued work is done; then `seconds` works for all marks. Inside `after`."""

    def seconds(self, mark: Mark) -> float:
        """The time of `mark`, by `time.perf_counter`."""
        return float(mark)


class CudaStream(ExchangeStream):
    """On a CUDA device, the exchange has its own stream, which waits for events of the computing streams.

    Gradients belong to a computing stream: after they are freed, the allocator could reuse their memory while this
    stream still reads it. So their parameters keep them until `settle` returns, or until they are passed to `let_go`.
    """

    def __init__(self, device: torch.device) -> None:
        # With priority over the computation's kernels, because other ranks wait for this work.
        self._side = SideStream(device, first=True)
        self._anchor = torch.cuda.Event(enable_timing=True)
        self._anchor_seconds = 0.0

    def queue(self) -> Queue:
        return self._side.current()

    def mark(self, queue: Queue = None) -> Mark:
        event = torch.cuda.Event(enable_timing=True)
        event.record(queue or self._side.current())
        return event

    @contextmanager
    def after(self, *marks: Mark) -> Iterator[None]:
        with self._side.beside(*marks):
            yield

    def let_go(self, tensors: Sequence[Tensor]) -> None:
        for tensor in tensors:
            tensor.record_stream(self._side.stream)

    def settle(self) -> None:
        self._anchor.record(self._side.stream)
        self._anchor.synchronize()
        self._anchor_seconds = time.perf_counter()

    def seconds(self, mark: Mark) -> float:
        return self._anchor_seconds - float(mark.elapsed_time(self._anchor)) / 1e3


def make_exchange_stream(device: torch.device) -> ExchangeStream:
    return CudaStream(device) if device.type == "cuda" else ExchangeStream()


# ----------------------------------------------------------------------------------------------------
# The state of one update: ready and used gradients, and the times at which each bucket passed each stage.


class GradientUpdate:
    """State of one update, shared by the training thread and the exchange threads.

    From the time a bucket is sent until the update ends, its gradients, `norms`, `stages`, `sums` and `exchange_end`
    belong to the exchange threads.

    Attributes:
        used: 1 for each parameter that a backward pass of this rank has reached.
        backward_start, backward_end: marks of the last backward pass.
        last_ready: for each bucket, marks of its last gradients, one of each queue that computed some.
        stages: for each bucket, the marks of `copy_start`, `sent`, `received`, `done`.
        norms: for each bucket, the L2 norms of this rank's own gradients, before summing (float64, on their device).
        sums: over all ranks, of `used` followed by the caller's numbers.
        exchange_end: mark at which `sums` were complete.
    """

    def __init__(
        self, step: int, parameters: Sequence[Tensor], buckets: Sequence[Bucket], stream: ExchangeStream
    ) -> None:
        self._step, self._parameters, self._stream = step, parameters, stream
        self._readiness = Readiness(buckets)
        self._absent: dict[int, Tensor] = {}
        self._first_ready: dict[int, Mark] = {}
        self._queues: defaultdict[int, set[Queue]] = defaultdict(set)
        self.used = bytearray(len(parameters))
        self.backward_start = self.backward_end = self.exchange_end = stream.mark()
        self.last_ready: dict[int, tuple[Mark, ...]] = {}
        self.stages: dict[int, list[Mark]] = {}
        norms = torch.empty(len(parameters), dtype=torch.float64, device=parameters[0].device)
        self.norms = norms.split([len(bucket.members) for bucket in buckets])
        self.sums: list[float] = []

    def arrive(self, index: int, *, leaving: bool) -> list[Bucket]:
        """Note that a backward pass has added to the gradient of parameter `index`; returns the buckets to send now.

        `leaving` says whether buckets may be sent in this pass, which must be the last one.

        Raises:
            RunError: it arrived twice in the last pass, so it may have been sent incomplete.
        """
        self.used[index] = 1
        if not leaving:
            return []
        if not self._readiness.awaits(index):
            raise RunError(
                f"the gradient of trained parameter {index} {list(self._parameters[index].shape)} arrived twice in the "
                "last backward pass of an update: call the earlier passes inside Reducer.accumulate()"
            )
        self._keep_layout(index)
        bucket = self._readiness.bucket_of(index)
        buckets = self._readiness.arrive(index)
        self._note(bucket)
        return buckets

    def end(self) -> list[Bucket]:
        """End the last backward pass; returns the buckets to send now, with zeros for missing gradients."""
        rest = self._readiness.rest()
        for bucket in rest:
            for index in bucket.members:
                if not self.used[index]:
                    self._absent[index] = torch.zeros_like(self._parameters[index])
                elif self._readiness.awaits(index):
                    self._keep_layout(index)
        # After the zeros: the exchange of these buckets waits for this mark.
        self.backward_end = self._stream.mark()
        for bucket in rest:
            self._first_ready.setdefault(bucket.number, self.backward_end)
            if not self._readiness.complete(bucket):
                self.last_ready[bucket.number] = (self.backward_end,)
        return rest

    def gradients(self, bucket: Bucket) -> list[Tensor]:
        """The gradients of a bucket to send, in the order of its members."""
        found = []
        for index in bucket.members:
            gradient = self._absent.get(index, self._parameters[index].grad)
            assert gradient is not None
            found.append(gradient)
        return found

    def replace(self, bucket: Bucket, tensors: Sequence[Tensor]) -> None:
        """Make `tensors`, to which the averages will be written, the gradients of `bucket`."""
        for index, tensor in zip(bucket.members, tensors, strict=True):
            if index in self._absent:
                self._absent[index] = tensor
            else:
                self._parameters[index].grad = tensor

    def hand_over(self) -> None:
        """After all sums are complete, set the averages of parameters that only other ranks used."""
        for index, gradient in self._absent.items():
            if self.sums[index]:
                self._parameters[index].grad = gradient

    def waited_seconds(self) -> float:
        """From the end of the backward pass to the last sum, after the stream has settled."""
        ends = [self.exchange_end, *(marks[-1] for marks in self.stages.values())]
        return max(0.0, max(map(self._stream.seconds, ends)) - self._stream.seconds(self.backward_end))

    def span(self, bucket: Bucket, sent_bytes: int) -> BucketSpan:
        """The times at which `bucket` passed each stage, after the stream has settled."""
        number = bucket.number
        copy_start, sent, received, done = map(self._stream.seconds, self.stages[number])
        return BucketSpan(
            step=self._step,
            bucket=number,
            backward_start=self._stream.seconds(self.backward_start),
            first_ready=self._stream.seconds(self._first_ready[number]),
            last_ready=max(map(self._stream.seconds, self.last_ready[number])),
            copy_start=copy_start,
            sent=sent,
            received=received,
            done=done,
            gradient_bytes=bucket.gradient_bytes,
            sent_bytes=sent_bytes,
        )

    def _note(self, bucket: Bucket) -> None:
        """Note that a gradient of `bucket` is ready, or will be in the queue of the calling thread."""
        queues = self._queues[bucket.number]
        queues.add(self._stream.queue())
        if bucket.number not in self._first_ready:
            self._first_ready[bucket.number] = self._stream.mark()
        if self._readiness.complete(bucket):
            # Autograd computes a gradient on the stream on which its parameter's node was created; for some that is
            # the capture stream of a CUDA graph. So the last gradient is not ordered after those of other streams.
            self.last_ready[bucket.number] = tuple(self._stream.mark(queue) for queue in queues)

    def _keep_layout(self, index: int) -> None:
        """Give a gradient its parameter's memory layout: buffers hold gradients in an order common to all ranks."""
        parameter = self._parameters[index]
        gradient = parameter.grad
        assert gradient is not None
        if gradient.stride() != parameter.stride() and not _same_layout(gradient, dense := torch.empty_like(parameter)):
            parameter.grad = dense.copy_(gradient)


def _same_layout(one: Tensor, other: Tensor) -> bool:
    """Whether elements have the same order in memory; the stride of an axis of length 1 does not matter."""
    strides = zip(one.shape, one.stride(), other.stride(), strict=True)
    return all(length == 1 or stride == theirs for length, stride, theirs in strides)


# ----------------------------------------------------------------------------------------------------
# One of several concurrent exchanges: it has its own groups and buffers, and averages one bucket at a time.


class AllReduceChannel:
    """Averages buckets over all ranks of `communicator`, which all create it and use it in the same order.

    Raises:
        RecipeError: the topology does not fit these ranks.
        RunError (also all methods): a rank is lost.
    """

    def __init__(
        self,
        communicator: Communicator,
        settings: Communication,
        stream: ExchangeStream,
        residuals: Residuals | None,
        *,
        device: torch.device,
        threads: int | None,
    ) -> None:
        group = communicator.group(range(communicator.size))
        assert group
        self._all, self._stream, self._device = group, stream, device
        buffers = Buffers(device)
        self._codec = make_codec(settings.compression, buffers, residuals, threads)
        self._topology = make_topology(settings, group, self._codec, buffers)

    def average(self, update: GradientUpdate, bucket: Bucket) -> None:
        """Replace the gradients of `bucket` by their average over all ranks, and note the times of its stages."""
        number, gradients = bucket.number, update.gradients(bucket)
        with self._stream.after(*update.last_ready[number]):
            marks = [self._stream.mark()]
            packed = self._codec.pack(
                gradients,
                self._padded(bucket.elements),
                scale=1 / self._all.size,
                bucket=number,
                norms=update.norms[number],
            )
            targets = self._codec.targets(gradients, number)
            if targets is not gradients:
                self._stream.let_go(gradients)
                update.replace(bucket, targets)
                del gradients
            marks.append(self._stream.mark())
            packed = self._topology.sum(packed, number)
            marks.append(self._stream.mark())
            self._codec.unpack(packed, targets)
            marks.append(self._stream.mark())
        update.stages[number] = marks

    def add_up(self, update: GradientUpdate, numbers: Sequence[float]) -> None:
        """Write the sum of `numbers` over all ranks to `update.sums`; earlier queued work is then done and timed."""
        with self._stream.after(update.backward_end):
            tensor = torch.tensor(numbers, dtype=torch.float64, device=self._device)
            self._all.all_reduce(tensor)
            update.exchange_end = self._stream.mark()
            self._stream.settle()
            update.sums = tensor.tolist()

    def traffic(self, bucket: Bucket) -> Traffic:
        """Bytes this rank sends for `bucket`, by the topology's count."""
        packed_bytes = self._codec.packed_bytes(self._padded(bucket.elements))
        return self._topology.traffic(packed_bytes, bucket.number)

    def forget(self) -> None:
        """Forget the state of each bucket, because the buckets change."""
        self._codec.forget()

    def close(self) -> None:
        for group in [*self._topology.groups, self._all]:
            group.close()

    def _padded(self, elements: int) -> int:
        """`elements` rounded up so that the topology can cut them into pieces that are multiples of the grain."""
        unit = self._topology.pieces * self._codec.grain
        return -(-elements // unit) * unit


# ----------------------------------------------------------------------------------------------------
# The reducer: autograd's hooks hand gradients to the exchange threads.


# While one bucket is packed or summed, others are being sent: over Gloo, two at a time take four fifths of the time of
# sequential ones, three somewhat less. NCCL uses the whole device, so it gets one channel.
_CHANNELS = {"cpu": 3, "cuda": 1}


def needs_one_order(communicator: Communicator) -> bool:
    """Whether all ranks must start the collectives of several communicators in the same order, one after the other.

    NCCL may wait for ever otherwise (NCCL User Guide, "Using multiple NCCL communicators concurrently"; the warning of
    `torch.distributed.new_group`). Under Horovod, one thread starts them all, in an order on which the ranks agree.
    """
    return communicator.backend == "torch" and communicator.library.startswith("NCCL")


class Reducer:
    """Makes each parameter's gradient the average over all ranks, in fp32.

    Between `begin` and `finish`, each bucket is sent as soon as its gradients are ready and all earlier buckets were
    sent. Threads pack, sum and unpack; buckets go to the threads in turn, so that each thread has the same order on all
    ranks. The averages are bitwise equal on all ranks; NaN on one rank makes the average NaN on all ranks.

    If `passes_communicate`, and the library needs one order of all collectives (`needs_one_order`), `finish` sends all
    buckets, after the collectives of the passes: when a gradient is ready depends on the rank, the end of the passes
    does not.

    Averages are in `parameter.grad`, with the parameter's memory layout. Without compression they are views of buffers,
    which the next update overwrites; with compression, they are autograd's tensors. If only other ranks used a
    parameter, this rank contributes zeros and gets the average; if no rank did, `parameter.grad` does not change.

    Outside `begin` and `finish`, backward passes do not communicate.

    Args:
        parameters: the model's, registered in the same order on all ranks; at least one of them trained.
        communicator: all ranks, at least two. The reducer makes its own groups, so it may be used concurrently.
        bucket_bytes: maximum size of the fp32 gradients of one bucket. With an old CUDA or driver a bucket also has at
            most 192 gradients (`kernels.most_tensors`), on all ranks if on one.
        threads: CPU threads for packing and unpacking; None is torch's number.
        sink: receives the spans of all buckets, from `finish`. It may be changed between updates.
        passes_communicate: whether passes have collectives, sends or receives of their own, by other communicators.

    Attributes:
        waited_seconds: in the last update, from the end of the backward pass to the last sum: the part that was not
            overlapped.
        own_norm: in the last update, the sum of the L2 norms of this rank's own gradients, before summing over ranks
            (float64, on their device); not finite if one of their values was not.

    Raises:
        RecipeError: the topology does not fit these ranks.
        UsageError: a trained parameter is not float32.
        RunError: ranks have different parameters, or one is lost.
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
        passes_communicate: bool = False,
    ) -> None:
        assert communicator.size > 1
        self._parameters = trained(parameters)
        self.sink = sink
        device = self._parameters[0].device
        self._stream = make_exchange_stream(device)
        self.waited_seconds = 0.0
        self.own_norm = torch.zeros((), dtype=torch.float64, device=device)
        most = kernels.most_tensors(device)
        # Drivers may differ between hosts; buckets must not.
        self._most_tensors = most and min(communicator.gather_objects(most))
        self._set_buckets(bucket_bytes)
        self._require_same_parameters(communicator)
        residuals = Residuals(device) if settings.error_feedback else None
        self._sends_in_passes = not (passes_communicate and needs_one_order(communicator))
        # With their own groups, because collectives of the training thread (synchronised batch norm) may be concurrent.
        self._channels = [
            AllReduceChannel(communicator, settings, self._stream, residuals, device=device, threads=threads)
            for _ in range(_CHANNELS[device.type])
        ]
        self._threads = ExchangeThreads(len(self._channels))
        self._update: GradientUpdate | None = None
        self._accumulating = False
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(partial(self._on_gradient, index))
            for index, parameter in enumerate(self._parameters)
        ]

    @property
    def gradient_bytes(self) -> int:
        """Bytes of all gradients in fp32."""
        return sum(bucket.gradient_bytes for bucket in self.buckets)

    @property
    def sent_bytes(self) -> int:
        """Bytes that this rank sends in one update, by the topology's count, without the status."""
        return sum(self._sent(bucket) for bucket in self.buckets)

    @property
    def sent_between_nodes(self) -> int:
        """The part of `sent_bytes` that goes to other hosts."""
        return sum(round(self._channel(bucket).traffic(bucket).between_nodes) for bucket in self.buckets)

    def begin(self, step: int) -> None:
        """Begin update `step` of the run, before the first forward pass."""
        self._update = GradientUpdate(step, self._parameters, self.buckets, self._stream)

    @contextmanager
    def accumulate(self) -> Iterator[None]:
        """Backward passes inside only accumulate gradients; the last pass, outside, sends them.

        The average is over ranks only: divide each pass's loss by the number of passes.
        """
        self._accumulating = True
        try:
            yield
        finally:
            self._accumulating = False

    def backward_begins(self) -> None:
        """Note for the timeline that the last backward pass begins now; by default it starts with `begin`."""
        assert self._update
        self._update.backward_start = self._stream.mark()

    def finish(self, status: Sequence[float]) -> list[float]:
        """Wait, after the last backward pass, until all gradients are averages.

        Returns the sums over all ranks (float64) of `status`, which must have the same length on each rank.

        Raises:
            RunError: a rank is lost. Then only `close` may be called.
            Exception: any other error of the exchange.
        """
        update = self._update
        assert update
        self._update = None
        self._send(update, update.end())
        self._threads.submit(0, partial(self._channels[0].add_up, update, [*update.used, *status]))
        self._threads.wait()
        self.waited_seconds = update.waited_seconds()
        if self.sink:
            for bucket in self.buckets:
                self.sink.bucket(update.span(bucket, self._sent(bucket)))
        update.hand_over()
        self.own_norm = torch.cat(update.norms).sum()
        return update.sums[len(self._parameters) :]

    def set_bucket_bytes(self, bucket_bytes: int) -> None:
        """Change the buckets between updates, on all ranks. Residuals are reset to 0."""
        assert self._update is None
        self._set_buckets(bucket_bytes)
        for channel in self._channels:
            channel.forget()

    def close(self) -> None:
        """Remove the hooks, end the threads, close the groups. Does not wait for a lost rank."""
        for hook in self._hooks:
            hook.remove()
        # The groups of a thread that still waits for other ranks are in use, and end with the process.
        if self._threads.close():
            for channel in self._channels:
                channel.close()

    def _set_buckets(self, bucket_bytes: int) -> None:
        sizes = [parameter.numel() for parameter in self._parameters]
        self.buckets = make_buckets(sizes, bucket_bytes, self._most_tensors)

    def _on_gradient(self, index: int, parameter: Tensor) -> None:
        if self._update is None:
            return
        leaving = self._sends_in_passes and not self._accumulating
        self._send(self._update, self._update.arrive(index, leaving=leaving))

    def _send(self, update: GradientUpdate, buckets: Sequence[Bucket]) -> None:
        for bucket in buckets:
            self._threads.submit(self._turn(bucket), partial(self._channel(bucket).average, update, bucket))

    def _turn(self, bucket: Bucket) -> int:
        return bucket.number % len(self._channels)

    def _channel(self, bucket: Bucket) -> AllReduceChannel:
        return self._channels[self._turn(bucket)]

    def _sent(self, bucket: Bucket) -> int:
        return round(self._channel(bucket).traffic(bucket).sent)

    def _require_same_parameters(self, communicator: Communicator) -> None:
        """Refuse ranks with other gradients: they would hang, or sum gradients that do not belong together."""
        facts = [(tuple(parameter.shape), parameter.stride()) for parameter in self._parameters]
        text = repr((facts, [bucket.members for bucket in self.buckets]))
        found = communicator.gather_objects((len(facts), hashlib.sha256(text.encode()).hexdigest()))
        for rank, other in enumerate(found):
            if other != found[0]:
                raise RunError(
                    f"rank {rank} on {communicator.hosts[rank]} trains {other[0]} parameters whose order, shapes or "
                    f"memory layouts differ from those of the {found[0][0]} of rank 0 on {communicator.hosts[0]}: "
                    "start the same code and the same recipe on all ranks"
                )
