"""Topologies by the names of a recipe: the ways in which a buffer is summed over all ranks (V2.0 section 5.1.6)."""

from __future__ import annotations

from hpcai500.comm.base import Communicator
from hpcai500.comm.topologies.base import Topology
from hpcai500.comm.topologies.flat import Flat
from hpcai500.comm.topologies.hierarchical import Hierarchical
from hpcai500.comm.topologies.parameter_server import ParameterServer
from hpcai500.comm.topologies.torus import Torus
from hpcai500.comm.wires import Wire
from hpcai500.comm.working_memory import Buffers
from hpcai500.layers import Communication

__all__ = ["Topology", "make_topology"]


def make_topology(settings: Communication, communicator: Communicator, wire: Wire, buffers: Buffers) -> Topology:
    """The topology that `settings` names over all members of `communicator`; called by all of them alike.

    Raises:
        RecipeError: it cannot be laid over these ranks; the message says why.
    """
    match settings.topology:
        case "flat":
            return Flat(communicator, wire)
        case "hierarchical":
            return Hierarchical(communicator, wire)
        case "torus":
            return Torus(communicator, wire, buffers, columns=settings.torus_columns)
        case "parameter-server":
            return ParameterServer(communicator, wire)
