"""Maps members to accelerators and nodes (V3.0 section 3.3, Equation 5). Pure: no file, no clock.

    Sys_scale = M x P_degree

The paper calls Sys_scale a number of nodes, but section 4.2 counts accelerators, and so do we.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from hpcai500.errors import UsageError

# ----------------------------------------------------------------------------------------------------
# Numbers of members for people and command lines: `0-7,12`, as `parse_members` reads them.


def in_ranges(numbers: Iterable[int]) -> str:
    """`[0, 1, 2, 5]` -> `0-2,5`: ascending, each once."""
    return ",".join(_runs(numbers))


def in_short(numbers: Iterable[int], most: int = 12) -> str:
    """As `in_ranges`, shortened for a sentence: the first `most` ranges, and how many numbers there are."""
    numbers = set(numbers)
    runs = _runs(numbers)
    return ",".join(runs) if len(runs) <= most else f"{','.join(runs[:most])},… ({len(numbers)} in all)"


def _runs(numbers: Iterable[int]) -> list[str]:
    found = []
    for _, group in groupby(enumerate(sorted(set(numbers))), key=lambda item: item[1] - item[0]):
        run = [number for _, number in group]
        found.append(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}")
    return found


# ----------------------------------------------------------------------------------------------------
# Shape and mapping.


_MOST_NEAREST = 3
# Ten times the largest machine; a typing error must not fill the memory.
_MOST_ACCELERATORS = 10**6


@dataclass(frozen=True)
class Shape:
    """How large an ensemble is.

    Attributes:
        members: base models (M).
        degree: accelerators, and so ranks, of each (P_degree).
        per_node: accelerators of a node.
    """

    members: int
    degree: int
    per_node: int

    @property
    def scale(self) -> int:
        """Accelerators of all members together (Sys_scale, Eq. 5)."""
        return self.members * self.degree

    @property
    def nodes_a_member(self) -> int:
        """Nodes of a member; 1 also for a member that shares its node with others."""
        return max(1, self.degree // self.per_node)

    @property
    def ranks_a_node(self) -> int:
        """Ranks of one member on one of its nodes."""
        return min(self.degree, self.per_node)

    @property
    def members_a_node(self) -> int:
        """Members that run side by side on a node; 1 if a member takes whole nodes."""
        return max(1, self.per_node // self.degree)

    @property
    def nodes(self) -> int:
        """Nodes of the whole ensemble."""
        return self.nodes_a_member * -(-self.members // self.members_a_node)


@dataclass(frozen=True)
class MemberPlace:
    """Where one member goes.

    Attributes:
        member: from 0.
        seed: of its weights, draws and order.
        accelerators: those that it has on each of its nodes, numbered from 0.
    """

    member: int
    seed: int
    nodes: tuple[str, ...]
    accelerators: tuple[int, ...]


def shape_of(
    per_node: int, *, scale: int | None = None, members: int | None = None, degree: int | None = None
) -> Shape:
    """The shape by Equation 5: scale, members or degree, if not given, follows from the others.

    If only one is given, P_degree is the accelerators of a node (Table 2).

    Raises:
        UsageError: no such ensemble is possible; the message has the nearest ones that are.
    """
    for name, value in (("--scale", scale), ("--members", members), ("--degree", degree), ("accelerators", per_node)):
        if value is not None and not 1 <= value <= _MOST_ACCELERATORS:
            expected = "1 or more" if value < 1 else f"{_MOST_ACCELERATORS} at most"
            raise UsageError(f"{name}: expected {expected}, got {value}")
    if scale is None:
        if members is None:
            raise UsageError("no size: give --members M or --scale S (and --degree P, the accelerators of a member)")
        return _checked(Shape(members, per_node if degree is None else degree, per_node))
    if degree is None:
        degree = scale // members if members and scale % members == 0 else None if members else min(per_node, scale)
    if degree is None or scale % degree or (members is not None and members * degree != scale):
        raise UsageError(_impossible(per_node, scale, members, degree))
    return _checked(Shape(scale // degree, degree, per_node))


def member_places(shape: Shape, first_seed: int, hosts: Sequence[str] = ()) -> tuple[MemberPlace, ...]:
    """The mapping of members to nodes, in the order of both (V3.0 section 3.3, step 2).

    Member k has the seed `first_seed` + k. Without `hosts` the nodes are numbered, because a scheduler will choose
    them.

    Raises:
        UsageError: there are fewer hosts than needed, or one is named twice.
    """
    if twice := [host for host, count in Counter(hosts).items() if count > 1]:
        raise UsageError(f"--hosts: {twice[0]} is named twice: its accelerators would belong to two members")
    if hosts and len(hosts) < shape.nodes:
        raise UsageError(
            f"--hosts: {shape.members} members of {shape.degree} accelerators need {shape.nodes} nodes of "
            f"{shape.per_node}, got {len(hosts)}: name more, or plan fewer members"
        )
    names = hosts or [f"node-{number}" for number in range(1, shape.nodes + 1)]
    return tuple(_places(shape, first_seed, names))


def possible_shapes(per_node: int, scale: int) -> list[Shape]:
    """Every ensemble of `scale` accelerators that fits nodes of `per_node`, the largest M first."""
    degrees = [degree for degree in range(1, scale + 1) if scale % degree == 0 and fits_nodes(degree, per_node)]
    return [Shape(scale // degree, degree, per_node) for degree in degrees]


def fits_nodes(degree: int, per_node: int) -> bool:
    """Whether members of `degree` accelerators take whole nodes, or share a node evenly."""
    return per_node % degree == 0 or degree % per_node == 0


def _places(shape: Shape, first_seed: int, names: Sequence[str]) -> Iterator[MemberPlace]:
    for member in range(shape.members):
        first_node = member // shape.members_a_node * shape.nodes_a_member
        place = member % shape.members_a_node * shape.ranks_a_node
        yield MemberPlace(
            member,
            first_seed + member,
            tuple(names[first_node : first_node + shape.nodes_a_member]),
            tuple(range(place, place + shape.ranks_a_node)),
        )


def _checked(shape: Shape) -> Shape:
    if shape.scale > _MOST_ACCELERATORS:
        raise UsageError(
            f"{shape.members} members of {shape.degree} are {shape.scale} accelerators: expected {_MOST_ACCELERATORS} "
            "at most; give a lower --members or --degree"
        )
    if fits_nodes(shape.degree, shape.per_node):
        return shape
    degrees = [degree for degree in range(1, 2 * shape.degree + shape.per_node) if fits_nodes(degree, shape.per_node)]
    nearest = sorted(degrees, key=lambda degree: (abs(degree - shape.degree), degree))[:_MOST_NEAREST]
    raise UsageError(
        f"a member of {shape.degree} accelerators neither fills nodes of {shape.per_node} nor shares one evenly: the "
        f"nearest degrees that do are {', '.join(map(str, sorted(nearest)))}"
    )


def _impossible(per_node: int, scale: int, members: int | None, degree: int | None) -> str:
    known = [text for text in (members and f"M = {members}", degree and f"P_degree = {degree}") if text]
    shapes = possible_shapes(per_node, scale)

    def distance(shape: Shape) -> float:
        """Logarithmic: twice as many is as far as half as many."""
        wanted = ((shape.members, members), (shape.degree, degree))
        return math.fsum(abs(math.log(have / want)) for have, want in wanted if want)

    nearest = sorted(sorted(shapes, key=distance)[:_MOST_NEAREST], key=lambda shape: -shape.members)
    near = ", ".join(f"{shape.members} x {shape.degree}" for shape in nearest)
    return (
        f"Sys_scale = M x P_degree (V3.0 Eq. 5) does not hold for {scale} accelerators and {' and '.join(known)}: the "
        f"nearest M x P_degree on nodes of {per_node} that do are {near}"
    )
