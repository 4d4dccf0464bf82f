"""DALI with our operators in it, or the reason why not."""

from __future__ import annotations

from functools import cache
from importlib import import_module

from hpcai500.errors import EnvironmentLacksError
from hpcai500.system.dali_plugin import OTHERWISE, DaliPlugin, dali_problem, find_plugin


@cache
def load_operators() -> None:
    """Import DALI and load our operators into it, once. Raises EnvironmentLacksError with the line to type."""
    plugin = find_plugin()
    check_versions(plugin, installed_dali())
    assert plugin is not None
    try:
        import_module("nvidia.dali.plugin_manager").load_library(str(plugin.path))
    except RuntimeError as error:
        raise EnvironmentLacksError(
            f"DALI cannot load {plugin.path}: {first_line(error)}; run `make dali` to build it anew, or {OTHERWISE}"
        ) from error


def installed_dali() -> str | None:
    """Version of the DALI that is imported; None where there is none."""
    try:
        version: str = import_module("nvidia.dali").__version__
    except ModuleNotFoundError:
        return None
    except ImportError as error:
        raise EnvironmentLacksError(
            f"DALI is installed, and cannot be imported: {first_line(error)}; mend it, or {OTHERWISE}"
        ) from error
    return version


def check_versions(plugin: DaliPlugin | None, dali: str | None) -> None:
    """Raise EnvironmentLacksError, with the fix, unless the operators were built for this version of DALI."""
    problem = dali_problem(plugin, dali)
    if problem is not None:
        raise EnvironmentLacksError(f"accelerator.loader is dali, but {problem[0]}: {problem[1]}, or {OTHERWISE}")


def first_line(error: BaseException) -> str:
    """The first line of what an error says: DALI adds the stack of its own calls."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
