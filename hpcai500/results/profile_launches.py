"""Launch gaps of a profile as people read them: what a CUDA device waited for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

# Keys of the table `launch`, in a person's words.
DEVICE_TIME = {"compute": "computes", "communication": "only communicates", "copy": "only copies", "idle": "idles"}
_CAUSES = {"host": "waiting for the host", "input": "for input", "device": "between queued works"}
_BOUNDS = {
    "host": "the host: framework.cuda_graphs or framework.compile may help",
    "input": "input: see os.input_threads, accelerator.loader and accelerator.conversion",
    "device": "the device",
}
_SHOWN_GAPS = 5


def launch_lines(profile: Mapping[str, Any]) -> Iterator[str]:
    """What a CUDA device waited for; none of a processor's profile."""
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
    yield f"bound by    {_BOUNDS[launch['bound']]} (without the profiler the device idles {idle:.1%} of a step)"
    host, busy = launch["host_seconds"] / steps, (launch["seconds"] - launch["idle_seconds"]) / steps
    yield (
        f"launches    {launch['launches'] / steps:.0f} a step for {launch['works'] / steps:.0f} works: the host needs "
        f"{host * 1e3:.1f} ms a step, the device {busy * 1e3:.1f} ms"
    )
    for gap in launch["longest"][:_SHOWN_GAPS]:
        host = f"; host: {gap['host']}" if gap["host"] else ""
        names = f"{shortened(gap['before'], 40)} -> {shortened(gap['after'], 40)}"
        yield f"  {gap['seconds'] * 1e6:8.1f} us  {names} ({gap['cause']}{host})"


def shortened(name: str, most: int) -> str:
    """A kernel's name in at most `most` letters: templates' arguments tell little."""
    return name if len(name) <= most else name[: most - 1] + "…"
