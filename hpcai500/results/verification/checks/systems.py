"""All trials were made by one system, on one data set."""

from __future__ import annotations

from collections.abc import Iterator

from hpcai500.methodology.node_differences import node_differences
from hpcai500.methodology.result import system_identity
from hpcai500.results.verification.context import Context
from hpcai500.results.verification.facts import begun_on, nodes, values
from hpcai500.results.verification.finding import Finding
from hpcai500.results.verification.guard import fail, note, warning

_NAME, _DATA = "same-system", "same-data"
_MOST_TOLD = 10


def check_systems(context: Context) -> Iterator[Finding]:
    """Processors, accelerators, software, data set and model of each done record with those of the first."""
    done = context.done
    names = list(done)
    if not names:
        return
    # Where a run was gone on with elsewhere, its result says so, and is not ranked.
    identities = {name: system_identity(begun_on(record).system) for name, record in done.items()}
    wrong = False
    for name, identity in identities.items():
        first = identities[names[0]]
        changed = sorted(key for key in first | identity if first.get(key) != identity.get(key))
        if changed:
            wrong = True
            told = "; ".join(f"{key}: {_short(identity.get(key))}, then {_short(first.get(key))}" for key in changed)
            yield fail(_NAME, f"{name} ran on another system than {names[0]}: {told}")
    yield from _other_differences(context)
    if not wrong:
        yield note(_NAME, f"{len(done)} records tell of the same processors, accelerators, software, code and image")
    yield from _same_facts(context)


def _same_facts(context: Context) -> Iterator[Finding]:
    """The data set and the model, which one recipe must have led to."""
    names, wrong = list(context.done), False
    for key, fields in {
        "dataset": ("fingerprint", "training_samples", "evaluation_samples"),
        "model": ("parameters", "steps_per_epoch"),
        "flops": ("convention", "per_sample"),
    }.items():
        told = {
            name: [[value.get(field) for field in fields] for value in values(context.done[name], key)]
            for name in names
        }
        first = told[names[0]][:1]
        for name in names:
            if not told[name] or any([one] != first for one in told[name]):
                wrong = True
                yield fail(_DATA, f"{name}: {key} is {told[name]}, that of {names[0]} {first}")
    # Whoever had the content checked between two starts has learnt its fingerprint, and changed nothing.
    told_contents = {
        value["content_fingerprint"]: name
        for name in names
        for value in values(context.done[name], "dataset")
        if value.get("content_fingerprint") is not None
    }
    if len(told_contents) > 1:
        wrong = True
        yield fail(_DATA, f"the data set's content has several fingerprints: {told_contents}")
    if not wrong:
        fingerprint = values(context.done[names[0]], "dataset")[0].get("fingerprint")
        told_right = (
            f"{len(names)} records tell of one data set ({fingerprint}), one model, one count of its operations"
        )
        yield note(_DATA, told_right)


def _other_differences(context: Context) -> Iterator[Finding]:
    """Settings of the first node that changed between the trials: often harmless, seldom wanted."""
    firsts = [{**nodes(record)[0], "host": name} for name, record in context.done.items() if nodes(record)]
    # A job has its own number, each time another one.
    found = [one for one in node_differences(firsts) if one.matters and not one.field.startswith("environment")]
    for one in found[:_MOST_TOLD]:
        yield warning(_NAME, f"between trials, on their first node: {one.sentence()}")


def _short(value: object, longest: int = 80) -> str:
    text = str(value)
    return text if len(text) <= longest else f"{text[: longest - 1]}…"
