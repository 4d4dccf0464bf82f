"""Which benchmarks there are here: those of hpcai500, and those that plug-ins bring."""

from __future__ import annotations

from hpcai500.errors import UsageError
from hpcai500.layers import RECIPE_TYPES, Recipe
from hpcai500.plugins.finding import installed_plugins
from hpcai500.plugins.loading import load_plugin


def recipe_type(benchmark: str) -> type[Recipe] | None:
    """What a recipe of `benchmark` may hold; None for a name that neither hpcai500 nor an installed plug-in has.

    Raises:
        EnvironmentLacksError: it is of a plug-in that cannot be used.
    """
    kind = RECIPE_TYPES.get(benchmark)
    if kind is None and (plugin := load_plugin(benchmark)) is not None:
        return plugin.recipe
    return kind


def known_benchmarks() -> list[str]:
    """Names of the benchmarks here: those of hpcai500, then those of plug-ins."""
    return list(dict.fromkeys([*RECIPE_TYPES, *(one.name for one in installed_plugins())]))


def require_benchmark(name: str, what: str) -> None:
    """Refuse a name that no benchmark here has.

    Args:
        name: as it was given.
        what: the command or option, which begins the message.

    Raises:
        UsageError: it is none.
        EnvironmentLacksError: it is of a plug-in that cannot be used.
    """
    if recipe_type(name) is None:
        raise UsageError(f"{what}: {not_known(name)}")


def not_known(benchmark: object) -> str:
    """Why a name is refused, and what would help."""
    return (
        f"expected one of {', '.join(known_benchmarks())}, got {benchmark!r}; a plug-in's benchmark is there once its "
        "package is installed (docs/plugins.md)"
    )
