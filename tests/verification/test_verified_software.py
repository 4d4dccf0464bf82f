"""The code that ran, its core and image, the system, its ceilings, the checkpoints."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from builders.campaigns import edit_journal, edit_record, values
from builders.submissions import all_findings, changed_submission, evidence_under, failed_checks, honest_submission

import hpcai500
from hpcai500.results.submission.archive import Submission
from hpcai500.results.submission.manifest import LeftOut
from hpcai500.results.verification.campaign import level_of, not_compared
from hpcai500.results.verification.context import LAYERS, TRUSTED, Context, layer_of
from hpcai500.results.verification.finding import Finding
from hpcai500.results.verification.verify import RECORD_CHECKS
from hpcai500.system.software import code_hash

PACKAGE = Path(hpcai500.__file__).parent
TRIALS = ("trial-01", "trial-02", "trial-03")
Events = list[dict[str, Any]]
Change = Callable[[Events], object]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Submission:
    """Three trials of three epochs."""
    return honest_submission(tmp_path_factory.mktemp("honest"))


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Submission:
    """One trial of ninety epochs, so that there is a level."""
    return honest_submission(tmp_path_factory.mktemp("reference"), short=False, trials=1)


def in_trials(*names: str, change: Change) -> Callable[[Path], None]:
    """Changes records, with all hashes."""

    def apply(opened: Path) -> None:
        for name in names:
            edit_record(opened / "campaign" / name, change)

    return apply


def system(change: Callable[[dict[str, Any]], object]) -> Change:
    """Changes what a record tells of its system."""
    return lambda events: [change(value) for value in values(events, "system")]


def node(change: Callable[[dict[str, Any]], object], number: int = 0) -> Change:
    """The same, of one node."""
    return system(lambda told: change(told["nodes"][number]))


def first(key: str, **told: Any) -> Change:
    """Other values in the first event of this name."""
    return lambda events: values(events, key)[0].update(told)


def code_changed(opened: Path, file: str, content: str = "changed = True\n") -> str:
    """Sources that are another's, which all records and the plan tell to have run; returns their hash."""
    path = opened / "code/hpcai500" / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    digest = code_hash(opened / "code/hpcai500")

    def plan(events: Events) -> None:
        events[0]["value"]["code_sha256"] = digest

    edit_journal(opened / "campaign", plan)
    names = [path.name for path in (opened / "campaign").glob("trial-*")]
    ran = system(lambda told: told["installation"]["package"].update(code_sha256=digest))
    in_trials(*names, change=ran)(opened)
    return digest


def with_code(base: Submission, folder: Path, file: str, **claim: Any) -> Any:
    digests: list[str] = []
    context = changed_submission(base, folder, lambda opened: digests.append(code_changed(opened, file)), claim=claim)
    code = context.submission.manifest.code.model_copy(update={"code_sha256": digests[0]})
    manifest = context.submission.manifest.model_copy(update={"code": code})
    object.__setattr__(context.submission, "manifest", manifest)
    return context


@pytest.mark.parametrize(
    ("file", "layer", "level"),
    [
        ("optim/optimizers.py", 8, "free"),
        ("workloads/ic.py", 7, "free"),
        ("engine/updates.py", 6, "free"),
        ("data/samplers.py", 4, "hardware"),
        ("comm/reducer.py", 3, "hardware"),
        ("launch/layout.py", 2, "hardware"),
        ("comm/of_my_own.py", 3, "hardware"),
    ],
)
def test_a_changed_file_forces_a_level(
    reference: Submission, tmp_path: Path, file: str, layer: int, level: str
) -> None:
    context = with_code(reference, tmp_path, file)
    found = all_findings(context)
    assert f"hpcai500/{file} is" in evidence_under(found, "code-changed", "warning")
    assert f"layer {layer}" in evidence_under(found, "code-changed", "warning")
    assert level_of(context) == level
    assert failed_checks(found) == ({"level"} if level == "free" else set())
    assert not failed_checks(all_findings(with_code(reference, tmp_path / "claimed", file, level=level)))


