"""The libraries that a job of this installation loads, and a check of torch's convolutions."""

from __future__ import annotations

import shutil
import subprocess
import sys
from importlib import metadata
from typing import cast

import torch

from hpcai500 import _core
from hpcai500.comm.horovod_backend import Horovod
from hpcai500.findings import CannotBeChecked
from hpcai500.measure.convolutions import FIX, Setting, convolutions_of, wrong_gradients
from hpcai500.measure.threads import use_threads
from hpcai500.plugins import Function, find_plugin, function_of, load_plugin
from hpcai500.recipe import load_recipe, recipe_hash, reference_recipe
from hpcai500.self_test.checking import require
from hpcai500.workloads import model_of

_PACKAGES = ("numpy", "pillow", "h5py")
_TIMEOUT_SECONDS = 10.0


def core_facts() -> str:
    """Libraries of the compiled core, and the instruction set in use."""
    info = _core.build_info()
    cuda = ", ".join(_core.cuda_architectures()) or "none"
    return (
        f"libjpeg-turbo {info['libjpeg_turbo']}, libdeflate {info['libdeflate']}, {info['compiler']}; kernels "
        f"{', '.join(info['isa'])}, here {_core.cpu_isa()}; CUDA architectures: {cuda}"
    )


def python_facts() -> str:
    """The interpreter, torch, and the packages that read data."""
    python = sys.version.split()[0]
    return f"Python {python}, torch {torch.__version__}, " + ", ".join(f"{p} {metadata.version(p)}" for p in _PACKAGES)


def mpi_facts() -> str:
    """The MPI launcher on PATH.

    Raises:
        CannotBeChecked: there is none.
    """
    path = shutil.which("mpirun")
    if path is None:
        raise CannotBeChecked("no mpirun on PATH: ranks connect over TCP or by srun; Horovod over MPI is not checked")
    output = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=False)
    return f"{path}: {(output.stdout or output.stderr).strip().splitlines()[0]}"


def horovod_facts() -> str:
    """How Horovod was built.

    Raises:
        CannotBeChecked: Horovod is not installed.
        EnvironmentLacksError: Horovod is installed, but does not load.
    """
    try:
        version = metadata.version("horovod")
    except metadata.PackageNotFoundError as error:
        raise CannotBeChecked("Horovod is not installed (`make horovod`)") from error
    library = Horovod("cpu")
    parts = {"MPI": library.has_mpi, "Gloo": library.has_gloo, "CUDA": library.takes_cuda_tensors}
    shown = ", ".join(f"{name} {'yes' if present else 'no'}" for name, present in parts.items())
    return f"{version}: {shown}; moves gradients by {library.library}"


FACTS = {
    "compiled core": core_facts,
    "Python and torch": python_facts,
    "MPI launcher": mpi_facts,
    "Horovod": horovod_facts,
}


def check_plugin(name: str) -> str:
    """Load a plug-in, its functions and its reference recipe.

    Raises:
        EnvironmentLacksError: it cannot be used.
        RecipeError: its reference recipe is wrong.
    """
    found, plugin = find_plugin(name), load_plugin(name)
    assert found
    assert plugin
    for field in plugin.functions():
        function_of(name, cast(Function, field))
    return f"{found.package} {found.version}, recipe {recipe_hash(reference_recipe(name))[:12]}"


def check_convolutions(recipe_name: str) -> str:
    """Check the gradients of the convolutions of a recipe's model.

    Raises:
        EnvironmentLacksError: torch cannot use its threads.
        WrongAnswerError: a gradient is wrong.
    """
    recipe = load_recipe(recipe_name)
    use_threads(torch.get_num_threads())
    shapes, setting = convolutions_of(model_of(recipe)[0]), Setting.of(recipe, torch.device("cpu"))
    wrong = wrong_gradients(shapes, setting)
    require(not wrong, f"{'; '.join(wrong)} ({setting.words}: {FIX})")
    return f"gradients of {len(shapes)} shapes, {setting.words}"
