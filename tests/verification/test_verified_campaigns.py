"""Campaign, claim and accounting under verification: one of them was changed, and all hashes were made to fit."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from builders.campaigns import edit_journal, edit_record, rewrite_recipe, values
from builders.submissions import all_findings, changed_submission, evidence_under, failed_checks, honest_submission

from hpcai500.campaign.journal import NO_EVENTS
from hpcai500.methodology.energy import compare_sources, window_of
from hpcai500.record import line_hash
from hpcai500.results.submission.archive import Submission
from hpcai500.results.submission.manifest import Anonymised, Metric
from hpcai500.results.verification.campaign import level_of
from hpcai500.results.verification.context import Question
from hpcai500.results.verification.dates import check_accounting, names_of_list, short_names
from hpcai500.results.verification.finding import Finding
from hpcai500.system.power import SOURCES
from hpcai500.system.power_samples import energy_of, file_name, format_samples, integral_entry, read_samples

Events = list[dict[str, Any]]
Change = Callable[[Path], object]
Job = dict[str, Any]
LAST = "trial-03"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Submission:
    """Three trials of three epochs, with power measured; the second one's first attempt lost a node."""
    return honest_submission(tmp_path_factory.mktemp("honest"), failing=(2,), watts=700.0)


@pytest.fixture(scope="module")
def system_level(tmp_path_factory: pytest.TempPathFactory) -> Submission:
    """Two trials of ninety epochs with a compiled model."""
    return honest_submission(tmp_path_factory.mktemp("system"), "framework.compile=true", short=False, trials=2)


def record(change: Callable[[Events], object], name: str = LAST) -> Change:
    return lambda opened: edit_record(opened / "campaign" / name, change)


def journal(change: Callable[[Events], object]) -> Change:
    return lambda opened: edit_journal(opened / "campaign", change)


def shifted(seconds: float, *, clock: bool = True) -> Change:
    """The last trial, moved in time."""

    def change(events: Events) -> None:
        for event in events:
            event["time_ms"] += round(1000 * seconds)
            event["clock_s"] += seconds if clock else 0

    return record(change)


def replaced(path: str, old: bytes, new: bytes) -> Change:
    """A file whose bytes were changed, and no hash with them."""

    def change(opened: Path) -> None:
        file = next((opened / "campaign").glob(path))
        file.write_bytes(file.read_bytes().replace(old, new, 1))

    return change


def one_key_twice(opened: Path) -> None:
    path = opened / "campaign/trial-01/events.jsonl"
    *lines, last = path.read_bytes().splitlines()
    doubled = last.replace(b'"value":', b'"value":null,"value":', 1)
    path.write_bytes(b"".join(line + b"\n" for line in (*lines, doubled)))
    (path.parent / "DONE").write_text(line_hash(doubled) + "\n")


def taken_out(opened: Path) -> None:
    shutil.rmtree(opened / "campaign/trial-02")


def forgotten(opened: Path) -> None:
    """The failed attempt, in the journal as well."""

    def drop(events: Events) -> None:
        events[:] = [one for one in events if (one["value"].get("trial"), one["value"].get("attempt")) != (2, 1)]

    taken_out(opened)
    edit_journal(opened / "campaign", drop)


def copied(target: str) -> Change:
    def change(opened: Path) -> None:
        shutil.rmtree(opened / "campaign" / target, ignore_errors=True)
        shutil.copytree(opened / "campaign/trial-01", opened / "campaign" / target)

    return change


def told_as_done(events: Events) -> None:
    next(value for value in values(events, "attempt_stop") if value["status"] == "failed")["status"] = "done"


def seeded(*seeds: int) -> Change:
    def change(events: Events) -> None:
        for trial, seed in zip(events[0]["value"]["trials"], seeds, strict=True):
            trial["seed"] = seed

    return journal(change)


def set_in_recipe(setting: str) -> Change:
    return lambda opened: rewrite_recipe(opened / "campaign" / LAST, setting)


def at_once(opened: Path) -> None:
    """The last trial ran while the first one did."""
    logs = [(opened / "campaign" / name / "events.jsonl").read_bytes() for name in ("trial-01", LAST)]
    first, last = (json.loads(log.partition(b"\n")[0])["time_ms"] for log in logs)
    shifted((first - last) / 1000 + 10)(opened)


def pasted(key: str, field: str, scale: Callable[[Any], Any] = lambda value: value, target: str = LAST) -> Change:
    """What the first trial tells of its epochs, in another one."""
    told: list[Any] = []

    def give(events: Events) -> None:
        for value, one in zip(values(events, key), told, strict=True):
            value[field] = scale(one)

    def change(opened: Path) -> None:
        record(lambda events: told.extend(value[field] for value in values(events, key)), "trial-01")(opened)
        record(give, target)(opened)

    return change


