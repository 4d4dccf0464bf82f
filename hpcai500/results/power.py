"""The power of a record, integrated again from its samples."""

from __future__ import annotations

import math
from typing import Any

from hpcai500.chain import iterate
from hpcai500.errors import RecordError, WrongAnswerError
from hpcai500.methodology.power import window_of
from hpcai500.record import Record
from hpcai500.system.power.node import energy_of, integral_entry
from hpcai500.system.power.samples_file import SamplesFile, read_samples

_ROUNDING = 1e-6
_KEYS = ("samples", "energy_joules", "mean_watts", "gaps")


def samples_of(record: Record) -> dict[str, SamplesFile]:
    """The power samples of a record, by host; empty where nothing was measured.

    Raises:
        RecordError: a file is missing, or is no file of samples.
    """
    nodes = _told(record).get("nodes", [])
    return {node["host"]: read_samples(record.path / node["file"]) for node in nodes if node["file"]}


def check_power(record: Record) -> None:
    """Integrate the samples of each node again.

    Raises:
        WrongAnswerError: they give another energy than the event `power` tells.
        RecordError: a file is missing, or an event lacks something.
    """
    told = _told(record)
    if not told.get("nodes"):
        return
    try:
        window, files = window_of(record.events), samples_of(record)
        for node in told["nodes"]:
            if node["file"]:
                _check_node(record, node, integral_entry(energy_of(files[node["host"]], node, window)))
            elif node["energy_joules"] is not None:
                raise WrongAnswerError(f"{record.path}: the event power has an energy of {node['host']} and no samples")
    except (KeyError, TypeError, StopIteration) as error:
        raise RecordError(f"{record.path}: the event power lacks something: {type(error).__name__} {error}") from error


def _check_node(record: Record, node: dict[str, Any], computed: dict[str, Any]) -> None:
    for key in _KEYS:
        if not _same(node[key], computed[key]):
            raise WrongAnswerError(
                f"{record.path / node['file']}: the samples of {node['host']} give {key} {computed[key]!r}, but the "
                f"event power tells {node[key]!r}: one of them was changed"
            )


def _told(record: Record) -> dict[str, Any]:
    found = list(iterate(record.events, "power"))
    return found[-1]["value"] if found else {}


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=_ROUNDING, abs_tol=_ROUNDING)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other)
