"""All checks of what a run needs: for `hpcai500 doctor`, and before every run."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from hpcai500.errors import DataError, EnvironmentLacksError, UsageError
from hpcai500.layers import Recipe
from hpcai500.placement import find_placement
from hpcai500.streams import say
from hpcai500.system import folders
from hpcai500.system.accelerator import Machine, Torch, accelerator_check
from hpcai500.system.backend import backend_check
from hpcai500.system.capacity import cores_check, memory_check, memory_limit
from hpcai500.system.checks import Check
from hpcai500.system.container import Container, find_container
from hpcai500.system.container_checks import container_check, image_check, python_check
from hpcai500.system.dali_plugin import DISTRIBUTION, find_plugin, loader_check
from hpcai500.system.driver import Driver, ask_driver, find_traces
from hpcai500.system.mounts import require_reachable, unreachable
from hpcai500.system.mpi import installed_mpi
from hpcai500.system.process_manager import Ranks, process_manager_check
from hpcai500.system.versions import installed, installed_torch


@dataclass(frozen=True)
class Subject:
    """What is to run.

    Attributes:
        recipe: None where only the machine is looked at.
        data: folder of the data set; None where the recipe's is made.
        out: folder of the record, or the one that it will be made in.
        arguments: what the user typed after `hpcai500`, for the line to type.
    """

    recipe: Recipe | None = None
    data: Path | None = None
    out: Path = Path()
    arguments: Sequence[str] = ()


def examine(subject: Subject, environment: Mapping[str, str] = os.environ) -> list[Check]:
    """All checks, in the order in which people should mend what they find."""
    recipe, arguments = subject.recipe, subject.arguments
    container = find_container(environment)
    looked_at: Mapping[str, Path | None] = {
        folders.DATA: subject.data,
        folders.OUT: subject.out,
        folders.TEMPORARY: folders.temporary_folder(environment),
    }
    dead = {one.path: one for one in unreachable(str(path) for path in looked_at.values() if path is not None)}

    def unless_dead(name: str, check: Callable[[], Check]) -> Check:
        found = dead.get(str(looked_at[name]))
        return Check(name, "fail", found.detail, found.fix) if found else check()

    # Where another folder for temporary files is looked for.
    work = Path("/") if str(subject.out) in dead else subject.out
    return [
        container_check(container, read_only=folders.is_read_only(Path("/"))),
        image_check(container, arguments),
        python_check(container, environment),
        unless_dead(folders.DATA, lambda: folders.data_check(subject.data, recipe, container, arguments)),
        unless_dead(folders.OUT, lambda: folders.out_check(subject.out, container, arguments)),
        unless_dead(folders.TEMPORARY, lambda: folders.temporary_check(environment, container, work)),
        backend_check(recipe, installed("horovod")),
        loader_check(recipe, find_plugin(), installed(DISTRIBUTION)),
        process_manager_check(
            Ranks(environment, _control_groups(), lambda: installed_mpi(environment), container), recipe
        ),
        accelerator_check(
            recipe.accelerator.device if recipe else None,
            machine(environment, container, installed_torch(), arguments),
        ),
        *_capacity(environment, recipe, container),
    ]


def machine(
    environment: Mapping[str, str], container: Container | None, torch: Torch | None, arguments: Sequence[str]
) -> Machine:
    """What the check of the accelerator looks at, on this machine."""

    @cache
    def ask() -> Driver:
        return ask_driver(environment)

    return Machine(torch, find_traces(), ask, container, arguments)


def require_healthy(subject: Subject) -> None:
    """Refuse to start `subject` where it cannot run; what may trouble it is said on stderr. Silent where all is well.

    Raises:
        DataError: its data set is not there.
        EnvironmentLacksError: the machine or the container lacks something, or a folder does not answer.
    """
    require_reachable([*([subject.data] if subject.data else []), subject.out])
    checks = examine(subject)
    for check in checks:
        if check.status == "warn":
            _warn(check.sentence)
    errors = [check for check in checks if check.status == "fail"]
    if not errors:
        return
    # The command may be `profile` or `scale`: doctor looks at benchmarks.
    benchmark = subject.recipe.benchmark if subject.recipe else ""
    more = f" (and {len(errors) - 1} more: see `hpcai500 doctor {benchmark} …`)" if errors[1:] else ""
    kind = DataError if errors[0].name == folders.DATA else EnvironmentLacksError
    raise kind(f"{errors[0].sentence}{more}")


def why_no_device(
    environment: Mapping[str, str], torch: Torch, arguments: Sequence[str], *, by_recipe: bool = True
) -> str:
    """Why this process's torch finds no CUDA device, and what to do about it.

    Args:
        environment: variables of this process.
        torch: that of this process.
        arguments: what `hpcai500` was started with, for the line to type.
        by_recipe: whether it is a recipe that asks for a device.
    """
    around = machine(environment, find_container(environment), torch, arguments)
    found = accelerator_check("cuda" if by_recipe else None, around)
    if found.status != "pass":
        return found.sentence
    asked = "accelerator.device is cuda, but " if by_recipe else ""
    return f"{asked}torch finds no device, though the driver does ({found.detail}): see `dmesg`"


def _capacity(environment: Mapping[str, str], recipe: Recipe | None, container: Container | None) -> list[Check]:
    try:
        placement = find_placement(environment)
        local_size, launcher = placement.local_size or 1, placement.launcher
    except UsageError:
        local_size, launcher = 1, "none"  # the check of the launcher says why
    ranks = max(local_size, recipe.hardware.accelerators_per_node if recipe else 1)
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return [
        cores_check(len(os.sched_getaffinity(0)), os.cpu_count() or 1, ranks, launcher),
        memory_check(memory_limit(), memory_bytes),
        folders.shared_memory_check(folders.shared_memory_bytes(), ranks, container),
    ]


def _control_groups() -> str:
    path = Path("/proc/self/cgroup")
    return path.read_text() if path.is_file() else ""


@cache
def _warn(sentence: str) -> None:
    """Say it once: a series of runs has one machine."""
    say(f"warning: {sentence}")