def in_result(change: Callable[[dict[str, Any]], object]) -> Change:
    def rewrite(opened: Path) -> None:
        path = opened / "campaign" / LAST / "result.json"
        document = json.loads(path.read_text())
        change(document)
        path.write_text(json.dumps(document))

    return rewrite


def unevaluated(events: Events) -> None:
    events[:] = [event for event in events if event["key"] != "eval_accuracy"]


def less_energy(events: Events) -> None:
    for node in values(events, "power")[-1]["nodes"]:
        node["energy_joules"] *= 0.9


def beside(source: str, factor: float, *, is_told: bool = True) -> Change:
    """The last trial had a second source on each node, with `factor` times the power of the first."""

    def add(opened: Path) -> None:
        path = opened / "campaign" / LAST

        def edit(events: Events) -> None:
            value, entries = values(events, "power")[-1], []
            for node in value["nodes"]:
                node["parts"] = "accelerators"
                first = read_samples(path / node["file"])
                rows = [row._replace(watts=factor * (row.watts or 0.0)) for row in first.rows]
                file = path / file_name(node["host"], source)
                file.write_bytes(format_samples((), rows))
                entry = node | {"source": source, "scope": SOURCES[source].scope, "parts": SOURCES[source].parts}
                entry |= {"file": str(file.relative_to(path)), "sha256": hashlib.sha256(file.read_bytes()).hexdigest()}
                energy = energy_of(read_samples(file), entry, window_of(events))
                entries.append(entry | integral_entry(energy))
            value["beside"] = entries
            value["comparisons"] = compare_sources(value["nodes"], entries) if is_told else []

        edit_record(path, edit)

    return add


def no_result(opened: Path) -> None:
    (opened / "campaign" / LAST / "result.json").unlink()


def told(**manifest: Any) -> dict[str, Any]:
    """Another manifest, of the same campaign."""
    return {"change": lambda opened: None, **manifest}


REFUSED: dict[str, tuple[Change | dict[str, Any], str, str]] = {
    "a line that was edited": (
        replaced("trial-01/events.jsonl", b'"epoch":2', b'"epoch":3'), "hash-chain", "the chain is broken here"),
    "a line with one key twice": (one_key_twice, "hash-chain", "not written by hpcai500"),
    "a record that is taken out": (taken_out, "attempts", "trial-02: is in the journal, but missing in the submission"),
    "an attempt that is forgotten": (
        forgotten, "attempts", "trial 2 has the attempts [2]; expected 1, 2, 3 …: one was removed"),
    "a record that the journal does not know": (copied("trial-09"), "attempts", "trial-09"),
    "a failed run told as done": (
        journal(told_as_done), "journal-binding", "done by the journal, error by its record"),
    "a seed twice": (seeded(1, 1, 3), "seeds", "the seed 1 2 times"),
    "seeds that were picked": (seeded(1, 5, 9), "seeds", "they were chosen"),
    "seeds that begin elsewhere": (seeded(2, 3, 4), "seeds", "they were chosen"),
    "another recipe": (set_in_recipe("hyperparameters.momentum=0.9"), "recipes", "hyperparameters.momentum is 0.9"),
    "a run before its journal lines": (shifted(-7200.0), "dates", "before its start in the journal"),
    "a run after its journal lines": (shifted(7200.0), "dates", "after its end in the journal"),
    "a run in the future": (shifted(50 * 365 * 86400.0), "dates", "trial-03: ends in the future"),
    "packed before the runs": (
        told(created="2024-01-01T00:00:00Z"), "dates", "packed at 2024-01-01T00:00:00Z; the last event is from"),
    "packed at no time": (told(created="soon"), "dates", "expected a time in UTC"),
    "two trials at once on one node": (at_once, "overlap", "node-1: trial-01 ran until"),
    "one start of a machine at two times": (
        shifted(3600.0, clock=False), "clocks", "the times of one record were changed"),
    "losses of another trial": (
        pasted("epoch_stop", "loss"), "copied-runs", "trial-03 and trial-01: 3 of 3 losses of epochs are the same"),
    "times of another trial": (
        pasted("epoch_stop", "seconds"), "copied-runs", "trial-03 and trial-01: 3 of 3 times of epochs are the same"),
    "weights of another trial": (
        pasted("replicas", "digest"), "copied-runs", "trial-03 and trial-01: 3 of 3 weights of epochs are the same"),
    "more trials": (told(trials=12), "manifest", "trials: the manifest says 12, the campaign 3"),
    "another benchmark": (told(benchmark="ewa"), "manifest", "benchmark: the manifest says ewa"),
    "another edition": (told(edition="v3.0"), "manifest", "edition: the manifest says v3.0"),
    "other accelerators": (
        told(accelerators="8 x NVIDIA H100 80GB HBM3"), "manifest", "accelerators, in trial-01: the manifest says 8 x"),
    "another framework": (
        told(framework="PyTorch 9"), "manifest", "framework, in trial-01: the manifest says PyTorch 9"),
    "another campaign": (told(campaign="0" * 64), "manifest", "campaign: the manifest says 000"),
    "claimed to be rankable": (
        told(claim={"rankable": True, "reasons": []}), "claim",
        "the claim says rankable; the records give: 3 finished runs"),
    "a result that is better": (
        in_result(lambda result: result.update(vflops=1.01 * result["vflops"])), "result",
        "result.json says vflops is"),
    "False for 0": (
        in_result(lambda result: result.update(restarts=False)), "result",
        "result.json says restarts is False; its events give 0"),
    "a result that is missing": (no_result, "result", "trial-03: result.json is missing"),
    "a result that cannot be computed": (
        record(unevaluated), "result", "trial-03: no result can be computed from its events: epoch 1"),
    "less energy than the samples give": (record(less_energy), "power-samples", "give energy_joules"),
    "two sources that differ, told as one": (
        beside("dcgm", 1.12, is_told=False), "power-samples", "do not give the comparison in the event power"),
    "samples that were changed": (
        replaced("trial-03/power/*", b"70", b"60"), "record-files", "the power samples were changed"),
}  # fmt: skip


