"""What training asks of storage: samples, checkpoints, the accelerators that a rate keeps busy, and latencies."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

# ----------------------------------------------------------------------------------------------------
# Samples, as the loaders read them.


@dataclass(frozen=True)
class Samples:
    """How a loader reads one sample.

    Attributes:
        size_bytes: of a sample in storage.
        request_bytes: read at once; a multiple of the page, or the whole sample.
        per_file: samples that a file holds, one after the other.
    """

    size_bytes: int
    request_bytes: int
    per_file: int


SAMPLES: Mapping[str, Samples] = {
    # One JPEG file a sample. Its mean size in ImageNet's training set, as MLPerf Storage v1.0 states it
    # (storage-conf/workload/resnet50_h100.yaml: record_length 114660.07).
    "ic": Samples(114_660, 114_660, 1),
    # 16 channels of 768 x 1152 fp32 values, one after the other in a year's HDF5 file; the loader reads plane by plane.
    "ewa": Samples(16 * 768 * 1152 * 4, 768 * 1152 * 4, 16),
}


# ----------------------------------------------------------------------------------------------------
# Accelerators that a rate keeps busy.


@dataclass(frozen=True)
class Speed:
    """How many samples a second one accelerator takes, and who says so."""

    name: str
    samples_per_second: float
    source: str


# MLPerf Storage emulates an H100 on ResNet-50 by 0.224 s for a batch of 400 (v1.0, resnet50_h100.yaml).
SPEEDS: Mapping[str, Speed] = {"ic": Speed("H100", 400 / 0.224, "MLPerf Storage v1.0, ResNet-50: 400 in 0.224 s")}


def accelerators_busy(samples_per_second: float, speed: Speed) -> int:
    """How many accelerators never wait: the whole number of `speed` in the rate.

    MLPerf Storage lets accelerators wait for a tenth of the time, and so counts up to a ninth more.
    """
    return math.floor(samples_per_second / speed.samples_per_second)


# ----------------------------------------------------------------------------------------------------
# Checkpoints.


# fp32 weights and momentum, as our engine saves them.
_SGD_BYTES = 8
# 16-bit weights, and in fp32 the weights and both moments of Adam. Llama 3's 8 and 70 billion parameters give 105 and
# 920 GiB; MLPerf Storage v2.0 (Submission_guidelines.md, table 2) states 105 and 912.
_ADAM_BYTES = 14

# Bytes of a whole checkpoint by model, the smallest first.
CHECKPOINTS: Mapping[str, int] = {
    "resnet50": _SGD_BYTES * 25_557_032,
    "1b": _ADAM_BYTES * 1_235_814_400,
    "8b": _ADAM_BYTES * 8_030_261_248,
    "70b": _ADAM_BYTES * 70_553_706_496,
}


def share_of(whole_bytes: int, rank: int, ranks: int) -> int:
    """Bytes that `rank` saves: all ranks' shares differ by one at most, and sum to the whole."""
    return whole_bytes * (rank + 1) // ranks - whole_bytes * rank // ranks


# ----------------------------------------------------------------------------------------------------
# Latencies of many operations, in bounded space.


# A bucket is 1 % wide, so a quantile is at most 1 % too high.
_WIDTH = math.log(1.01)
# A quantile q needs operations beyond it: 100 for p99, 1000 for p99.9.
_QUANTILES = (("p50", 0.5, 2), ("p99", 0.99, 100), ("p99.9", 0.999, 1000))


@dataclass
class Latencies:
    """Seconds of operations, counted in logarithmic buckets, so that those of thousands of ranks can be merged."""

    counts: dict[int, int] = field(default_factory=dict)
    longest_seconds: float = 0.0

    def add(self, seconds: float) -> None:
        """Count one operation."""
        bucket = math.ceil(math.log(max(seconds, 1e-9)) / _WIDTH)
        self.counts[bucket] = self.counts.get(bucket, 0) + 1
        self.longest_seconds = max(self.longest_seconds, seconds)

    @classmethod
    def merged(cls, parts: Iterable[Latencies]) -> Latencies:
        """All operations of `parts`."""
        whole = cls()
        for part in parts:
            whole.longest_seconds = max(whole.longest_seconds, part.longest_seconds)
            for bucket, count in part.counts.items():
                whole.counts[bucket] = whole.counts.get(bucket, 0) + count
        return whole

    @property
    def operations(self) -> int:
        return sum(self.counts.values())

    def quantile(self, share: float) -> float:
        """The time within which `share` of the operations ended, at most 1 % too high; there must be operations."""
        needed, reached = share * self.operations, 0
        for bucket in sorted(self.counts):
            reached += self.counts[bucket]
            if reached >= needed:
                return min(math.exp(bucket * _WIDTH), self.longest_seconds)
        return self.longest_seconds

    def document(self) -> dict[str, float | int | None]:
        """Seconds of p50, p99, p99.9 (null if there are too few operations for it) and max, and the operations."""
        count = self.operations
        found: dict[str, float | int | None] = {
            name: self.quantile(share) if count >= least else None for name, share, least in _QUANTILES
        }
        return {**found, "max": self.longest_seconds if count else None, "operations": count}
