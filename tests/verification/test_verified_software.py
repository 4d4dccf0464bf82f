"""The code that ran, its core and image, the system, its ceilings, the checkpoints."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from opened import all_findings, changed, evidence, failed, honest
from written_campaign import edit_journal, edit_record, values

import hpcai500
from hpcai500.results.submission.archive import Submission
from hpcai500.results.submission.manifest import LeftOut
from hpcai500.results.verification.campaign import level_of, not_compared
from hpcai500.results.verification.context import LAYERS, TRUSTED, layer_of
from hpcai500.results.verification.finding import Finding
from hpcai500.results.verification.verify import RECORD_CHECKS
from hpcai500.system.software import code_hash

PACKAGE = Path(hpcai500.__file__).parent
TRIALS = ("trial-01", "trial-02", "trial-03")

Events = list[dict[str, Any]]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Submission:
    """Three trials of three epochs."""
    return honest(tmp_path_factory.mktemp("honest"))


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Submission:
    """One trial of ninety epochs, so that there is a level."""
    return honest(tmp_path_factory.mktemp("reference"), short=False, trials=1)


def _each(names: Iterable[str], change: Callable[[Events], object]) -> Callable[[Path], None]:
    def apply(opened: Path) -> None:
        for name in names:
            edit_record(opened / "campaign" / name, change)

    return apply


def _system(change: Callable[[dict[str, Any]], object]) -> Callable[[Events], None]:
    def apply(events: Events) -> None:
        for value in values(events, "system"):
            change(value)

    return apply


def _code_changed(opened: Path, file: str, content: str = "changed = True\n") -> str:
    """Sources that are another's, which all records and the plan tell to have run; returns their hash."""
    path = opened / "code/hpcai500" / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    digest = code_hash(opened / "code/hpcai500")

    def plan(events: Events) -> None:
        events[0]["value"]["code_sha256"] = digest

    edit_journal(opened / "campaign", plan)
    names = [path.name for path in (opened / "campaign").glob("trial-*")]
    _each(names, _system(lambda system: system["installation"]["package"].update(code_sha256=digest)))(opened)
    return digest


def _with_code(base: Submission, folder: Path, file: str, **claim: Any) -> Any:
    digests: list[str] = []
    context = changed(base, folder, lambda opened: digests.append(_code_changed(opened, file)), claim=claim)
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
def test_a_changed_file_forces_the_level_of_its_layer(
    reference: Submission, tmp_path: Path, file: str, layer: int, level: str
) -> None:
    context = _with_code(reference, tmp_path, file)
    found = all_findings(context)
    assert f"hpcai500/{file} is" in evidence(found, "code-changed", "warning")
    assert f"layer {layer}" in evidence(found, "code-changed", "warning")
    assert level_of(context) == level
    assert failed(found) == ({"level"} if level == "free" else set())
    honestly_claimed = _with_code(reference, tmp_path / "claimed", file, level=level)
    assert not failed(all_findings(honestly_claimed))


def test_a_run_that_began_with_other_code_has_no_level(reference: Submission, tmp_path: Path) -> None:
    """Only the code that its last process ran is there to be compared."""

    def begin(events: Events) -> None:
        place = next(number for number, event in enumerate(events) if event["key"] == "system")
        events.insert(place, copy.deepcopy(events[place]))
        events[place]["value"]["installation"]["package"]["code_sha256"] = "ab" * 32

    assert level_of(changed(reference, tmp_path / "one")) == "hardware"
    context = changed(reference, tmp_path / "two", _each(["trial-01"], begin))
    assert level_of(context) is None
    assert not_compared(context) == (
        "trial-01: went on with other code than it had begun with, and only one of them is here"
    )


@pytest.mark.parametrize(
    "file", ["measure/flops.py", "engine/reporting.py", "methodology/trials.py", "record.py", "workloads/quality.py"]
)
def test_changed_measuring_code_is_refused_at_any_level(reference: Submission, tmp_path: Path, file: str) -> None:
    found = all_findings(_with_code(reference, tmp_path, file, level="free"))
    assert f"hpcai500/{file} is changed: it measures" in evidence(found, "measuring-code-changed")


