"""A profile and the ceilings of `hpcai500 micro`, as people and harnesses read them, and as a figure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from builders.records import profile, write_profile
from kept_texts import require_text

from hpcai500.errors import ExitCode, RecordError
from hpcai500.results.micro import figure_of_merit_lines, shown, table_lines
from hpcai500.results.profile import comparison_lines, draw_profiles, exit_code, profile_lines, read_profile

PNG = b"\x89PNG\r\n\x1a\n"
LAUNCH = {
    "seconds": 4.0, "compute_seconds": 2.0, "communication_seconds": 0.4, "copy_seconds": 0.2, "idle_seconds": 1.4,
    "idle_share": 0.35, "idle_share_without_profiler": 0.25, "bound": "host", "gaps": 80,
    "idle_seconds_by_cause": {"host": 1.0, "input": 0.2, "device": 0.2},
    "longest": [{"t": 0.1, "seconds": 2e-4, "cause": "host", "before": "sgemm", "after": "relu", "host": "aten::mm"},
                {"t": 0.2, "seconds": 1e-4, "cause": "device", "before": "relu", "after": "sgemm", "host": None}],
    "launches": 400, "launch_seconds": 0.5, "synchronisations": 4, "host_seconds": 3.0, "works": 440,
    "lane_seconds": 1.0, "lane": [[0.0, 1.0, 0.0, 0.0], [0.25, 0.5, 0.25, 0.0], [0.5, 0.0, 0.0, 0.0], [0.75, 0, 0, 1]],
}  # fmt: skip


def lines(**changes: Any) -> list[str]:
    return list(profile_lines(profile(**changes), Path("folder")))


def line(start: str, **changes: Any) -> str:
    return next(one for one in lines(**changes) if one.startswith(start))


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("profile", {}),
        ("profile-of-a-device", {"device": "cuda", "device_name": "GPU", "launch": LAUNCH}),
        ("profile-alone", {"bandwidth": [], "utilisation": [], "channels_last": True, "launch": None}),
    ],
)
def test_a_profile_is_told_as_it_always_was(name: str, changes: dict[str, Any]) -> None:
    require_text(name, lines(**changes))


def test_what_a_profile_cannot_tell_it_does_not_tell() -> None:
    assert "below the noise" in line("overhead", overhead={"step_seconds": 1.0, "fraction": -0.01})
    assert "CUDA graphs, fused optimizer" in line("profile", cuda_graphs=True, fused_optimizer=True)


def test_kernels_that_no_rule_knows_are_a_wrong_answer_that_names_them() -> None:
    row = {"name": "aten::frobnicate", "class": None, "seconds": 0.2, "share": 0.05, "calls": 1}
    strange = {"unclassified_share": 0.05, "unclassified": [row], "top": [row]}
    assert exit_code(profile()) == ExitCode.PASS
    assert exit_code(profile(**strange)) == ExitCode.WRONG_ANSWER
    told = lines(**strange)
    assert told[-2:] == [
        "FAILED: 5.0% of kernel time is in unclassified kernels: aten::frobnicate",
        "HPCAI500 RESULT FAIL",
    ]
    assert any(one.endswith("UNCLASSIFIED") for one in told)


def test_several_profiles_are_told_side_by_side(tmp_path: Path) -> None:
    folders = [write_profile(tmp_path / "one"), write_profile(tmp_path / "two", benchmark="ewa", channels_last=True)]
    told = list(comparison_lines([(folder, read_profile(folder)[0]) for folder in folders]))
    assert [one.split()[:2] for one in told[:2]] == [["1", f"{folders[0]}:"], ["2", f"{folders[1]}:"]]
    assert "convolution                    50.0%       50.0%" in told


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "profile.json: not found: make it with `hpcai500 profile"),
        ("{", "profile.json"),
        ('{"schema": 99}', "schema 99, not 1"),
        ('{"schema": 1, "benchmark": "ic"}', "damaged, lacks bandwidth"),
    ],
)
def test_what_is_no_profile_is_refused(tmp_path: Path, content: str | None, reason: str) -> None:
    if content is not None:
        (tmp_path / "profile.json").write_text(content)
    with pytest.raises(RecordError, match=reason):
        read_profile(tmp_path)


def drawn(*profiles: tuple[str, dict[str, Any]]) -> str:
    """The figure's letters; it is the same file every time."""
    files = draw_profiles(profiles)
    assert sorted(files) == ["profile.png", "profile.svg"]
    assert files["profile.png"].startswith(PNG)
    assert draw_profiles(profiles) == files
    return files["profile.svg"].decode()


