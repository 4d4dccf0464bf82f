"""The order of a run's events: which may follow which, and the numbers of epochs that must go on.

A run is training and evaluation in turns. Its process may end at any moment (a kill leaves nothing but silence), and go
on from a checkpoint that the log knows. A member of an ensemble then says what it thinks of each sample: outside of the
clock, so that another process may still do it when the run has come to its end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from hpcai500.methodology.integrity.log import Moment
from hpcai500.methodology.integrity.values import Checkpoint, EpochStop, Place, Resume

# What may follow an event within one process; any may be followed by an error, or by silence and the next start.
_FOLLOWERS: dict[str, set[str]] = {
    "init_start": {"system", "prediction_start"},
    "system": {"system_differences", "dataset"},
    "system_differences": {"dataset"},
    "dataset": {"model"},
    "model": {"flops"},
    "flops": {"ceilings", "rehearsal", "init_stop"},
    "ceilings": {"rehearsal", "init_stop"},
    "rehearsal": {"parallel_efficiency", "init_stop"},
    "parallel_efficiency": {"init_stop"},
    "init_stop": {"run_start", "run_resume"},
    "run_start": {"epoch_start"},
    "run_resume": {"epoch_start", "run_stop"},
    "epoch_start": {"epoch_stop", "interrupted", "diverged", "not_finite"},
    "epoch_stop": {"replicas", "eval_start", "diverged", "not_finite"},
    "replicas": {"eval_start"},
    "eval_start": {"eval_accuracy", "interrupted"},
    "eval_accuracy": {"eval_stop"},
    "eval_stop": {"checkpoint"},
    "interrupted": {"checkpoint"},
    "checkpoint": {"epoch_start", "run_stop"},
    "diverged": set(),
    "not_finite": set(),
    "run_stop": {"steps", "communication", "trace", "power"},
    "steps": {"communication", "trace", "power"},
    "communication": {"trace", "power"},
    "trace": {"power"},
    "power": {"picture", "picture_error", "predictions"},
    "picture": {"picture", "picture_error", "predictions"},
    "picture_error": {"predictions"},
    "prediction_start": {"predictions"},
    "predictions": {"predictions", "out_of_bag"},
    "out_of_bag": set(),
    "run_error": set(),
}
_AFTER_THE_END = {"run_stop", "steps", "communication", "trace", "power", "picture", "picture_error"}
_AFTER_THE_END |= {"predictions", "out_of_bag"}


@dataclass
class _Position:
    """Where the run is.

    Attributes:
        epochs: how many it has to do.
        epoch: that is worked on, or comes next.
        step: updates of it that are done.
        saved: all places that the run may go on from.
        is_interrupted: whether a signal ended this process.
        has_started: whether the clock runs.
        has_ended: whether it was stopped.
        is_member: whether it owes predictions then.
    """

    epochs: int
    epoch: int = 1
    step: int = 0
    saved: set[tuple[int, int]] = field(default_factory=lambda: {(1, 0)})
    is_interrupted: bool = False
    has_started: bool = False
    has_ended: bool = False
    is_member: bool = False


def order_violations(moments: Iterable[Moment], epochs: int, *, is_member: bool = False) -> Iterator[str]:
    """What in the order of the events no run could have done, a sentence each, with the line in the log.

    Args:
        moments: all events.
        epochs: that the recipe asks for.
        is_member: whether the recipe is that of a member of an ensemble.
    """
    position, before = _Position(epochs, is_member=is_member), ""
    for moment in moments:
        if not _may_follow(moment.key, before, position):
            yield f"line {moment.line}: {moment.key} after {before or 'nothing'}"
        step = _STEPS.get(moment.key)
        wrong = step(moment, position) if step else None
        if wrong:
            yield f"line {moment.line}: {moment.key} {wrong}"
        before = moment.key


def unknown_keys(moments: Iterable[Moment]) -> list[str]:
    """Names of events that this version does not know."""
    return sorted({moment.key for moment in moments} - _FOLLOWERS.keys())


def _may_follow(key: str, before: str, position: _Position) -> bool:
    if key == "init_start":
        return position.is_member or before not in _AFTER_THE_END
    if not before:
        return False
    if key == "run_error":
        return before != "run_error"
    # A newer version may say more; what it says is for people to judge.
    return key in _FOLLOWERS.get(before, {key}) or key not in _FOLLOWERS


def _open(_: Moment, position: _Position) -> str | None:
    position.is_interrupted = False
    return "after the end of the run" if position.has_ended and not position.is_member else None


def _prepare(_: Moment, position: _Position) -> str | None:
    return "after the end of the run" if position.has_ended else None


def _predict(_: Moment, position: _Position) -> str | None:
    if not position.is_member:
        return "in a run of one model"
    return None if position.has_ended else "before the end of the run"


def _begin(_: Moment, position: _Position) -> str | None:
    started, position.has_started = position.has_started, True
    return "for the second time" if started else None


def _go_on(moment: Moment, position: _Position) -> str | None:
    value = moment.told(Resume)
    position.epoch, position.step = place = value.epoch, value.step
    if not position.has_started:
        return "before run_start"
    return None if place in position.saved else f"at {_words(place)}, where no checkpoint was saved"


def _start_epoch(moment: Moment, position: _Position) -> str | None:
    value = moment.told(Place)
    if position.is_interrupted:
        return "in a process that a signal had ended"
    if value.epoch > position.epochs:
        return f"of epoch {value.epoch}, of {position.epochs}"
    return _expect((value.epoch, value.step), (position.epoch, position.step))


def _interrupt(moment: Moment, position: _Position) -> str | None:
    value, wrong = moment.told(Place), _same_epoch(moment, position)
    if value.step < position.step:
        wrong = f"at step {value.step} of an epoch that went on at step {position.step}"
    position.step, position.is_interrupted = value.step, True
    return wrong


def _stop_epoch(moment: Moment, position: _Position) -> str | None:
    wrong = _same_epoch(moment, position)
    position.step = moment.told(EpochStop).steps
    return wrong


def _save(moment: Moment, position: _Position) -> str | None:
    value = moment.told(Checkpoint)
    expected = (position.epoch, position.step) if position.is_interrupted else (position.epoch + 1, 0)
    position.epoch, position.step = place = value.epoch, value.step
    position.saved.add(place)
    return _expect(place, expected)


def _stop(_: Moment, position: _Position) -> str | None:
    position.has_ended = True
    return _expect(position.epoch, position.epochs + 1, "where the next epoch is ")


def _same_epoch(moment: Moment, position: _Position) -> str | None:
    return _expect(getattr(moment.value, "epoch", None), position.epoch, "of epoch ")


def _expect(found: object, expected: object, what: str = "at ") -> str | None:
    if found == expected:
        return None
    words = [_words(one) if isinstance(one, tuple) else str(one) for one in (found, expected)]
    return f"{what}{words[0]}, expected {words[1]}"


def _words(place: tuple[int, int]) -> str:
    return f"epoch {place[0]}, step {place[1]}"


# Going on by one event; what each returns is wrong with its numbers.
_STEPS: dict[str, Callable[[Moment, _Position], str | None]] = {
    "init_start": _open,
    "system": _prepare,
    "prediction_start": _predict,
    "predictions": _predict,
    "out_of_bag": _predict,
    "run_start": _begin,
    "run_resume": _go_on,
    "epoch_start": _start_epoch,
    "interrupted": _interrupt,
    "epoch_stop": _stop_epoch,
    "replicas": _same_epoch,
    "eval_start": _same_epoch,
    "eval_accuracy": _same_epoch,
    "eval_stop": _same_epoch,
    "checkpoint": _save,
    "run_stop": _stop,
}
