"""A profile as people, harnesses and figures read it: `profile.json` of a folder that `hpcai500 profile` wrote."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from hpcai500.errors import ExitCode, RecordError
from hpcai500.results.given_files import GivenFile, given_file
from hpcai500.results.profile_launches import launch_lines, shortened
from hpcai500.results.show import scaled

SCHEMA = 1
# What we promise of both workloads; above it, the rules of methodology/kernel_classes.py lack something.
MOST_UNCLASSIFIED = 0.02
_NEEDED = {
    "benchmark", "bandwidth", "classes", "kernel_seconds", "layout", "overhead", "sampled", "seconds", "steps", "top",
    "unclassified", "unclassified_share", "utilisation",
}  # fmt: skip
_SHOWN_KERNELS, _SHOWN_CONVERSIONS = 12, 6
_NOTABLE_LAYOUT = 0.01

Profile = Mapping[str, Any]


def read_profile(folder: Path) -> tuple[dict[str, Any], GivenFile]:
    """The profile in `folder`, and its file with who stands for it.

    Raises:
        RecordError: there is none, or it is of another version or damaged.
        WrongAnswerError: the signature beside it is not one of it.
    """
    path = folder / "profile.json"
    if not path.is_file():
        raise RecordError(f"{path}: not there: make it with `hpcai500 profile ic|ewa --out {folder}`")
    file = given_file(path)
    document = file.tables()
    if document.get("schema") != SCHEMA:
        raise RecordError(f"{path}: schema {document.get('schema')}, not {SCHEMA}: profile again with this version")
    if missing := sorted(_NEEDED - document.keys()):
        raise RecordError(f"{path}: damaged, lacks {missing[0]}: profile again")
    return document, file


def exit_code(profile: Profile) -> ExitCode:
    """PASS, or WRONG_ANSWER where too much of the time is in kernels that no rule knows."""
    return ExitCode.PASS if profile["unclassified_share"] <= MOST_UNCLASSIFIED else ExitCode.WRONG_ANSWER


def profile_lines(profile: Profile, folder: Path) -> Iterator[str]:
    """For people; the stable lines for harnesses last."""
    yield f"profile     {folder}: {setting_of(profile)}"
    yield f"steps       {profile['steps']} under the profiler, {profile['sampled']['steps']} without"
    yield ""
    yield from _class_lines(profile)
    yield ""
    yield "kernels that take most"
    for row in profile["top"][:_SHOWN_KERNELS]:
        yield f"  {row['share']:6.1%}  {shortened(row['name'], 64):64}  {row['class'] or 'UNCLASSIFIED'}"
    yield ""
    yield from _layout_lines(profile)
    yield from launch_lines(profile)
    yield from _time_lines(profile)
    yield ""
    yield from figure_of_merit_lines(profile)
    if exit_code(profile) != ExitCode.PASS:
        names = ", ".join(row["name"] for row in profile["unclassified"][:3])
        yield f"FAILED: {profile['unclassified_share']:.1%} of kernel time is in kernels that no rule knows: {names}"
    yield f"HPCAI500 RESULT {'PASS' if exit_code(profile) == ExitCode.PASS else 'FAIL'}"


def setting_of(profile: Profile) -> str:
    """What was profiled, in a line."""
    ranks = profile["ranks"]
    words = [
        profile["benchmark"],
        f"{ranks} rank{'s' if ranks > 1 else ''}" + (f" ({profile['library']})" if ranks > 1 else ""),
        profile["device_name"] if profile["device"] != "cpu" else _cores(profile["cores"]),
        profile["precision"],
        f"batch {profile['batch_size']}",
        "channels last" if profile["channels_last"] else "channels first",
        *(["compiled"] if profile["compiled"] else []),
        *(["CUDA graphs"] if profile.get("cuda_graphs") else []),
        *(["fused optimizer"] if profile.get("fused_optimizer") else []),
        *([f"gradients as {profile['compression']}"] if profile["compression"] != "none" else []),
        *({"memory": ["input from memory"], "synthetic": ["synthetic data"]}.get(profile["input"], [])),
    ]
    return ", ".join(words)


def _cores(count: int) -> str:
    return f"{count} core{'s' if count > 1 else ''} a rank"


def _class_lines(profile: Profile) -> Iterator[str]:
    steps = profile["steps"]
    yield f"{'class':20}  {'share':>6}  {'ms a step':>10}  {'calls a step':>12}"
    for name, row in profile["classes"].items():
        milliseconds, calls = row["seconds"] / steps * 1e3, row["calls"] / steps
        yield f"{name:20}  {row['share']:6.1%}  {milliseconds:10.3f}  {calls:12.1f}"
    yield f"{'unclassified':20}  {profile['unclassified_share']:6.2%}"


def _layout_lines(profile: Profile) -> Iterator[str]:
    layout = profile["layout"]
    inside = f", {layout['hidden_share']:.1%} of it inside operators" if layout["hidden_share"] else ""
    yield f"layout      {layout['share']:.1%} of kernel time changes the layout of tensors{inside}"
    for row in layout["conversions"][:_SHOWN_CONVERSIONS]:
        where = f"inside {row['from']}" if row["hidden"] else row["from"]
        calls = f"{row['calls'] / profile['steps']:.3g} a step"
        yield f"  {row['share']:6.1%}  {row['source']} -> {row['target']}, {row['shape']}, {calls}: {where}"
    if layout["share"] >= _NOTABLE_LAYOUT and not profile["channels_last"]:
        yield (
            "  framework.channels_last=true may avoid some: profile with `--set framework.channels_last=true` too, and "
            "compare both with --draw"
        )


def _time_lines(profile: Profile) -> Iterator[str]:
    overhead, sampled = profile["overhead"], profile["sampled"]
    seconds = sampled["seconds"]
    waits = f"data wait {sampled['data_wait_seconds'] / seconds:.1%}"
    waits += f", communication wait {sampled['communication_wait_seconds'] / seconds:.1%}"
    yield f"step        {overhead['step_seconds'] * 1e3:.1f} ms without the profiler: {waits}"
    yield f"overhead    {_overhead(overhead['fraction'])}"
    if profile["utilisation"]:
        yield f"utilisation {mean_of(profile['utilisation']):.1%} of {profile['utilisation_of']}"
    if profile["bandwidth"]:
        sent = [point["sent_bytes_per_second"] for point in profile["bandwidth"]]
        yield (
            f"bandwidth   {scaled(fmean(sent), 'B/s')} sent on average, {scaled(max(sent), 'B/s')} at most "
            f"({profile['bandwidth_of']})"
        )


def _overhead(fraction: float) -> str:
    if fraction <= 0:
        return f"what the profiler costs cannot be told from this machine's noise ({fraction:+.1%})"
    return f"a step takes {fraction:.1%} longer under the profiler: shares are those of such steps"


def figure_of_merit_lines(profile: Profile) -> Iterator[str]:
    """`HPCAI500 FOM profile_<name>=<value> <unit>` for each number that is known."""
    figures: dict[str, tuple[float, str]] = {
        f"{name.lower().replace(' ', '_').replace('-', '_')}_share": (row["share"], "fraction")
        for name, row in profile["classes"].items()
    }
    figures["unclassified_share"] = (profile["unclassified_share"], "fraction")
    figures["layout_share"] = (profile["layout"]["share"], "fraction")
    figures["step_seconds"] = (profile["overhead"]["step_seconds"], "s")
    figures["profiler_overhead"] = (profile["overhead"]["fraction"], "fraction")
    if launch := profile.get("launch"):
        figures["idle_share"] = (launch["idle_share_without_profiler"], "fraction")
        figures["launches_a_step"] = (launch["launches"] / profile["steps"], "launches")
    if profile["utilisation"]:
        figures["utilisation"] = (mean_of(profile["utilisation"]), "fraction")
    if profile["bandwidth"]:
        sent = [point["sent_bytes_per_second"] for point in profile["bandwidth"]]
        figures["sent_bytes_per_second"] = (fmean(sent), "B/s")
    for name, (value, unit) in figures.items():
        yield f"HPCAI500 FOM profile_{name}={value:.6g} {unit}"


def comparison_lines(profiles: Sequence[tuple[Path, Profile]]) -> Iterator[str]:
    """Several profiles side by side; the stable lines of none, for they are of different things."""
    for number, (folder, profile) in enumerate(profiles, 1):
        yield f"{number}  {folder}: {setting_of(profile)}"
    yield ""
    yield f"{'':24}" + "".join(f"{number:>12}" for number in range(1, len(profiles) + 1))
    for name in profiles[0][1]["classes"]:
        yield f"{name:24}" + "".join(f"{profile['classes'][name]['share']:12.1%}" for _, profile in profiles)
    yield f"{'unclassified':24}" + "".join(f"{profile['unclassified_share']:12.2%}" for _, profile in profiles)
    steps = (f"{profile['overhead']['step_seconds'] * 1e3:12.1f}" for _, profile in profiles)
    yield f"{'ms a step, no profiler':24}" + "".join(steps)


def mean_of(curve: Sequence[Sequence[float]]) -> float:
    """Mean of [time, value] points."""
    return fmean(value for _, value in curve)