@pytest.mark.parametrize(
    ("profiles", "words", "not_words"),
    [
        pytest.param(
            {"ic": {}}, ["transformation", "50.0%", "Device utilisation", "loopback of a", "MB/s"], ["in one step"],
            id="one"),
        pytest.param(
            {"ic": {"bandwidth": [], "bandwidth_of": None, "launch": None}}, ["Device utilisation"],
            ["Communication", "in one step"], id="alone"),
        pytest.param({"ic": {}, "ewa": {"bandwidth": []}}, [">ewa<", ">ic<"], [], id="two"),
        pytest.param(
            {"graphs": {"launch": LAUNCH}, "eager": {}},
            ["What the device did in one step", ">graphs<", "idle 25%", "only communicates"], [], id="device"),
    ],
)  # fmt: skip
def test_a_figure_has_what_there_is(
    profiles: dict[str, dict[str, Any]], words: list[str], not_words: list[str]
) -> None:
    text = drawn(*((name, profile(**changes)) for name, changes in profiles.items()))
    assert [word for word in words if word not in text] == []
    assert [word for word in not_words if word in text] == []


# Ceilings.


def entry(**more: Any) -> dict[str, Any]:
    base = {
        "value": 1.5e12,
        "unit": "FLOPS",
        "interval": [1.4e12, 1.6e12],
        "spread": 0.01,
        "shape": "m 8, n 8, k 8",
        "call": "torch.mm",
    }
    return base | more


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (1.2345e12, "FLOPS", "1.23 TFLOPS"),
        (2.5e10, "bytes/s", "25 GB/s"),
        (12.0, "bytes/s", "12 B/s"),
        (5290.6, "samples/s", "5291 samples/s"),
    ],
)
def test_numbers_have_three_digits_and_a_prefix(value: float, unit: str, text: str) -> None:
    assert shown(value, unit) == text


def test_ceilings_are_told_as_they_always_were() -> None:
    row = {"bytes": 16, "seconds": 1e-5, "spread": 0.1, "algorithm_bandwidth": 1.6e6, "bus_bandwidth": 1.6e6}
    link = {"latency_seconds": 5e-6, "bytes_per_second": 1e9}
    ring = entry(unit="bytes/s", ranks=2, table=[row], link=link, link_error=0.05)
    needs = {"value": 100.0, "unit": "samples/s", "needed_at_most": 50.0}
    document = {
        "gemm fp32": entry(per_rank=[10.0, 10.0, 10.0, 7.0], slowest={"rank": 3, "host": "node7", "value": 7.0}),
        "gemm bf16": entry(per_rank=[10.0, 9.5], slowest={"rank": 1, "host": "node7", "value": 9.5}),
        "copy": entry(value=2e10, unit="bytes/s", spread=0.5),
        "input ic": entry(**needs, enough=True),
        "input ewa": entry(**needs, enough=False),
        # Of one name each, they are one table; without a link, there is none to tell of.
        "allreduce node": ring,
        "allreduce system": ring,
    }
    require_text("micro", table_lines(document))
    require_text("micro-figures", figure_of_merit_lines(document))
    assert not any("as a ring" in line for line in table_lines({"allreduce node": {**ring, "link": None}}))
