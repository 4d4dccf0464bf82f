"""Checks of a campaign: attempts, journal, plan, recipes, level, checkpoints, and one system for all runs.

docs/verification.md has a row for each name of a finding.
"""

from __future__ import annotations

import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from hpcai500 import __version__
from hpcai500.campaign.journal import NO_EVENTS, RECIPE
from hpcai500.campaign.standing import Outcome, binding_reasons, folder_reasons, record_head, world_difference
from hpcai500.errors import RecipeError
from hpcai500.methodology.conduct import is_sharded
from hpcai500.methodology.nodes import node_differences
from hpcai500.methodology.passes import target_checkpoint
from hpcai500.methodology.result import system_identity
from hpcai500.plugins import recipe_type
from hpcai500.recipe import load_recipe, table_differences
from hpcai500.record import Record
from hpcai500.results.submission.manifest import CAMPAIGN, FileEntry
from hpcai500.results.verification.context import NO_STANDING, Changed, Context, Scored
from hpcai500.results.verification.facts import codes_of, is_of_our_version, nodes, on_first_system, values
from hpcai500.results.verification.finding import SHORT_STARTS, Finding, fail, note, skipped, warning
from hpcai500.text import listed, short

# ----------------------------------------------------------------------------------------------------
# Attempts and journal: every started run is present, and the journal was started before the first.


_ATTEMPTS = "attempts"
# So many starts that ended before this share of their epochs may have been discarded for their speed.
_MANY, _SHARE = 3, 0.1
_SPEED_EVENTS = ("ceilings", "rehearsal", "parallel_efficiency", "run_start", "epoch_start")


def check_attempts(context: Context) -> Iterator[Finding]:
    """Check the journal's attempts, one by one, and the folders of the campaign."""
    found = [
        *_missing_fields(context),
        *_numbers(context),
        *_missing_records(context),
        *(fail(_ATTEMPTS, reason) for reason in folder_reasons(context.campaign)),
        *_ends(context),
        *_short(context),
    ]
    yield from found
    if not any(one.severity == "fail" for one in found):
        attempts = context.campaign.attempts
        counted = Counter(attempt.status for attempt in attempts)
        counts = ", ".join(f"{count} {status}" for status, count in counted.items()) or "none"
        planned = len(context.campaign.trials)
        yield note(_ATTEMPTS, f"{len(attempts)} attempts at {planned} planned runs, all present: {counts}")


# Fields that this version writes into the journal, by event.
_FIELDS = {
    "campaign_start": ("data", "version", "code_sha256"),
    "attempt_start": ("command", "launcher", "slurm_job_id"),
    "attempt_resume": ("command", "launcher", "slurm_job_id"),
    "attempt_stop": ("exit_code", "head", "reason"),
}


def _missing_fields(context: Context) -> Iterator[Finding]:
    if not _has_our_version(context):
        return
    for event in context.campaign.events:
        if missing := [name for name in _FIELDS.get(event["key"], ()) if name not in event["value"]]:
            yield fail(_ATTEMPTS, f"line {event['seq'] + 1} of the journal: {event['key']} lacks {', '.join(missing)}")


def _numbers(context: Context) -> Iterator[Finding]:
    planned = [trial.trial for trial in context.campaign.trials]
    if planned != list(range(1, len(planned) + 1)):
        yield fail(_ATTEMPTS, f"the plan numbers its trials {planned}; expected 1, 2, 3 …")
    for trial in sorted({attempt.trial for attempt in context.campaign.attempts}):
        numbers = [attempt.attempt for attempt in context.campaign.attempts_at(trial)]
        if trial not in planned:
            yield fail(_ATTEMPTS, f"trial {trial} was run and is not in the plan")
        if numbers != list(range(1, len(numbers) + 1)):
            yield fail(_ATTEMPTS, f"trial {trial} has the attempts {numbers}; expected 1, 2, 3 …: one was removed")


def _missing_records(context: Context) -> Iterator[Finding]:
    for name, attempt in context.attempts.items():
        if name in context.records or name in context.unreadable:
            continue
        # `submit` does not pack a record without events.
        if attempt.status == "done" or attempt.head not in (None, NO_EVENTS):
            yield fail(_ATTEMPTS, f"{name}: is in the journal, but missing in the submission")
        else:
            yield warning(
                _ATTEMPTS, f"{name}: {attempt.status} before it had a record: {attempt.reason or 'no reason'}"
            )