@pytest.mark.parametrize(("forged", "name", "words"), REFUSED.values(), ids=REFUSED)
def test_what_is_not_as_the_campaign_was_is_refused(
    base: Submission, tmp_path: Path, forged: Change | dict[str, Any], name: str, words: str
) -> None:
    arguments = forged if isinstance(forged, dict) else {"change": forged}
    assert words in evidence_under(all_findings(changed_submission(base, tmp_path, **arguments)), name)


@pytest.mark.parametrize(
    ("source", "factor", "finding"),
    [
        ("dcgm", 1.12, "12.0% more than nvml"),
        ("dcgm", 1.08, ""),
        ("redfish", 1.5, ""),
        ("redfish", 0.9, "for a part of what redfish measures"),
    ],
)
def test_sources_that_contradict_each_other_are_a_warning(
    base: Submission, tmp_path: Path, source: str, factor: float, finding: str
) -> None:
    found = all_findings(changed_submission(base, tmp_path, change=beside(source, factor)))
    warnings = evidence_under(found, "power-samples", "warning")
    assert (finding in warnings) if finding else not warnings
    assert not [one for one in found if one.name == "power-samples" and one.severity == "fail"]


def test_an_honest_campaign_has_nothing_against_it(base: Submission, tmp_path: Path) -> None:
    found = all_findings(changed_submission(base, tmp_path))
    assert not failed_checks(found)
    noted = {finding.name for finding in found if finding.severity == "note"}
    assert noted >= {"hash-chain", "attempts", "journal-binding", "seeds", "recipes", "dates", "overlap", "clocks"}
    assert "3 records give their energies" in evidence_under(found, "power-samples", "note")
    assert "no level, as claimed" in evidence_under(found, "level", "note")
    assert "not rankable under v2.0: 3 finished runs" in evidence_under(found, "standing", "note")
    assert base.manifest.campaign in evidence_under(found, "registered", "skipped")


def test_a_record_in_the_place_of_another_is_seen_in_many_ways(base: Submission, tmp_path: Path) -> None:
    found = all_findings(changed_submission(base, tmp_path, copied(LAST)))
    assert failed_checks(found) >= {"journal-binding", "seeds", "copied-runs", "overlap"}


def test_a_record_with_another_seed_than_planned_is_of_the_same_recipe(base: Submission, tmp_path: Path) -> None:
    found = all_findings(changed_submission(base, tmp_path, set_in_recipe("hyperparameters.seed=8")))
    assert "trial-03: ran with the seed 8; the plan has 3" in evidence_under(found, "seeds")
    assert "recipes" not in failed_checks(found)


