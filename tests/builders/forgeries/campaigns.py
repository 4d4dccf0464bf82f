"""Forgeries of a campaign and of its bundle: trials, attempts, recipes, code, power, manifest, signature."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from builders.campaigns import (
    SHORT,
    edit_journal,
    power_entry,
    rechain_campaign,
    rewrite_recipe,
    rewrite_record,
    sum_steps,
    values,
    write_campaign,
)
from builders.forgeries import Bundle, Forge, Forgery, fit_power, in_trial
from builders.forgeries.records import shifted
from hpcai500.methodology.energy import window_of
from hpcai500.record import Event
from hpcai500.results.submission.manifest import CAMPAIGN
from hpcai500.system.power_samples import file_name


def _copy_trial(bundle: Bundle) -> None:
    """Trial 1 once more, as trial 3: with its seed, and at its time."""
    target = bundle.record(3)
    old = bundle.read(3).events[0]
    shutil.rmtree(target)
    shutil.copytree(bundle.record(1), target)
    rewrite_recipe(target, "hyperparameters.seed=3")
    bundle.edit(3, lambda events: shifted(events, 0, old["clock_s"] - events[0]["clock_s"]))
    rechain_campaign(bundle.campaign)


def _copy_and_jitter(bundle: Bundle) -> None:
    """The same, with other losses, times and digests."""
    _copy_trial(bundle)

    def jitter(events: list[Event]) -> None:
        late = 0.0
        for number, event in enumerate(events):
            if event["key"] == "epoch_stop":
                late += 0.3 + 0.1 * number
                event["value"]["loss"] *= 1 + 1e-3 * number
                event["value"]["seconds"] = round(event["value"]["seconds"] + 0.3 + 0.1 * number, 6)
            if event["key"] == "replicas":
                event["value"]["digest"] = f"{number:016x}"
            if event["key"] == "checkpoint":
                _jitter_checkpoint(bundle.record(3), event["value"])
            shifted([event], 0, late)
        sum_steps(events, events)
        fit_power(bundle.record(3))(events)

    bundle.edit(3, jitter)


def _jitter_checkpoint(record: Path, value: dict[str, Any]) -> None:
    content = f"nearly the weights of {value['sha256']}".encode()
    value.update(sha256=hashlib.sha256(content).hexdigest(), bytes=len(content))
    path = record / "checkpoints" / value["file"]
    if path.exists():
        path.write_bytes(content)


def _forget_attempt(bundle: Bundle) -> None:
    """The failed attempt at trial 2 is taken out of journal and folder."""

    def is_kept(event: Event) -> bool:
        value = event["value"]
        return not event["key"].startswith("attempt_") or (value["trial"], value["attempt"]) != (2, 1)

    def forget(events: list[Event]) -> None:
        events[:] = filter(is_kept, events)

    shutil.rmtree(bundle.campaign / "trial-02")
    edit_journal(bundle.campaign, forget)


def _forget_attempt_and_renumber(bundle: Bundle) -> None:
    """The same by who knows that attempts are numbered."""
    _forget_attempt(bundle)
    (bundle.campaign / "trial-02-attempt-2").rename(bundle.campaign / "trial-02")

    def renumber(events: list[Event]) -> None:
        for event in events:
            if event["key"].startswith("attempt_") and event["value"]["trial"] == 2:
                event["value"]["attempt"] = 1
            if event["key"] == "attempt_start" and event["value"]["trial"] == 2:
                event["value"]["record"] = "trial-02"

    edit_journal(bundle.campaign, renumber)


def _slip_in(bundle: Bundle, identity: str | None = None) -> None:
    """A record of another campaign of the same recipe, in the place of trial 3."""
    other = write_campaign(bundle.folder.parent / "other", *SHORT, trials=3, start_s=1_717_405_000.0, done=3)
    record = bundle.record(3)
    shutil.rmtree(record)
    shutil.copytree(other / "trial-03", record)
    if identity:
        lines = [json.loads(line) for line in (record / "events.jsonl").read_bytes().splitlines()]
        lines[0]["value"]["campaign"]["id"] = identity
        rewrite_record(record, lines)
    _name_head(bundle.campaign, 3, record)


def _name_head(campaign: Path, trial: int, record: Path) -> None:
    """The journal's last line vouches for this record, and no other line is touched."""
    path = campaign / "campaign.jsonl"
    lines = path.read_bytes().splitlines()
    last = json.loads(lines[-1])
    assert (last["key"], last["value"]["trial"]) == ("attempt_stop", trial)
    last["value"]["head"] = (record / "DONE").read_text().strip()
    path.write_bytes(
        b"".join([*(line + b"\n" for line in lines[:-1]), json.dumps(last, separators=(",", ":")).encode(), b"\n"])
    )


