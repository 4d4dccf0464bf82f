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

from hpcai500.comm.codecs import Buffers, Residuals, make_codec
from hpcai500.comm.communicator import Communicator, Traffic
from hpcai500.comm.timeline import BucketSpan, SpanSink
from hpcai500.comm.topologies import make_topology, ranks_by_host
from hpcai500.errors import RunError, UsageError
from hpcai500.layers import Communication
from hpcai500.side_stream import SideStream

# ----------------------------------------------------------------------------------------------------
# Buckets (tensor fusion): "grouping layers to overlap communication" (V2.0 section 5.1.6).


# Gradients are fp32 before and after the exchange, whatever the codec sends.
BYTES_AN_ELEMENT = 4


@dataclass(frozen=True)
class Bucket:
    """Gradients that are sent together.

    `number` is its place in the order of sending, from 0; `members` are indices of parameters, in their order in the
    buffer; `elements` are those of all members together.
    """

    number: int
    members: tuple[int, ...]
    elements: int

    @property
    def gradient_bytes(self) -> int:
        return self.elements * BYTES_AN_ELEMENT


def trained(parameters: Iterable[Tensor]) -> list[Tensor]:
    """The parameters that get gradients, in the order of registration: shared ones once, empty and frozen ones not.

    Raises:
        UsageError: no parameter gets one, or one is not float32.
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


def make_buckets(sizes: Sequence[int], bucket_bytes: int) -> list[Bucket]:
    """Group parameters of `sizes` elements into buckets of at most `bucket_bytes` of fp32 gradients.

    The order is the reverse of registration, which is roughly that in which a backward pass computes gradients; each
    bucket takes as many of the next parameters as fit. A parameter larger than `bucket_bytes` has a bucket of its own.
    """
    assert bucket_bytes > 0
    groups: list[list[int]] = []
    room = 0
    for index in reversed(range(len(sizes))):
        size = sizes[index] * BYTES_AN_ELEMENT
        if not groups or size > room:
            groups.append([])
            room = bucket_bytes
        groups[-1].append(index)
        room -= size
    return [Bucket(number, tuple(group), sum(sizes[index] for index in group)) for number, group in enumerate(groups)]


class Readiness:
    """Tells which buckets of one update may be sent.

    Buckets are sent strictly in order: ranks whose gradients become ready in different orders then still send the same
    bucket at the same time, without asking each other first (what Horovod calls negotiation).
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
        """Take in that the gradient of parameter `index` is ready; returns the buckets to send now, in order."""
        self._missing[self._bucket_of[index].number].remove(index)
        leaving = []
        while self._next < len(self._buckets) and not self._missing[self._next]:
            leaving.append(self._buckets[self._next])
            self._next += 1
        return leaving

    def rest(self) -> list[Bucket]:
        """The buckets that were not sent yet, in order: no more gradients come."""
        leaving = list(self._buckets[self._next :])
        self._next = len(self._buckets)
        return leaving


# ----------------------------------------------------------------------------------------------------
# The threads of a process that exchange gradients with other ranks.


# For all threads together. Idle ones end at once; one that waits for a lost rank may wait for ever, and is left behind.
_GOODBYE_SECONDS = 2.0

Job = Callable[[], object]


class ExchangeThreads:
    """Do jobs, each thread in the order in which it got them. After the first failure, the other jobs are dropped."""

    def __init__(self, count: int) -> None:
        self._error: BaseException | None = None
        # What `wait` reads: None from each thread that has done all jobs before, or the error of one that has failed.
        self._reports: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        self._jobs: list[queue.SimpleQueue[Job | None]] = [queue.SimpleQueue() for _ in range(count)]
        # Daemons: a process whose collective never returns must still be able to end.
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
            Exception: that of the first job that failed, without waiting for the others, in this and all later calls.
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
                except BaseException as error:  # noqa: BLE001  (raised again by whoever waits)
                    self._error = error
                    self._reports.put(error)


# ----------------------------------------------------------------------------------------------------
# Order between the exchange and the computation: after the gradients it needs, beside the rest of the backward pass.


# A point in the work whose time is known only later (for CUDA an event); made and read by the same stream.
Mark = Any
# An ordered sequence of work (for CUDA a stream): hashable; made and read by the same stream.
Queue = Any