def _ends(context: Context) -> Iterator[Finding]:
    done = Counter(attempt.trial for attempt in context.campaign.done())
    for trial in sorted(trial for trial, times in done.items() if times > 1):
        yield warning(
            _ATTEMPTS, f"trial {trial} was finished {done[trial]} times: perhaps repeated for a better result"
        )
    for name, attempt in context.attempts.items():
        starts = (
            sum(event["key"] == "init_start" for event in context.records[name].events)
            if name in context.records
            else 0
        )
        if starts > len(attempt.commands):
            yield warning(_ATTEMPTS, f"{name}: has {starts} starts; the journal has {len(attempt.commands)}")
        if attempt.status == "running":
            yield warning(_ATTEMPTS, f"{name}: has no end in the journal: it was killed, or is still running")


def _short(context: Context) -> Iterator[Finding]:
    """Find attempts that ended early, after they showed their speed: slow starts may have been discarded."""
    short = [
        name
        for name, record in context.records.items()
        if context.attempts[name].status != "done"
        and any(event["key"] in _SPEED_EVENTS for event in record.events)
        and sum(event["key"] == "eval_stop" for event in record.events)
        <= max(1, int(_SHARE * int(record.tables["problem"]["epochs"])))
    ]
    if len(short) >= _MANY:
        what = f"{len(short)} of {len(context.attempts)} attempts ended in their first epochs, with their speed known"
        yield warning(SHORT_STARTS, f"{what}: slow starts may have been discarded: {', '.join(short[:8])}")


def _has_our_version(context: Context) -> bool:
    """Whether the installed version planned the campaign or ran part of it."""
    runs = (is_of_our_version(record) for record in context.records.values())
    return context.campaign.start.get("version") == __version__ or any(runs)


_BINDING = "journal-binding"


def check_binding(context: Context) -> Iterator[Finding]:
    """Check that journal and records hold each other's hashes, so that no record can be replaced later."""
    found = []
    for name, record in context.records.items():
        attempt = context.attempts[name]
        if attempt.status != "running":
            outcome = Outcome(attempt, record_head(record.path), record)
            found += [fail(_BINDING, reason) for reason in binding_reasons(context.campaign, outcome)]
    yield from found
    if not found:
        yield note(_BINDING, f"{len(context.records)} records and the journal hold each other's hashes")


_REGISTRATION = "registered"


def check_registration(context: Context) -> Iterator[Finding]:
    """Compare the campaign's identity with the one that was registered before its first run.

    All copies of a campaign share it: see `check_heads`.
    """
    asked, anonymised = context.question.registered, context.submission.manifest.anonymised
    identity = anonymised.original_campaign if anonymised else context.campaign.identity
    if asked is None:
        yield skipped(
            _REGISTRATION,
            "not compared: the plan may have been made after the runs, or chosen from several; give the identity that "
            f"was registered before the first run: --registered HASH (here {identity})",
        )
    elif asked != identity:
        yield fail(_REGISTRATION, f"{asked} was registered, and this campaign is {identity}")
    elif anonymised:
        yield warning(
            _REGISTRATION,
            f"claims to have been the registered {identity} before host names were replaced: ask for the first line of "
            "the original journal, which must have that hash",
        )
    else:
        yield note(_REGISTRATION, f"this is the registered campaign ({identity})")


# ----------------------------------------------------------------------------------------------------
# The plan: seeds and recipes.


_SEEDS = "seeds"


