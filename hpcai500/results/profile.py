"""Shows the `profile.json` that `hpcai500 profile` wrote, as text, as stable lines for harnesses and as figures."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from hpcai500.drawing import figure_files
from hpcai500.errors import ExitCode, RecordError
from hpcai500.machine import origin_of_figures, origin_of_run, other_machine
from hpcai500.recipe import table_differences
from hpcai500.record import Record
from hpcai500.results.given_files import GivenFile, given_file
from hpcai500.text import prefix_of, scaled, short

if TYPE_CHECKING:
    from matplotlib.figure import Figure


# ----------------------------------------------------------------------------------------------------
# Launch gaps: what a CUDA device waited for.


# Keys of the table `launch`, in words.
DEVICE_TIME = {"compute": "computes", "communication": "only communicates", "copy": "only copies", "idle": "idles"}
_CAUSES = {"host": "waiting for the host", "input": "for input", "device": "between queued operations"}
_BOUNDS = {
    "host": "the host: framework.cuda_graphs or framework.compile may help",
    "input": "input: see os.input_threads, accelerator.loader and accelerator.conversion",
    "device": "the device",
}
_SHOWN_GAPS = 5


def launch_lines(profile: Mapping[str, Any]) -> Iterator[str]:
    """What a CUDA device waited for; no lines for a CPU."""
    launch, steps = profile.get("launch"), profile["steps"]
    if not launch:
        return
    parts = ", ".join(f"{name} {launch[f'{key}_seconds'] / launch['seconds']:.1%}" for key, name in DEVICE_TIME.items())
    causes = ", ".join(
        f"{seconds / launch['seconds']:.1%} {_CAUSES[cause]}"
        for cause, seconds in launch["idle_seconds_by_cause"].items()
    )
    yield f"device      {parts}"
    yield f"launch gaps {launch['gaps'] / steps:.0f} a step, {launch['idle_share']:.1%} of the time: {causes}"
    idle = launch["idle_share_without_profiler"]
    yield f"bottleneck  {_BOUNDS[launch['bound']]} (without the profiler the device idles {idle:.1%} of a step)"
    host, busy = launch["host_seconds"] / steps, (launch["seconds"] - launch["idle_seconds"]) / steps
    yield (
        f"launches    {launch['launches'] / steps:.0f} a step for {launch['works'] / steps:.0f} operations: the host "
        f"needs {host * 1e3:.1f} ms a step, the device {busy * 1e3:.1f} ms"
    )
    for gap in launch["longest"][:_SHOWN_GAPS]:
        host = f"; host: {gap['host']}" if gap["host"] else ""
        names = f"{shortened(gap['before'], 40)} -> {shortened(gap['after'], 40)}"
        yield f"  {gap['seconds'] * 1e6:8.1f} us  {names} ({gap['cause']}{host})"


def shortened(name: str, most: int) -> str:
    """A kernel's name in at most `most` letters: template arguments can be very long."""
    return name if len(name) <= most else name[: most - 1] + "…"


# ----------------------------------------------------------------------------------------------------
# A profile, or several, as text.


SCHEMA = 1
# Limit for both workloads; above it, methodology/kernel_classes.py lacks a rule.
MOST_UNCLASSIFIED = 0.02
_NEEDED = {
    "benchmark", "bandwidth", "classes", "kernel_seconds", "layout", "overhead", "sampled", "seconds", "steps", "top",
    "unclassified", "unclassified_share", "utilisation",
}  # fmt: skip
_SHOWN_KERNELS, _SHOWN_CONVERSIONS = 12, 6
_NOTABLE_LAYOUT = 0.01

Profile = Mapping[str, Any]


def read_profile(folder: Path) -> tuple[dict[str, Any], GivenFile]:
    """The profile in `folder`, and its file with its signer.

    Raises:
        RecordError: there is none, or it is damaged or of another version.
        WrongAnswerError: its signature does not match it.
    """
    path = folder / "profile.json"
    if not path.is_file():
        raise RecordError(f"{path}: not found: make it with `hpcai500 profile ic|ewa --out {folder}`")
    file = given_file(path)
    document = file.tables()
    if document.get("schema") != SCHEMA:
        raise RecordError(f"{path}: schema {document.get('schema')}, not {SCHEMA}: profile again with this version")
    if missing := sorted(_NEEDED - document.keys()):
        raise RecordError(f"{path}: damaged, lacks {missing[0]}: profile again")
    return document, file


