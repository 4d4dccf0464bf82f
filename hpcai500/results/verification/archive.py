"""Checks of a submission's content: hash chains, manifest, claim, results, code, core, image and power samples."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hpcai500 import __version__
from hpcai500.campaign.journal import JOURNAL
from hpcai500.campaign.standing import differing_keys
from hpcai500.errors import RecordError, WrongAnswerError
from hpcai500.plugins import plugin_facts
from hpcai500.record import Event, Record, event_line, iterate, json_object, parse_events
from hpcai500.results.submission.claim import accelerators_of, framework_of, package_of, plain
from hpcai500.results.verification.context import NO_STANDING, Context
from hpcai500.results.verification.facts import Facts, image, is_of_our_version, nodes, on_first_system, values
from hpcai500.results.verification.finding import Finding, fail, note, skipped, warning
from hpcai500.system.power import METER, SCOPES
from hpcai500.system.power_samples import check_power
from hpcai500.system.software import code_hash, core_hash, package_code_hash
from hpcai500.text import table, tables

# ----------------------------------------------------------------------------------------------------
# Archive, logs and manifest: the files are those that manifest, journal and events name.


def check_archive(context: Context) -> Iterator[Finding]:
    """Report how much was compared, and what was left out or replaced before packing."""
    manifest = context.submission.manifest
    size = sum(entry.bytes for entry in manifest.files)
    yield note("archive", f"{len(manifest.files)} files, {size} bytes: each has its SHA-256 in the manifest")
    reasons: dict[str, list[str]] = {}
    for left in manifest.left_out:
        reasons.setdefault(left.reason, []).append(left.path)
    for reason, paths in reasons.items():
        more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
        yield skipped("left-out", f"{paths[0]}{more}: {reason}")
    if manifest.anonymised:
        heads = manifest.anonymised.original_heads
        yield skipped(
            "anonymised",
            f"{manifest.anonymised.hosts} host names were replaced; if names matter, ask for the {len(heads)} original "
            "logs: their last hashes must be those in the manifest",
        )


_CHAIN, _FILES = "hash-chain", "record-files"


def check_chains(context: Context) -> Iterator[Finding]:
    """Check the logs, also of failed attempts: hash chains, and hashes of the files that the events name."""
    broken = False
    for name, reason in context.unreadable.items():
        broken = True
        yield fail(_CHAIN if _is_chain(context.campaign.path / name) else _FILES, f"{name}: {reason}")
    logs = {JOURNAL: (context.campaign.path / JOURNAL, context.campaign.events)}
    for name, record in context.records.items():
        logs[f"{name}/events.jsonl"] = (record.path / "events.jsonl", record.events)
    events = 0
    for name, (path, parsed) in logs.items():
        events += len(parsed)
        lines = path.read_bytes().split(b"\n")[:-1]
        # Writing an event that was read again gives the same bytes; duplicate keys and odd numbers change.
        edited = next((n for n, pair in enumerate(zip(parsed, lines, strict=True), 1) if not _is_ours(*pair)), None)
        if edited:
            broken = True
            yield fail(_CHAIN, f"{name}:{edited}: not written by hpcai500: the line was edited")
    for name, record in context.done.items():
        if record.torn_bytes:
            broken = True
            yield fail(_CHAIN, f"{name}: done, but it ends with {record.torn_bytes} bytes of an incomplete line")
    if not broken:
        yield note(_CHAIN, f"the journal and {len(context.records)} records: {events} events, in unbroken chains")
        yield note(_FILES, "recipes, systems, DONE files and power samples are those that the events name")


def _is_chain(record: Path) -> bool:
    """Whether the log itself is broken, not another file of the record."""
    try:
        parse_events((record / "events.jsonl").read_bytes(), "")
    except RecordError:
        return True
    except OSError:
        return False
    return False


def _is_ours(event: Event, line: bytes) -> bool:
    try:
        return event_line(event) == line
    except ValueError:
        return False


_MANIFEST = "manifest"


def check_manifest(context: Context) -> Iterator[Finding]:
    """Compare each fact of the manifest that campaign or records hold, too."""
    manifest, campaign = context.submission.manifest, context.campaign
    pairs: dict[str, tuple[Any, Any]] = {
        "benchmark": (manifest.benchmark, campaign.benchmark),
        "edition": (manifest.edition, campaign.edition),
        "campaign": (manifest.campaign, campaign.identity),
        "trials": (manifest.trials, len(campaign.trials)),
        "attempts": (manifest.attempts, len(campaign.attempts)),
    }
    for name, record in context.done.items():
        ran = package_of(record)
        pairs[f"code.version, in {name}"] = (manifest.code.version, ran.get("version"))
        pairs[f"code.code_sha256, in {name}"] = (manifest.code.code_sha256, ran.get("code_sha256"))
        pairs[f"code.core_sha256, in {name}"] = (manifest.code.core_sha256, ran.get("core_sha256"))
        pairs[f"code.image_sha256, in {name}"] = (manifest.code.image_sha256, image(record).get("content_sha256"))
        # A run that was resumed elsewhere has two systems. It is not ranked, and the manifest may name either.
        either = (record, on_first_system(record))
        for what, stated, of_record in (
            ("accelerators", manifest.accelerators, accelerators_of),
            ("framework", manifest.framework, framework_of),
        ):
            found = [of_record(one) for one in either]
            pairs[f"{what}, in {name}"] = (stated, stated if stated in found else found[0])
    wrong = {what: pair for what, pair in pairs.items() if pair[0] != pair[1]}
    for what, (stated, actual) in wrong.items():
        yield fail(_MANIFEST, f"{what}: the manifest says {stated}, the campaign {actual}")
    if not wrong:
        yield note(_MANIFEST, f"{len(pairs)} facts agree with the campaign and its records")


# ----------------------------------------------------------------------------------------------------
# Claim and results: both must be what is computed from the events.


_CLAIM = "claim"
_READ, _COMPARED = 2000, 300
# Another Python or C library may round the last digit of a sum or a power differently.
_ROUNDING = 1e-9


def check_claim(context: Context) -> Iterator[Finding]:
    """Compare the metrics, `rankable` and its reasons under the claimed edition."""
    found = [*_metrics(context), *_rankable(context)]
    yield from found
    if not any(one.severity == "fail" for one in found):
        claim = context.submission.manifest.claim
        state = "rankable" if claim.rankable else "not rankable"
        yield note(_CLAIM, f"{len(claim.metrics)} metrics (within 1e-9) and the claim {state!r} agree with the records")
    if context.asked.edition != context.claimed.edition:
        claimed, asked = context.claimed.edition, context.asked.edition
        yield note("edition", f"claimed under {claimed}; level, metrics and rank are those of {asked}, as requested")


def _metrics(context: Context) -> Iterator[Finding]:
    claimed = context.submission.manifest.claim.metrics
    if context.claimed.metrics is None:
        yield fail(_CLAIM, "metrics over the trials cannot be computed from the records")
        return
    for name in sorted(claimed.keys() | context.claimed.metrics.keys()):
        stated, found = claimed.get(name), context.claimed.metrics.get(name)
        if stated is None or found is None:
            where = "the claim" if stated is None else "the records"
            yield fail(_CLAIM, f"{name}: missing in {where}")
            continue
        computed = asdict(found)
        for key, value in stated.model_dump().items():
            if not _same_number(value, computed[key]):
                yield fail(_CLAIM, f"{name}.{key}: the claim says {value!r}; the records give {computed[key]!r}")


def _rankable(context: Context) -> Iterator[Finding]:
    claim, standing = context.submission.manifest.claim, context.claimed.standing
    if standing is None:
        yield fail(_CLAIM, NO_STANDING)
        return
    short = [_plain(reason) for reason in standing.reasons]
    if claim.rankable != standing.rankable:
        state = "rankable" if claim.rankable else "not rankable"
        yield fail(_CLAIM, f"the claim says {state}; the records give: {'; '.join(short) or 'rankable'}")
        return
    stated = [_plain(reason) for reason in claim.reasons]
    only_claimed, only_found = sorted(set(stated) - set(short)), sorted(set(short) - set(stated))
    if only_claimed or only_found:
        evidence = f"reasons only in the claim: {only_claimed}; only in the records: {only_found}"
        # Another version may have other rules, or other words for the same reason.
        same_version = context.submission.manifest.code.version == __version__
        yield fail(_CLAIM, evidence) if same_version else warning(_CLAIM, evidence)


def _plain(reason: str) -> str:
    """Return the beginning of `reason` as manifests hold it, with records named without the path of their campaign.

    A manifest cuts long reasons, and a forger may choose their length.
    """
    return plain(re.sub(r"\S*/(?=trial-\d)", "", reason[:_READ]))[:_COMPARED]


_RESULTS = "result"


def check_results(context: Context) -> Iterator[Finding]:
    """Compute the result of each done record from its events, under the edition of its run."""
    found = [
        fail(_RESULTS, f"{name}: no result can be computed from its events: {reason}")
        for name, reason in context.claimed.unscored.items()
    ]
    for name, result in context.claimed.results.items():
        path = context.done[name].path / "result.json"
        if not path.is_file():
            found.append(fail(_RESULTS, f"{name}: result.json is missing"))
            continue
        written, computed = json_object(path), result.as_json()
        if not is_of_our_version(context.done[name]):
            found += _different(name, written, computed, differing_keys(written, computed))
            continue
        found += _different(name, written, computed, sorted(written))
        if missing := sorted(computed.keys() - written.keys()):
            found.append(fail(_RESULTS, f"{name}: result.json lacks {', '.join(missing)}: removed"))
    yield from found
    if not found:
        yield note(_RESULTS, f"{len(context.claimed.results)} results in result.json agree with their events")


def _different(
    name: str, written: Mapping[str, Any], computed: Mapping[str, Any], keys: Sequence[str]
) -> Iterator[Finding]:
    for key in keys:
        if not _same_document(computed.get(key), written[key]):
            yield fail(
                _RESULTS, f"{name}: result.json says {key} is {written[key]!r}; its events give {computed.get(key)!r}"
            )


def _same_number(one: Any, other: Any) -> bool:
    """Whether both are the same number except for rounding, or both unknown."""
    if one is None or other is None:
        return one is other
    return math.isclose(one, other, rel_tol=_ROUNDING)


def _same_document(one: Any, other: Any) -> bool:
    """Whether two JSON values are equal except for the rounding of numbers."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same_document(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same_document, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return _same_number(one, other)
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