class ExchangeStream:
    """Orders the exchange against the computation, and tells when each mark was reached.

    This one is for the CPU: work is done when its call returns, so nothing has to be ordered.
    """

    def queue(self) -> Queue:
        """The queue that the calling thread's work goes to now; marks of one queue are reached in order."""
        return 0

    def mark(self, queue: Queue = None) -> Mark:
        """A mark behind the work in `queue` so far; by default in that of the calling thread."""
        return time.perf_counter()

    @contextmanager
    def after(self, *marks: Mark) -> Iterator[None]:
        """Work of the calling thread inside is done beside the computation, after all `marks`."""
        yield

    def let_go(self, tensors: Sequence[Tensor]) -> None:
        """Allow the computation's `tensors` to be freed once work queued so far has read them. Inside `after`."""

    def settle(self) -> None:
        """Wait until all queued work is done; then `seconds` knows all marks. Inside `after`."""

    def seconds(self, mark: Mark) -> float:
        """When `mark` was, by `time.perf_counter`."""
        return float(mark)


class CudaStream(ExchangeStream):
    """On a CUDA device, the exchange has its own stream, which waits for events of the computing streams.

    Gradients belong to a computing stream: once freed, the allocator could reuse their memory while this stream still
    reads it. So their parameters keep them until `settle` has returned, or `let_go` names them.
    """

    def __init__(self, device: torch.device) -> None:
        # Before the computation's kernels, since other ranks wait for this work.
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
# The state of one update: which gradients are ready, which were used, and when each bucket passed each stage.


class GradientUpdate:
    """What the training thread and the exchange threads know about one update.

    From when a bucket is sent until the update ends, its gradients, `norms`, `stages`, `sums` and `exchange_end` belong
    to the exchange threads.

    Attributes:
        used: 1 for each parameter that a backward pass of this rank has reached.
        backward_start, backward_end: marks of the last backward pass.
        last_ready: of each bucket, when its last gradient was ready: a mark of each queue that gradients came on.
        stages: of each bucket, the marks of `copy_start`, `sent`, `received`, `done`.
        norms: of each bucket, the L2 norms of this rank's own gradients, before any sum (float64, on their device).
        sums: over all ranks, of `used` and of the caller's numbers behind it.
        exchange_end: mark of when `sums` were there.
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
        """Take in that a backward pass has added to the gradient of parameter `index`; returns the buckets to send now.

        `leaving` is whether this is the last pass.

        Raises:
            RunError: it has arrived before in the last pass, so it may have been sent incomplete.
        """
        self.used[index] = 1
        if not leaving:
            return []
        if not self._readiness.awaits(index):
            raise RunError(
                f"the gradient of trained parameter {index} {list(self._parameters[index].shape)} came twice in the "
                "last backward pass of an update: call the passes before it inside Reducer.accumulate()"
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
        """The gradients of a bucket that is sent, in the order of its members."""
        found = []
        for index in bucket.members:
            gradient = self._absent.get(index, self._parameters[index].grad)
            assert gradient is not None
            found.append(gradient)
        return found

    def replace(self, bucket: Bucket, tensors: Sequence[Tensor]) -> None:
        """Make `tensors`, which the averages will be written to, the gradients of `bucket`."""
        for index, tensor in zip(bucket.members, tensors, strict=True):
            if index in self._absent:
                self._absent[index] = tensor
            else:
                self._parameters[index].grad = tensor

    def hand_over(self) -> None:
        """Once all sums are there: give parameters that only other ranks used their averages."""
        for index, gradient in self._absent.items():
            if self.sums[index]:
                self._parameters[index].grad = gradient

    def waited_seconds(self) -> float:
        """From the end of the backward pass to the last sum, once the stream has settled."""
        ends = [self.exchange_end, *(marks[-1] for marks in self.stages.values())]
        return max(0.0, max(map(self._stream.seconds, ends)) - self._stream.seconds(self.backward_end))

    def span(self, bucket: Bucket, sent_bytes: int) -> BucketSpan:
        """When `bucket` passed each stage, once the stream has settled."""
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
        """A gradient of `bucket` is ready, or will be in the queue of the calling thread."""
        queues = self._queues[bucket.number]
        queues.add(self._stream.queue())
        if bucket.number not in self._first_ready:
            self._first_ready[bucket.number] = self._stream.mark()
        if self._readiness.complete(bucket):
            # Autograd computes a gradient on the stream on which its parameter's node was made; for some that is the
            # capture stream of a CUDA graph. So the last gradient to come is not ordered after those of other streams.
            self.last_ready[bucket.number] = tuple(self._stream.mark(queue) for queue in queues)

    def _keep_layout(self, index: int) -> None:
        """Buffers hold gradients in memory order, which must be the same on all ranks: the parameter's."""
        parameter = self._parameters[index]
        gradient = parameter.grad
        assert gradient is not None
        if gradient.stride() != parameter.stride() and not _lie_alike(gradient, dense := torch.empty_like(parameter)):
            parameter.grad = dense.copy_(gradient)


