"""What the commands of the job are told: the options of each, sent as one JSON argument.

The login half starts `python -m hpcai500.MODULE JSON`, and the command reads its options back. Only `hpcai500.train`,
`hpcai500.data` and `hpcai500.measure.flops_command`, which people type, have a command line of their own.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from types import UnionType
from typing import Any, Generic, TypeVar, get_args, get_origin, get_type_hints

from hpcai500.errors import UsageError

T = TypeVar("T")
Own = TypeVar("Own")


# ----------------------------------------------------------------------------------------------------
# Options as JSON: dataclasses of paths, numbers and texts, and of tuples and dicts of these.


def as_argument(options: Any) -> str:
    """The one argument of a command; in ASCII, so that a path of any bytes comes through."""
    return json.dumps(asdict(options), default=str)


def read_options(kind: type[T], arguments: Sequence[str] | None = None) -> T:
    """The options that this process was started with.

    Raises:
        UsageError: it was started by hand.
    """
    words = sys.argv[1:] if arguments is None else arguments
    try:
        (text,) = words
        options: T = _restored(kind, json.loads(text))
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        name = (get_origin(kind) or kind).__name__
        raise UsageError(f"expected one argument, {name} as JSON: other commands of hpcai500 start this one") from error
    return options


def _restored(kind: Any, value: Any) -> Any:
    """`value`, as JSON has it, made a `kind` again."""
    if isinstance(kind, UnionType):  # `X | None`
        return None if value is None else _restored(get_args(kind)[0], value)
    form = get_origin(kind) or kind
    if is_dataclass(form):
        hints = get_type_hints(form)
        # A measurement's own options are of the kind that the reader asked for.
        hints |= {name: get_args(kind)[0] for name, hint in hints.items() if hint is Own}
        return form(**{name: _restored(hints[name], one) for name, one in value.items()})  # type: ignore[operator]
    if form is tuple:
        return tuple(_restored(get_args(kind)[0], one) for one in value)
    if form is dict:
        return {name: _restored(get_args(kind)[1], one) for name, one in value.items()}
    return Path(value) if kind is Path else value


# ----------------------------------------------------------------------------------------------------
# Measurements on all ranks: `launch.measuring.measure` starts them, `engine.measurement.run_measurement` runs them.


@dataclass(frozen=True)
class Measurement(Generic[Own]):
    """A measurement of any kind.

    Attributes:
        recipe: a TOML file, or a shipped recipe.
        overrides: `table.key=value` each.
        result: file that rank 0 writes, one JSON document.
        doing: file where rank 0 notes what it measures now.
        options: those of this kind of measurement.
    """

    recipe: str
    overrides: tuple[str, ...]
    result: Path
    doing: Path
    options: Own


@dataclass(frozen=True)
class StepOptions:
    """Of `measure.step_command`.

    Attributes:
        steps: to time; 0: count only.
        seconds: no step begins after that.
        classes: outputs of a classifier; None: those of the edition's data set.
    """

    steps: int = 0
    seconds: float = 0.0
    classes: int | None = None


@dataclass(frozen=True)
class MicroOptions:
    """Of `measure.micro_command`: which kinds, seconds of each measurement, and folders of data by benchmark."""

    kinds: tuple[str, ...]
    seconds: float
    data: dict[str, Path]


@dataclass(frozen=True)
class ProfileOptions:
    """Of `measure.profile_command`: data set, file of the trace (.json.gz), and steps; None: what fits a minute."""

    data: Path
    trace: Path
    steps: int | None = None


@dataclass(frozen=True)
class SystemOptions:
    """Of `measure.system_command`: folders whose file systems are described, by name."""

    places: dict[str, Path | None]


@dataclass(frozen=True)
class PreflightOptions:
    """Of `measure.preflight_command`, which is told all it needs for `hpcai500 doctor`.

    Attributes:
        recipe: a TOML file, or a shipped recipe.
        log: file that rank 0 writes (`system.checks`).
        checks: names of the checks to make, in order.
        out: folder of the record.
        machine: what speeds are held against.
        limit_seconds: that one check may take.
    """

    recipe: str
    overrides: tuple[str, ...]
    log: Path
    checks: tuple[str, ...]
    data: Path | None
    out: Path
    machine: str | None
    limit_seconds: float


# ----------------------------------------------------------------------------------------------------
# Commands of one process.


@dataclass(frozen=True)
class ReplayOptions:
    """Of `engine.replay_command`.

    Attributes:
        recipe: recipe.toml of the record.
        checkpoint: its last one.
        data: folder of the data set.
        result: file that the result is written to, one JSON document.
        at_target: the checkpoint with which it reached its target.
        held_back: folder of another data set, to be evaluated on, too.
        device: `cpu` or `cuda`, where the recipe's own is not here.
    """

    recipe: Path
    checkpoint: Path
    data: Path
    result: Path
    at_target: Path | None = None
    held_back: Path | None = None
    device: str | None = None


@dataclass(frozen=True)
class VoteOptions:
    """Of `engine.vote_command`.

    Attributes:
        recipe: recipe.toml of the ensemble.
        records: list of members, a line each: number, tab, folder of the record, relative to that of the recipe.
        result: file that the vote is written to.
        refused: file that the first member that cannot vote is written to, {member, reason}.
    """

    recipe: Path
    records: Path
    result: Path
    refused: Path