# Fields of the recipe that decide where the time of a step goes.
_LAYERS_OF_STEPS = ("workload", "programming", "framework", "accelerator", "communication", "os")
_FIELDS_OF_STEPS = {
    "benchmark", "hyperparameters.batch_size", "hyperparameters.accumulation_steps", "hyperparameters.optimizer",
}  # fmt: skip
_NOT_OF_STEPS = {"communication.timeout_seconds", "communication.trace_steps"}


def why_not_of_run(profile: Profile, record: Record) -> str | None:
    """The first difference between the recipe or machine of `profile` and those of a run; None if it belongs to it."""
    recipe = profile.get("fields")
    if not isinstance(recipe, dict):
        return "the profile does not say of which recipe and machine it is: profile again"
    start: Mapping[str, Any] = next(
        (event["value"] for event in record.events if event["key"] in ("run_start", "run_resume")), {}
    )
    pairs = [
        *((one.field, one.reference, one.value) for one in table_differences(record.tables, recipe)),
        ("ranks", profile.get("ranks"), start.get("world_size")),
        ("nodes", profile.get("nodes"), start.get("nodes")),
    ]
    for name, theirs, ours in pairs:
        is_field = "." not in name or name in _FIELDS_OF_STEPS or name.split(".")[0] in _LAYERS_OF_STEPS
        # A record of an older version lacks fields, and one of a run that has not begun lacks its size.
        if is_field and name not in _NOT_OF_STEPS and None not in (theirs, ours) and theirs != ours:
            return f"{name} is {short(theirs, 60)} in the profile, and {short(ours, 60)} in the run"
    reason = other_machine(origin_of_figures(profile), origin_of_run(record.system))
    return reason and f"it was made on another machine ({reason})"


def exit_code(profile: Profile) -> ExitCode:
    """WRONG_ANSWER if too much of the time is in unclassified kernels, else PASS."""
    return ExitCode.PASS if profile["unclassified_share"] <= MOST_UNCLASSIFIED else ExitCode.WRONG_ANSWER


def profile_lines(profile: Profile, folder: Path) -> Iterator[str]:
    """The profile for a terminal, with the stable lines for harnesses last."""
    yield f"profile     {folder}: {setting_of(profile)}"
    yield f"steps       {profile['steps']} under the profiler, {profile['sampled']['steps']} without"
    yield ""
    yield from _class_lines(profile)
    yield ""
    yield "kernels that take the most time"
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
        yield f"FAILED: {profile['unclassified_share']:.1%} of kernel time is in unclassified kernels: {names}"
    yield f"HPCAI500 RESULT {'PASS' if exit_code(profile) == ExitCode.PASS else 'FAIL'}"


def setting_of(profile: Profile) -> str:
    """What was profiled, in one line."""
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
        return f"the profiler's overhead is below the noise of this machine ({fraction:+.1%})"
    return f"a step takes {fraction:.1%} longer under the profiler; the shares above are from such steps"


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
    """Several profiles side by side, without stable lines for harnesses."""
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
    """Mean of the values of [time, value] points."""
    return fmean(value for _, value in curve)


# ----------------------------------------------------------------------------------------------------
# The picture of launch gaps: what a CUDA device did in one step, and when it was idle.


_TIMELINE_INCHES = 0.6
# Okabe and Ito's colours, as in the panels beside it: computes, only communicates, only copies.
_DEVICE_COLOURS = ("#0072b2", "#e69f00", "#56b4e9")
_IDLE = "#dddddd"


def _draw_timelines(axes: Any, profiles: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
    """A timeline for each profile of a CUDA device: full where the device was busy, grey where it was idle."""
    shown = [(name, profile["launch"]) for name, profile in profiles if profile.get("launch")]
    for place, (_, launch) in enumerate(shown):
        _draw_timeline(axes, place, launch)
    axes.set_yticks([place + 0.4 for place in range(len(shown))], [name for name, _ in shown])
    axes.tick_params(axis="y", length=0)
    axes.tick_params(labelsize=9)
    axes.invert_yaxis()
    longest = max(float(launch["lane_seconds"]) for _, launch in shown)
    axes.set_xlim(0, longest * 1e3)
    axes.set_xlabel("milliseconds of one step, under the profiler", fontsize=9)
    axes.set_title("What the device did in one step", loc="left", fontsize=9)
    spacing = {"handlelength": 1, "columnspacing": 1}
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=4, fontsize=7, frameon=False, **spacing)
    for place, (_, launch) in enumerate(shown):
        text = f" idle {launch['idle_share_without_profiler']:.0%}\n by {launch['bound']}"
        axes.annotate(text, (1, place + 0.4), xycoords=("axes fraction", "data"), va="center", fontsize=8)