def _edit_recipe_file(bundle: Bundle) -> None:
    path = bundle.record(1) / "recipe.toml"
    path.write_text(path.read_text().replace("momentum = 0.875", "momentum = 0.9"))


def _hide_code(bundle: Bundle) -> None:
    """The records tell the hash of what ran, and the honest sources are packed."""
    bundle.name_code("5" * 64)
    bundle.manifest["code"]["code_sha256"] = json.loads(
        (bundle.campaign / "campaign.jsonl").read_bytes().splitlines()[0]
    )["value"]["code_sha256"]


def _swap_result(bundle: Bundle) -> None:
    path = bundle.record(1) / "result.json"
    name = path.relative_to(bundle.folder).as_posix()
    bundle.swaps[name] = path.read_bytes().replace(b'"rankable": false', b'"rankable": true ')


def _edit_result(bundle: Bundle) -> None:
    path = bundle.record(1) / "result.json"
    result = json.loads(path.read_bytes())
    path.write_text(json.dumps({**result, "vflops": 1.1 * result["vflops"]}))


def _sign_by_stranger(bundle: Bundle) -> None:
    key = bundle.folder.parent / "stranger"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    bundle.key = key


def _lower_energy(events: list[Event]) -> None:
    for node in values(events, "power")[-1]["nodes"]:
        node["energy_joules"] /= 2
        node["mean_watts"] /= 2


def _lower_samples(record: Path) -> None:
    for path in (record / "power").glob("*.csv"):
        header, *rows = path.read_text().splitlines()
        cells = [row.split(",") for row in rows]
        lower = [",".join([row[0], row[1], f"{float(row[2]) * 0.9:.3f}", *row[3:]]) for row in cells]
        path.write_text("\n".join([header, *lower]) + "\n")


def _lower_samples_everywhere(bundle: Bundle) -> None:
    for trial, record in enumerate(bundle.records, 1):
        _lower_samples(record)
        # The record cannot be read before its event names the new files.
        lines = [json.loads(line) for line in (record / "events.jsonl").read_bytes().splitlines()]
        nodes = values(lines, "power")[-1]["nodes"]
        fitted = [power_entry(record, node["host"], window_of(lines)) for node in nodes]
        assert file_name(nodes[0]["host"]) == fitted[0]["file"]
        bundle.edit(trial, lambda events, fitted=fitted: values(events, "power")[-1].update(nodes=fitted))


def _shorten_job(bundle: Bundle) -> None:
    """The job that trial 1 ran in, as if it had been another one of a minute."""
    begun = bundle.read(1).events[0]["time_ms"]
    account(bundle.folder / "accounting" / "1001.json", begun, begun + 40_000)


def _change_line(bundle: Bundle) -> None:
    path = bundle.record(1) / "events.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"padded_samples":881', b'"padded_samples":880'))


def _swap_checkpoint(bundle: Bundle) -> None:
    source, target = (next(bundle.record(trial).glob("checkpoints/*.pt")) for trial in (1, 3))
    target.write_bytes(source.read_bytes())


def _overlap(bundle: Bundle) -> None:
    """Two runs at once on the same nodes, as if there were time for more of them."""
    first = bundle.read(1).events[0]["clock_s"]
    bundle.edit(3, lambda events: shifted(events, 0, first + 30 - events[0]["clock_s"]))
    edit_journal(bundle.campaign, lambda events: shifted(events, 0, 0.0))


def _shown_instead(**story: Any) -> Forge:
    """The campaign went badly; another one of three trials, which went better, is shown instead."""
    return lambda bundle: _show_instead(bundle, **story)


def _show_instead(bundle: Bundle, **story: Any) -> None:
    shutil.rmtree(bundle.campaign)
    write_campaign(bundle.folder / CAMPAIGN, *SHORT, trials=3, quality=0.77, watts=4000.0, **story)
    for path in bundle.campaign.glob("*/checkpoints/epoch-0003*.pt"):
        path.unlink()
    for trial in range(1, 4):
        _account(bundle, trial)


def _account(bundle: Bundle, trial: int) -> None:
    """Who forges the campaign forges what Slurm would have said of it."""
    events = bundle.read(trial).events
    account(bundle.folder / "accounting" / f"{1000 + trial}.json", events[0]["time_ms"], events[-1]["time_ms"])


