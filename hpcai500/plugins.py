"""Benchmarks of other packages: find, check and load plug-ins (docs/plugins.md).

A plug-in is a `Plugin` object that an entry point of the group `hpcai500.workloads` names. The command line and the job
both use this module, so neither it nor the module that the entry point names may import torch.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hpcai500.errors import EnvironmentLacksError, UsageError

if TYPE_CHECKING:
    from importlib.metadata import Distribution, EntryPoint

    from hpcai500.layers import Recipe


# ----------------------------------------------------------------------------------------------------
# What a plug-in is.


# Averages the softmax outputs of an ensemble's members, as Image Classification does (the vote `mean`).
MEAN_VOTER = "hpcai500.workloads.voting:classes_voter"


@dataclass(frozen=True)
class Plugin:
    """A benchmark of another package; its name is that of the entry point.

    Functions are named as `module:function`, in the package of the entry point or in hpcai500, and imported in the job
    only: the command line also runs without torch. So the module of this object must not import torch.

    Attributes:
        recipe: a subclass of `hpcai500.layers.Recipe` with the benchmark's own layer 7 (`workload`) and, if needed,
            layer 9 (`problem`). Its class variables `votes` and `strata` list the choices of an ensemble.
        recipes: folder of its recipes: `reference.toml`; optionally `smoke.toml`, the default of runs without data, and
            `ensemble.toml`; any others.
        workload: `(recipe, data, place) -> Workload`, a `hpcai500.workloads.base.WorkloadFactory`.
        voter: `(recipe, samples) -> hpcai500.workloads.voting.Voter`: combines the predictions of an ensemble's
            members; by default, softmax outputs are averaged.
        model: `(recipe, classes) -> (model, example inputs)`, without data: for `hpcai500 flops`, `scale --predict` and
            the check before a run that memory can hold it. A large model is built on torch's meta device.
        make_data: `(folder) -> None`: writes the synthetic set into an empty folder, for `hpcai500 data make` and for
            runs without --data. It must write the same files each time.
        check_data: `(folder) -> mapping`: reads all of a data set and returns facts about it, for `hpcai500 data
            check`; raises `hpcai500.errors.DataError` if it is broken.
    """

    recipe: type[Recipe]
    recipes: Path
    workload: str
    voter: str = MEAN_VOTER
    model: str | None = None
    make_data: str | None = None
    check_data: str | None = None

    def functions(self) -> dict[str, str]:
        """The functions that are set: field -> `module:function`."""
        named = {name: getattr(self, name) for name in ("workload", "voter", "model", "make_data", "check_data")}
        return {name: text for name, text in named.items() if text is not None}


# ----------------------------------------------------------------------------------------------------
# Which plug-ins are installed: their entry points, read without importing their code.


GROUP = "hpcai500.workloads"
# Commands and benchmarks of hpcai500 itself; a plug-in of the same name would be hidden. A test compares the list.
TAKEN = frozenset(
    (
        *("ic", "ewa", "score", "rules", "report", "compare", "timeline", "export", "submit", "verify", "replicate"),
        *("accept", "rank", "scale", "profile", "system", "roofline", "doctor", "micro", "version", "data", "flops"),
        *("storage", "self-test", "campaign", "ensemble", "slurm", "track", "watch", "demo", "help"),
    )
)
# A name is used as a command and in file names.
_NAME = re.compile(r"[a-z][a-z0-9_-]*")


@dataclass(frozen=True)
class Found:
    """An entry point of a plug-in; its name is that of the benchmark.

    Attributes:
        package: the name of its distribution, as for pip.
        summary: one-line description of the distribution; may be empty.
        problem: why it cannot be used, and what to do; None if no problem is known.
    """

    name: str
    package: str
    version: str
    summary: str
    entry: EntryPoint
    problem: str | None = None

    @property
    def title(self) -> str:
        """Package, version and entry point, for messages."""
        return f"plug-in {self.package} {self.version} (entry point {GROUP}: {self.name} = {self.entry.value})"


def installed_plugins() -> tuple[Found, ...]:
    """All installed plug-ins, by name, including those that cannot be used. Takes some milliseconds."""
    found = sorted((_found(entry) for entry in _entries()), key=lambda one: (one.name, one.package))
    return tuple(_with_problem(one, found) for one in found)


def find_plugin(name: str) -> Found | None:
    """The plug-in of the benchmark `name`, or None; of several, the first, whose `problem` names the others."""
    return None if name in TAKEN else next((one for one in installed_plugins() if one.name == name), None)


def _entries() -> Iterator[EntryPoint]:
    from importlib.metadata import distributions, entry_points  # keeps other commands fast

    try:
        yield from entry_points(group=GROUP)
    except Exception:  # noqa: BLE001 - one package's broken file must not hide the others
        yield from (entry for one in distributions() for entry in _entries_of(one))


def _entries_of(distribution: Distribution) -> Iterable[EntryPoint]:
    try:
        return distribution.entry_points.select(group=GROUP)
    except Exception:  # noqa: BLE001 - as above
        return ()


def _found(entry: EntryPoint) -> Found:
    about: Mapping[str, str | list[str]] = entry.dist.metadata.json if entry.dist else {}
    package, version = (str(about.get(key, "unknown")) for key in ("name", "version"))
    return Found(entry.name, package, version, str(about.get("summary", "")), entry)


def _with_problem(one: Found, everyone: Iterable[Found]) -> Found:
    others = [other for other in everyone if other.name == one.name and other is not one]
    uninstall = f"pip uninstall {one.package}"
    if one.name in TAKEN:
        problem = f"hpcai500 has a command of this name: ask the authors for another name, or: {uninstall}"
    elif not _NAME.fullmatch(one.name):
        problem = (
            "its name must be a lower-case letter, then lower-case letters, digits, - and _: ask the authors for "
            f"another name, or: {uninstall}"
        )
    elif others:
        names = " and ".join(f"{other.package} {other.version}" for other in others)
        problem = f"{names} has a benchmark of the same name: keep one of them: {uninstall}"
    else:
        return one
    return replace(one, problem=problem)


# ----------------------------------------------------------------------------------------------------
# A hash of a plug-in's code; in records it shows a change between runs.


_CODE = (".py", *EXTENSION_SUFFIXES)


def plugin_facts(name: str) -> dict[str, Any] | None:
    """The `facts_of` the plug-in of the benchmark `name`; None if there is none."""
    found = find_plugin(name)
    return None if found is None else facts_of(found)


def facts_of(found: Found) -> dict[str, Any]:
    """What a record contains about a plug-in; `code_sha256` is None if its code cannot be found."""
    facts = {"name": found.name, "package": found.package, "version": found.version}
    return {**facts, "code_sha256": code_hash(found)}


def code_hash(found: Found) -> str | None:
    """SHA-256 (hex) over names and contents of all code, Python and compiled, of its top-level package, or None."""
    try:
        spec = find_spec(found.entry.module.partition(".")[0])
    except (ImportError, ValueError, AttributeError):
        return None
    files = sorted(_files(spec)) if spec else []
    if not files:
        return None
    digest = hashlib.sha256()
    for name, path in files:
        content = path.read_bytes()
        digest.update(f"{name}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()


def _files(spec: ModuleSpec) -> Iterator[tuple[str, Path]]:
    """Name and path of each file of code; a top-level module is one file, a package a folder (or several)."""
    for folder in map(Path, spec.submodule_search_locations or ()):
        yield from (
            (path.relative_to(folder).as_posix(), path)
            for path in folder.rglob("*")
            if path.name.endswith(_CODE) and path.is_file()
        )
    if not spec.submodule_search_locations and spec.origin and Path(spec.origin).is_file():
        yield Path(spec.origin).name, Path(spec.origin)


# ----------------------------------------------------------------------------------------------------
# Loading plug-ins, when their name is first used, with checks.


Function = Literal["workload", "voter", "model", "make_data", "check_data"]

_DOTTED = re.compile(r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):([A-Za-z_]\w*)")
_OURS = "hpcai500"
_FIX = "fix it, or install another version: pip install --upgrade"


def load_plugin(name: str) -> Plugin | None:
    """The plug-in of the benchmark `name`; None if it is not installed.

    Raises:
        EnvironmentLacksError: it is installed and cannot be used.
    """
    return _loaded(name, tuple(sys.path))


def function_of(name: str, field: Function) -> Callable[..., Any]:
    """Import the function that the plug-in of the benchmark `name` has as `field`; in the job only.

    Raises:
        EnvironmentLacksError: there is no such plug-in, it has no such function, or that cannot be imported.
    """
    found, plugin = find_plugin(name), load_plugin(name)
    if found is None or plugin is None:
        raise EnvironmentLacksError(f"{name}: no plug-in of this name is installed here: install it with pip")
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
        raise _broken(found, f"its {field}, {text}, is not a function")
    checked: Callable[..., Any] = function
    return checked


def usable_plugins() -> Iterator[tuple[Found, Plugin]]:
    """All plug-ins that can be loaded. Broken ones are left out; using them raises an error."""
    for found in installed_plugins():
        try:
            plugin = load_plugin(found.name)
        except EnvironmentLacksError:
            continue
        if plugin is not None and found.problem is None:
            yield found, plugin


@cache
def _loaded(name: str, path: tuple[str, ...]) -> Plugin | None:
    del path  # part of the cache's key: on another path there may be other plug-ins
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
        problem = "its module imports torch, but the command line also runs without: name functions as module:function"
    if problem:
        raise _broken(found, problem)
    return plugin


def _problems(found: Found, plugin: Plugin) -> Iterator[str]:
    """What is wrong with the fields of a plug-in; its dataclass takes any value."""
    from hpcai500.layers import Recipe

    if not (isinstance(plugin.recipe, type) and issubclass(plugin.recipe, Recipe)):
        yield f"recipe: expected a subclass of hpcai500.layers.Recipe, got {plugin.recipe!r}"
    if not isinstance(plugin.recipes, Path) or not (plugin.recipes / "reference.toml").is_file():
        yield f"recipes: expected the folder (a Path) of its reference.toml, got {str(plugin.recipes)!r}"
    elif plugin.voter == MEAN_VOTER and plugin.recipe.votes != ("mean",):
        yield f"recipe: its votes are {', '.join(plugin.recipe.votes)}, but without a voter only mean is possible"
    package = found.entry.module.partition(".")[0]
    for field, text in plugin.functions().items():
        match = _DOTTED.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            yield f"{field}: expected module:function, got {text!r}"
        elif match[1].partition(".")[0] not in (package, _OURS):
            # Records have the hash of that package only, so a change of other code would not be noticed.
            yield f"{field}: expected a function of {package} or hpcai500, got {text}"


def broken_workload(benchmark: str, what: str) -> EnvironmentLacksError:
    """The error of a workload that does not do what docs/plugins.md requires; `what` begins with its member."""
    found = find_plugin(benchmark)
    return _broken(found, what) if found else EnvironmentLacksError(f"{benchmark}: its workload is broken: {what}")


def _broken(found: Found, what: str) -> EnvironmentLacksError:
    return EnvironmentLacksError(f"{found.name}: the {found.title} is broken: {what}; {_FIX} {found.package}")


def _in_words(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


# ----------------------------------------------------------------------------------------------------
# The benchmarks of hpcai500 and of plug-ins.


def recipe_type(benchmark: str) -> type[Recipe] | None:
    """The class of recipes of `benchmark`; None if neither hpcai500 nor an installed plug-in has this benchmark.

    Raises:
        EnvironmentLacksError: its plug-in cannot be used.
    """
    from hpcai500.layers import RECIPE_TYPES

    kind = RECIPE_TYPES.get(benchmark)
    if kind is None and (plugin := load_plugin(benchmark)) is not None:
        return plugin.recipe
    return kind


def known_benchmarks() -> list[str]:
    """Names of the benchmarks of hpcai500, then of plug-ins."""
    from hpcai500.layers import RECIPE_TYPES

    return list(dict.fromkeys([*RECIPE_TYPES, *(one.name for one in installed_plugins())]))


def require_benchmark(name: str, what: str) -> None:
    """Refuse the name of an unknown benchmark; the message begins with `what`, the command or option.

    Raises:
        UsageError: there is no such benchmark.
        EnvironmentLacksError: its plug-in cannot be used.
    """
    if recipe_type(name) is None:
        raise UsageError(f"{what}: {not_known(name)}")


def may_be_benchmark(name: str) -> bool:
    """Whether `name` is a benchmark of hpcai500, or a plug-in, installed here or not, could have this name."""
    from hpcai500.layers import RECIPE_TYPES

    return name in RECIPE_TYPES or (name not in TAKEN and bool(_NAME.fullmatch(name)))


def not_known(benchmark: object) -> str:
    """Why a name is refused, and what to do."""
    return f"expected one of {', '.join(known_benchmarks())}, got {benchmark!r}, which {PERHAPS_MISSING}"


# Of a name that is unknown here.
PERHAPS_MISSING = "may be a plug-in that is not installed in this Python (docs/plugins.md)"