def _draw_timeline(axes: Any, place: int, launch: Mapping[str, Any]) -> None:
    """Draw busy time upwards from the lower edge; the axis is inverted so that the first profile is at the top."""
    times = [1e3 * row[0] for row in launch["lane"]]
    times.append(1e3 * float(launch["lane_seconds"]))
    floor, ceiling = place + 0.8, float(place)
    first = place == 0
    axes.fill_between(
        times, ceiling, floor, color=_IDLE, linewidth=0, step="post", label=DEVICE_TIME["idle"] if first else None
    )
    below = [0.0] * len(times)
    for column, (kind, colour) in enumerate(zip(list(DEVICE_TIME)[:3], _DEVICE_COLOURS, strict=True), 1):
        shares = [row[column] for row in launch["lane"]]
        above = [low + share for low, share in zip(below, [*shares, *shares[-1:]], strict=True)]
        axes.fill_between(
            times,
            [floor - 0.8 * low for low in below],
            [floor - 0.8 * high for high in above],
            step="post",
            color=colour,
            linewidth=0,
            label=DEVICE_TIME[kind] if first else None,
        )
        below = above


# ----------------------------------------------------------------------------------------------------
# The picture of profiles, like V2.0 Fig. 10 and 13: time of each class of kernels, device and network.


# Okabe and Ito's colours, which colour-blind people can distinguish.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
_GREY = "#666666"
MOST_PROFILES = len(_COLOURS)
_WIDTH, _BAR_INCHES, _CURVE_INCHES = 7.5, 0.2, 1.75
_UNCLASSIFIED = "unclassified"
# Half the window of the moving average that the thick line shows.
_AROUND_SECONDS = 0.5
# Bars of smaller shares are invisible.
_VISIBLE = 0.0005


def draw_profiles(profiles: Sequence[tuple[str, Profile]]) -> dict[str, bytes]:
    """`profile.svg` and `profile.png` of up to `MOST_PROFILES` profiles, each with its name."""
    panels: list[Callable[[Any, Sequence[tuple[str, Profile]]], None]] = [_draw_classes]
    classes = len(profiles[0][1]["classes"]) + 1
    heights = [0.75 + classes * (0.1 + _BAR_INCHES * len(profiles))]
    for key, draw in (("utilisation", _draw_utilisation), ("bandwidth", _draw_bandwidth)):
        if any(profile[key] for _, profile in profiles):
            panels.append(draw)
            heights.append(_CURVE_INCHES)
    if timelines := sum(bool(profile.get("launch")) for _, profile in profiles):
        panels.append(_draw_timelines)
        heights.append(0.75 + _TIMELINE_INCHES * timelines)

    def fill(figure: Figure) -> None:
        axes = figure.subplots(len(panels), 1, height_ratios=heights, squeeze=False)[:, 0]
        for one, draw in zip(axes, panels, strict=True):
            draw(one, profiles)
            one.spines[["top", "right"]].set_visible(False)
        _settle(figure, axes)

    return figure_files(fill, "profile", (_WIDTH, sum(heights) + 0.3))