def test_a_run_that_began_with_other_code_has_no_level(reference: Submission, tmp_path: Path) -> None:
    """Only the code that its last process ran is there to be compared."""

    def begin(events: Events) -> None:
        place = next(number for number, event in enumerate(events) if event["key"] == "system")
        events.insert(place, copy.deepcopy(events[place]))
        events[place]["value"]["installation"]["package"]["code_sha256"] = "ab" * 32

    assert level_of(changed_submission(reference, tmp_path / "one")) == "hardware"
    context = changed_submission(reference, tmp_path / "two", in_trials("trial-01", change=begin))
    assert level_of(context) is None
    assert not_compared(context) == ("trial-01: resumed with other code, and the submission has only one of the two")


@pytest.mark.parametrize(
    "file", ["measure/flops.py", "engine/reporting.py", "methodology/trials.py", "record.py", "workloads/quality.py"]
)
def test_changed_measuring_code_is_refused_at_any_level(reference: Submission, tmp_path: Path, file: str) -> None:
    found = all_findings(with_code(reference, tmp_path, file, level="free"))
    assert f"hpcai500/{file} is changed: it measures" in evidence_under(found, "measuring-code-changed")


def test_the_table_of_layers_names_what_is_there_and_all_else_is_trusted_to_measure() -> None:
    assert [name for name in (*LAYERS, *TRUSTED) if not (PACKAGE / name).exists()] == []
    found = [layer_of(name) for name in ("a_file_of_tomorrow.py", "comm/timeline.py", "engine/precision.py")]
    assert found == [None, None, 4]


def images(told: dict[str, Any]) -> None:
    told["installation"].update(image={"content_sha256": "d" * 64})


def image_of_one_node(told: dict[str, Any]) -> None:
    images(told)
    told["nodes"][1]["container"] = {"content_sha256": "e" * 64}


def other_core(told: dict[str, Any]) -> None:
    told["installation"]["package"].update(core_sha256="c" * 64)


def plugin(told: dict[str, Any]) -> None:
    about = {"name": "spirals", "package": "hpcai500-spirals", "version": "1.0", "code_sha256": "7" * 64}
    told["installation"].update(plugins=[about])


def other_sources(opened: Path) -> None:
    (opened / "code/hpcai500/comm/reducer.py").write_text("changed = True\n")


def other_plan(opened: Path) -> None:
    edit_journal(opened / "campaign", lambda events: events[0]["value"].update(code_sha256="1" * 64))


def no_ceilings(events: Events) -> None:
    events[:] = [event for event in events if event["key"] != "ceilings"]


def last_checkpoint(**told: Any) -> Change:
    return lambda events: values(events, "checkpoint")[-1].update(told)


one, last = partial(in_trials, "trial-01"), partial(in_trials, "trial-03")
FOUND: dict[str, tuple[Callable[[Path], None], str, str, str]] = {
    "sources that did not run": (other_sources, "fail", "code", "trial-01: ran the code"),
    "a plan with other code": (other_plan, "warning", "code", "planned with the code 1111"),
    "two cores": (one(change=system(other_core)), "fail", "core", "the trials ran with 2 compiled cores"),
    "two images": (one(change=system(images)), "fail", "image", "the trials ran in 2 images"),
    "a node in another image": (
        in_trials(*TRIALS, change=system(image_of_one_node)), "fail", "image", "trial-01: node-2 ran in the image eee"),
    "other accelerators": (
        last(change=node(lambda told: told["accelerators"][0].update(name="NVIDIA B200"))), "fail", "same-system",
        "trial-03 ran on another system than trial-01: accelerators"),
    "other processors": (
        last(change=node(lambda told: told["cpu"].update({"Model name": "Xeon"}))), "fail", "same-system",
        "trial-03 ran on another system than trial-01: processors"),
    "other software": (
        last(change=node(lambda told: told["software"].update(torch="9.0"))), "fail", "same-system",
        "trial-03 ran on another system than trial-01: software versions"),
    "another plug-in": (
        last(change=system(plugin)), "fail", "same-system",
        "trial-01: plug-in: hpcai500-spirals, 1.0, 777777777777…, then none"),
    "another kernel, which is for people": (
        last(change=node(lambda told: told.update(kernel="6.0"))), "warning", "same-system",
        "kernel: 5.14.0-503.el9.x86_64 on trial-01, trial-02; 6.0 on trial-03"),
    "other data": (last(change=first("dataset", fingerprint="f" * 64)), "fail", "same-data", "trial-03: dataset is"),
    "another model": (last(change=first("model", parameters=1e10)), "fail", "same-data", "trial-03: model is"),
    "other operations": (last(change=first("flops", per_sample=1e10)), "fail", "same-data", "trial-03: flops is"),
    "no ceilings": (
        last(change=no_ceilings), "warning", "ceilings-agree", "trial-03: no ceilings were measured"),
    "ceilings of another precision": (
        last(change=first("ceilings", precision="fp32")), "fail", "ceilings-agree", "measured in 2 ways"),
    "another checkpoint": (
        one(change=last_checkpoint(sha256="0" * 64)), "fail", "checkpoints",
        "campaign/trial-01/checkpoints/epoch-0004-step-0000000.pt: has the hash"),
    "a last checkpoint that is not of the end": (
        one(change=last_checkpoint(epoch=3)), "fail", "checkpoints",
        "trial-01: its last checkpoint is not from the end of its last epoch"),
    "what was left out": (
        lambda opened: None, "skipped", "left-out", "only the last checkpoint of a finished run is needed"),
}  # fmt: skip