def check_seeds(context: Context) -> Iterator[Finding]:
    """Check that seeds are those of the plan, consecutive, each once."""
    planned = {trial.trial: trial.seed for trial in context.campaign.trials}
    seeds = list(planned.values())
    repeated = sorted((seed, times) for seed, times in Counter(seeds).items() if times > 1)
    found = [fail(_SEEDS, f"the plan has the seed {seed} {times} times; expected once") for seed, times in repeated]
    first = context.campaign.tables["hyperparameters"]["seed"]
    if not found and seeds != list(range(first, first + len(seeds))):
        found.append(
            fail(_SEEDS, f"the plan has the seeds {seeds}; expected {first}, {first + 1}, …: they were chosen")
        )
    for name, record in context.records.items():
        trial, seed = context.attempts[name].trial, record.tables["hyperparameters"]["seed"]
        if trial in planned and seed != planned[trial]:
            found.append(fail(_SEEDS, f"{name}: ran with the seed {seed}; the plan has {planned[trial]}"))
    yield from found
    if not found:
        yield note(_SEEDS, f"the {len(seeds)} planned seeds are consecutive from {first}, and the records have them")


_RECIPES = "recipes"
_SEED = "hyperparameters.seed"


def check_recipes(context: Context) -> Iterator[Finding]:
    """Check that all records have the campaign's recipe, except for the seed, and equal numbers of ranks and nodes."""
    found = []
    for name, record in context.records.items():
        differences = [one for one in table_differences(record.tables, context.campaign.tables) if one.field != _SEED]
        for one in differences:
            text = f"{one.field} is {one.value!r}; the campaign was planned with {one.reference!r}"
            found.append(fail(_RECIPES, f"{name}: {text}"))
    done = list(context.done.values())
    for record in done[1:]:
        if different := world_difference(done[0], record):
            found.append(fail(_RECIPES, different.replace(f"{context.campaign.path}/", "")))
    yield from found
    if not found:
        what = "have the campaign's recipe, except for the seed, and equal numbers of ranks and nodes"
        yield note(_RECIPES, f"{len(context.records)} records {what}")


_RECIPE_FIELDS = "recipe-fields"


def check_recipe_fields(context: Context) -> Iterator[Finding]:
    """Find values that this version refuses, and records of this version that lack one of its fields.

    An older record lacks fields that joined the reference later, and they count as unchanged (`LevelReport.absent`).
    Removing one from a recipe of today would hide a change of it.
    """
    if _has_our_version(context) and recipe_type(context.campaign.benchmark) is not None:
        try:
            load_recipe(context.campaign.path / RECIPE)
        except RecipeError as error:
            reason = str(error).replace(f"{context.campaign.path}/", "")
            yield fail(_RECIPE_FIELDS, f"hpcai500 {__version__} refuses the campaign's recipe: {reason}")
    for name, judgement in context.claimed.judgements.items():
        if judgement.absent and is_of_our_version(context.records[name]):
            yield fail(
                _RECIPE_FIELDS,
                f"{name}: its recipe lacks {', '.join(judgement.absent)}, which hpcai500 {__version__} always writes: "
                "the recipe was edited",
            )


# ----------------------------------------------------------------------------------------------------
# Level and standing: what recipes and code change, and whether the campaign is rankable.


_LEVELS = "level"
_NONE = "no level"


def check_levels(context: Context) -> Iterator[Finding]:
    """Check that a claimed level allows all that the recipes and the code change."""
    claimed, scored = context.submission.manifest.claim.level, context.claimed
    order = _order(scored)
    if not order:
        text = f"edition {scored.edition} has no levels of {context.campaign.benchmark}"
        yield skipped(_LEVELS, text) if claimed is None else fail(_LEVELS, f"claims {claimed}, but {text}")
        return
    needed = needed_level(context, scored)
    if _rank(claimed, order) < _rank(needed, order):
        why = "; ".join(dict.fromkeys(_reasons(context, needed)))
        problem = f"needs {needed}" if needed else "no level allows what was changed"
        yield fail(_LEVELS, f"claims {claimed}, but {problem}: {why}")
    elif claimed != needed:
        yield note(_LEVELS, f"claims {claimed or _NONE}; {needed} would be enough")
    else:
        changes = {change.field for judgement in scored.judgements.values() for change in judgement.changes}
        names = f" ({', '.join(sorted(changes))})" if changes else ""
        code = "was not compared (see `code`)" if context.code_changes is None else "was compared, too"
        yield note(
            _LEVELS,
            f"{claimed or _NONE}, as claimed: {len(changes)} fields differ from the reference{names}; the code {code}",
        )


