"""A fair sample of a stream whose length nobody knows, in a bounded space."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Reservoir(Generic[T]):
    """Keeps `capacity` of the things that come by, each with the same probability (Vitter 1985, algorithm R).

    All of them are there as long as they fit. Which ones stay afterwards is the same in every run.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.seen = 0
        self.kept: list[T] = []
        self._random = random.Random(0).random  # noqa: S311 - a sample, no secret

    def add(self, thing: T) -> None:
        """One more thing comes by."""
        self.seen += 1
        if len(self.kept) < self.capacity:
            self.kept.append(thing)
            return
        place = int(self._random() * self.seen)
        if place < self.capacity:
            self.kept[place] = thing

    def __iter__(self) -> Iterator[T]:
        return iter(self.kept)


def weighted_quantile(values: Iterable[tuple[float, float]], share: float) -> float:
    """The smallest value at which at least `share` of the weight is reached; `values` are (value, weight), some."""
    ordered = sorted(values)
    wanted = share * sum(weight for _, weight in ordered)
    reached = 0.0
    for value, weight in ordered:
        reached += weight
        if reached >= wanted:
            return value
    return ordered[-1][0]