@pytest.mark.parametrize(("change", "severity", "name", "words"), FOUND.values(), ids=FOUND)
def test_what_does_not_fit_is_found(
    base: Submission, tmp_path: Path, change: Callable[[Path], None], severity: str, name: str, words: str
) -> None:
    found = all_findings(changed_submission(base, tmp_path, change))
    assert words in evidence_under(found, name, severity)
    assert severity == "fail" or not failed_checks(found)


def test_another_version_is_told_with_the_line_to_follow(base: Submission, tmp_path: Path) -> None:
    other = base.manifest.code.model_copy(update={"version": "9.9.9"})
    found = all_findings(changed_submission(base, tmp_path, code=other))
    assert "install hpcai500 9.9.9 and verify with it" in evidence_under(found, "code", "warning")
    assert "was started by version" in evidence_under(found, "code")


# Trial 1 reaches its target in its first epoch.
REACHED_EARLY = first("eval_accuracy", value=0.764)


def test_the_checkpoint_at_the_target_is_wanted_and_no_other(base: Submission, tmp_path: Path) -> None:
    told = evidence_under(all_findings(changed_submission(base, tmp_path, one(change=REACHED_EARLY))), "checkpoints")
    assert told == "trial-01: epoch-0002-step-0000000.pt is missing, and not in the manifest's left_out"


def test_of_another_version_a_checkpoint_at_the_target_is_not_wanted(base: Submission, tmp_path: Path) -> None:
    """It may not have kept it."""

    def change(events: Events) -> None:
        REACHED_EARLY(events)
        values(events, "system")[0]["installation"]["package"]["version"] = "0.0.9"
        values(events, "init_start")[0]["version"] = "0.0.9"

    assert not evidence_under(all_findings(changed_submission(base, tmp_path, one(change=change))), "checkpoints")


@pytest.mark.parametrize(("factor", "severity"), [(1.1, None), (1.5, "warning"), (3.0, "fail"), (0.3, "fail")])
def test_ceilings_that_differ_are_seen(base: Submission, tmp_path: Path, factor: float, severity: str | None) -> None:
    def change(events: Events) -> None:
        values(events, "ceilings")[0]["flops"] *= factor

    found = all_findings(changed_submission(base, tmp_path, last(change=change)))
    seen = [one for one in ("warning", "fail") if "trial-03: " in evidence_under(found, "ceilings-agree", one)]
    assert seen == ([severity] if severity else [])


def with_submission(context: Context, **changes: Any) -> list[Finding]:
    """What is found once the opened submission has this instead."""
    for name, value in changes.items():
        object.__setattr__(context.submission, name, value)
    return all_findings(context)


def test_a_checkpoint_may_be_left_out_if_that_is_said(base: Submission, tmp_path: Path) -> None:
    path = "campaign/trial-01/checkpoints/epoch-0004-step-0000000.pt"
    context = changed_submission(base, tmp_path)
    entries = {name: entry for name, entry in context.submission.entries.items() if name != path}
    unsaid = with_submission(context, entries=entries)
    assert "is missing, and not in the manifest's left_out" in evidence_under(unsaid, "checkpoints")
    left = [*base.manifest.left_out, LeftOut(path=path, reason="--no-checkpoints")]
    said = with_submission(context, manifest=context.submission.manifest.model_copy(update={"left_out": left}))
    assert not failed_checks(said)
    assert "those of 1 trials were left out" in evidence_under(said, "checkpoints", "skipped")