# ----------------------------------------------------------------------------------------------------
# Code, compiled core and image: the same in all records, and the code that ran is the packed code.


_CODE, _CHANGED, _TRUST = "code", "code-changed", "measuring-code-changed"


def check_code(context: Context) -> Iterator[Finding]:
    """Compare the code hashes of sources, records and plan, then the sources with this installation."""
    yield from _code_hashes(context)
    changes = context.code_changes
    if changes is None:
        version = context.submission.manifest.code.version
        yield warning(
            _CODE,
            f"of version {version}, which this installation ({__version__}) cannot compare: install hpcai500 {version} "
            "and verify with it",
        )
        yield skipped(_CHANGED, f"not compared: the sources have version {version}, this installation {__version__}")
        return
    for changed in changes:
        if changed.layer is None:
            yield fail(_TRUST, f"hpcai500/{changed.path} is {changed.how}: it measures, records or checks")
        else:
            yield warning(
                _CHANGED, f"hpcai500/{changed.path} is {changed.how}: layer {changed.layer}; read it in the submission"
            )
    if not changes:
        yield note(_CODE, f"the sources are those of this installation (hpcai500 {__version__}), file by file")


def _code_hashes(context: Context) -> Iterator[Finding]:
    packed = code_hash(context.submission.code)
    planned = context.campaign.start.get("code_sha256")
    ran = {name: package_of(record).get("code_sha256") for name, record in context.done.items()}
    wrong = {name: found for name, found in ran.items() if found != packed}
    for name, found in wrong.items():
        yield fail(_CODE, f"{name}: ran the code {found}; the packed sources are {packed}")
    versions = {
        str(event["value"].get("version"))
        for record in context.done.values()
        for event in iterate(record.events, "init_start")
    }
    for version in sorted(versions - {context.submission.manifest.code.version}):
        yield fail(
            _CODE,
            f"a record was started by version {version}; the manifest says {context.submission.manifest.code.version}",
        )
    if planned != packed:
        yield warning(_CODE, f"planned with the code {planned}, and run with {packed}")
    if ran and not wrong:
        # Equal file by file, or of another version, which was not compared.
        changes = context.code_changes
        ours = packed == package_code_hash() if changes is None else not changes
        same = ", this installation's" if ours else ""
        yield note(_CODE, f"{len(ran)} records ran the packed sources ({packed}{same})")


