"""How long the epochs of a run took by the clock of its events, beside what they tell of themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from hpcai500.methodology.integrity.log import Log, Moment
from hpcai500.methodology.integrity.values import EpochStop, Evaluation, Place

# From here on, a rank may already train while rank 0, which writes the events, is busy with a checkpoint.
_TOGETHER = ("eval_stop", "run_start", "run_resume")


@dataclass(frozen=True)
class Pass:
    """One epoch, as it counts: what a restart has lost and trained again is left out.

    Attributes:
        line: of its `epoch_stop` in the log.
        done: what that tells.
        elapsed_seconds: from `epoch_start` to `epoch_stop`, of all processes that worked on it.
        head_start_seconds: in which other ranks may have trained before that.
        evaluation: what `eval_accuracy` tells; None where there was none.
        evaluation_elapsed_seconds: from `eval_start` to there.
    """

    line: int
    done: EpochStop
    elapsed_seconds: float
    head_start_seconds: float
    evaluation: Evaluation | None = None
    evaluation_elapsed_seconds: float = 0.0

    @property
    def trained(self) -> int:
        """Samples that went through the model, those that only fill the last batch as well."""
        return self.done.samples + self.done.padded_samples


class _Part(NamedTuple):
    """What was done of an epoch up to a step, by this process and those before it."""

    step: int
    seconds: float = 0.0
    head_start: float = 0.0


def last_passes(log: Log) -> dict[int, Pass]:
    """Each epoch (from 1) as it was trained last."""
    passes: dict[int, Pass] = {}
    parts: dict[int, list[_Part]] = {}
    together = begun = evaluating = log.moments[0]
    is_open = False
    for moment in log.moments:
        if moment.key in _TOGETHER:
            together = moment
        elif moment.key == "epoch_start":
            begun, is_open, place = moment, True, moment.told(Place)
            _forget_after(parts.setdefault(place.epoch, []), place.step)
        elif moment.key == "interrupted" and is_open:
            is_open, place = False, moment.told(Place)
            _add(parts.setdefault(place.epoch, []), place.step, together, begun, moment)
        elif moment.key == "epoch_stop":
            is_open, done = False, moment.told(EpochStop)
            whole = _add(parts.setdefault(done.epoch, []), done.steps, together, begun, moment)
            passes[done.epoch] = Pass(moment.line, done, whole.seconds, whole.head_start)
        elif moment.key == "eval_start":
            evaluating = moment
        elif moment.key == "eval_accuracy":
            _evaluated(passes, moment, evaluating)
        elif moment.key == "init_start":
            is_open = False
    return passes


def _forget_after(parts: list[_Part], step: int) -> None:
    """What a restart at this step has lost; steps only grow within an epoch."""
    while parts and (step == 0 or parts[-1].step > step):
        parts.pop()


def _add(parts: list[_Part], step: int, together: Moment, begun: Moment, ended: Moment) -> _Part:
    before = parts[-1] if parts else _Part(0)
    seconds, ahead = ended.clock_s - begun.clock_s, max(0.0, begun.clock_s - together.clock_s)
    parts.append(_Part(step, before.seconds + seconds, before.head_start + ahead))
    return parts[-1]


def _evaluated(passes: dict[int, Pass], moment: Moment, begun: Moment) -> None:
    evaluation = moment.told(Evaluation)
    trained = passes.get(evaluation.epoch)
    if trained:
        seconds = moment.clock_s - begun.clock_s
        passes[evaluation.epoch] = Pass(
            trained.line, trained.done, trained.elapsed_seconds, trained.head_start_seconds, evaluation, seconds
        )