def level_of(context: Context) -> str | None:
    """Return the level of the submission: the needed one, or a looser claimed one.

    None if no level allows what was changed, or if the code was not compared.
    """
    if not context.asked.judgements or not_compared(context):
        return None
    order = _order(context.asked)
    return _highest([context.submission.manifest.claim.level, needed_level(context, context.asked)], order)


def not_compared(context: Context) -> str | None:
    """Return why the code's level is unknown; None if the code was compared."""
    if context.code_changes is None:
        return (
            f"its code is of version {context.submission.manifest.code.version}, which this installation cannot "
            "compare: install that version and verify with it"
        )
    mixed = next((name for name, record in context.done.items() if len(codes_of(record)) > 1), None)
    return f"{mixed}: resumed with other code, and the submission has only one of the two" if mixed else None


def needed_level(context: Context, scored: Scored) -> str | None:
    """Return the strictest level that allows what recipes and code change; None if none does."""
    recipes = [judgement.level for judgement in scored.judgements.values()]
    code = [_level(changed, scored) for changed in _counted(context)]
    return _highest([*recipes, *code], _order(scored))


def _order(scored: Scored) -> Sequence[str]:
    return tuple(scored.rules.get("levels", {}).get("order", ()))


def _rank(level: str | None, order: Sequence[str]) -> int:
    return order.index(level) if level in order else len(order)


def _highest(levels: Iterable[str | None], order: Sequence[str]) -> str | None:
    """Return the least strict of `levels`; None if one of them is None."""
    rank = max((_rank(level, order) for level in levels), default=0)
    return order[rank] if rank < len(order) else None


def _counted(context: Context) -> list[Changed]:
    """Changed files that have a layer; a change of any other file is refused."""
    return [changed for changed in context.code_changes or () if changed.layer is not None]


def _level(changed: Changed, scored: Scored) -> str | None:
    """The strictest level that allows any change of the file's layer, as a program cannot know what a change does."""
    layers = scored.rules["levels"]["layers"].values()
    level = next((str(row["level"]) for row in layers if row["layer"] == changed.layer), None)
    return level if level in _order(scored) else None


def _reasons(context: Context, needed: str | None) -> Iterator[str]:
    for judgement in context.claimed.judgements.values():
        if judgement.level == needed:
            for change in judgement.forcing:
                yield f"{change.field} is {change.value!r}, the reference has {change.reference!r} ({change.section})"
    for changed in _counted(context):
        if _level(changed, context.claimed) == needed:
            yield f"{changed.path} is {changed.how} (layer {changed.layer})"


_STANDING = "standing"


def check_standing(context: Context) -> Iterator[Finding]:
    """Report why the campaign is not rankable under the requested edition, as `hpcai500 campaign status` does.

    A campaign that is not rankable can be honest, so that this refuses nothing.
    """
    scored, standing = context.asked, context.asked.standing
    if standing is None:
        yield fail(_STANDING, NO_STANDING)
    elif standing.rankable:
        runs = f"{len(scored.results)} finished runs of {len(context.campaign.trials)} planned"
        yield note(_STANDING, f"rankable under {scored.edition}: {runs}, at least {standing.least_runs} are required")
    else:
        for reason in standing.reasons:
            yield note(_STANDING, f"not rankable under {scored.edition}: {reason}")


# ----------------------------------------------------------------------------------------------------
# Checkpoints: the last of each trial, and the first at the target, which `--replay` evaluates again.


_CHECKPOINTS = "checkpoints"


