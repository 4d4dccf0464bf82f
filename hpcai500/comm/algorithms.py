"""The recipe's all-reduce algorithm (V2.0 Table 7) as the switches of the library that carries it out.

docs/communication.md has the table for users.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Literal

from hpcai500.errors import RecipeError

Carrier = Literal["Gloo", "NCCL", "NCCL of Horovod", "NCCL before 2.24", "Open MPI", "MPI", "none"]
"""Who carries out an all-reduce, as far as its algorithms go. `MPI` is any but Open MPI."""

# Open MPI has several all-reduces for one communicator, and the highest priority wins: those that would stand before
# `tuned` (han from version 5 on, hcoll and ucc of network vendors) have to step back for its switch to count.
_TUNED = {
    "OMPI_MCA_coll_tuned_use_dynamic_rules": "1",
    "OMPI_MCA_coll_han_priority": "0",
    "OMPI_MCA_coll_hcoll_enable": "0",
    "OMPI_MCA_coll_ucc_enable": "0",
}
# For all-reduce alone, which NCCL understands since 2.24: it has no tree for the other collectives, and would fail.
_NCCL = {"ring": {"NCCL_ALGO": "allreduce:ring"}, "double-binary-tree": {"NCCL_ALGO": "allreduce:tree"}}
# What each carrier can be told. An empty dictionary: it does that anyway.
_SWITCHES: Mapping[Carrier, Mapping[str, Mapping[str, str]]] = {
    "Gloo": {"ring": {}},
    "NCCL": _NCCL,
    "NCCL of Horovod": _NCCL | {"hierarchical-ring": {"HOROVOD_HIERARCHICAL_ALLREDUCE": "1"}},
    "NCCL before 2.24": {},
    "Open MPI": {
        "butterfly": _TUNED | {"OMPI_MCA_coll_tuned_allreduce_algorithm": "3"},
        "ring": _TUNED | {"OMPI_MCA_coll_tuned_allreduce_algorithm": "4"},
    },
    "MPI": {},
    "none": {},
}


def switches(algorithm: str, carrier: Carrier) -> Mapping[str, str]:
    """Environment variables that make `carrier` use `algorithm`; to be set before the library starts.

    Raises:
        RecipeError: it has no switch for that, and which it has.
    """
    if algorithm == "default":
        return {}
    known = _SWITCHES[carrier]
    if algorithm not in known:
        who = "one process has no all-reduce" if carrier == "none" else f"{carrier} has no switch for it"
        raise RecipeError(
            f"communication.algorithm: `{algorithm}` cannot be had: {who}; choose {' or '.join(['default', *known])}, "
            "or another communication.backend (docs/communication.md has the table)"
        )
    return known[algorithm]


def switch_on(wanted: Mapping[str, str], environment: MutableMapping[str, str]) -> None:
    """Put `wanted` into `environment`.

    Raises:
        RecipeError: a variable is there with another value: the record would name one algorithm, and the library use
            another.
    """
    for name, value in wanted.items():
        present = environment.get(name, value)
        if present != value:
            raise RecipeError(
                f"communication.algorithm needs {name}={value}, but the environment has {name}={present}: unset it, or "
                "use communication.algorithm = default, which leaves the choice to the environment"
            )
    environment.update(wanted)
