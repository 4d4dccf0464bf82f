"""Bundles for forgers: an honest submission as a folder that can be edited, and packed as if nothing had happened."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
import shutil
import tomllib
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

from builders.campaigns import edit_journal, edit_record, edit_records, power_entry, rechain_campaign, values
from hpcai500.campaign.journal import read_campaign
from hpcai500.methodology.energy import window_of
from hpcai500.recipe import load_recipe, tables_hash, to_toml
from hpcai500.record import Event, Record, read_record
from hpcai500.results.submission.claim import claim_of
from hpcai500.results.submission.manifest import CAMPAIGN, CODE, MANIFEST, SIGNATURE
from hpcai500.results.submission.signature import sign
from hpcai500.system.software import code_hash

Kind = Literal["short", "rankable", "ewa", "begun-twice"]
Change = Callable[[list[Event]], object]
Forge = Callable[["Bundle"], object]
_TIME = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True)
class Forgery:
    """One way to cheat.

    Attributes:
        name: as in docs/verification.md.
        forge: does it.
        found: name of the finding that tells of it; None where nothing in a bundle can.
        severity: of that finding.
        campaign: which honest campaign it begins with: a short one; one that is rankable, of Image Classification or
            of Extreme Weather Analytics; or one each of whose trials was begun twice.
        signers: whether the committee has a list of keys.
        registered: whether the campaign's identity was registered before its first run.
        heads: whether the committee got the heads of the honest campaign while it ran.
    """

    name: str
    forge: Callable[[Bundle], object]
    found: str | None
    severity: Literal["fail", "warning", "note"] = "fail"
    campaign: Kind = "short"
    signers: bool = False
    registered: bool = False
    heads: bool = False


@dataclass
class Bundle:
    """An unpacked submission.

    Attributes:
        folder: where its files lie.
        key: of who submits; None strips the signature.
        manifest: its content, without files; computed anew when it is packed, if the forger does not forbid it.
        keeps_claim: whether the claim stays as the honest one was.
        claims: edits the claim last of all.
        signs: what is signed, if it is not the manifest.
        swaps: files whose content is exchanged after the manifest was made.
    """

    folder: Path
    key: Path | None
    manifest: dict[str, Any]
    keeps_claim: bool = False
    claims: Callable[[dict[str, Any]], object] = lambda claim: None
    signs: bytes | None = None
    swaps: dict[str, bytes] = field(default_factory=dict)

    @property
    def campaign(self) -> Path:
        """The campaign's folder."""
        return self.folder / CAMPAIGN

    @property
    def records(self) -> list[Path]:
        """All records of done runs, in order."""
        return sorted(path.parent for path in self.campaign.glob("*/DONE"))

    def record(self, trial: int) -> Path:
        """The record of the done run of a trial."""
        return self.records[trial - 1]

    def read(self, trial: int) -> Record:
        """The same, read."""
        return read_record(self.record(trial))

    def edit(self, trial: int, change: Change) -> None:
        """Change the events of a trial, and all hashes with them."""
        edit_record(self.record(trial), change)

    def edit_all(self, change: Change) -> None:
        """Change the events of all trials alike."""
        edit_records(dict.fromkeys(self.records, change))

    def plan_with(self, *settings: str) -> None:
        """Change the recipe of the plan and of all runs, and all hashes with it."""
        for path in (self.campaign / "recipe.toml", *(record / "recipe.toml" for record in self.records)):
            path.write_text(to_toml(load_recipe(path, settings)), encoding="utf-8")
        self.name_recipes()

    def name_recipes(self) -> None:
        """Let journal and records have the hashes of the recipes that lie beside them."""
        planned = _recipe_hash(self.campaign)
        edit_journal(self.campaign, lambda events: events[0]["value"].update(recipe_hash=planned))

        def name(told: str, events: list[Event]) -> None:
            for value in values(events, "init_start"):
                value["recipe_hash"] = told

        records = sorted(path.parent for path in self.campaign.glob("*/recipe.toml"))
        edit_records({record: partial(name, _recipe_hash(record)) for record in records})

    def rewrite_code(self, path: str, old: str, new: str) -> None:
        """Change a source file, and the hash that the records and the plan have of all of them."""
        source = self.folder / CODE / path
        text = source.read_text(encoding="utf-8")
        assert old in text
        source.write_text(text.replace(old, new), encoding="utf-8")
        self.name_code(code_hash(self.folder / CODE))

    def name_code(self, digest: str) -> None:
        """Let records, plan and manifest say that this code ran."""

        def name(events: list[Event]) -> None:
            for event in events:
                if event["key"] == "system":
                    event["value"]["installation"]["package"]["code_sha256"] = digest

        journal = self.campaign / "campaign.jsonl"
        lines = journal.read_bytes().split(b"\n")
        start = json.loads(lines[0])
        start["value"]["code_sha256"] = digest
        lines[0] = json.dumps(start, separators=(",", ":")).encode()
        journal.write_bytes(_chained(lines))
        rechain_campaign(self.campaign)
        self.edit_all(name)
        self.manifest["code"]["code_sha256"] = digest

    def pack(self, target: Path) -> Path:
        """Write the submission to `target`."""
        files = {path.relative_to(self.folder).as_posix(): path for path in self.folder.rglob("*") if path.is_file()}
        with contextlib.suppress(Exception):  # what cannot be computed any more stays as it was
            campaign = read_campaign(self.campaign)
            self.manifest |= {"campaign": campaign.identity, "attempts": len(campaign.attempts)}
            self.manifest["trials"] = len(campaign.trials)
            if not self.keeps_claim:
                self.manifest["claim"] = claim_of(campaign).model_dump(mode="json")
        self.claims(self.manifest["claim"])
        self.manifest["files"] = [_entry(name, files[name]) for name in sorted(files)]
        content = (json.dumps(self.manifest, indent=1) + "\n").encode()
        with zipfile.ZipFile(target, "w") as archive:
            for name in sorted(files):
                _add(archive, name, self.swaps.get(name, files[name].read_bytes()))
            _add(archive, MANIFEST, content)
            if self.key:
                signed = self.folder.parent / f"{self.folder.name}.manifest"
                signed.write_bytes(self.signs or content)
                _add(archive, SIGNATURE, sign(signed, self.key))
        return target