def test_every_file_of_the_table_of_layers_is_there() -> None:
    for name in (*LAYERS, *TRUSTED):
        assert (PACKAGE / name).exists(), name


def test_what_no_line_names_is_trusted_to_measure() -> None:
    assert layer_of("a_file_of_tomorrow.py") is None
    assert layer_of("comm/timeline.py") is None
    assert layer_of("engine/precision.py") == 4


def test_sources_that_did_not_run_are_seen(base: Submission, tmp_path: Path) -> None:
    def change(opened: Path) -> None:
        (opened / "code/hpcai500/comm/reducer.py").write_text("changed = True\n")

    found = all_findings(changed(base, tmp_path, change))
    assert "trial-01: ran the code" in evidence(found, "code")


def test_a_plan_with_other_code_is_told(base: Submission, tmp_path: Path) -> None:
    def change(opened: Path) -> None:
        edit_journal(opened / "campaign", lambda events: events[0]["value"].update(code_sha256="1" * 64))

    found = all_findings(changed(base, tmp_path, change))
    assert "planned with the code 1111" in evidence(found, "code", "warning")


def test_another_version_is_told_with_the_line_to_follow(base: Submission, tmp_path: Path) -> None:
    other = base.manifest.code.model_copy(update={"version": "9.9.9"})
    found = all_findings(changed(base, tmp_path, code=other))
    assert "Install hpcai500 9.9.9 and verify with that" in evidence(found, "code", "warning")
    assert "was begun by version" in evidence(found, "code")


def test_trials_of_several_cores_or_images_are_seen(base: Submission, tmp_path: Path) -> None:
    core = _system(lambda system: system["installation"]["package"].update(core_sha256="c" * 64))
    found = all_findings(changed(base, tmp_path / "core", _each(TRIALS[:1], core)))
    assert "the trials ran with 2 compiled cores" in evidence(found, "core")
    image = _system(lambda system: system["installation"].update(image={"content_sha256": "d" * 64}))
    found = all_findings(changed(base, tmp_path / "image", _each(TRIALS[:1], image)))
    assert "the trials ran in 2 images" in evidence(found, "image")


def test_a_node_in_another_image_is_seen(base: Submission, tmp_path: Path) -> None:
    def change(system: dict[str, Any]) -> None:
        system["installation"].update(image={"content_sha256": "d" * 64})
        system["nodes"][1]["container"] = {"content_sha256": "e" * 64}

    found = all_findings(changed(base, tmp_path, _each(TRIALS, _system(change))))
    assert "trial-01: node-2 ran in the image eee" in evidence(found, "image")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda node: node["accelerators"][0].update(name="NVIDIA B200"), "accelerators"),
        (lambda node: node["cpu"].update({"Model name": "Xeon"}), "processors"),
        (lambda node: node["software"].update(torch="9.0"), "software versions"),
    ],
)
def test_a_trial_on_another_system_is_seen(
    base: Submission, tmp_path: Path, change: Callable[[dict[str, Any]], object], told: str
) -> None:
    found = all_findings(changed(base, tmp_path, _each(TRIALS[2:], _system(lambda system: change(system["nodes"][0])))))
    assert f"trial-03 ran on another system than trial-01: {told}" in evidence(found, "same-system")


def test_a_setting_that_changed_between_trials_is_for_people(base: Submission, tmp_path: Path) -> None:
    newer = _system(lambda system: system["nodes"][0].update(kernel="6.0"))
    found = all_findings(changed(base, tmp_path, _each(TRIALS[2:], newer)))
    assert "kernel: 5.14.0-503.el9.x86_64 on trial-01, trial-02; 6.0 on trial-03" in evidence(
        found, "same-system", "warning"
    )
    assert not failed(found)


