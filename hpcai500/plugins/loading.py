"""Plug-ins in use: loaded when their name is first met, checked, and told in one line where they are broken."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from hpcai500.errors import EnvironmentLacksError
from hpcai500.layers import Recipe
from hpcai500.plugins.finding import Found, find_plugin, installed_plugins
from hpcai500.plugins.plugin import MEAN_VOTER, Plugin

Function = Literal["workload", "voter", "model", "make_data", "check_data"]

_DOTTED = re.compile(r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):([A-Za-z_]\w*)")
_OURS = "hpcai500"
_FIX = "mend it, or install another version: pip install --upgrade"


def load_plugin(name: str) -> Plugin | None:
    """The plug-in of the benchmark `name`; None where none of this name is installed.

    Raises:
        EnvironmentLacksError: it is installed and cannot be used; which package that is, why, and what to do.
    """
    return _loaded(name, tuple(sys.path))


def function_of(name: str, field: Function) -> Callable[..., Any]:
    """What the plug-in of the benchmark `name` has as `field`, imported now; in the job only.

    Raises:
        EnvironmentLacksError: there is no such plug-in, it has no such function, or that cannot be imported.
    """
    found, plugin = find_plugin(name), load_plugin(name)
    if found is None or plugin is None:
        raise EnvironmentLacksError(f"{name}: no plug-in of this name is installed here: pip install it")
    text = plugin.functions().get(field)
    if text is None:
        raise EnvironmentLacksError(
            f"{name}: the {found.title} has no `{field}`: its authors can add it (docs/plugins.md)"
        )
    module, _, attribute = text.partition(":")
    try:
        function = getattr(import_module(module), attribute)
    except Exception as error:
        raise _broken(found, f"its {field}, {text}, cannot be imported: {_in_words(error)}") from error
    if not callable(function):
        raise _broken(found, f"its {field}, {text}, is no function")
    checked: Callable[..., Any] = function
    return checked


def usable_plugins() -> Iterator[tuple[Found, Plugin]]:
    """All that can be loaded; what is broken is left out: whoever uses it is told."""
    for found in installed_plugins():
        try:
            plugin = load_plugin(found.name)
        except EnvironmentLacksError:
            continue
        if plugin is not None and found.problem is None:
            yield found, plugin


@cache
def _loaded(name: str, path: tuple[str, ...]) -> Plugin | None:
    del path  # where plug-ins are looked for: another path may have others
    found = find_plugin(name)
    if found is None:
        return None
    if found.problem:
        raise EnvironmentLacksError(f"{name}: the {found.title} cannot be used: {found.problem}")
    had_torch = "torch" in sys.modules
    try:
        plugin = found.entry.load()
    except (Exception, SystemExit) as error:
        raise _broken(found, f"it cannot be loaded: {_in_words(error)}") from error
    if not isinstance(plugin, Plugin):
        raise _broken(found, f"expected an object of hpcai500.plugins.Plugin, got {type(plugin).__name__}")
    problem = next(_problems(found, plugin), None)
    if problem is None and not had_torch and "torch" in sys.modules:
        problem = "its module imports torch, which the command line must do without: name functions as module:function"
    if problem:
        raise _broken(found, problem)
    return plugin


def _problems(found: Found, plugin: Plugin) -> Iterator[str]:
    """What is wrong with the fields of a plug-in, which nothing has checked yet: dataclasses take any value."""
    if not (isinstance(plugin.recipe, type) and issubclass(plugin.recipe, Recipe)):
        yield f"recipe: expected a subclass of hpcai500.layers.Recipe, got {plugin.recipe!r}"
    if not isinstance(plugin.recipes, Path) or not (plugin.recipes / "reference.toml").is_file():
        yield f"recipes: expected the folder (a Path) of its reference.toml, got {str(plugin.recipes)!r}"
    elif plugin.voter == MEAN_VOTER and plugin.recipe.votes != ("mean",):
        yield f"recipe: its votes are {', '.join(plugin.recipe.votes)}; without a voter of its own, there is only mean"
    package = found.entry.module.partition(".")[0]
    for field, text in plugin.functions().items():
        match = _DOTTED.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            yield f"{field}: expected module:function, got {text!r}"
        elif match[1].partition(".")[0] not in (package, _OURS):
            # Records name the hash of that package: code from elsewhere would change unseen.
            yield f"{field}: expected a function of {package} or hpcai500, got {text}"


def _broken(found: Found, what: str) -> EnvironmentLacksError:
    return EnvironmentLacksError(f"{found.name}: the {found.title} is broken: {what}; {_FIX} {found.package}")


def _in_words(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
