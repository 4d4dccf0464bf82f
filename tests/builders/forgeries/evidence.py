"""Forgeries by who has read the checks: evidence taken out, told twice, borrowed, or moved to where nobody looks."""

from __future__ import annotations

import copy
import hashlib
import json
from pathlib import Path
from typing import Any

from builders.campaigns import edit_journal, sum_steps, values
from builders.forgeries import Bundle, Forgery, changed, each, each_node, in_all, in_journal, in_trial, lacking, without
from builders.forgeries.records import place, shifted
from builders.forgeries.restarts import forged
from hpcai500.methodology.energy import window_of
from hpcai500.record import Event
from hpcai500.system.power_samples import energy_of, integral_entry, read_samples


def _splice_few(bundle: Bundle) -> None:
    """Three of 90 epochs come from trial 1; times, sums and clocks fit."""
    donor = [*bundle.read(1).events]

    def change(events: list[Event]) -> None:
        for epoch in (40, 41, 42):
            mine, theirs = place(events, "epoch_stop", epoch), place(donor, "epoch_stop", epoch)
            later = donor[theirs]["value"]["seconds"] - events[mine]["value"]["seconds"]
            for offset in range(6):
                events[mine + offset]["value"] = copy.deepcopy(donor[theirs + offset]["value"])
            shifted(events, mine, later)
        sum_steps(events, events)

    bundle.edit(4, change)


def _borrow_checkpoint(bundle: Bundle) -> None:
    """The best trial's last checkpoint, also as that of another trial, so that a replay finds its quality."""
    source, target = (next(bundle.record(trial).glob("checkpoints/*.pt")) for trial in (1, 3))
    target.write_bytes(source.read_bytes())
    last = values([*bundle.read(1).events], "checkpoint")[-1]
    bundle.edit(3, lambda events: values(events, "checkpoint")[-1].update(sha256=last["sha256"], bytes=last["bytes"]))


# The 41st of 90 evaluations reaches the target.
_RAISED = changed("eval_accuracy", 40, value=0.764)


def _reach_target(bundle: Bundle) -> None:
    """Likewise, with a checkpoint that is said to have done so."""
    content = b"stands for weights that reach the target"

    def change(events: list[Event]) -> None:
        _RAISED(events)
        told = values(events, "checkpoint")[40]
        told.update(sha256=hashlib.sha256(content).hexdigest(), bytes=len(content))
        (bundle.record(2) / "checkpoints" / told["file"]).write_bytes(content)

    bundle.edit(2, change)


def _take_field_out(bundle: Bundle) -> None:
    """The field that says which form of momentum ran, from all recipes, with all hashes."""
    for path in sorted(bundle.campaign.rglob("recipe.toml")):
        text = path.read_text()
        path.write_text("".join(line for line in text.splitlines(True) if not line.startswith("momentum_form")))
    bundle.name_recipes()


_REPEATED_DEVICE = each_node(lambda node: node.update(accelerators=[node["accelerators"][0]] * 8))


def _call_it_the_node(events: list[Event]) -> None:
    for node in values(events, "power")[-1]["nodes"]:
        node.update(source="csv", scope="node")


def _repeat_node(events: list[Event]) -> None:
    first, *others = values(events, "system")[0]["nodes"]
    for node in others:
        node["accelerators"] = copy.deepcopy(first["accelerators"])


def _integrate_idleness(bundle: Bundle) -> None:
    """Samples of the idle hour before the run, and a clock that is told to be an hour off."""
    for trial, record in enumerate(bundle.records, 1):
        lines = [json.loads(line) for line in (record / "events.jsonl").read_bytes().splitlines()]
        nodes = [_idle(record, node, lines) for node in values(lines, "power")[-1]["nodes"]]
        bundle.edit(trial, lambda events, nodes=nodes: values(events, "power")[-1].update(nodes=nodes))


def _idle(record: Path, node: dict[str, Any], events: list[Event]) -> dict[str, Any]:
    path = record / node["file"]
    header, *rows = path.read_text().splitlines()
    time_s, unix_s, _, *rest = rows[0].split(",")
    before = [[str(float(time_s) - late), str(float(unix_s) - late), "90.0", *rest] for late in range(3800, 0, -1)]
    path.write_text("\n".join([header, *map(",".join, before), *rows]) + "\n")
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    entry = {**node, "clock_offset_seconds": -3600.0, "sha256": sha256}
    return {**entry, **integral_entry(energy_of(read_samples(path), entry, window_of(events)))}


def _borrow_weights(bundle: Bundle) -> None:
    digest = values([*bundle.read(1).events], "replicas")[1]["digest"]
    bundle.edit(3, changed("replicas", 1, digest=digest))


def _repeat_checkpoint(events: list[Event]) -> None:
    told = values(events, "checkpoint")
    told[0]["sha256"] = told[-1]["sha256"]


def _cover_both(events: list[Event]) -> None:
    power = values(events, "power")[0]
    power["nodes"] = [{**power["nodes"][0], "covers": ["node-1", "node-2"]}]


def _shorten_result(bundle: Bundle) -> None:
    path = bundle.record(1) / "result.json"
    result = json.loads(path.read_bytes())
    del result["reasons"], result["rankable"]
    path.write_text(json.dumps(result))