@pytest.mark.parametrize(
    ("key", "field"), [("dataset", "fingerprint"), ("model", "parameters"), ("flops", "per_sample")]
)
def test_a_trial_on_other_data_or_another_model_is_seen(base: Submission, tmp_path: Path, key: str, field: str) -> None:
    def change(events: Events) -> None:
        values(events, key)[0][field] = "f" * 64 if key == "dataset" else 1e10

    found = all_findings(changed(base, tmp_path, _each(TRIALS[2:], change)))
    assert f"trial-03: {key} is" in evidence(found, "same-data")


@pytest.mark.parametrize(("factor", "severity"), [(1.1, None), (1.5, "warning"), (3.0, "fail"), (0.3, "fail")])
def test_ceilings_that_differ_between_trials_are_seen(
    base: Submission, tmp_path: Path, factor: float, severity: str | None
) -> None:
    def change(events: Events) -> None:
        values(events, "ceilings")[0]["flops"] *= factor

    found = all_findings(changed(base, tmp_path, _each(TRIALS[2:], change)))
    for one in ("warning", "fail"):
        assert ("trial-03: " in evidence(found, "ceilings-agree", one)) == (one == severity)


def test_ceilings_that_are_missing_or_measured_otherwise_are_seen(base: Submission, tmp_path: Path) -> None:
    def drop(events: Events) -> None:
        events[:] = [event for event in events if event["key"] != "ceilings"]

    found = all_findings(changed(base, tmp_path / "a", _each(TRIALS[2:], drop)))
    assert "trial-03: no ceilings were measured" in evidence(found, "ceilings-agree", "warning")
    lower = lambda events: values(events, "ceilings")[0].update(precision="fp32")  # noqa: E731 - a change of one word
    found = all_findings(changed(base, tmp_path / "b", _each(TRIALS[2:], lower)))
    assert "measured in 2 ways" in evidence(found, "ceilings-agree")


def _last_checkpoint(base: Submission) -> str:
    return next(path for path in base.entries if path.startswith("campaign/trial-01/checkpoints/"))


def test_checkpoints_that_are_not_those_of_the_events_are_seen(base: Submission, tmp_path: Path) -> None:
    def change(events: Events) -> None:
        values(events, "checkpoint")[-1]["sha256"] = "0" * 64

    found = all_findings(changed(base, tmp_path, _each(TRIALS[:1], change)))
    assert f"{_last_checkpoint(base)}: has the hash" in evidence(found, "checkpoints")


def test_a_run_whose_last_checkpoint_is_not_of_its_end_is_seen(base: Submission, tmp_path: Path) -> None:
    def change(events: Events) -> None:
        values(events, "checkpoint")[-1]["epoch"] = 3

    found = all_findings(changed(base, tmp_path, _each(TRIALS[:1], change)))
    assert "trial-01: its last checkpoint is not that after the last epoch" in evidence(found, "checkpoints")


def test_a_checkpoint_may_be_left_out_if_that_is_said(base: Submission, tmp_path: Path) -> None:
    path = _last_checkpoint(base)
    context = changed(base, tmp_path)
    entries = {name: entry for name, entry in context.submission.entries.items() if name != path}
    object.__setattr__(context.submission, "entries", entries)
    assert "is missing, and not said to be left out" in evidence(all_findings(context), "checkpoints")
    left = [*base.manifest.left_out, LeftOut(path=path, reason="--no-checkpoints")]
    object.__setattr__(
        context.submission, "manifest", context.submission.manifest.model_copy(update={"left_out": left})
    )
    found = all_findings(context)
    assert not failed(found)
    assert "those of 1 trials were left out" in evidence(found, "checkpoints", "skipped")


def _reach_early(campaign: Path) -> None:
    """Trial 1 reaches its target in its first epoch."""
    edit_record(campaign / "trial-01", lambda events: values(events, "eval_accuracy")[0].update(value=0.764))