def test_an_attempt_that_was_killed_before_its_first_event_is_not_missed(base: Submission, tmp_path: Path) -> None:
    """Its folder was empty, so that no bundle has it; the journal says that it had no event."""
    why = "it ended before its first event"

    def kill_early(opened: Path) -> None:
        taken_out(opened)
        journal(lambda events: values(events, "attempt_stop")[1].update(head=NO_EVENTS, reason=why))(opened)

    found = all_findings(changed_submission(base, tmp_path, kill_early))
    assert not failed_checks(found)
    assert f"trial-02: failed before it had a record: {why}" in evidence_under(found, "attempts", "warning")


def test_the_registered_identity_is_compared(base: Submission, tmp_path: Path) -> None:
    def found(registered: str, **manifest: Any) -> list[Finding]:
        folder = tmp_path / f"{registered[:4]}-{len(manifest)}"
        return all_findings(changed_submission(base, folder, question=Question(registered=registered), **manifest))

    assert not failed_checks(found(base.manifest.campaign))
    assert "was registered, and this campaign is" in evidence_under(found("0" * 64), "registered")
    # An anonymised bundle is compared by what it was before.
    before = Anonymised(original_campaign="a" * 64, hosts=2, original_heads={})
    assert "a" * 64 in evidence_under(found("a" * 64, anonymised=before), "registered", "warning")
    assert "a" * 64 in evidence_under(found(base.manifest.campaign, anonymised=before), "registered")


def test_times_that_were_scaled_are_seen(tmp_path: Path) -> None:
    base = honest_submission(tmp_path / "base", "problem.epochs=8", trials=2)
    assert not failed_checks(all_findings(changed_submission(base, tmp_path / "a")))
    scaled = pasted("epoch_stop", "seconds", lambda seconds: round(1.01 * seconds + 0.2, 6), "trial-02")
    found = all_findings(changed_submission(base, tmp_path / "b", scaled))
    assert "the same except for a scale" in evidence_under(found, "copied-runs")


def test_a_claim_is_compared_number_by_number_and_reason_by_reason(base: Submission, tmp_path: Path) -> None:
    honestly = base.manifest.claim

    def claimed(name: str, **claim: Any) -> str:
        return evidence_under(all_findings(changed_submission(base, tmp_path / name, claim=claim)), "claim")

    def scaled(factor: float) -> dict[str, Metric]:
        mean = honestly.metrics["vflops"].mean * factor
        return {**honestly.metrics, "vflops": honestly.metrics["vflops"].model_copy(update={"mean": mean})}

    assert "vflops.mean: the claim says" not in claimed("rounded", metrics=scaled(1 + 1e-10))
    assert "vflops.mean: the claim says" in claimed("a billionth too high", metrics=scaled(1 + 1e-8))
    fast = Metric(runs=3, mean=1.0, dropped_lowest=None, dropped_highest=None, variation=None)
    more = claimed("more", metrics={**honestly.metrics, "fastness": fast})
    assert "fastness: missing in the records" in more
    fewer = {name: one for name, one in honestly.metrics.items() if name != "vflops"}
    assert "vflops: missing in the claim" in claimed("fewer", metrics=fewer)
    assert "only in the records: ['3 finished runs" in claimed("reasons", reasons=honestly.reasons[1:])


def test_a_level_that_is_too_strict_is_seen_and_a_looser_one_noted(system_level: Submission, tmp_path: Path) -> None:
    true = all_findings(changed_submission(system_level, tmp_path / "a"))
    assert evidence_under(true, "level", "note").startswith("system, as claimed")
    strict = all_findings(changed_submission(system_level, tmp_path / "b", claim={"level": "hardware"}))
    assert "claims hardware, but needs system: framework.compile is True" in evidence_under(strict, "level")
    loose = changed_submission(system_level, tmp_path / "c", claim={"level": "free"})
    found = all_findings(loose)
    assert not failed_checks(found)
    assert "claims free; system would be enough" in evidence_under(found, "level", "note")
    assert level_of(loose) == "free"


def test_another_edition_may_be_asked_for(base: Submission, tmp_path: Path) -> None:
    context = changed_submission(base, tmp_path, question=Question(edition="v3.0"))
    found = all_findings(context)
    assert not failed_checks(found)
    assert context.asked.results["trial-01"].edition == "v3.0"
    assert context.claimed.results["trial-01"].edition == "v2.0"
    assert "those of v3.0, as requested" in evidence_under(found, "edition", "note")


@pytest.mark.parametrize("key", ["run_start", "dataset", "system", "epoch_stop", "power", "checkpoint", "ceilings"])
@pytest.mark.parametrize("value", [None, [7]])
def test_events_of_any_type_refuse_and_never_raise(base: Submission, tmp_path: Path, key: str, value: Any) -> None:
    def spoil(events: Events) -> None:
        for event in events:
            event["value"] = value if event["key"] == key else event["value"]

    assert failed_checks(all_findings(changed_submission(base, tmp_path, record(spoil))))