def unpack(submission: Path, folder: Path, key: Path) -> Bundle:
    """The bundle of a submission that was packed by `hpcai500 submit`."""
    with zipfile.ZipFile(submission) as archive:
        archive.extractall(folder)
    manifest = json.loads((folder / MANIFEST).read_bytes())
    (folder / MANIFEST).unlink()
    (folder / SIGNATURE).unlink()
    return Bundle(folder, key, manifest)


def copy_of(bundle: Bundle, folder: Path) -> Bundle:
    """A copy for one forger."""
    shutil.copytree(bundle.folder, folder)
    return Bundle(folder, bundle.key, json.loads(json.dumps(bundle.manifest)))


def in_trial(trial: int, change: Change) -> Forge:
    """Changes the events of one trial."""
    return lambda bundle: bundle.edit(trial, change)


def in_all(change: Change) -> Forge:
    """Changes the events of all trials alike."""
    return lambda bundle: bundle.edit_all(change)


def in_journal(change: Change) -> Forge:
    """Changes the events of the journal."""
    return lambda bundle: edit_journal(bundle.campaign, change)


def each(key: str, **changes: Any) -> Change:
    """Other values in all events `key`; a function is applied to the value that is there."""

    def change(events: list[Event]) -> None:
        for value in values(events, key):
            value.update({name: new(value[name]) if callable(new) else copy.deepcopy(new)
                          for name, new in changes.items()})  # fmt: skip

    return change


def changed(key: str, number: int, **changes: Any) -> Change:
    """Other values in one of the events `key`."""
    return lambda events: values(events, key)[number].update(copy.deepcopy(changes))


def without(*keys: str) -> Change:
    """No event of these names."""

    def change(events: list[Event]) -> None:
        events[:] = [event for event in events if event["key"] not in keys]

    return change


def lacking(key: str, *fields: str) -> Change:
    """Events `key` without these fields, as far as they have them."""
    return lambda events: [value.pop(field, None) for value in values(events, key) for field in fields]


def each_node(change: Callable[[dict[str, Any]], object]) -> Change:
    """Changes each node that a record tells of."""
    return lambda events: [change(node) for value in values(events, "system") for node in value["nodes"]]


def fit_power(record: Path) -> Change:
    """Lets the event `power` of a record fit its window and its files of samples."""

    def fit(events: list[Event]) -> None:
        power = values(events, "power")[-1]
        power["nodes"] = [power_entry(record, node["host"], window_of(events)) for node in power["nodes"]]

    return fit


def _recipe_hash(folder: Path) -> str:
    return tables_hash(tomllib.loads((folder / "recipe.toml").read_text(encoding="utf-8")))


def _chained(lines: list[bytes]) -> bytes:
    """Journal lines after an edit of the first: `rechain_campaign` wants a chain that holds."""
    previous, whole = "0" * 64, []
    for line in lines[:-1]:
        event: Mapping[str, Any] = {**json.loads(line), "prev": previous}
        whole.append(json.dumps(event, separators=(",", ":")).encode())
        previous = hashlib.sha256(whole[-1]).hexdigest()
    return b"".join(line + b"\n" for line in whole)


def _entry(name: str, path: Path) -> dict[str, Any]:
    content = path.read_bytes()
    return {"path": name, "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def _add(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    info = zipfile.ZipInfo(name, _TIME)
    info.create_system, info.external_attr = 3, 0o100644 << 16
    # As the packer does: checkpoints are stored; level 1 is fast.
    info.compress_type = zipfile.ZIP_STORED if name.endswith(".pt") else zipfile.ZIP_DEFLATED
    archive.writestr(info, content, compresslevel=1)