_PLUGIN = "plug-in"


def check_plugin(context: Context) -> Iterator[Finding]:
    """Say which plug-in ran, and compare it with this installation's: its sources are not in a submission."""
    benchmark = context.campaign.benchmark
    here = plugin_facts(benchmark)
    ran = {
        tuple(str(one.get(key)) for key in ("package", "version", "code_sha256"))
        for record in context.done.values()
        for one in tables(table(record.system.get("installation")).get("plugins"))
        if one.get("name") == benchmark
    }
    for package, version, code in sorted(ran):
        which = plain(f"{package} {version}, code {code}")
        if here is None:
            yield skipped(_PLUGIN, f"{which}: not compared: its sources are not in the submission, nor installed here")
        elif here["code_sha256"] != code:
            yield warning(
                _PLUGIN,
                f"{which}: another is installed here ({here['package']} {here['version']}, code "
                f"{here['code_sha256']}), with which models are counted and evaluated again",
            )
        else:
            yield note(_PLUGIN, f"{which}, as installed here; its sources are not in the submission")


_CORE = "core"


def check_core(context: Context) -> Iterator[Finding]:
    """Compare the core's hash between the records, and with this installation's; each machine builds its own."""
    found = sorted({str(package_of(record).get("core_sha256")) for record in context.done.values()})
    if len(found) > 1:
        yield fail(_CORE, f"the trials ran with {len(found)} compiled cores: {', '.join(found)}")
    elif found == [core_hash()]:
        yield note(_CORE, f"the compiled core of all records is this installation's ({found[0]})")
    elif found:
        yield skipped(
            _CORE,
            f"all records have the compiled core {found[0]}; this installation's differs, as each machine builds its "
            "own. If it is from a published image, compare it there (`hpcai500 version`)",
        )


