"""The stages of V2.0 Table 12 from the moments at which a bucket passed them.

Table 12 gives the average wall-clock time of each activity of one all-reduce. Here an all-reduce is that of one bucket
in one step on one rank, and the average is over all buckets of all steps, each with the same weight, then over the
ranks. What each stage is:

    wait for data         from the start of the backward pass to the first gradient of the bucket
    wait for other data   from there to the last gradient of the bucket
    queuing               until the buckets before it are done with what only one can have at a time
    memcpy in             packing and compressing into the buffer that is sent
    all-reduce            until the sum is here: the library's work, its negotiation if it has one, and waiting for
                          ranks that come later
    memcpy out            decompressing and unpacking into the gradients

Stages of one bucket follow each other without gaps; those of different buckets overlap each other and the backward
pass, which is their purpose: their sum is no part of the step's time. Negotiation is not seen from outside the library,
and so unknown here; Horovod's own timeline tells it.
"""

from __future__ import annotations

from hpcai500.comm.timeline.spans import BucketSpan
from hpcai500.methodology.stages import STAGES

# In the order of `stage_seconds`.
MEASURED_STAGES = STAGES[1:]


def stage_seconds(span: BucketSpan) -> tuple[float, float, float, float, float, float]:
    """Seconds of each of `MEASURED_STAGES`."""
    return (
        span.first_ready - span.backward_start,
        span.last_ready - span.first_ready,
        span.copy_start - span.last_ready,
        span.sent - span.copy_start,
        span.received - span.sent,
        span.done - span.received,
    )


def moments(span: BucketSpan) -> tuple[float, ...]:
    """Where the stages begin and end: one more than there are."""
    return (
        span.backward_start,
        span.first_ready,
        span.last_ready,
        span.copy_start,
        span.sent,
        span.received,
        span.done,
    )
