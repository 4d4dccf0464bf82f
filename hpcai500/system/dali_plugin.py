"""Our operators for DALI: a library beside the compiled core, named after the version of DALI that it was built for.

Nothing of DALI is imported: whoever loads the library compares versions before.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hpcai500 import _core
from hpcai500.layers import Recipe
from hpcai500.system.checks import Check

_PREFIX, _SUFFIX = "libhpcai500_dali-", ".so"
DISTRIBUTION = "nvidia-dali-cuda130"
OTHERWISE = "set accelerator.loader=native"


@dataclass(frozen=True)
class DaliPlugin:
    """The library, and the one version of DALI that it can be loaded into."""

    path: Path
    dali: str


def find_plugin(folder: Path | None = None) -> DaliPlugin | None:
    """The library in `folder` (beside the compiled core, if not given), or None where it was not built."""
    folder = folder or Path(_core.__file__).parent
    # Of several, which only a copy by hand leaves behind, the one that was built last.
    found = sorted(folder.glob(f"{_PREFIX}*{_SUFFIX}"), key=lambda path: path.stat().st_mtime)
    return DaliPlugin(found[-1], found[-1].name.removeprefix(_PREFIX).removesuffix(_SUFFIX)) if found else None


def dali_problem(plugin: DaliPlugin | None, dali: str | None) -> tuple[str, str] | None:
    """What keeps our operators from being loaded into DALI of this version, and the fix; None where nothing does."""
    if dali is None:
        return "DALI is not installed", "run `make dali` in the source tree, which also builds our operators for it"
    if plugin is None:
        return f"hpcai500 was built without its operators for the DALI {dali} that is installed", "run `make dali`"
    if plugin.dali != dali:
        return (
            f"DALI {dali} is installed, and our operators were built for DALI {plugin.dali}, whose symbols are its own",
            f"run `make dali` to build them anew, or install {DISTRIBUTION}=={plugin.dali}",
        )
    return None


def loader_check(recipe: Recipe | None, plugin: DaliPlugin | None, dali: str | None) -> Check:
    """Whether the loader of `recipe` is here; `dali` is the version that is installed, if any."""
    if recipe is None or recipe.accelerator.loader != "dali":
        words = "no recipe named" if recipe is None else recipe.accelerator.loader
        return Check("loader", "pass", words)
    problem = dali_problem(plugin, dali)
    if problem is None:
        return Check("loader", "pass", f"DALI {dali}, with our operators")
    return Check("loader", "fail", f"accelerator.loader is dali, but {problem[0]}", f"{problem[1]}, or {OTHERWISE}")