def account(path: Path, start_ms: int, stop_ms: int) -> None:
    """What Slurm's accounting would say of a job from and to these moments."""
    start, stop = start_ms // 1000 - 10, stop_ms // 1000 + 10
    when = {
        name: datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        for name, moment in (("submit", start - 60), ("start", start), ("end", stop))
    }
    job = {
        "job_id": path.stem, **when, "elapsed_seconds": stop - start, "nodes": 2, "node_list": "node-[1-2]",
        "state": "COMPLETED", "exit_code": "0:0",
    }  # fmt: skip
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({**job, "steps": [], "earlier": []}))


def _nothing(bundle: Bundle) -> None:
    """The honest bundle of these tests is of a campaign that nobody ran."""


def _raise_vflops(claim: dict[str, Any]) -> None:
    claim["metrics"]["vflops"]["mean"] *= 1.1


def _claiming(change: Callable[[dict[str, Any]], object]) -> Forge:
    return lambda bundle: setattr(bundle, "claims", change)


# Another one is planned; or a copy of its plan is run a day later.
_PLANNED_ANEW = _shown_instead(start_s=1_717_500_000.0)
_RUN_AS_A_COPY = _shown_instead(idle_s=86_400.0)
FORGERIES = (
    Forgery("seed-repeated", lambda b: rewrite_recipe(b.record(3), "hyperparameters.seed=1"), "seeds"),
    Forgery("trial-copied", _copy_trial, "copied-runs"),
    Forgery("failed-attempt-forgotten", _forget_attempt, "attempts"),
    Forgery("record-of-a-failed-attempt-deleted", lambda b: shutil.rmtree(b.campaign / "trial-02"), "attempts"),
    Forgery("bad-trial-rerun", lambda b: _slip_in(b, b.manifest["campaign"]), "journal-binding"),
    Forgery("record-of-another-campaign", _slip_in, "journal-binding"),
    Forgery("recipe-edited-after-the-run", _edit_recipe_file, "record-files"),
    Forgery("recipe-of-one-trial-changed", lambda b: rewrite_recipe(b.record(1), "hyperparameters.momentum=0.9"),
            "recipes"),
    Forgery("level-claimed-too-low", _claiming(lambda claim: claim.update(level="hardware")), "level"),
    Forgery("optimizer-changed-openly", lambda b: b.rewrite_code(
        "optim/optimizers.py", "import torch\n", "import torch\n\n_FASTER = True\n"), "code-changed", "warning"),
    Forgery("optimizer-changed-and-hidden", _hide_code, "code"),
    Forgery("measuring-code-changed", lambda b: b.rewrite_code(
        "engine/trainer.py", "seconds = time.perf_counter() - start", "seconds = 0.9 * time.perf_counter()"),
        "measuring-code-changed"),
    Forgery("result-edited", _edit_result, "result"),
    Forgery("claim-raised", _claiming(_raise_vflops), "claim"),
    Forgery("file-swapped-after-packing", _swap_result, "archive"),
    Forgery("signature-stripped", lambda b: setattr(b, "key", None), "signature"),
    Forgery("signature-of-another-manifest", lambda b: setattr(b, "signs", b'{"schema": "hpcai500-submission-1"}'),
            "signature"),
    Forgery("signed-by-a-stranger", _sign_by_stranger, "signature", signers=True),
    Forgery("energy-lowered", in_trial(1, _lower_energy), "power-samples"),
    Forgery("power-samples-of-one-node-lowered", lambda b: _lower_samples(b.record(1)), "record-files"),
    Forgery("accounting-edited", _shorten_job, "accounting"),
    Forgery("line-changed", _change_line, "hash-chain"),
    Forgery("checkpoint-of-another-run", _swap_checkpoint, "checkpoints"),
    Forgery("two-runs-at-once", _overlap, "overlap"),
    Forgery("accelerators-renamed", lambda b: b.manifest.update(accelerators="32 x B200"), "manifest"),
    Forgery("campaign-planned-anew-though-registered", _PLANNED_ANEW, "registered", registered=True),
    Forgery("campaign-run-twice", _RUN_AS_A_COPY, "heads", registered=True, heads=True),
    Forgery("failed-attempt-forgotten-though-its-head-was-given", _forget_attempt_and_renumber, "heads", heads=True),
    # Not to be seen in a bundle.
    Forgery("campaign-invented", _nothing, None),
    Forgery("other-code-ran-than-is-told", _nothing, None),
    Forgery("campaign-planned-anew", _PLANNED_ANEW, None),
    Forgery("campaign-run-twice-without-heads", _RUN_AS_A_COPY, None, registered=True),
    Forgery("failed-attempt-forgotten-and-renumbered", _forget_attempt_and_renumber, None),
    Forgery("trial-copied-and-jittered", _copy_and_jitter, None),
    Forgery("power-samples-lowered-everywhere", _lower_samples_everywhere, None),
)  # fmt: skip