def _lie_alike(one: Tensor, other: Tensor) -> bool:
    """Whether elements are in the same order in memory: the stride of an axis of length 1 does not matter."""
    strides = zip(one.shape, one.stride(), other.stride(), strict=True)
    return all(length == 1 or stride == theirs for length, stride, theirs in strides)


# ----------------------------------------------------------------------------------------------------
# One of the exchanges that run beside each other: it has its own groups and buffers, and averages a bucket at a time.


class AllReduceChannel:
    """Averages buckets over all ranks of `communicator`, which all make it alike and use it in the same order.

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
        """Replace the gradients of `bucket` by their average over all ranks, and note when each stage was passed."""
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
        """Put the sum of `numbers` over all ranks into `update.sums`; work queued before is then done, and timed."""
        with self._stream.after(update.backward_end):
            tensor = torch.tensor(numbers, dtype=torch.float64, device=self._device)
            self._all.all_reduce(tensor)
            update.exchange_end = self._stream.mark()
            self._stream.settle()
            update.sums = tensor.tolist()

    def traffic(self, bucket: Bucket) -> Traffic:
        """What this rank sends for `bucket`, by the topology's count."""
        packed_bytes = self._codec.packed_bytes(self._padded(bucket.elements))
        return self._topology.traffic(packed_bytes, bucket.number)

    def forget(self) -> None:
        """Forget what is kept for each bucket, since other buckets come."""
        self._codec.forget()

    def close(self) -> None:
        for group in [*self._topology.groups, self._all]:
            group.close()

    def _padded(self, elements: int) -> int:
        """`elements` rounded up to what the topology can cut into pieces of whole codec grains."""
        unit = self._topology.pieces * self._codec.grain
        return -(-elements // unit) * unit


# ----------------------------------------------------------------------------------------------------
# The reducer: autograd's hooks hand gradients to the exchange threads.


# While one bucket is packed or summed, others are being sent: over Gloo, two at a time take four fifths of the time of
# one after the other, three somewhat less. NCCL fills a device by itself, so it gets one channel.
_CHANNELS = {"cpu": 3, "cuda": 1}


class Reducer:
    """Makes each parameter's gradient the average over all ranks, in fp32.

    Between `begin` and `finish`, each bucket is sent as soon as its gradients are ready and all buckets before it were
    sent. Threads pack, sum and unpack; buckets go to the threads in turn, so that each thread has the same order on all
    ranks. The averages are the same on all ranks to the bit; a NaN on one rank is a NaN on all.

    Averages are in `parameter.grad`, as tensors that have the parameter's memory layout. Without compression those are
    views of buffers, which the next update overwrites; with it, what autograd left there. Where only other ranks used a
    parameter, this rank gives zeros to the average and gets it; where no rank did, `parameter.grad` stays as it was.

    Outside `begin` and `finish`, backward passes do not communicate.

    Args:
        parameters: the model's, registered alike on all ranks; at least one of them trained.
        communicator: all ranks, at least two. The reducer makes its own groups, so others may use it meanwhile.
        bucket_bytes: of the fp32 gradients of one bucket, at most.
        threads: CPU threads for packing and unpacking; None is torch's number.
        sink: gets the spans of all buckets, from `finish`. It may be changed between updates.

    Attributes:
        waited_seconds: of the last update, from the end of the backward pass to the last sum: what was not overlapped.
        own_norm: of the last update, the sum of the L2 norms of this rank's own gradients, before they were added to
            those of others (float64, on their device); not finite where one of their values was not.

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
    ) -> None:
        assert communicator.size > 1
        self._parameters = trained(parameters)
        self._settings, self.sink = settings, sink
        device = self._parameters[0].device
        self._stream = make_exchange_stream(device)
        self.waited_seconds = 0.0
        self.own_norm = torch.zeros((), dtype=torch.float64, device=device)
        self._set_buckets(bucket_bytes)
        self._require_alike(communicator)
        self._residuals = Residuals(device) if settings.error_feedback else None
        # With their own groups, since collectives of the training thread (synchronised batch norm) run beside them.
        self._channels = [
            AllReduceChannel(communicator, settings, self._stream, self._residuals, device=device, threads=threads)
            for _ in range(_CHANNELS[device.type])
        ]
        self._threads = ExchangeThreads(len(self._channels))
        self._place = (communicator.rank, ranks_by_host(communicator.hosts))
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
        """Backward passes inside only add to the gradients; the last pass, outside, sends the sums.

        The average is over ranks only: divide each pass's loss by the number of passes.
        """
        self._accumulating = True
        try:
            yield
        finally:
            self._accumulating = False

    def backward_begins(self) -> None:
        """Tell the timeline that the last backward pass begins now; without this call it counts from `begin`."""
        assert self._update
        self._update.backward_start = self._stream.mark()

    def finish(self, status: Sequence[float]) -> list[float]:
        """After the last backward pass: wait until all gradients are averages.

        Returns the sums over all ranks (float64) of the caller's numbers `status`, as many on each rank.

        Raises:
            RunError: a rank is lost. Then only `close` may be called.
            Exception: whatever else went wrong in the exchange.
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
        """Change the buckets, on all ranks alike, between updates. Residuals begin again with 0."""
        assert self._update is None
        self._set_buckets(bucket_bytes)
        for channel in self._channels:
            channel.forget()

    def state(self) -> dict[str, Any]:
        """For a checkpoint: what compression lost on this rank and is still to be added (error feedback)."""
        return {"layout": self._layout(), "residuals": self._residuals.state() if self._residuals else {}}

    def restore(self, state: dict[str, Any]) -> bool:
        """Go on with what `state` returned on this rank.

        Returns False, and changes nothing, where it does not fit: other ranks or other shares of them on hosts, other
        buckets, topology or compression. The run then goes on without what one step's compression had lost.
        """
        if state["layout"] != self._layout():
            return False
        if self._residuals:
            self._residuals.restore(state["residuals"])
        return True

    def close(self) -> None:
        """Remove the hooks, end the threads, close the groups. Does not wait for a lost rank."""
        for hook in self._hooks:
            hook.remove()
        # A thread that still waits for other ranks uses its groups, which then end with the process.
        if self._threads.close():
            for channel in self._channels:
                channel.close()

    def _set_buckets(self, bucket_bytes: int) -> None:
        self.buckets = make_buckets([parameter.numel() for parameter in self._parameters], bucket_bytes)

    def _on_gradient(self, index: int, parameter: Tensor) -> None:
        if self._update is None:
            return
        self._send(self._update, self._update.arrive(index, leaving=not self._accumulating))

    def _send(self, update: GradientUpdate, buckets: Sequence[Bucket]) -> None:
        for bucket in buckets:
            self._threads.submit(self._turn(bucket), partial(self._channel(bucket).average, update, bucket))

    def _turn(self, bucket: Bucket) -> int:
        return bucket.number % len(self._channels)

    def _channel(self, bucket: Bucket) -> AllReduceChannel:
        return self._channels[self._turn(bucket)]

    def _sent(self, bucket: Bucket) -> int:
        return round(self._channel(bucket).traffic(bucket).sent)

    def _layout(self) -> str:
        """What a residual's meaning depends on."""
        settings = (self._settings.topology, self._settings.torus_columns, self._settings.compression)
        return repr((*self._place, settings, [bucket.members for bucket in self.buckets]))

    def _require_alike(self, communicator: Communicator) -> None:
        """A rank with other gradients would make the others hang, or sum gradients that do not belong together."""
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