# Slurm's accounting against the runs that say that they ran in its jobs.


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Submission:
    """One trial of three epochs."""
    return honest_submission(tmp_path_factory.mktemp("alone"), trials=1)


def accounted(change: Callable[[Job], object] = lambda job: None) -> Change:
    """The accounting of the job in which trial 1 ran, as honest Slurm would have it, changed."""

    def text(seconds: int) -> str:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    def write(opened: Path) -> None:
        lines = (opened / "campaign/trial-01/events.jsonl").read_text().splitlines()
        start, end = (json.loads(line)["time_ms"] // 1000 + shift for line, shift in ((lines[0], -20), (lines[-1], 5)))
        job: Job = {
            "job_id": "1001", "submit": text(start - 60), "start": text(start), "end": text(end),
            "elapsed_seconds": end - start, "nodes": 2, "node_list": "node-[1-2]", "state": "COMPLETED",
            "exit_code": "0:0", "steps": [], "earlier": [],
        }  # fmt: skip
        change(job)
        (opened / "accounting").mkdir()
        (opened / "accounting/1001.json").write_text(json.dumps(job))

    return write


def back_from_the_queue(job: Job) -> None:
    job["earlier"] = [dict(job)]
    job.update(start="2030-01-01T00:00:00Z", end="2030-01-01T00:01:00Z", elapsed_seconds=60)


def seen_by_the_run(number: str) -> Change:
    def see(events: Events) -> None:
        values(events, "system")[0]["nodes"][0]["environment"] = {"SLURM_JOB_ID": number}

    def change(opened: Path) -> None:
        accounted()(opened)
        record(see, "trial-01")(opened)

    return change


def job(**told: Any) -> Change:
    return accounted(lambda job: job.update(told))


@pytest.mark.parametrize(
    ("change", "severities", "words"),
    [
        (accounted(), ["note"], "times and nodes of 1 runs are within"),
        (accounted(back_from_the_queue), ["note"], "times and nodes of 1 runs are within"),
        (seen_by_the_run("1001"), ["note"], "times and nodes of 1 runs are within"),
        (seen_by_the_run("2002"), ["fail"], "2002"),
        (lambda opened: None, ["warning"], "Slurm jobs 1001"),
        (job(job_id="7"), ["fail"], "1001.json is of the job 7"),
        (
            job(start="2024-01-01T00:00:00Z", end="2024-01-01T01:00:00Z"),
            ["warning", "fail"],
            "outside of its Slurm jobs",
        ),
        (job(elapsed_seconds=10), ["warning", "fail"], "its Slurm jobs took 10 s in total"),
        (job(elapsed_seconds=10**6), ["fail"], "1000000 s elapsed between"),
        (job(nodes=1), ["fail"], "ran on 2 nodes; its Slurm job had 1"),
        (job(node_list="node-[2-3]"), ["fail"], "ran on node-1, which its Slurm job did not have"),
        (job(node_list=None), ["warning", "note"], "no usable list of nodes"),
        (job(state="FAILED"), ["warning", "note"], "ended as FAILED"),
        (job(state="CANCELLED by 1000"), ["warning", "note"], "ended as CANCELLED"),
        (job(start=None), ["warning", "note"], "lacks the start of a job"),
        (
            accounted(lambda job: job.update(elapsed_seconds=job["elapsed_seconds"] - 65)),
            ["warning", "note"],
            "were suspended",
        ),
    ],
)
def test_a_job_must_hold_its_run(
    alone: Submission, tmp_path: Path, change: Change, severities: list[str], words: str
) -> None:
    found = list(check_accounting(changed_submission(alone, tmp_path, change)))
    assert [one.severity for one in found] == severities
    worst = min(severities, key=("fail", "warning", "note").index)
    assert words in evidence_under(found, "accounting", worst)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n1", ["n1"]),
        ("n[01-03,7],login", ["n01", "n02", "n03", "n7", "login"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
        ("n[1-1000000][1-1000000]", None),
        ("n[1-999999999]", None),
        ("n[3-1]", None),
        ("n[1", None),
        ("n1;rm", None),
        ("", None),
        (",", None),
    ],
)
def test_lists_of_hosts_are_expanded_where_that_takes_little(text: str, names: list[str] | None) -> None:
    assert names_of_list(text) == names


def test_a_host_is_its_first_label() -> None:
    assert short_names(["n1.cluster", "n2"]) == {"n1", "n2"}
