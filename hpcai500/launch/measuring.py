"""Measurements that run in the in-job half, on one rank or on many: a module goes in, one JSON document comes out."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcai500.errors import ExitCode, HpcAi500Error, OutOfTimeError, error_kind
from hpcai500.launch.child import Patience
from hpcai500.launch.crew import Crew
from hpcai500.layers import Recipe
from hpcai500.recipe import load_recipe
from hpcai500.record import json_object
from hpcai500.scratch import scratch_folder

Tokens = Sequence[str | Path]
# Of what takes seconds: torch is imported on every rank, perhaps from a busy file system.
_LIMIT_SECONDS = 600.0


@dataclass(frozen=True)
class Setting:
    """The recipe that a measurement is made for: its device, precision, threads and communication count.

    Attributes:
        name: a shipped recipe or a file.
        overrides: as --set has them, with what makes them fit the ranks.
        recipe: both together.
    """

    name: str
    overrides: Sequence[str]
    recipe: Recipe


def setting_for(crew: Crew, name: str, overrides: Sequence[str]) -> Setting:
    """The recipe `name` with `overrides`, made to fit the ranks of `crew`.

    Raises:
        UsageError: it cannot be used.
    """
    fitted = [*overrides, *crew.fit(name, overrides)]
    return Setting(name, fitted, load_recipe(name, fitted))


def measure(
    crew: Crew, module: str, setting: Setting, arguments: Tokens = (), limit_seconds: float = _LIMIT_SECONDS
) -> dict[str, Any]:
    """Run `python -m hpcai500.MODULE` on all ranks of `crew`, which is open, and return what rank 0 wrote.

    The module is one of `engine.measurement.run_measurement`. It is ended after `limit_seconds`, and by the first
    signal.

    Raises:
        OutOfTimeError: it took too long; with what it was measuring.
        HpcAi500Error: it ended with another exit code than 0; it has said on stderr why.
        KeyboardInterrupt: a signal stopped it.
    """
    with scratch_folder(os.environ, Path.cwd()) as folder:
        result, doing = Path(folder, "result.json"), Path(folder, "doing")
        settings = [token for text in setting.overrides for token in ("--set", text)]
        common: list[str | Path] = ["--recipe", setting.name, *settings, "--result", result, "--doing", doing]
        try:
            code = crew.run(setting.recipe, [*common, *arguments], module, Patience(limit_seconds))
        except OutOfTimeError as error:
            what = doing.read_text(encoding="utf-8") if doing.is_file() else "starting its processes"
            raise OutOfTimeError(
                f"{_title(module)}: {error}, and was ended while {what}: this machine is busy, or much slower than "
                "most: end other programs (`top`), or measure less"
            ) from error
        if code != ExitCode.PASS:
            raise error_kind(code)(f"{_title(module)}: it could not be measured (see above)")
        return json_object(result)


@contextmanager
def ended_after(minutes: float, advice: str) -> Iterator[None]:
    """While it is entered: runs that take longer than `minutes` are stopped with a checkpoint, as by SIGTERM.

    Raises:
        OutOfTimeError: with `advice`; instead of what the signal has led to.
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


def _title(module: str) -> str:
    return module.rpartition(".")[2].removesuffix("_command").replace("_", " ")
