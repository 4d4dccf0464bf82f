"""What the other hosts lack, and in what they differ: each looks at itself as doctor does where it is started."""

from __future__ import annotations

from collections.abc import Sequence

from hpcai500.measure.preflight.everyone import Answer, failures, listed, values
from hpcai500.methodology.node_differences import NodeDifference
from hpcai500.system.checks import Check, Status
from hpcai500.system.preflight import NODES

# What of a host concerns whoever is started there; the rest is rank 0's, or has a check of its own on all ranks.
LOOKED_AT = ("image", "python", "data", "temporary", "backend", "loader", "cores", "shared memory")
_MOST_DIFFERENCES = 3
_ALL_OF_THEM = "`hpcai500 system` under the same launcher tells all"


def judge_nodes(answers: Sequence[Answer[Sequence[Check]]], differences: Sequence[NodeDifference]) -> Check:
    """What `answers` of one rank of each host say; rank 0's host has lines of its own.

    Args:
        answers: what each host lacks.
        differences: in what their descriptions differ, those that matter first.
    """
    if failed := failures(NODES, answers, "cannot look at its host", "see what it said above"):
        return failed
    found = [(answer.host, checks) for answer, checks in values(answers) if answer.rank > 0]
    for status in ("fail", "warn"):
        if wrong := _of_status(status, found):
            return wrong
    told = f"{listed(host for host, _ in found)}: nothing missing that is here"
    heavy = [difference.sentence() for difference in differences if difference.matters]
    if heavy:
        more = f"; and {len(heavy) - _MOST_DIFFERENCES} more" if heavy[_MOST_DIFFERENCES:] else ""
        return Check(
            NODES,
            "warn",
            f"{told}, but nodes differ: {'; '.join(heavy[:_MOST_DIFFERENCES])}{more}",
            f"have them set up alike, or leave out those that differ; {_ALL_OF_THEM}",
        )
    light = f", {len(differences)} small differences ({_ALL_OF_THEM})" if differences else ", and alike"
    return Check(NODES, "pass", f"{told}{light}")


def _of_status(status: Status, found: Sequence[tuple[str, Sequence[Check]]]) -> Check | None:
    wrong = [(host, check) for host, checks in found for check in checks if check.status == status]
    if not wrong:
        return None
    host, first = wrong[0]
    others = [f"{check.name} on {other}" for other, check in wrong[1:]]
    more = f" (also: {listed(others)})" if others else ""
    return Check(NODES, status, f"{host}: {first.name}: {first.detail}{more}", first.fix)
