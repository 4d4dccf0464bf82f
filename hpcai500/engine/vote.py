"""The vote of an ensemble's members (V3.0 section 3.1), from the files of predictions in their records.

Members are read one after the other, so that memory does not grow with their number. A file counts only if its hash is
in the member's chain of events, and if it gives exactly the quality of the member's last evaluation. Neither a GPU nor
the members' data are needed. `vote_command` imports this module after it has set OpenMP's variables.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import file_digest
from pathlib import Path
from typing import Any

import numpy as np

from hpcai500.engine.predictions import is_same_quality, last_evaluation
from hpcai500.errors import HpcAi500Error, RecordError, RunError, UsageError, WrongAnswerError
from hpcai500.layers import Recipe
from hpcai500.methodology.ensemble import EVALUATION, OUT_OF_BAG, expected_kinds, file_of, vouched
from hpcai500.methodology.sampling import SampleIds, draws, probe, unseen_probe
from hpcai500.progress import Tracker, silent
from hpcai500.recipe import table_differences
from hpcai500.record import Record, read_record
from hpcai500.workloads.base import Evaluation
from hpcai500.workloads.voting import SAMPLES, Form, Predictions, Voter, read_arrays, voter

SCHEMA = "hpcai500-vote-1"
_EVERY_POINT_TO = 16
_SEED = "hyperparameters.seed"
# Facts of the data that must be the same for all members.
_DATA = ("fingerprint", "training_samples", "evaluation_samples")
# More than any data set has: 50 times ImageNet.
_MOST_SAMPLES = 1 << 26
# Errors that damaged or forged events may raise.
_DAMAGED = (KeyError, TypeError, AttributeError, ValueError, IndexError, OverflowError)


@dataclass(frozen=True)
class Listed:
    """A member: its number, the folder of its record, and `name`, that folder as written in the list.

    The vote document holds only `name`, so that it does not change when the ensemble is moved.
    """

    number: int
    record: Path
    name: str


def read_list(path: Path, folder: Path) -> list[Listed]:
    """The members in the file `path`, which has lines `NUMBER<TAB>RECORD`, in the order of their numbers.

    Relative paths of records are below `folder`.

    Raises:
        UsageError: it is not such a list, or lists a member or a record twice.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read: {error}") from error
    found: list[Listed] = []
    for place, line in enumerate(lines, 1):
        number, tab, record = line.partition("\t")
        if not (tab and record and number.isascii() and number.isdecimal()):
            raise UsageError(f"{path}:{place}: expected a member's number, a tab and the folder of its record")
        found.append(Listed(int(number), folder / record, record))
    for what in ({one.number for one in found}, {one.record.resolve() for one in found}):
        if len(what) != len(found):
            raise UsageError(f"{path}: lists a member or a record twice; each has one vote")
    if not found:
        raise UsageError(f"{path}: lists no member")
    return sorted(found, key=lambda one: one.number)


def curve_points(members: int) -> set[int]:
    """Numbers of members at which the curve has a point: each up to 16, then powers of two, and all of them."""
    powers = {2**power for power in range(math.floor(math.log2(members)) + 1)}
    return {members, *range(1, min(members, _EVERY_POINT_TO) + 1), *powers}


OnRefused = Callable[[int, str], None]


def hold_vote(
    recipe: Recipe,
    members: Sequence[Listed],
    tracker: Tracker = silent,
    on_refused: OnRefused = lambda number, reason: None,
) -> dict[str, Any]:
    """Count the votes; returns the document of `vote.json`, the same for the same members, byte by byte.

    Args:
        recipe: of the ensemble, with any member's seed.
        members: in the order in which the curve adds them.
        on_refused: called with the number of a member that cannot vote, and the reason, before the error is raised.

    Raises:
        WrongAnswerError: a member's predictions differ from its record, or are not valid predictions.
        RecordError: a record cannot be read, is not finished, or does not belong to this ensemble.
        RunError: boxes cannot be stored: the disk is full.
    """
    ballot = _Ballot(recipe, len(members))
    with tracker(len(members), "voting", "members") as bar:
        for member in members:
            with _named(member, on_refused):
                ballot.take(member)
            bar.advance()
    return ballot.document()


