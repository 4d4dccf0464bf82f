"""Forgeries of what a run says of itself: clocks, epochs, quality, samples, model, ranks, speed."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from builders.campaigns import sum_steps, values
from builders.forgeries import Bundle, Change, Forge, Forgery, each, fit_power, in_all, in_trial, without
from hpcai500.methodology.sampling import Coverage
from hpcai500.record import Event


def scaled(
    factor: float, *, clocks: tuple[str, ...] = ("clock_s", "time_ms"), told: bool = True
) -> Callable[..., None]:
    """All times since the first event, by so much; `told`: also those that events tell of."""

    def change(events: list[Event]) -> None:
        first = dict(events[0])
        for event in events:
            for clock in clocks:
                moved = first[clock] + (event[clock] - first[clock]) * factor
                event[clock] = round(moved) if clock == "time_ms" else round(moved, 6)
            if told and event["key"] != "system":
                event["value"] = _scaled(event["value"], factor)

    return change


def _scaled(value: Any, factor: float, name: str = "") -> Any:
    if isinstance(value, dict):
        return {key: _scaled(inner, factor, key if "seconds" in key else name) for key, inner in value.items()}
    if isinstance(value, list):
        return [_scaled(inner, factor, name) for inner in value]
    return round(value * factor, 9) if name and isinstance(value, float) else value


def shifted(events: list[Event], number: int, seconds: float) -> None:
    """Move the events from place `number` on in time."""
    for event in events[number:]:
        event["clock_s"] = round(event["clock_s"] + seconds, 6)
        event["time_ms"] += round(seconds * 1000)


def place(events: list[Event], key: str, epoch: int | None = None) -> int:
    """Where the event `key` (of that epoch) stands."""
    found = (number for number, event in enumerate(events) if event["key"] == key)
    return next(number for number in found if epoch is None or events[number]["value"]["epoch"] == epoch)


def _hurry(factor: float) -> Forge:
    """All clocks of all runs, scaled; power fits the shorter window."""

    def forge(bundle: Bundle) -> None:
        for trial, record in enumerate(bundle.records, 1):
            bundle.edit(trial, scaled(factor))
            bundle.edit(trial, fit_power(record))

    return forge


def _shift_wall(events: list[Event]) -> None:
    for event in events:
        event["time_ms"] -= 7_200_000


def _live_on(events: list[Event]) -> None:
    """A process shows that it lived a minute after the next one began: less downtime, more work."""
    start = events[0]
    start["value"]["launch"] = {**start["value"]["launch"], "alive_ms": start["time_ms"] + 60_000}


def _step_back(events: list[Event]) -> None:
    for event in events[place(events, "eval_start", 2) :]:
        event["clock_s"] = round(event["clock_s"] - 40.0, 6)


def _drop_evaluation(events: list[Event]) -> None:
    del events[place(events, "eval_start", 2) : place(events, "eval_stop", 2) + 1]


def _drop_epoch(events: list[Event]) -> None:
    del events[place(events, "epoch_start", 3) : place(events, "run_stop")]


def _evaluate_first(events: list[Event]) -> None:
    """The evaluation of the last epoch, before its training; times are exchanged so that clocks still go forward."""
    start, stop = place(events, "eval_start", 3), place(events, "eval_stop", 3)
    moved = events[start : stop + 1]
    del events[start : stop + 1]
    target = place(events, "epoch_start", 3)
    events[target:target] = moved
    _straighten(events)


def _stop_early(events: list[Event]) -> None:
    stop = events.pop(place(events, "run_stop"))
    events.insert(place(events, "eval_start", 3), stop)
    _straighten(events)


def _straighten(events: list[Event]) -> None:
    """Times in order again."""
    for clock in ("clock_s", "time_ms"):
        for event, moment in zip(events, sorted(event[clock] for event in events), strict=True):
            event[clock] = moment


def _last_quality(value: float, **more: Any) -> Change:
    return lambda events: values(events, "eval_accuracy")[-1].update(value=value, **more)


def _shrink(events: list[Event]) -> None:
    """A tenth of the data set, in all that counts it; the epochs take a tenth of the time."""
    scaled(0.1)(events)
    samples, batch = 128_000, 4096
    coverage, steps = Coverage.expected(samples).digest, -(-samples // batch)
    each("dataset", training_samples=samples, coverage=coverage)(events)
    each("model", steps_per_epoch=steps)(events)
    each("epoch_stop", samples=samples, padded_samples=steps * batch - samples, steps=steps, coverage=coverage)(events)
    for told in (*values(events, "steps"), *values(events, "communication")):
        for part in (told, *told["ranks"]):
            part["steps"] = 90 * steps
    # Ceilings and set-up take as long as ever.
    each("parallel_efficiency", step_seconds=lambda seconds: seconds * 10)(events)


def _shrink_all(bundle: Bundle) -> None:
    bundle.edit_all(_shrink)
    bundle.keeps_claim = True


def _drop_batch(events: list[Event]) -> None:
    """An epoch that left a batch out, with the digest of a whole one."""
    last = values(events, "epoch_stop")[-1]
    last.update(samples=last["samples"] - 4096, steps=last["steps"] - 1)


def _invent_coverage(events: list[Event]) -> None:
    for key in ("dataset", "epoch_stop"):
        each(key, coverage="1281167-" + "0123456789abcdef" * 2)(events)


def _repeated(key: str, field: str) -> Change:
    """The second event tells what the first one told."""

    def change(events: list[Event]) -> None:
        first, second, *_ = values(events, key)
        second[field] = first[field]

    return change


def _hurry_one_epoch(events: list[Event]) -> None:
    number = place(events, "epoch_stop", 40)
    value = events[number]["value"]
    saved = value["seconds"] / 2
    shifted(events, number, -saved)
    for name in ("seconds", "data_wait_seconds", "compute_seconds", "communication_wait_seconds"):
        value[name] /= 2
    sum_steps(events, events)


def _splice(bundle: Bundle) -> None:
    """Two epochs of trial 1 in the place of those of trial 3, their times moved to where they are now."""
    donor = bundle.read(1)

    def change(events: list[Event]) -> None:
        for epoch in (2, 3):
            mine, theirs = place(events, "epoch_start", epoch), place([*donor.events], "epoch_start", epoch)
            for offset in range(7):
                old = donor.events[theirs + offset]
                events[mine + offset]["value"] = copy.deepcopy(old["value"])
        _refit(events, donor.events)

    bundle.edit(3, change)


def _refit(events: list[Event], donor: Any) -> None:
    """Give the spliced epochs the donor's gaps, and the sums that follow from them."""
    first, theirs = place(events, "epoch_start", 2), place([*donor], "epoch_start", 2)
    for offset in range(1, len(events) - first):
        if theirs + offset >= len(donor):
            break
        for clock in ("clock_s", "time_ms"):
            gap = donor[theirs + offset][clock] - donor[theirs][clock]
            events[first + offset][clock] = events[first][clock] + gap
    sum_steps(events, events)


