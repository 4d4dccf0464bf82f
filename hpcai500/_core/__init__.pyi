"""The compiled core: one module, whose types are told in the files beside this one."""

from typing import Literal, TypedDict

from hpcai500._core._climate import *
from hpcai500._core._compression import *
from hpcai500._core._conversion import *
from hpcai500._core._detection import *
from hpcai500._core._images import *
from hpcai500._core._norms import *
from hpcai500._core._seek_index import *

__version__: str

class _BuildInfo(TypedDict):
    compiler: str
    build_type: str
    flags: str
    libjpeg_turbo: str
    libdeflate: str
    isa: list[str]
    cuda_compiler: str | None

def build_info() -> _BuildInfo:
    """How this module was built; `isa` lists the compiled kernels, fastest first."""

def cpu_isa() -> Literal["avx512", "avx2", "neon", "portable"]:
    """Instruction set of the kernels in use: the best of this processor, or what HPCAI500_ISA named at import."""