def check_checkpoints(context: Context) -> Iterator[Finding]:
    """Check that the events name each packed checkpoint, and that those for a replay are packed or left out."""
    left_out = {left.path for left in context.submission.manifest.left_out}
    packed: dict[str, list[FileEntry]] = defaultdict(list)
    for path, entry in context.submission.entries.items():
        packed[path.rpartition("/")[0]].append(entry)
    good, absent, sharded = 0, 0, 0
    for name, record in context.done.items():
        found = [*_of(name, record, packed[f"{CAMPAIGN}/{name}/checkpoints"])]
        yield from found
        found += (repeated := [*_repeated(name, record)])
        yield from repeated
        last = last_checkpoint(record)
        if last is None or last.get("epoch") != record.tables["problem"]["epochs"] + 1 or last.get("step") != 0:
            yield fail(_CHECKPOINTS, f"{name}: its last checkpoint is not from the end of its last epoch")
            continue
        at_target = earlier_at_target(record)
        required = [last, at_target] if at_target and is_of_our_version(record) else [last]
        missing = [one for one in required if path_of(name, one) not in context.submission.entries]
        for one in missing:
            if path_of(name, one) not in left_out:
                yield fail(_CHECKPOINTS, f"{name}: {one.get('file')} is missing, and not in the manifest's left_out")
        good += not (found or missing)
        # Their checkpoints are folders.
        in_folders = is_sharded(record.tables["programming"])
        sharded += bool(missing) and in_folders
        absent += bool(missing) and not in_folders
    if good:
        yield note(_CHECKPOINTS, f"the checkpoints of {good} trials are present and have the hashes in their events")
    if absent:
        yield skipped(_CHECKPOINTS, f"those of {absent} trials were left out: ask for them to use --replay DATA")
    if sharded:
        yield skipped(_CHECKPOINTS, f"those of {sharded} trials were left out: sharded models cannot be replayed")


def last_checkpoint(record: Record) -> Mapping[str, object] | None:
    """Return the event value of the last checkpoint."""
    checkpoints = values(record, "checkpoint")
    return checkpoints[-1] if checkpoints else None


def earlier_at_target(record: Record) -> Mapping[str, object] | None:
    """Return the event value of the checkpoint that first reached the target; None if it is the last one."""
    first, last = target_checkpoint(record.events, record.tables["problem"]), last_checkpoint(record)
    return first if first and last and first.get("file") != last.get("file") else None


def path_of(name: str, checkpoint: Mapping[str, object]) -> str:
    """Path of a checkpoint of the record `name` in a submission."""
    return f"{CAMPAIGN}/{name}/checkpoints/{checkpoint.get('file')}"


def _of(name: str, record: Record, packed: Iterable[FileEntry]) -> Iterator[Finding]:
    """Find `packed` checkpoints of a record that its events do not name, or name with another hash."""
    named = {path_of(name, value): value for value in values(record, "checkpoint")}
    for one in packed:
        expected = named.get(one.path)
        if expected is None:
            yield fail(_CHECKPOINTS, f"{one.path}: the events name no such checkpoint")
        elif (one.sha256, one.bytes) != (expected.get("sha256"), expected.get("bytes")):
            yield fail(_CHECKPOINTS, f"{one.path}: has the hash {one.sha256}, the events name {expected.get('sha256')}")


def _repeated(name: str, record: Record) -> Iterator[Finding]:
    """Find equal checkpoints of two steps of a run: nothing was learnt between them, or one was copied."""
    places: dict[object, tuple[object, object]] = {}
    for value in values(record, "checkpoint"):
        place = (value.get("epoch"), value.get("step"))
        before = places.setdefault(value.get("sha256"), place)
        if before != place:
            both = " and ".join(f"epoch {epoch}, step {step}" for epoch, step in (before, place))
            yield fail(_CHECKPOINTS, f"{name}: the checkpoints at {both} are equal")


# ----------------------------------------------------------------------------------------------------
# System, data and ceilings: all trials ran on one system, on one data set.


_SYSTEMS, _DATA = "same-system", "same-data"
_MOST_SHOWN = 10


def check_systems(context: Context) -> Iterator[Finding]:
    """Compare processors, accelerators, software, data set and model of each done record with the first."""
    done = context.done
    names = list(done)
    if not names:
        return
    # A run that was resumed on another system is not rankable, as its result says.
    identities = {name: system_identity(on_first_system(record).system) for name, record in done.items()}
    wrong = False
    for name, identity in identities.items():
        first = identities[names[0]]
        changed = sorted(key for key in first | identity if first.get(key) != identity.get(key))
        if changed:
            wrong = True
            shown = ((key, _in_words(identity.get(key)), _in_words(first.get(key))) for key in changed)
            both = "; ".join(f"{key}: {here}, then {there}" for key, here, there in shown)
            yield fail(_SYSTEMS, f"{name} ran on another system than {names[0]}: {both}")
    yield from _other_differences(context)
    if not wrong:
        yield note(_SYSTEMS, f"{len(done)} records have the same processors, accelerators, software, code and image")
    yield from _same_facts(context)


