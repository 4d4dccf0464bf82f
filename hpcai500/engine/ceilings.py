"""What the devices of a job reach at best, measured in the job itself: no step of it can honestly be faster."""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass

import torch

from hpcai500.comm.base import Communicator
from hpcai500.errors import RunError
from hpcai500.measure.preflight.product import Product, measure_product
from hpcai500.measure.repetition import Effort

# Smaller than doctor's: every run pays for it, and half of what a device can do would still tell a forged rate.
_SIDES = {"cpu": 1024, "cuda": 4096}
_EFFORT = Effort(width=0.05, least=3, seconds=0.3, warm_up=1)


@dataclass(frozen=True)
class Ceilings:
    """The value of the event `ceilings`: a matrix product in the run's precision, on all ranks at the same time.

    Attributes:
        precision: as the recipe names it.
        side: of the square matrices.
        flops: sum over ranks of the fastest repetition, in floating-point operations a second.
        slowest_flops: of the slowest rank.
        slowest_host: where that is.
        ranks: how many.
        seconds: that all of it took.
    """

    precision: str
    side: int
    flops: float
    slowest_flops: float
    slowest_host: str
    ranks: int
    seconds: float

    def document(self) -> dict[str, object]:
        """As the event has it."""
        return asdict(self)


def measure_ceilings(world: Communicator, device: torch.device, precision: str) -> Ceilings:
    """Multiply matrices on all ranks. All ranks call it.

    Raises:
        RunError: a rank computes wrongly.
    """
    start = time.perf_counter()
    side = _SIDES[device.type]
    world.barrier()
    mine = measure_product(device, precision, side, effort=_EFFORT)
    products: list[Product] = world.gather_objects(mine)
    wrong = [rank for rank, product in enumerate(products) if product.wrong_rows]
    if wrong:
        raise RunError(
            f"rank {wrong[0]} on {world.hosts[wrong[0]]} computes wrongly: {products[wrong[0]].wrong_rows} of {side} "
            "rows of a product of whole numbers; leave that host out, and have memory and device tested "
            "(`hpcai500 self-test` there tells more)"
        )
    slowest = min(range(world.size), key=lambda rank: products[rank].best_flops)
    return Ceilings(
        precision=precision,
        side=side,
        flops=math.fsum(product.best_flops for product in products),
        slowest_flops=products[slowest].best_flops,
        slowest_host=world.hosts[slowest],
        ranks=world.size,
        seconds=round(time.perf_counter() - start, 6),
    )
