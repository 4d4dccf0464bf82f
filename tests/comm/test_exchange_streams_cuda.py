"""The stream of a CUDA device: what is put on it comes after all marks, of whatever stream."""

from __future__ import annotations

import pytest
import torch

from hpcai500.comm.reducer import make_exchange_stream

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
# Longer than a host needs to put all that follows on its streams.
LONG_CYCLES = 200_000_000


def test_the_exchange_reads_what_two_streams_have_written() -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    stream = make_exchange_stream(device)
    other = torch.cuda.Stream(device)
    one, two = torch.zeros(1000, device=device), torch.zeros(1000, device=device)
    torch.cuda.synchronize(device)
    with torch.cuda.stream(other):
        torch.cuda._sleep(LONG_CYCLES)
        one.fill_(1)
        on_other = stream.queue()
    two.fill_(2)
    assert on_other != stream.queue()
    with stream.after(stream.mark(on_other), stream.mark()):
        found = one + two
        stream.settle()
    assert found.tolist() == [3.0] * 1000


def test_a_mark_of_a_queue_is_as_late_as_what_was_given_to_it() -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    stream = make_exchange_stream(device)
    other = torch.cuda.Stream(device)
    before = stream.mark()
    with torch.cuda.stream(other):
        queue = stream.queue()
        torch.cuda._sleep(LONG_CYCLES)
    here, there = stream.mark(), stream.mark(queue)
    with stream.after(here, there):
        stream.settle()
    assert stream.seconds(before) <= stream.seconds(here) < stream.seconds(there)
