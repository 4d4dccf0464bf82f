"""What a machine can reach, for the models of it: rooflines, the cost model, `hpcai500 doctor`."""

from hpcai500.machine.description import Level, Link, Machine, PaperPoint
from hpcai500.machine.files import load_machine
from hpcai500.machine.fit import why_not_of

__all__ = ["Level", "Link", "Machine", "PaperPoint", "load_machine", "why_not_of"]
