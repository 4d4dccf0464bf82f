"""The checks of `hpcai500 doctor`: the machine, and what a benchmark's command would run on it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hpcai500.errors import ExitCode, HpcAi500Error, RecipeError, UsageError
from hpcai500.files import scratch_folder
from hpcai500.hosts import find_placement
from hpcai500.job_options import PreflightOptions, as_argument
from hpcai500.launch.launcher import Launcher, launcher_of, require_room
from hpcai500.launch.measuring import Setting
from hpcai500.launch.processes import Patience
from hpcai500.layers import Recipe
from hpcai500.machine import Machine, load_machine, why_not_of
from hpcai500.recipe import default_recipe, load_recipe
from hpcai500.stopping import why_stopped
from hpcai500.streams import say
from hpcai500.system.accelerator import NAME as ACCELERATOR
from hpcai500.system.accelerator import find_traces
from hpcai500.system.checks import (
    CHECK_SECONDS,
    DISK,
    MODEL_MEMORY,
    RANKS,
    READING,
    START_SECONDS,
    Check,
    Told,
    concluded,
    in_order,
    plan,
    read_log,
    skipped,
)
from hpcai500.system.doctor import Subject, examine

_MODULE = "measure.preflight_command"
# The recipe for measuring a machine alone; its model does not matter.
_ANY = "ic/smoke"
# Time for the ranks to end.
_SLACK_SECONDS = 10.0
# Options that only doctor has, with the number of words that follow.
_OWN_OPTIONS = {"--json": 0, "--quick": 0, "--machine": 1}


@dataclass(frozen=True)
class Patient:
    """What the user gave on the command line, as for a run; nothing of it need exist."""

    benchmark: str | None = None
    recipe: str | None = None
    data: Path | None = None
    out: Path | None = None
    overrides: Sequence[str] = ()
    machine: str | None = None


@dataclass(frozen=True)
class Findings:
    """All checks, in the order in which to fix their findings.

    `stopped` names what ended doctor before all checks were made.
    """

    checks: Sequence[Check]
    stopped: str | None = None


def look(patient: Patient, procs: int | None = None) -> list[Check]:
    """The checks of `patient` on this machine that measure nothing; `procs` is the command's --procs.

    Raises:
        UsageError: its recipe cannot be used.
    """
    if procs is not None:
        require_room(procs)

    def launcher() -> Launcher:
        return launcher_of(find_placement(os.environ), procs)

    setting = _setting(patient, launcher)
    looked_at = _looked_at(patient, setting)
    if setting is not None and why_unplaced() is None:
        try:
            launcher().check(setting.recipe, 1)
        except UsageError as error:
            return [*looked_at, _refused(error)]
    return looked_at


def examine_command(patient: Patient, launcher: Launcher) -> Findings:
    """All checks of `patient`; `launcher`, which is open, measures.

    Raises:
        UsageError: its recipe or machine cannot be used.
    """
    if launcher.is_local and launcher.size is not None:
        require_room(launcher.size)
    setting = _setting(patient, lambda: launcher)
    if patient.machine:
        _require_fit(load_machine(patient.machine), (setting.recipe if setting else None), launcher)
    looked_at = _looked_at(patient, setting)
    planned = plan(looked_at)
    left_out = [name for name in (READING, MODEL_MEMORY, DISK) if setting is None and name in planned.names]
    names = [name for name in planned.names if name not in left_out]
    not_measured = skipped(left_out, "only for a benchmark: hpcai500 doctor ic …, hpcai500 doctor ewa …")
    log, ended_by = (
        _measure(patient, setting or _of_machine(looked_at, launcher), names, launcher) if names else (Told(), None)
    )
    if isinstance(ended_by, UsageError):
        rest = [name for name in names if name != RANKS]
        measured: Sequence[Check] = [_refused(ended_by), *skipped(rest, f"not measured: first fix `{RANKS}`")]
    else:
        measured = concluded(log, names, str(ended_by) if ended_by else None)
    return Findings(in_order([*looked_at, *measured, *not_measured, *planned.skipped]), log.stopped)


def _refused(error: UsageError) -> Check:
    """The failure where a run would refuse its ranks with `error`."""
    detail, _, fix = str(error).partition("; ")
    return Check(RANKS, "fail", detail, fix or None)


def _require_fit(machine: Machine, recipe: Recipe | None, launcher: Launcher) -> None:
    """Refuse ceilings measured with another number of ranks: ranks with fewer cores would be called slow."""
    per_node = recipe.hardware.accelerators_per_node if recipe else launcher.size or 1
    if reason := why_not_of(machine, recipe.accelerator.device if recipe else "cpu", per_node):
        raise UsageError(f"--machine: {reason}")


def why_unplaced() -> str | None:
    """Why the rank of this process is unknown, so that nothing can be measured; None if it is known."""
    try:
        find_placement(os.environ)
    except UsageError as error:
        return str(error)
    return None


def _looked_at(patient: Patient, setting: Setting | None) -> list[Check]:
    recipe = setting.recipe if setting else None
    return examine(Subject(recipe, patient.data, patient.out or Path("runs"), _as_run(sys.argv[1:], recipe)))


def _measure(
    patient: Patient, setting: Setting, names: Sequence[str], launcher: Launcher
) -> tuple[Told, HpcAi500Error | str | None]:
    """The log of the ranks, and how they failed, if they did; a UsageError if a run would refuse them."""
    try:
        launcher.check(setting.recipe, 1)
    except UsageError as error:
        return Told(), error
    with scratch_folder(os.environ, Path.cwd()) as folder:
        log = Path(folder, "checks.jsonl")
        options = PreflightOptions(
            recipe=setting.name,
            overrides=tuple(setting.overrides),
            log=log,
            checks=tuple(names),
            data=patient.data.absolute() if patient.data else None,
            out=patient.out or Path("runs"),
            machine=patient.machine,
            limit_seconds=CHECK_SECONDS,
        )
        ended_by: HpcAi500Error | str | None = None
        limit_seconds = _limit_seconds(names)
        say(f"doctor: measuring takes about a minute, at most {limit_seconds:.0f} s")
        try:
            code = launcher.run(setting.recipe, [as_argument(options)], _MODULE, Patience(limit_seconds))
            ended_by = None if code == ExitCode.PASS else f"its processes ended with exit code {code} (see above)"
        except HpcAi500Error as error:
            ended_by = error
        except KeyboardInterrupt as error:
            return replace(read_log(log), stopped=why_stopped(error).removeprefix("stopped by ")), None
        return read_log(log), ended_by


def _limit_seconds(names: Sequence[str]) -> float:
    """When ranks that have not ended by themselves are stopped; each check has its own limit (docs/doctor.md)."""
    return START_SECONDS + CHECK_SECONDS * len(names) + _SLACK_SECONDS


def _setting(patient: Patient, launcher: Callable[[], Launcher]) -> Setting | None:
    """The recipe that the command would run, made to fit `launcher`; None if only the machine is examined."""
    if patient.benchmark is None and patient.recipe is None:
        if patient.overrides:
            raise UsageError("--set changes a recipe: name a benchmark too, `hpcai500 doctor ic --set …`")
        return None
    name = patient.recipe or default_recipe(str(patient.benchmark), has_data=patient.data is not None)
    overrides = list(patient.overrides)
    try:
        overrides += launcher().fit(name, overrides)
    except UsageError as error:
        if why_unplaced() is None:
            raise
        # The checks explain wrong variables of a launcher better, but a recipe for many ranks needs their number.
        try:
            load_recipe(name, overrides)
        except RecipeError:
            raise error from None
    recipe = load_recipe(name, overrides)
    if patient.benchmark not in (None, recipe.benchmark):
        raise UsageError(
            f"{patient.recipe}: a recipe of {recipe.benchmark}; run `hpcai500 doctor {recipe.benchmark} …`"
        )
    return Setting(name, overrides, recipe)


def _of_machine(looked_at: Sequence[Check], launcher: Launcher) -> Setting:
    """The setting for a machine alone: on its devices if they can be used."""
    usable = any(check.name == ACCELERATOR and check.status == "pass" for check in looked_at) and find_traces().any
    overrides = ["accelerator.device=cuda"] if usable else []
    overrides += launcher.fit(_ANY, overrides)
    return Setting(_ANY, overrides, load_recipe(_ANY, overrides))


def _as_run(arguments: Sequence[str], recipe: Recipe | None) -> list[str]:
    """The arguments of the run that `doctor ARGUMENTS` is about; doctor's own if it is about none."""
    if recipe is None or arguments[:1] != ["doctor"]:
        return list(arguments)
    rest = _without_own(arguments[1:])
    return rest if rest[:1] == [recipe.benchmark] else [recipe.benchmark, *rest]


def _without_own(arguments: Sequence[str]) -> list[str]:
    kept: list[str] = []
    words = iter(arguments)
    for word in words:
        name, equals, _ = word.partition("=")
        if name not in _OWN_OPTIONS:
            kept.append(word)
        elif not equals:
            for _ in range(_OWN_OPTIONS[name]):
                next(words, None)
    return kept