def _settle(figure: Figure, axes: Iterable[Any]) -> None:
    """Fix the axes where the layout put them, rounded, because its last digits differ from run to run."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for one in axes:
        left, bottom, width, height = (round(edge, 4) for edge in one.get_position().bounds)
        one.set_position((left, bottom, width, height))


def _draw_classes(axes: Any, profiles: Sequence[tuple[str, Profile]]) -> None:
    names = [*profiles[0][1]["classes"], _UNCLASSIFIED]
    height = 0.8 / len(profiles)
    largest = 0.0
    for number, (name, profile) in enumerate(profiles):
        shares = [*(row["share"] for row in profile["classes"].values()), profile["unclassified_share"]]
        seconds = [row["seconds"] / profile["steps"] for row in profile["classes"].values()]
        places = [place + (number - (len(profiles) - 1) / 2) * height for place in range(len(names))]
        axes.barh(places, [100 * share for share in shares], height * 0.92, color=_COLOURS[number], label=name)
        for place, share, milliseconds in zip(places, shares, [*seconds, None], strict=True):
            text = f" {share:.1%}" if share >= _VISIBLE or share == 0 else " <0.1%"
            if milliseconds is not None and share >= _VISIBLE:
                text += f"  ({_time(milliseconds)})"
            colour = "black" if share >= _VISIBLE else _GREY
            axes.text(100 * share, place, text, va="center", fontsize=8 if len(profiles) < 3 else 7, color=colour)
        largest = max(largest, *shares)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.tick_params(axis="y", length=0)
    axes.set_xlim(0, min(125.0, 100 * largest * 1.25))
    axes.set_xlabel("share of kernel time, % (time a step)")
    axes.set_axisbelow(True)
    axes.grid(axis="x", alpha=0.25)
    if len(profiles) == 1:
        axes.set_title(_wrapped(setting_of(profiles[0][1])), loc="left", fontsize=10)
    else:
        axes.set_title("Where the time of training steps goes", loc="left", fontsize=10)
        axes.legend(loc="lower right", fontsize=8, framealpha=0.9, edgecolor="none")


def _draw_utilisation(axes: Any, profiles: Sequence[tuple[str, Profile]]) -> None:
    for number, (_, profile) in enumerate(profiles):
        if not profile["utilisation"]:
            continue
        times = [t for t, _ in profile["utilisation"]]
        _curve(
            axes,
            times,
            [100 * value for _, value in profile["utilisation"]],
            _COLOURS[number],
            len(profiles),
        )
    means = [mean_of(profile["utilisation"]) if profile["utilisation"] else None for _, profile in profiles]
    _at_end(axes, [None if mean is None else 100 * mean for mean in means], "{:.0f}%")
    sources = dict.fromkeys(str(profile["utilisation_of"]) for _, profile in profiles if profile["utilisation"])
    axes.set_title(
        f"Device utilisation: {' and '.join(sources)} (thick: over a second; dashed: mean)", loc="left", fontsize=9
    )
    axes.set_ylim(0, 105)
    axes.set_ylabel("busy, %")
    _over_time(axes)


def _draw_bandwidth(axes: Any, profiles: Sequence[tuple[str, Profile]]) -> None:
    largest = max(point["sent_bytes_per_second"] for _, profile in profiles for point in profile["bandwidth"])
    factor, prefix = prefix_of(largest)
    means: list[float | None] = [None] * len(profiles)
    for number, (_, profile) in enumerate(profiles):
        if not profile["bandwidth"]:
            continue
        times = [point["t_s"] for point in profile["bandwidth"]]
        sent = [point["sent_bytes_per_second"] / factor for point in profile["bandwidth"]]
        _curve(axes, times, sent, _COLOURS[number], len(profiles))
        means[number] = sum(sent) / len(sent)
    _at_end(axes, means, "{:.3g}")
    sources = dict.fromkeys(str(profile["bandwidth_of"]) for _, profile in profiles if profile["bandwidth"])
    axes.set_title(
        f"Communication: bytes sent over {' and '.join(sources)} (thick: over a second; dashed: mean)",
        loc="left",
        fontsize=9,
    )
    axes.set_ylim(0, None)
    axes.set_ylabel(f"{prefix}B/s")
    _over_time(axes)


def _curve(axes: Any, times: Sequence[float], values: Sequence[float], colour: str, world: int) -> None:
    """Each value, thin; their mean over a second around each, thick; the mean of all, dashed."""
    axes.plot(times, values, color=colour, linewidth=0.7, alpha=0.45)
    if world == 1:
        axes.fill_between(times, values, color=colour, alpha=0.1, linewidth=0)
    smooth = [_mean_around(times, values, at) for at in times]
    axes.plot(times, smooth, color=colour, linewidth=1.7)
    axes.axhline(sum(values) / len(values), color=colour, linewidth=0.8, linestyle=(0, (4, 3)))


def _mean_around(times: Sequence[float], values: Sequence[float], at: float) -> float:
    near = values[bisect_left(times, at - _AROUND_SECONDS) : bisect_right(times, at + _AROUND_SECONDS)]
    return sum(near) / len(near)


def _at_end(axes: Any, heights: Sequence[float | None], form: str) -> None:
    """Write `heights` in their colours right of the axes, where their lines end, without overlap."""
    shown = sorted((height, number) for number, height in enumerate(heights) if height is not None)
    for place, (height, number) in enumerate(shown):
        side = "center" if len(shown) == 1 else "top" if place == 0 else "bottom"
        where = (1, height)
        text = f" {form.format(height)}"
        axes.annotate(text, where, xycoords=("axes fraction", "data"), va=side, fontsize=8, color=_COLOURS[number])


def _over_time(axes: Any) -> None:
    axes.set_xlabel("seconds", fontsize=9)
    axes.tick_params(labelsize=9)
    axes.set_xlim(0, None)
    axes.grid(alpha=0.25)


def _time(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"


def _wrapped(line: str) -> str:
    """`line`, wrapped at commas if it is too long."""
    words, lines = line.split(", "), [""]
    for word in words:
        if len(lines[-1]) + len(word) > 85:
            lines[-1] += ","
            lines.append(word)
        else:
            lines[-1] += f", {word}" if lines[-1] else word
    return "\n".join(lines)
