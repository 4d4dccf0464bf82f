"""Measurements by the in-job half, on one rank or many: steps, micro benchmarks, profiles, replayed checkpoints.

A module of the in-job half runs on all ranks, and rank 0 writes one JSON document. This is the login-node half: it
chooses recipe, data and folder, starts the ranks, and stops them when they take too long.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcai500.errors import (
    DataError,
    ExitCode,
    HpcAi500Error,
    OutOfTimeError,
    RecordError,
    UsageError,
    WrongAnswerError,
    error_kind,
)
from hpcai500.files import RUNS, GuardedFolder, make_empty, run_folder, scratch_folder, why_not, write_atomically
from hpcai500.hosts import Placement
from hpcai500.interpreter import module_command
from hpcai500.job_options import (
    COLLECTIVES,
    Measurement,
    MicroOptions,
    ProfileOptions,
    ReplayOptions,
    StepOptions,
    StorageOptions,
    as_argument,
)
from hpcai500.launch.launcher import Launcher, launcher_of
from hpcai500.launch.processes import Patience, run_to_end
from hpcai500.launch.synthetic_data import data_for_measuring
from hpcai500.layers import RECIPE_TYPES, Recipe
from hpcai500.machine import Machine
from hpcai500.recipe import default_recipe, load_recipe, parse_resolved
from hpcai500.record import json_object
from hpcai500.streams import say
from hpcai500.system.accelerator import find_traces
from hpcai500.system.doctor import Subject, paths_and_device_first, require_healthy

# ----------------------------------------------------------------------------------------------------
# Running one measuring module.


# For measurements of some seconds: torch is imported on every rank, perhaps from a busy file system.
_LIMIT_SECONDS = 600.0


@dataclass(frozen=True)
class Setting:
    """The recipe of a measurement, of which device, precision, threads and communication matter.

    Attributes:
        name: a shipped recipe or a file.
        overrides: as for --set, with those that make the recipe fit the ranks.
    """

    name: str
    overrides: Sequence[str]
    recipe: Recipe


def setting_for(launcher: Launcher, name: str, overrides: Sequence[str]) -> Setting:
    """The recipe `name` with `overrides`, made to fit the ranks of `launcher`.

    Raises:
        UsageError: it cannot be used.
    """
    fitted = [*overrides, *launcher.fit(name, overrides)]
    return Setting(name, fitted, load_recipe(name, fitted))


def measure(
    launcher: Launcher, module: str, setting: Setting, options: Any, limit_seconds: float = _LIMIT_SECONDS
) -> dict[str, Any]:
    """Run `python -m hpcai500.MODULE` on all ranks of `launcher`, which is open, and return what rank 0 wrote.

    The module is one of `engine.measurement.run_measurement`, and `options` are its own in `job_options`. It is stopped
    after `limit_seconds`, or by the first signal.

    Raises:
        OutOfTimeError: it took too long; the message names what it was measuring.
        HpcAi500Error: its exit code was not 0; stderr says why.
        KeyboardInterrupt: a signal stopped it.
    """
    title = module.rpartition(".")[2].removesuffix("_command").replace("_", " ")
    with scratch_folder(os.environ, Path.cwd()) as folder:
        result, doing = Path(folder, "result.json"), Path(folder, "doing")
        argument = as_argument(Measurement(setting.name, tuple(setting.overrides), result, doing, options))
        try:
            code = launcher.run(setting.recipe, [argument], module, Patience(limit_seconds))
        except OutOfTimeError as error:
            what = (
                doing.read_text(encoding="utf-8", errors="surrogateescape")
                if doing.is_file()
                else "starting its processes"
            )
            raise OutOfTimeError(
                f"{title}: {error}, and was stopped while {what}: this machine is busy, or much slower than "
                "most: stop other programs (`top`), or measure less"
            ) from error
        if code != ExitCode.PASS:
            raise error_kind(code)(f"{title}: it could not be measured (see above)")
        return json_object(result)


@contextmanager
def ended_after(minutes: float, advice: str) -> Iterator[None]:
    """Runs within the block that take longer than `minutes` are stopped with a checkpoint, as by SIGTERM.

    Raises:
        OutOfTimeError: with `advice`; replaces the exception that the signal caused.
    """
    is_late = threading.Event()

    def end() -> None:
        is_late.set()
        os.kill(os.getpid(), signal.SIGTERM)

    timer = threading.Timer(60 * minutes, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    except (HpcAi500Error, KeyboardInterrupt) as error:
        if not is_late.is_set():
            raise
        raise OutOfTimeError(f"stopped after {minutes:g} min: {advice}") from error
    finally:
        timer.cancel()


# ----------------------------------------------------------------------------------------------------
# Steps of a recipe, counted for plans or timed.


# Counting does not depend on these, and the machine that counts may lack what the recipe asks for.
_ANYWHERE = (
    "accelerator.device=cpu",
    "accelerator.precision=fp32",
    "communication.backend=local",
    "communication.topology=flat",
    "communication.algorithm=default",
    "communication.torus_columns=0",
    "hardware.nodes=1",
    "hardware.accelerators_per_node=1",
    "hardware.ranks=0",
)


def planned_recipe(name: str, overrides: Sequence[str], nodes: int, per_node: int) -> Recipe:
    """The recipe `name` with `overrides`, for `nodes` nodes, whatever number the recipe states.

    Raises:
        UsageError: it cannot be used.
    """
    size = [f"hardware.nodes={nodes}", f"hardware.accelerators_per_node={per_node}", "hardware.ranks=0"]
    if nodes * per_node == 1:
        return load_recipe(name, [*overrides, *size, "communication.backend=local"])
    return load_recipe(name, ["communication.backend=torch", *overrides, *size])


def planned_layout(name: str, overrides: Sequence[str], nodes: int, per_node: int) -> tuple[int, int]:
    """Nodes, and accelerators of each: as `overrides` state, else as a recipe of several ranks states, else as given.

    Raises:
        UsageError: there is no such recipe, a number is invalid, or nodes have different numbers of ranks.
    """
    stated = dict(text.replace(" ", "").split("=", 1) for text in overrides if "=" in text)
    hardware = load_recipe(name).hardware
    if hardware.nodes * hardware.accelerators_per_node > 1:
        nodes, per_node = hardware.nodes, hardware.accelerators_per_node
    nodes = _count(stated, "hardware.nodes", nodes)
    if (ranks := stated.get("hardware.ranks", str(hardware.ranks))) != "0":
        raise UsageError(
            f"{name}: {ranks} ranks on {nodes} nodes: the model needs equal nodes: --set hardware.ranks=0, with the "
            "accelerators of each"
        )
    return nodes, _count(stated, "hardware.accelerators_per_node", per_node)


def count_step(placement: Placement, name: str, overrides: Sequence[str], classes: int | None = None) -> dict[str, Any]:
    """The document of `hpcai500.measure.step_command` without times: FLOPs and gradients, counted by one process here.

    Raises:
        UsageError: a launcher has started several copies of this command, which itself runs no ranks.
        HpcAi500Error: it could not be counted.
    """
    if not placement.is_alone:
        raise UsageError(
            f"{placement.launcher} has started {placement.size} copies of this command, which only predicts: start it "
            "once, without a launcher"
        )
    settings = [*overrides, *_ANYWHERE]
    setting = Setting(name, settings, load_recipe(name, settings))
    return measure(launcher_of(placement, None), "measure.step_command", setting, StepOptions(classes=classes))


def _count(stated: dict[str, str], field: str, otherwise: int) -> int:
    text = stated.get(field, str(otherwise))
    if not text.isdecimal() or int(text) < 1:
        raise UsageError(f"--set {field}={text}: expected a whole number of 1 or more")
    return int(text)


# ----------------------------------------------------------------------------------------------------
# Evaluating a checkpoint, in one process on this machine.


def replay_checkpoint(
    recipe: Path,
    checkpoint: Path,
    at_target: Path | None,
    *,
    data: Path,
    held_back: Path | None = None,
    device: str | None = None,
) -> dict[str, Any]:
    """Quality of the weights in `checkpoint`, with facts of the data and model used to find it.

    Args:
        checkpoint: the record's last one; untrusted.
        at_target: the one with which the target was reached, if it is not the last one.
        held_back: folder of another data set to evaluate on, too.
        device: `cpu` or `cuda`, if the recipe's own is not here.

    Raises:
        WrongAnswerError: a checkpoint is refused, or this version cannot run the recipe.
        DataError: the data cannot be used.
        HpcAi500Error: it could not be evaluated here; stderr says why.
    """
    parse_resolved(recipe.read_text(encoding="utf-8"), "recipe.toml")
    with scratch_folder(os.environ, Path.cwd()) as folder:
        result = Path(folder, "replay.json")
        second = held_back and held_back.absolute()
        options = ReplayOptions(recipe, checkpoint, data.absolute(), result, at_target, second, device)
        code = run_to_end(module_command("engine.replay_command", as_argument(options)), hold=True)
        if code == ExitCode.WRONG_ANSWER:
            raise WrongAnswerError("one of its checkpoints was refused (stderr says why)")
        if code == ExitCode.USAGE:
            sets = f"{data} and {held_back}" if held_back else f"{data}"
            raise DataError(f"{sets}: the checkpoint could not be evaluated on it (see above)")
        if code != ExitCode.PASS:
            raise error_kind(code)("the checkpoint could not be evaluated here (see above)")
        return json_object(result)


# ----------------------------------------------------------------------------------------------------
# `hpcai500 micro`: chooses recipe and data, then measures on all ranks.


# Time to import torch and walk the models, on a machine ten times slower than most.
_START_SECONDS = 180.0
# For each kind: number of measurements, how many times `--seconds` each takes at most, and further seconds.
_LIMITS = {
    "gemm": (4, 20, 20),
    "conv": (4, 20, 20),
    "copy": (1, 10, 60),
    **dict.fromkeys(COLLECTIVES, (3, 10, 60)),
    "pairs": (1, 50, 60),
    "device": (1, 70, 60),
    "input": (2, 20, 120),
}
# Of each round of pairs of nodes, besides its measurements.
_ROUND_SECONDS = 2.0


def measure_micro(
    launcher: Launcher,
    what: Sequence[str],
    *,
    recipe: str | None,
    overrides: Sequence[str],
    data: Path | None,
    seconds: float,
) -> dict[str, Any]:
    """Measure `what` on all ranks of `launcher`, which is open; returns the micro document (docs/micro.md).

    `recipe` is a TOML file or a shipped recipe; None takes one that fits this host. Each measurement takes `seconds`.

    Raises:
        UsageError: recipe or data cannot be used, or nothing of what was asked for can be measured here.
        WrongAnswerError: a result is wrong.
    """
    if data and "input" not in what:
        raise UsageError("--data is for input: add it (`hpcai500 micro input --data DIR`), or leave --data out")
    setting = setting_for(launcher, recipe or _fitting_recipe(), overrides)
    if setting.recipe.benchmark not in RECIPE_TYPES:
        raise UsageError(
            f"{recipe}: a recipe of {setting.recipe.benchmark}; micro measures the shapes of "
            f"{' and '.join(RECIPE_TYPES)}: measure a plug-in's with `hpcai500 profile {setting.recipe.benchmark}`"
        )
    with ExitStack() as made:
        folders = {setting.recipe.benchmark: data} if data else {}
        if "input" in what and not data:
            others = [load_recipe("ewa/smoke")] if recipe is None and setting.recipe.problem.is_synthetic else []
            folders = _data_folders([setting.recipe, *others], made, launcher)
        # Several times what the measurements take on an idle machine.
        limit_seconds = _START_SECONDS + sum(
            count * (factor * seconds + more) for kind, (count, factor, more) in _LIMITS.items() if kind in what
        )
        if "pairs" in what:
            nodes = setting.recipe.hardware.nodes
            # Horovod's pairs take turns.
            alone = setting.recipe.communication.backend == "horovod"
            limit_seconds += _ROUND_SECONDS * (nodes * (nodes - 1) / 2 if alone else nodes)
        say(f"micro: {seconds:g} s a measurement; stopped after {limit_seconds:.0f} s")
        options = MicroOptions(tuple(what), seconds, folders)
        document = measure(launcher, "measure.micro_command", setting, options, limit_seconds)
    if not document:
        raise UsageError(f"micro {' '.join(what)}: nothing can be measured here (see above)")
    return document


def _fitting_recipe() -> str:
    """The reference if there is an NVIDIA device; printed on stderr, because it decides what is measured."""
    traces = find_traces()
    name = "ic/reference" if traces.any else "ic/smoke"
    say(f"micro: recipe {name}: {traces.words if traces.any else 'no NVIDIA device here, so the CPU is measured'}")
    return name


def _data_folders(recipes: Sequence[Recipe], made: ExitStack, launcher: Launcher) -> dict[str, Path]:
    """Folders by benchmark. Missing synthetic data is generated, and removed when `made` is closed."""
    found: dict[str, Path] = {}
    for one in recipes:
        if one.problem.is_synthetic:
            found[one.benchmark] = made.enter_context(data_for_measuring(one, is_shared=not launcher.is_local))
        else:
            say(f"input {one.benchmark}: skipped: it reads {one.problem.dataset}: add --data DIR")
    return found


# ----------------------------------------------------------------------------------------------------
# `hpcai500 storage`: makes a folder of its own, measures in it on all ranks, and removes it.


# Further time, for a file system that is many times slower at removing files and synchronising than at writing.
_SLACK = 10.0
_WITHOUT_DEVICE = "accelerator.device=cpu"


def measure_storage(
    launcher: Launcher,
    where: Path,
    kinds: Sequence[str],
    models: Sequence[str],
    *,
    seconds: float,
    space: int | None,
    threads: int | None,
) -> dict[str, Any]:
    """Measure the file system of the folder `where` on all ranks of `launcher`, which is open (docs/storage.md).

    `threads` are those of each rank; None: as many as a loader has.

    Raises:
        UsageError: the folder cannot be used, or is too small for all of `kinds`.
        WrongAnswerError: it returned other bytes than were written.
        RunError: the disk is full, or does not respond.
    """
    if why := why_not("folder", where):
        raise UsageError(f"{where}: {why}; give one to measure in")
    overrides = [_WITHOUT_DEVICE, *([f"os.input_threads={threads}"] if threads else [])]
    setting = setting_for(launcher, "ic/smoke", overrides)
    try:
        guarded = GuardedFolder(where.absolute())
    except OSError as error:
        raise UsageError(f"{where}: cannot be written: {error.strerror}; give another folder") from error
    try:
        with guarded:
            for left in guarded.removed:
                say(f"removed {left}, which a killed command had left")
            for other in guarded.foreign:
                say(f"{other}: of a command on another host, or before this one restarted; if it ended: rm -r {other}")
            limit_seconds = _START_SECONDS + _SLACK * seconds
            say(
                f"storage: about {seconds:g} s in {guarded.path}, which is removed; stopped after {limit_seconds:.0f} s"
            )
            options = StorageOptions(guarded.path, where.absolute(), tuple(kinds), tuple(models), seconds, space)
            document = measure(launcher, "measure.storage_command", setting, options, limit_seconds)
    finally:
        if guarded.remover:
            say(
                f"{guarded.path}: process {guarded.remover} goes on to remove it, which can take minutes; nothing "
                "else has to be done"
            )
    if not document:
        raise UsageError(f"{where}: nothing can be measured in so little space (see above)")
    return document


# ----------------------------------------------------------------------------------------------------
# `hpcai500 profile`: chooses recipe, data and folder, then profiles training steps.


PROFILE, TRACE = "profile.json", "trace.json.gz"
# It takes a minute on an idle machine, several for a compiled model. With --steps, the second number is added for each.
_PROFILING_LIMIT_SECONDS, _STEP_SECONDS = 1800.0, 120.0


def run_profile(
    launcher: Launcher,
    benchmark: str,
    *,
    recipe: str | None,
    data: Path | None,
    out: Path | None,
    overrides: Sequence[str],
    steps: int | None,
) -> tuple[Path, dict[str, Any]]:
    """Profile the ranks of `launcher`, which is open; returns the folder and the content of its profile.json.

    Raises:
        HpcAi500Error: recipe, data or folder cannot be used, or the job failed.
    """
    name = recipe or default_recipe(benchmark, has_data=data is not None)
    setting = setting_for(launcher, name, overrides)
    subject = Subject(setting.recipe, data, out or RUNS, sys.argv[1:])
    with paths_and_device_first(subject):
        launcher.check(setting.recipe, 1)
    if setting.recipe.benchmark != benchmark:
        raise UsageError(
            f"{name}: a recipe of {setting.recipe.benchmark}; run `hpcai500 profile {setting.recipe.benchmark} …`"
        )
    require_healthy(subject)
    limit_seconds = _PROFILING_LIMIT_SECONDS + _STEP_SECONDS * (steps or 0)
    chosen = nullcontext(data) if data else data_for_measuring(setting.recipe, is_shared=not launcher.is_local)
    with run_folder(out, f"profile-{benchmark}") as folder:
        new_folder(folder)
        try:
            with chosen as files:
                say(f"profile: recipe {name}, data {files}, into {folder}; stopped after {limit_seconds:.0f} s")
                options = ProfileOptions(files.absolute(), (folder / TRACE).absolute(), steps)
                document = measure(launcher, "measure.profile_command", setting, options, limit_seconds)
        except BaseException:
            if out is None:
                shutil.rmtree(folder, ignore_errors=True)
            raise
        document["recipe"] = name
        document["trace"] = TRACE
        try:
            write_atomically(folder / PROFILE, (json.dumps(document, indent=1) + "\n").encode())
        except OSError as error:
            raise RecordError(f"{folder}: cannot be written: {error.strerror}; give another --out") from error
        return folder, document


def new_folder(folder: Path) -> None:
    """Make `folder`; one that holds anything is refused.

    Raises:
        RecordError: it is not empty, or cannot be made.
    """
    try:
        make_empty(folder, RecordError, "give another --out")
    except OSError as error:
        raise RecordError(f"{folder}: cannot be written: {error.strerror}; give another --out") from error


# ----------------------------------------------------------------------------------------------------
# `--estimate`: a plan of the run, with its step counted for another machine or timed on this one.


# Steps that are timed, and seconds after which no further step begins.
_STEPS, _SECONDS = 24, 90.0


def planned_on(
    benchmark: str, name: str, overrides: Sequence[str], machine: Machine, placement: Placement
) -> tuple[Recipe, dict[str, Any]]:
    """The recipe, for the nodes that it states or those of `machine`, and its counted step.

    Raises:
        HpcAi500Error: there is no such recipe, or its step cannot be counted.
    """
    nodes, per_node = planned_layout(name, overrides, machine.nodes, machine.accelerators_per_node)
    recipe = planned_recipe(name, overrides, nodes, per_node)
    _require_plannable(benchmark, name, recipe)
    return recipe, count_step(placement, name, overrides)


def planned_here(benchmark: str, name: str, overrides: Sequence[str], launcher: Launcher) -> Setting:
    """The recipe, for the ranks of `launcher`, which is open.

    Raises:
        UsageError: there is no such recipe, or it does not fit them.
    """
    setting = setting_for(launcher, name, overrides)
    _require_plannable(benchmark, name, setting.recipe)
    return setting


def measured_here(setting: Setting, launcher: Launcher) -> dict[str, Any]:
    """As `count_step`, of `setting`, with its steps timed on every rank of `launcher`.

    Raises:
        HpcAi500Error: the machine lacks the recipe's device, or steps cannot be timed.
    """
    say(f"timing up to {_STEPS} steps of {setting.name} on synthetic input; the run itself is not started")
    return measure(launcher, "measure.step_command", setting, StepOptions(_STEPS, _SECONDS))


def _require_plannable(benchmark: str, name: str, recipe: Recipe) -> None:
    if recipe.benchmark != benchmark:
        raise UsageError(
            f"{name}: a recipe of {recipe.benchmark}; type `hpcai500 {recipe.benchmark} --estimate --recipe {name}`"
        )
    require_data_parallel(recipe, "an estimate")


def require_data_parallel(recipe: Recipe, what: str) -> None:
    """Refuse a recipe that divides its model among ranks, which the cost model does not know.

    Raises:
        UsageError: it does; the message says that `what` is impossible.
    """
    if recipe.programming.parallel_mode != "data":
        raise UsageError(
            f"programming.parallel_mode: {what} needs data, got {recipe.programming.parallel_mode}: change it, or "
            "measure a run"
        )