def test_the_checkpoint_with_which_the_target_was_reached_is_wanted(base: Submission, tmp_path: Path) -> None:
    context = changed(base, tmp_path, lambda opened: _reach_early(opened / "campaign"))
    told = evidence(all_findings(context), "checkpoints")
    assert told == "trial-01: epoch-0002-step-0000000.pt is missing, and not said to be left out"


def test_of_another_version_which_may_not_have_kept_it_it_is_not_wanted(base: Submission, tmp_path: Path) -> None:
    def change(opened: Path) -> None:
        _reach_early(opened / "campaign")
        edit_record(opened / "campaign/trial-01", _version_of_another)

    assert not evidence(all_findings(changed(base, tmp_path, change)), "checkpoints")


def _version_of_another(events: Events) -> None:
    values(events, "system")[0]["installation"]["package"]["version"] = "0.0.9"
    values(events, "init_start")[0]["version"] = "0.0.9"


def test_what_was_left_out_and_replaced_is_said(base: Submission, tmp_path: Path) -> None:
    document = json.loads(base.manifest_bytes)
    assert document["left_out"]
    assert "of checkpoints only the last one of a run that is done is needed" in evidence(
        all_findings(changed(base, tmp_path)), "left-out", "skipped"
    )


def _nodes(change: Callable[[dict[str, Any]], object]) -> Callable[[Events], None]:
    return _system(lambda system: [change(node) for node in system["nodes"]])


def _of_a_run(base: Submission, folder: Path, change: Callable[[dict[str, Any]], object]) -> list[Finding]:
    """What the checks of each run find in one whose nodes are told otherwise."""
    context = changed(base, folder, _each(["trial-02"], _nodes(change)))
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
    told = {variable: value, "OMP_NUM_THREADS": "8"}
    found = _of_a_run(base, tmp_path, lambda node: node["environment"].update(told))
    said = evidence(found, "environment", "warning")
    assert said.startswith(f"{variable}={value}, which {effect}, on ")
    assert "OMP_NUM_THREADS" not in said
    assert "environment" not in failed(found)


def test_a_preloaded_library_is_told_and_so_is_that_nobody_knows(base: Submission, tmp_path: Path) -> None:
    found = _of_a_run(base, tmp_path / "one", lambda node: node.update(preloaded=["/opt/faster.so"]))
    assert "/opt/faster.so, loaded before Python's own libraries" in evidence(found, "environment", "warning")
    found = _of_a_run(base, tmp_path / "two", lambda node: node.update(preloaded=None))
    assert "unknown which libraries were preloaded" in evidence(found, "environment", "warning")


def test_variables_that_tune_are_a_note(base: Submission, tmp_path: Path) -> None:
    tuned = {"OMP_NUM_THREADS": "8", "NCCL_ALGO": "Ring", "HPCAI500_NOT_HEEDED": "PYTHONPATH", "SLURM_JOB_ID": "7"}
    found = _of_a_run(base, tmp_path, lambda node: node["environment"].update(tuned))
    said = evidence(found, "environment", "note")
    assert said.endswith("; variables that tune: NCCL_ALGO, OMP_NUM_THREADS")
    assert "chooses libraries" not in said
    assert not evidence(found, "environment", "warning")


def test_a_variable_that_chooses_libraries_is_told_without_a_warning(base: Submission, tmp_path: Path) -> None:
    found = _of_a_run(base, tmp_path, lambda node: node["environment"].update(LD_LIBRARY_PATH="/x"))
    assert "; LD_LIBRARY_PATH chooses libraries" in evidence(found, "environment", "note")
    assert not evidence(found, "environment", "warning")


@pytest.mark.parametrize("key", ["environment", "preloaded"])
def test_a_node_whose_environment_was_taken_out_is_refused(base: Submission, tmp_path: Path, key: str) -> None:
    found = _of_a_run(base, tmp_path, lambda node: node.pop(key))
    assert "does not tell its variables and preloaded libraries" in evidence(found, "environment", "skipped")
    assert f"node-1 does not tell {key}" in evidence(found, "evidence")