FORGERIES = (
    Forgery("machine-clock-slowed", in_trial(1, scaled(0.7, clocks=("clock_s",))), "clock"),
    Forgery("machine-clock-set-back", in_trial(1, _step_back), "clock"),
    Forgery("process-that-lived-on", in_trial(1, _live_on), "goodput"),
    Forgery("clocks-slowed-beyond-the-ceiling", _hurry(0.03), "speed"),
    Forgery("clocks-slowed-epochs-forgotten", in_trial(1, scaled(0.7, told=False)), "epoch-times"),
    Forgery("pause-cut-from-an-epoch", in_trial(2, lambda e: shifted(e, place(e, "epoch_stop", 2), -20.0)),
            "epoch-times"),
    Forgery("wall-clock-of-another-zone", in_trial(1, _shift_wall), "dates"),
    Forgery("one-epoch-hurried", in_trial(4, _hurry_one_epoch), "usual-speed", "warning", "rankable"),
    Forgery("steps-of-ranks-shortened", in_trial(1, lambda e: values(e, "steps")[0]["ranks"][3].update(steps=600)),
            "step-sums"),
    Forgery("evaluation-dropped", in_trial(1, _drop_evaluation), "event-order"),
    Forgery("evaluation-before-training", in_trial(1, _evaluate_first), "event-order"),
    Forgery("clock-stopped-before-the-last-evaluation", in_trial(1, _stop_early), "event-order"),
    Forgery("epoch-dropped", in_trial(1, _drop_epoch), "event-order"),
    Forgery("epochs-of-two-runs-spliced", _splice, "copied-runs"),
    Forgery("quality-off-the-grid", in_trial(1, _last_quality(0.7712345)), "quality"),
    Forgery("quality-above-one", in_trial(1, _last_quality(1.02)), "quality"),
    Forgery("quality-leaps-at-the-end", in_trial(3, _last_quality(0.83)), "quality-leap", "warning", "rankable"),
    Forgery("evaluation-of-a-subset", in_trial(1, _last_quality(0.8, samples=10_000)), "samples"),
    Forgery("samples-inflated", in_trial(1, each("epoch_stop", samples=lambda n: 2 * n)), "samples"),
    Forgery("batches-left-out", in_trial(1, _drop_batch), "samples"),
    Forgery("coverage-invented", in_all(_invent_coverage), "coverage"),
    Forgery("data-set-shrunk", _shrink_all, "claim", campaign="rankable"),
    Forgery("operations-inflated", in_all(each("flops", per_sample=24.5e9)), "model"),
    Forgery("another-model", in_all(each("model", parameters=11_689_512)), "model"),
    Forgery("loss-repeated", in_trial(1, _repeated("epoch_stop", "loss")), "loss"),
    Forgery("replica-digests-removed", in_all(without("replicas")), "replicas"),
    Forgery("weights-that-never-change", in_trial(1, _repeated("replicas", "digest")), "replicas"),
    Forgery("ceilings-removed", in_all(without("ceilings")), "ceilings"),
    Forgery("ceilings-raised", in_trial(1, each("ceilings", flops=lambda f: 3 * f)), "ceilings-agree"),
    Forgery("ranks-lowered", in_trial(1, each("run_start", world_size=8, nodes=1)), "ranks"),
    Forgery("host-hidden", in_trial(1, each("run_start", hosts=lambda hosts: hosts[:1])), "ranks"),
    Forgery("event-of-a-wrong-type", in_trial(1, each("epoch_stop", seconds="31.9")), "event-values"),
    Forgery("event-invented", in_trial(1, lambda e: e.append({**e[-1], "key": "all_is_well"})), "unknown-events",
            "warning"),
    # Not to be seen in a bundle.
    Forgery("clocks-slowed-within-the-ceiling", _hurry(0.8), None),
    Forgery("quality-raised-on-the-grid", in_trial(1, _last_quality(0.77)), None),
)  # fmt: skip
