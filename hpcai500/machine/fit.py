"""Whether the ceilings of a machine are those of a run on it."""

from __future__ import annotations

from hpcai500.machine.description import Machine


def why_not_of(machine: Machine, device: str, ranks_per_node: int) -> str | None:
    """Why ceilings of `machine` say nothing of a run with that many ranks a node, and the fix; None where they do.

    Half of the ranks of a CPU may have all of its cores. The recipe's `device` is `cpu` or `cuda`.
    """
    ours = machine.accelerators_per_node
    if device == "cpu" and ranks_per_node != ours:
        return (
            f"{ranks_per_node} rank(s) share the cores of a node, and the ceilings of {machine.name} are of {ours} a "
            f"node: measure with as many on the same machine: hpcai500 micro --procs {ranks_per_node} -o micro.json"
        )
    if device != "cpu" and ranks_per_node > ours:
        return f"{ranks_per_node} accelerators a node; {machine.name} has {ours}"
    return None
