"""Which cores each rank of a host takes: an equal share, so that N ranks do not start N times the threads."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from hpcai500.errors import UsageError
from hpcai500.placement import Placement

VARIABLE = "HPCAI500_AFFINITY"
_CPUS = Path("/sys/devices/system/cpu")


def cores_for(local_rank: int, local_size: int) -> list[int] | None:
    """The cores for one of `local_size` ranks here; None if they shall share all (HPCAI500_AFFINITY=none).

    Raises:
        UsageError: the variable holds something else.
    """
    wish = os.environ.get(VARIABLE, "")
    if wish not in ("", "none"):
        raise UsageError(f"{VARIABLE}={wish}: expected none (all ranks share all cores), or nothing (each has its own)")
    return (
        None if wish or local_size == 1 else share(neighbours_together(os.sched_getaffinity(0)), local_rank, local_size)
    )


def cores_of_launched(placement: Placement) -> list[int] | None:
    """The cores for a rank that a launcher has started; None leaves it where it is.

    mpirun and srun bind ranks to cores, each in its own way; torchrun and horovodrun never do.
    """
    if placement.launcher not in ("torchrun", "horovodrun") or placement.local_size is None:
        return None
    return cores_for(placement.local_rank, placement.local_size)


def share(cores: Sequence[int], local_rank: int, local_size: int) -> list[int]:
    """Cores of one rank: len(cores) // local_size of them, so that all ranks are as fast; one where that is none."""
    each = max(1, len(cores) // local_size)
    first = local_rank * each % len(cores)
    return list(cores[first : first + each])


def neighbours_together(cores: Iterable[int], cpus: Path = _CPUS) -> list[int]:
    """`cores` by package, and the hardware threads of a physical core side by side: a share cuts neither if it can.

    Linux often numbers the second threads after all first ones; plain ranges would then give two ranks the same cores.
    """
    return sorted(cores, key=lambda core: (*_place(cpus / f"cpu{core}" / "topology"), core))


def _place(topology: Path) -> tuple[int, int]:
    """Package, and lowest thread of the core; the same for all where the machine does not say (some containers)."""
    return _first_number(topology / "physical_package_id"), _first_number(topology / "thread_siblings_list")


def _first_number(path: Path) -> int:
    found = re.match(r"\d+", path.read_text()) if path.is_file() else None
    return int(found.group()) if found else 0