def _same_facts(context: Context) -> Iterator[Finding]:
    """Compare data set, model and FLOPs, which must be equal as the recipe is."""
    names, wrong = list(context.done), False
    for key, fields in {
        "dataset": ("fingerprint", "training_samples", "evaluation_samples"),
        "model": ("parameters", "steps_per_epoch"),
        "flops": ("convention", "per_sample"),
    }.items():
        found = {
            name: [[value.get(field) for field in fields] for value in values(context.done[name], key)]
            for name in names
        }
        first = found[names[0]][:1]
        for name in names:
            if not found[name] or any([one] != first for one in found[name]):
                wrong = True
                yield fail(_DATA, f"{name}: {key} is {found[name]}, that of {names[0]} {first}")
    # Only a record made after `data check` has a content fingerprint.
    contents = {
        value["content_fingerprint"]: name
        for name in names
        for value in values(context.done[name], "dataset")
        if value.get("content_fingerprint") is not None
    }
    if len(contents) > 1:
        wrong = True
        yield fail(_DATA, f"the data set's content has several fingerprints: {contents}")
    if not wrong:
        fingerprint = values(context.done[names[0]], "dataset")[0].get("fingerprint")
        yield note(_DATA, f"{len(names)} records have the same data set ({fingerprint}), model and FLOPs")


def _other_differences(context: Context) -> Iterator[Finding]:
    """Find settings of the first node that changed between trials: often harmless, seldom intended."""
    firsts = [{**nodes(record)[0], "host": name} for name, record in context.done.items() if nodes(record)]
    # Variables such as the job's number differ each time.
    found = [one for one in node_differences(firsts) if one.matters and not one.field.startswith("environment")]
    for one in found[:_MOST_SHOWN]:
        yield warning(_SYSTEMS, f"between trials, on their first node: {one.sentence()}")


def _in_words(value: object) -> str:
    """Part of a system's identity in one line, with the beginning of each hash."""
    return short(re.sub(r"\b([0-9a-f]{12})[0-9a-f]{52}\b", r"\1…", listed(value)), 80)


_CEILINGS = "ceilings-agree"
# The same devices repeat a matrix product within a few percent; heat, or another job on a CPU, costs more.
_WARNING_RATIO = 1.2
# An accelerator at half the rate is another one, or in another mode.
_WRONG_RATIO = 2.0


def check_ceilings(context: Context) -> Iterator[Finding]:
    """Compare the ceiling measured at each start of each done run with the median of all starts."""
    measured = [(name, value) for name, record in context.done.items() for value in values(record, "ceilings")]
    without = [name for name, record in context.done.items() if not values(record, "ceilings")]
    if without:
        yield warning(
            _CEILINGS, f"{', '.join(without)}: no ceilings were measured, so that impossible rates are not detected"
        )
    if not measured:
        return
    # Per rank, as a run may be resumed on fewer ranks (another check makes it not rankable).
    each = [(name, value["flops"] / value["ranks"]) for name, value in measured]
    median = statistics.median(flops for _, flops in each)
    kinds = sorted({f"{value['precision']}, side {value['side']}" for _, value in measured})
    if len(kinds) > 1:
        yield fail(_CEILINGS, f"measured in {len(kinds)} ways: {'; '.join(kinds)}")
    for name, flops in each:
        ratio = max(flops / median, median / flops)
        if ratio > _WARNING_RATIO:
            evidence = f"{name}: {flops:.4g} FLOPS a rank; the median of all starts is {median:.4g}"
            wrong = ratio > _WRONG_RATIO and _has_accelerators(context, name)
            yield fail(_CEILINGS, evidence) if wrong else warning(_CEILINGS, evidence)
    if len(kinds) == 1:
        yield note(_CEILINGS, f"{len(measured)} starts; the median ceiling is {median:.4g} FLOPS a rank, in {kinds[0]}")


def _has_accelerators(context: Context, name: str) -> bool:
    """Whether the run had accelerators, which a job does not share; processors may be shared."""
    return any(node.get("accelerators") for node in nodes(context.done[name]))