class _Ballot:
    def __init__(self, recipe: Recipe, members: int) -> None:
        self._recipe, self._tables = recipe, recipe.model_dump(mode="json")
        assert recipe.ensemble is not None
        self._options = recipe.ensemble
        self._points = curve_points(members)
        self._data: dict[str, Any] | None = None
        self._seeds: dict[int, int] = {}
        self._evaluation: Voter | None = None
        self._out_of_bag: Voter | None = None
        self._members: list[dict[str, Any]] = []
        self._out_of_bag_members: list[dict[str, Any]] = []
        self._curve: list[dict[str, Any]] = []
        self._last: Evaluation | None = None

    def take(self, member: Listed) -> None:
        record = read_record(member.record)
        dataset = self._require_member(record, member.number)
        if self._evaluation is None:
            self._evaluation = voter(self._recipe, np.arange(dataset["evaluation_samples"]))
        alone, sha256 = self._count(self._evaluation, record, EVALUATION, np.arange(dataset["evaluation_samples"]))
        if alone is None or not is_same_quality(alone, last_evaluation(record)):
            raise WrongAnswerError(
                f"{file_of(EVALUATION)} gives {self._recipe.problem.metric} {alone and alone.value!r}, but the last "
                f"evaluation in the record gave {last_evaluation(record)['value']!r}; they must be equal"
            )
        row = {"member": member.number, "record": member.name, "value": alone.value}
        self._members.append({**row, **_rest(alone), "sha256": sha256})
        if OUT_OF_BAG in expected_kinds(self._tables):
            self._take_out_of_bag(member, record, dataset)
        if len(self._members) in self._points:
            self._last = self._evaluation.evaluation()
            assert self._last is not None
            self._curve.append({"members": len(self._members), "value": self._last.value})

    def document(self) -> dict[str, Any]:
        assert self._last is not None
        return {
            "schema": SCHEMA,
            "benchmark": self._recipe.benchmark,
            "metric": self._recipe.problem.metric,
            "target": self._recipe.problem.target_quality,
            "vote": self._options.vote,
            "members": self._members,
            "curve": self._curve,
            "value": self._last.value,
            **_rest(self._last),
            "out_of_bag": self._out_of_bag_document(),
        }

    def _take_out_of_bag(self, member: Listed, record: Record, dataset: Mapping[str, Any]) -> None:
        samples, count = dataset["training_samples"], self._options.out_of_bag_samples
        if self._out_of_bag is None:
            self._out_of_bag = voter(self._recipe, probe(samples, count))
        seed, strata = record.tables["hyperparameters"]["seed"], dataset["drawn"]["strata"]
        unseen = unseen_probe(draws(samples, seed, self._options.sampling, strata), samples, count)
        alone, _ = self._count(self._out_of_bag, record, OUT_OF_BAG, unseen)
        value = None if alone is None else alone.value
        recorded = [event["value"] for event in record.events if event["key"] == "out_of_bag"]
        if not recorded or recorded[-1]["value"] != value:
            raise WrongAnswerError(f"{file_of(OUT_OF_BAG)} gives {value!r}, but the event out_of_bag does not")
        self._out_of_bag_members.append({"member": member.number, "value": value, "samples": int(unseen.size)})

    def _count(self, counter: Voter, record: Record, kind: str, samples: SampleIds) -> tuple[Evaluation | None, str]:
        """Count a member's predictions of one `kind`; returns their own quality, and the hash of their file."""
        predictions, sha256 = _predictions(record, kind, counter.form)
        if not np.array_equal(predictions[SAMPLES], samples):
            raise WrongAnswerError(f"{file_of(kind)} does not hold predictions of the {samples.size} expected samples")
        try:
            alone = counter.alone(predictions)
            counter.add(predictions)
        except WrongAnswerError as error:
            raise WrongAnswerError(f"{file_of(kind)}: {error}") from error
        return alone, sha256

    def _require_member(self, record: Record, number: int) -> Mapping[str, Any]:
        """Require a finished member of this ensemble that has not voted yet; returns the facts of its data."""
        if record.status != "done":
            raise RecordError(f"is not finished ({record.status}); only finished members can vote")
        others = [one.field for one in table_differences(record.tables, self._tables) if one.field != _SEED]
        if others:
            raise RecordError(f"its recipe is not the ensemble's: {', '.join(others[:4])} differ")
        seed = record.tables["hyperparameters"]["seed"]
        if seed in self._seeds:
            raise RecordError(f"has the same seed {seed} as member {self._seeds[seed]}, so it is the same model")
        dataset: Mapping[str, Any] = [event["value"] for event in record.events if event["key"] == "dataset"][-1]
        # All members must have the same strata, which determine the samples that a seed draws.
        data = {**{key: dataset[key] for key in _DATA}, "strata": dataset["drawn"]["strata"]}
        if self._data is None:
            self._data = data
        if not all(0 < int(data[key]) <= _MOST_SAMPLES for key in ("training_samples", "evaluation_samples")):
            raise RecordError(
                f"has {data['training_samples']} training and {data['evaluation_samples']} evaluation samples; "
                f"expected 1 to {_MOST_SAMPLES} of each"
            )
        if data != self._data:
            raise RecordError(f"was not trained on the same data as member {min(self._seeds.values())}")
        self._seeds[seed] = number
        return dataset

    def _out_of_bag_document(self) -> dict[str, Any] | None:
        if self._out_of_bag is None:
            return None
        found = self._out_of_bag.evaluation()
        samples = 0 if found is None else found.samples
        return {
            "samples": samples,
            "votes_a_sample": self._out_of_bag.votes / samples if samples else None,
            "value": None if found is None else found.value,
            "members": self._out_of_bag_members,
        }