def _name_version(bundle: Bundle) -> None:
    """Software of a version that nobody has, so that nobody can compare it."""
    bundle.edit_all(each("init_start", version="0.0.9"))
    bundle.edit_all(lambda events: [
        value["installation"]["package"].update(version="0.0.9") for value in values(events, "system")
    ])  # fmt: skip
    bundle.manifest["code"]["version"] = "0.0.9"


def _claim_registered(bundle: Bundle) -> None:
    """Another campaign than the registered one, which it says to have been before its hosts were renamed."""
    bundle.manifest["anonymised"] = {
        "original_campaign": bundle.manifest["campaign"], "hosts": 2, "original_heads": {},
    }  # fmt: skip
    edit_journal(bundle.campaign, lambda events: events[0]["value"].update(data="/another/campaign"))


def _change_edition(bundle: Bundle) -> None:
    for record in bundle.records:
        path = record / "recipe.toml"
        path.write_text(path.read_text().replace('edition = "v2.0"', 'edition = "v3.0"'))
    bundle.name_recipes()
    bundle.edit_all(each("init_start", edition="v3.0"))


def _start_twice(events: list[Event]) -> None:
    """The clock starts again at the second epoch."""
    start, number = events[place(events, "run_start")], place(events, "epoch_start", 2)
    moment = {clock: events[number][clock] for clock in ("time_ms", "clock_s")}
    events.insert(number, {**copy.deepcopy(start), **moment})


def _look_alike(events: list[Event]) -> None:
    """One node told as two, by a blank that has no width."""
    for event in events:
        if event["key"] != "power":
            event["value"] = json.loads(json.dumps(event["value"]).replace('"node-2"', '"node-1\\u200b"'))


def _double_key(bundle: Bundle) -> None:
    """One value for whoever reads the first, another for whoever reads the last."""
    path = bundle.record(1) / "events.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"samples":50000', b'"samples":10000,"samples":50000'))


FORGERIES = (
    Forgery("three-epochs-spliced", _splice_few, "copied-runs", campaign="rankable"),
    Forgery("weights-of-one-epoch-borrowed", _borrow_weights, "copied-runs"),
    Forgery("checkpoint-borrowed", _borrow_checkpoint, "copied-runs"),
    Forgery("checkpoint-told-twice", in_trial(1, _repeat_checkpoint), "checkpoints"),
    Forgery("recipe-field-taken-out", _take_field_out, "recipe-fields"),
    Forgery("rehearsal-taken-out", in_all(without("parallel_efficiency")), "evidence"),
    Forgery("steps-of-ranks-taken-out", in_all(without("steps")), "evidence"),
    Forgery("power-taken-out", in_all(without("power")), "evidence", "warning"),
    Forgery("start-of-the-machine-untold", in_all(lacking("init_start", "boot_id")), "evidence"),
    Forgery("one-accelerator-told-as-eight", in_all(_REPEATED_DEVICE), "ranks"),
    Forgery("accelerators-of-one-node-told-for-two", in_all(_repeat_node), "ranks"),
    Forgery("energy-of-one-node-told-for-two", in_all(_cover_both), "power-samples"),
    Forgery("power-of-an-idle-hour", _integrate_idleness, "power-samples"),
    Forgery("target-reached-by-one-evaluation", _reach_target, "quality-leap", "warning", "rankable"),
    Forgery("checkpoint-at-the-target-withheld", in_trial(2, _RAISED), "checkpoints", campaign="rankable"),
    Forgery("job-of-srun-untold", in_journal(each("attempt_start", slurm_job_id=None, launcher="srun")), "accounting",
            "warning"),
    Forgery("result-shortened", _shorten_result, "result"),
    Forgery("gone-on-unseen", forged((2, 2), is_told=False), "attempts", "warning"),
    Forgery("version-of-nobody", _name_version, "code", "warning"),
    Forgery("registered-identity-claimed-as-the-original", _claim_registered, "registered", "warning", registered=True),
    Forgery("edition-of-the-records-changed", _change_edition, "recipes"),
    Forgery("clock-started-twice", in_trial(1, _start_twice), "event-order"),
    Forgery("host-of-look-alike-letters", in_all(_look_alike), "accounting"),
    Forgery("ceilings-of-another-precision", in_all(each("ceilings", precision="fp32")), "ceilings"),
    Forgery("key-told-twice", _double_key, "archive"),
    Forgery("claim-that-is-no-number", lambda b: setattr(b, "claims", lambda claim: claim["metrics"]["vflops"].update(
        variation=float("nan"))), "archive"),
    Forgery("path-file-in-the-code", lambda b: (b.folder / "code/hpcai500/fast.pth").write_text("import fast"),
            "archive"),
    # Not to be seen in a bundle.
    Forgery("ceilings-raised-everywhere", in_all(each("ceilings", flops=9.6e18, slowest_flops=5e17)), None),
    Forgery("another-data-set-everywhere", in_all(each("dataset", fingerprint="a" * 64)), None),
    Forgery("job-untold", in_journal(each("attempt_start", slurm_job_id=None, launcher="alone")), None),
    Forgery("power-of-devices-told-as-that-of-nodes", in_all(_call_it_the_node), None),
)  # fmt: skip