def of_a_run(base: Submission, folder: Path, change: Callable[[dict[str, Any]], object]) -> list[Finding]:
    """What the checks of each run find in one whose nodes are told otherwise."""
    everywhere = system(lambda told: [change(one) for one in told["nodes"]])
    context = changed_submission(base, folder, in_trials("trial-02", change=everywhere))
    record, result = context.done["trial-02"], context.asked.results["trial-02"]
    return [one for check in RECORD_CHECKS for one in check(record, result, context.asked.rules)]


@pytest.mark.parametrize(
    ("variable", "value", "effect"),
    [
        ("LD_PRELOAD", "/opt/faster.so", "loads code"),
        ("LD_AUDIT", "/opt/faster.so", "loads code"),
        ("PYTHONPATH", "/opt/mine", "gives Python other code"),
        ("NVIDIA_TF32_OVERRIDE", "1", "changes arithmetic"),
        ("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "1", "changes arithmetic"),
        ("ONEDNN_DEFAULT_FPMATH_MODE", "BF16", "changes arithmetic"),
        ("FAKETIME", "-0 x0.5", "changes clocks"),
        ("TORCH_COMPILE_DISABLE", "1", "changes what the recipe says"),
        ("HDF5_PLUGIN_PATH", "/opt/plugins", "loads code"),
    ],
)
def test_a_variable_that_changes_arithmetic_clocks_or_code_is_told(
    base: Submission, tmp_path: Path, variable: str, value: str, effect: str
) -> None:
    found = of_a_run(base, tmp_path, lambda node: node["environment"].update({variable: value, "OMP_NUM_THREADS": "8"}))
    said = evidence_under(found, "environment", "warning")
    assert said.startswith(f"{variable}={value}, which {effect}, on ")
    assert "OMP_NUM_THREADS" not in said
    assert "environment" not in failed_checks(found)


@pytest.mark.parametrize(
    ("preloaded", "words"),
    [
        (["/opt/faster.so"], "/opt/faster.so, loaded before Python's own libraries"),
        (None, "unknown preloaded libraries"),
    ],
)
def test_a_preloaded_library_is_told_and_so_is_that_nobody_knows(
    base: Submission, tmp_path: Path, preloaded: list[str] | None, words: str
) -> None:
    found = of_a_run(base, tmp_path, lambda node: node.update(preloaded=preloaded))
    assert words in evidence_under(found, "environment", "warning")


def test_variables_that_tune_or_choose_libraries_are_a_note(base: Submission, tmp_path: Path) -> None:
    tuned = {"OMP_NUM_THREADS": "8", "NCCL_ALGO": "Ring", "HPCAI500_NOT_HEEDED": "PYTHONPATH", "SLURM_JOB_ID": "7"}
    found = of_a_run(base, tmp_path / "tuned", lambda node: node["environment"].update(tuned))
    said = evidence_under(found, "environment", "note")
    assert said.endswith("; tuning variables: NCCL_ALGO, OMP_NUM_THREADS; set, but ignored by the run: PYTHONPATH")
    assert "LD_LIBRARY_PATH" not in said
    chosen = of_a_run(base, tmp_path / "chosen", lambda node: node["environment"].update(LD_LIBRARY_PATH="/x"))
    assert "; LD_LIBRARY_PATH is set" in evidence_under(chosen, "environment", "note")
    assert not evidence_under([*found, *chosen], "environment", "warning")


@pytest.mark.parametrize("key", ["environment", "preloaded"])
def test_a_node_whose_environment_was_taken_out_is_refused(base: Submission, tmp_path: Path, key: str) -> None:
    found = of_a_run(base, tmp_path, lambda node: node.pop(key))
    assert "no variables and preloaded libraries in the record" in evidence_under(found, "environment", "skipped")
    assert f"node-1 lacks {key}" in evidence_under(found, "evidence")