def _predictions(record: Record, kind: str, form: Form) -> tuple[Predictions, str]:
    """Predictions of one kind whose hash is in the record's events, and the hash of their file."""
    event = vouched(record.events).get(kind)
    if event is None:
        raise RecordError(f"has no {kind} predictions; resume its run to make them")
    try:
        with (record.path / file_of(kind)).open("rb") as stream:
            sha256 = file_digest(stream, "sha256").hexdigest()
            if sha256 != event["sha256"]:
                raise WrongAnswerError(f"{file_of(kind)} was changed: its hash differs from that in the events")
            stream.seek(0)
            return read_arrays(stream, form), sha256
    except WrongAnswerError as error:
        named = str(error) if str(error).startswith(file_of(kind)) else f"{file_of(kind)}: {error}"
        raise WrongAnswerError(named) from error
    except OSError as error:
        raise RecordError(f"{file_of(kind)} cannot be read: {error.strerror}") from error


@contextmanager
def _named(member: Listed, on_refused: OnRefused) -> Iterator[None]:
    """Name the member in errors of the body, and call `on_refused` if the member is refused."""
    try:
        yield
    except (WrongAnswerError, RecordError) as error:
        on_refused(member.number, str(error))
        raise type(error)(f"member {member.number} ({member.record}): {error}") from error
    except HpcAi500Error as error:
        raise type(error)(f"member {member.number} ({member.record}): {error}") from error
    except OSError as error:
        raise RunError(
            f"member {member.number}: its boxes cannot be stored: {error.strerror}; free some space, or set TMPDIR"
        ) from error
    except _DAMAGED as error:
        reason = f"cannot be read as a member's record ({type(error).__name__} {error})"
        on_refused(member.number, reason)
        raise RecordError(f"member {member.number} ({member.record}): {reason}") from error


def _rest(one: Evaluation) -> dict[str, Any]:
    return {"per_class": dict(one.per_class) or None, "samples": one.samples}