_IMAGES = "image"


def check_images(context: Context) -> Iterator[Finding]:
    """Compare the hash of the image's content between records and nodes."""
    contents = {name: image(record).get("content_sha256") for name, record in context.done.items()}
    different = sorted({str(content) for content in contents.values()})
    if len(different) > 1:
        yield fail(_IMAGES, f"the trials ran in {len(different)} images: {', '.join(different)}")
        return
    for name, record in context.done.items():
        for node in nodes(record):
            container = node.get("container") or {}
            content = container.get("content_sha256")
            if content is not None and content != contents[name]:
                yield fail(
                    _IMAGES, f"{name}: {node.get('host')} ran in the image {content}, rank 0 in {contents[name]}"
                )
    if different == ["None"]:
        yield skipped(_IMAGES, "the runs used no image, so that no hash covers the other installed software")
    elif different:
        yield note(_IMAGES, f"all records ran in the image {different[0]}: compare it with the published image's hash")


# ----------------------------------------------------------------------------------------------------
# Power: the energy must be the integral of the power samples.


_POWER = "power-samples"
# Clock offsets are relative to the clock of the first node.
_SAME_CLOCK_SECONDS = 1.0
_MOST_OFFSET_SECONDS = 60.0


def check_power_samples(context: Context) -> Iterator[Finding]:
    """Integrate the power samples of each done record again."""
    found, measured = [], 0
    for name, record in context.done.items():
        try:
            check_power(record)
        except (WrongAnswerError, RecordError) as error:
            found.append(fail(_POWER, str(error)))
        powers = values(record, "power")
        measured += any(one.get("nodes") for one in powers)
        if len(powers) > 1:
            found.append(fail(_POWER, f"{name}: has {len(powers)} power events; expected one, at its end"))
        found += [fail(_POWER, f"{name}: {fault}") for fault in _faults(record, powers)]
        found += [warning(_POWER, f"{name}: {oddity}") for oddity in _oddities(powers)]
    yield from found
    if not measured:
        yield skipped(_POWER, "no power was measured, and none is claimed")
    elif not found:
        yield note(_POWER, f"the samples of {measured} records give their energies")


def _faults(record: Record, powers: Sequence[Facts]) -> Iterator[str]:
    """Find impossible power: of other nodes, of another scope, or with a clock that is not the node's."""
    last = [*values(record, "run_start"), *values(record, "run_resume")][-1]
    first = next(iter(last.get("hosts") or []), None)
    for node in _nodes(powers):
        host, source = node["host"], node["source"]
        scopes = SCOPES.get(source)
        if source is not None and scopes is None:
            yield f"{host}: hpcai500 reads no power source {source}"
        # All but a meter and a PDU measure their own node only.
        if scopes and source != METER and node["scope"] != "pdu" and node["covers"] != [host]:
            yield f"{source} on {host} cannot measure {', '.join(map(str, node['covers']))}"
        if scopes and node["scope"] not in scopes:
            yield f"{source} on {host} has the scope {node['scope']}; expected {' or '.join(scopes)}"
        if host == first and not abs(node["clock_offset_seconds"]) <= _SAME_CLOCK_SECONDS:
            offset = node["clock_offset_seconds"]
            yield f"{host}: a clock offset of {offset} s; expected 0, as the events were written there"


def _oddities(powers: Sequence[Facts]) -> Iterator[str]:
    for node in _nodes(powers):
        if not abs(node["clock_offset_seconds"]) <= _MOST_OFFSET_SECONDS:
            offset = node["clock_offset_seconds"]
            yield f"the clock of {node['host']} is {offset:.0f} s off: its samples are from another time"
    for event in powers[-1:]:
        yield from (one["finding"] for one in event.get("comparisons") or [] if one.get("finding"))


def _nodes(powers: Sequence[Facts]) -> Iterator[Facts]:
    return (node for event in powers[-1:] for node in (*(event.get("nodes") or []), *(event.get("beside") or [])))
