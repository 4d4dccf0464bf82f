"""`hpcai500 report`: the verdict first, then all that records know, on one page that loads nothing and runs nothing.

Of one record or of several: a summary on top, and a page of bounded size. What strangers named is spelt out.
"""

from __future__ import annotations

import dataclasses
import hashlib
import html
import io
import json
import re
import shutil
import struct
import zlib
from collections.abc import Iterator
from importlib.resources import files
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from builders.records import write_record, write_reported, write_reported_profile
from builders.runs import train_arguments
from jinja2 import Environment
from markupsafe import Markup
from PIL import Image, PngImagePlugin
from typer.testing import CliRunner

from hpcai500 import train
from hpcai500.cli.commands import app
from hpcai500.drawing import figure_files
from hpcai500.errors import ExitCode, RecordError, UsageError
from hpcai500.results.ranking import pages as site
from hpcai500.results.report import blocks as report
from hpcai500.results.report.blocks import Banner, Picture, Text, without_folders
from hpcai500.results.report.drawing import Axis, compact, element, round_values, spanning, thinned
from hpcai500.results.report.page import make_report
from hpcai500.results.report.reading import Subject, read_subject
from hpcai500.results.report.sections import picture_section
from hpcai500.results.score import score_record
from hpcai500.results.timeline import timeline_document
from hpcai500.text import legible

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>"
BROKEN = "This part of the record cannot be shown"
MACHINE = """
name = "two nodes"
source = "a test"
nodes = 2
accelerators_per_node = 2
[node]
accelerators = 2
ceilings."GEMM fp32" = 2e12
bandwidths.interconnect = 1e9
bound = "interconnect"
[system]
accelerators = 4
ceilings."GEMM fp32" = 4e12
bandwidths.network = 1e7
bound = "network"
"""


def page(*records: Path, machine: str | None = None, profile: Path | None = None) -> str:
    made = make_report(records, machine, profile).html
    assert BROKEN not in made
    return made


def words(page: str) -> str:
    """What a reader sees, in order."""
    return " ".join(html.unescape(re.sub(r"<style>.*?</style>|<[^>]+>", " ", page, flags=re.DOTALL)).split())


def headings(page: str) -> list[str]:
    return re.findall(r"<h2>(.*?)</h2>", page)


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_reported(tmp_path_factory.mktemp("reported") / "record")


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A record to be changed."""
    return write_reported(tmp_path / "r")


def test_the_verdict_and_the_score_come_before_everything_else(record: Path) -> None:
    text = words(page(record))
    order = [
        "PASS",
        "NOT RANKABLE",
        "problem.dataset is",
        "VFLOPS",
        "target 0.85: reached",
        "Time",
        "an image",
        "Energy",
    ]
    places = [text.index(word) for word in order]
    assert places == sorted(places)
    assert places[-1] < text.index("Quality and loss", places[-1])


def test_sections_stand_in_the_order_in_which_they_are_asked_for(record: Path, tmp_path: Path) -> None:
    machine = tmp_path / "machine.toml"
    machine.write_text(MACHINE, encoding="utf-8")
    made = page(record, machine=str(machine))
    assert headings(made) == [
        "Score", "Quality and loss", "Where the time goes", "Goodput", "Stragglers", "Communication", "Roofline",
        "Profile", "Power", "Pictures", "System", "Recipe", "Events", "All numbers", "Hashes",
    ]  # fmt: skip
    text = words(made)
    assert "is bound by communication" in text
    assert "rank 3 on n1" in text, "the straggler is not named"
    assert "software.cuda" in text, "the node that differs is not told"
    assert re.search(r"The run took 19\.\d kJ, 62\d W on average", text), "two nodes of some 313 W for 31.5 s"
    assert "Unclassified: 0.4 %" in text
    assert "problem.epochs 90 3" in text
    assert "of wall-clock time were steps that count." in text


def test_the_head_names_machine_and_site_and_no_folder(record: Path) -> None:
    text = words(page(record))
    head = text[: text.index("PASS")]
    assert "Machine 2 nodes, each with Zen 4, 1 x H100" in head
    assert "Site not named in the record; hosts n0, n1" in head
    assert str(record.parent) not in page(record)


def test_the_colour_of_the_verdict_says_whether_it_is_rankable() -> None:
    tones = [Banner("PASS", rankable, "").tone for rankable in (True, False)]
    assert [*tones, Banner("FAIL", False, "").tone, Banner("INVALID", None, "").tone] == [
        "pass", "amber", "fail", "invalid",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("at /home/ann/runs/one/events.jsonl", "at one/events.jsonl"),
        ("base64,UklGR/home/ann/runs/x", "base64,UklGR/home/ann/runs/x"),
        ("elsewhere/home/ann/runs/x", "elsewhere/home/ann/runs/x"),
    ],
)
def test_a_page_has_no_folder_above_a_record(text: str, shown: str) -> None:
    assert without_folders(text, [Path("/home/ann/runs/one"), Path("runs/two")]) == shown


def test_nothing_is_loaded_and_no_script_runs(record: Path) -> None:
    made = page(record)
    assert not re.findall(r"<(?:script|link|iframe|object|embed|base|form)\b", made)
    assert not re.findall(r"\son\w+=", made)
    sources = re.findall(r"""(?:src|href|data|action|srcset)=["']([^"']*)""", made)
    assert sources
    assert all(source.startswith(("#", "data:image/")) for source in sources)
    assert not re.findall(r"url\(|@import|https?://", made)
    assert "default-src 'none'" in made


def test_what_a_record_says_never_becomes_markup(tmp_path: Path) -> None:
    record = write_reported(tmp_path / "r", hosts=HOSTILE.replace("{", "").replace("}", "") + "{}")
    write_reported_profile(
        record / "profile", {"benchmark": HOSTILE, "classes": {HOSTILE: {"share": 1.0}}, "top": [{"name": HOSTILE}]}
    )
    made = page(record)
    assert "<script" not in made
    assert "<img src=x" not in made
    assert "&lt;script&gt;" in made


def test_a_failed_run_has_a_page_that_says_why(tmp_path: Path) -> None:
    record = write_reported(tmp_path / "r", fail=f"the loss is nan {HOSTILE}")
    text = words(page(record))
    assert "! INVALID There is no valid result: the loss is nan <script>" in text
    assert text.index("INVALID") < text.index("no score before the last epoch")
    assert "Epochs trained 1 of 3 ended as: error" in text
    assert "<script" not in page(record)


def test_an_unfinished_run_has_a_page_that_says_so(own: Path) -> None:
    (own / "DONE").unlink()
    (own / "result.json").unlink()
    log = own / "events.jsonl"
    lines = log.read_bytes().split(b"\n")
    stop = next(index for index, line in enumerate(lines) if b'"run_stop"' in line)
    log.write_bytes(b"\n".join(lines[:stop]) + b"\n")
    assert "INVALID There is no valid result: the run is not finished" in words(page(own))


def test_a_changed_result_is_said_first(own: Path) -> None:
    result = json.loads((own / "result.json").read_text(encoding="utf-8"))
    (own / "result.json").write_text(json.dumps(result | {"vflops": 1e18}), encoding="utf-8")
    text = words(page(own))
    assert "FAIL" in text[: text.index("Score")]
    assert "vflops is 1e+18, but the events give" in text
    assert "1 EFLOPS" not in text


def test_a_missed_quality_is_a_fail(tmp_path: Path) -> None:
    text = words(page(write_reported(tmp_path / "r", quality=0.5)))
    assert (
        "✗ FAIL NOT RANKABLE The run failed: the quality top1 is 0.5000, below the target 0.85; it is not rankable"
        in text
    )


def test_a_record_that_is_older_than_the_split_says_what_is_known(tmp_path: Path) -> None:
    record = write_reported(tmp_path / "r", fail="stopped")
    epochs = [b'"compute_seconds"', b'"communication_wait_seconds"']
    assert all(name in (record / "events.jsonl").read_bytes() for name in epochs)
    text = words(page(record))
    assert "data wait 10.0 %, compute 60.0 %, communication 20.0 %, other 10.0 %" in text


def test_energy_that_is_unknown_is_never_a_zero(tmp_path: Path) -> None:
    text = words(page(write_reported(tmp_path / "r", is_silent=True)))
    assert "1 gap, 5.0 s" in text
    assert "Energy unknown" in text
    assert "The energy of the run is unknown: n0: " in text


def test_samples_of_power_that_were_changed_are_not_shown(own: Path) -> None:
    (own / "power" / "n0.csv").write_text("time_s,unix_s,watts,joules\n1,2,3,\n", encoding="utf-8")
    with pytest.raises(RecordError, match="the power samples were changed"):
        make_report([own])


def test_a_picture_that_was_changed_is_not_shown(own: Path) -> None:
    assert "data:image/webp" in page(own)
    with (own / "pictures" / "detections.png").open("ab") as stream:
        stream.write(b"x")
    made = page(own)
    assert "data:image/webp" not in made
    assert "this picture was changed after the run" in made


def with_picture(subject: Subject, content: bytes, name: str = "pictures/detections.png") -> Subject:
    """The record, of whose pictures the chain says that there is `content` in `name`."""
    value = {"file": name, "sha256": hashlib.sha256(content).hexdigest()}
    events = [event for event in subject.record.events if event["key"] != "picture"]
    record = dataclasses.replace(subject.record, events=[*events, {**events[-1], "key": "picture", "value": value}])
    (subject.path / "pictures" / "detections.png").write_bytes(content)
    return dataclasses.replace(subject, record=record)


def damaged_pictures() -> Iterator[bytes]:
    """A PNG with text, a palette and transparency, damaged and cut off at each byte, with right sums."""
    picture = Image.new("P", (9, 7), 1)
    picture.putpalette(list(range(48)))
    text = PngImagePlugin.PngInfo()
    text.add_text("author", "the run", zip=True)
    stream = io.BytesIO()
    picture.save(stream, "PNG", pnginfo=text, transparency=1, dpi=(72, 72))
    whole = stream.getvalue()
    for at in range(len(whole)):
        yield whole[:at]
        for value in (0, 0x7F, 0xFF, whole[at] ^ 1):
            yield with_right_sums(whole[:at] + bytes([value]) + whole[at + 1 :])
            yield whole[:at] + bytes([value]) + whole[at + 1 :]


def with_right_sums(png: bytes) -> bytes:
    found, at = png[:8], 8
    while at + 12 <= len(png):
        (size,) = struct.unpack_from(">I", png, at)
        body = png[at + 4 : at + 8 + size]
        found += png[at : at + 4] + body + struct.pack(">I", zlib.crc32(body))
        at += 12 + size
    return found


def test_no_damaged_picture_ends_the_report(own: Path) -> None:
    subject = read_subject(own)
    blocks = [picture_section(with_picture(subject, content)).blocks[0] for content in damaged_pictures()]
    left_out = [block for block in blocks if not isinstance(block, Picture)]
    assert all(isinstance(block, Text) for block in left_out)
    assert all("pictures/detections.png: cannot be shown: " in block.text for block in left_out)
    # Some damage does no harm; what does is named by more than one reason.
    assert len(blocks) - len(left_out) > 10
    assert len({block.text for block in left_out}) > 5


def test_a_picture_of_too_many_pixels_is_not_decoded(own: Path) -> None:
    header = struct.pack(">4sIIBBBBB", b"IHDR", 8000, 8000, 8, 2, 0, 0, 0)
    # There is no data behind the header: decoding it would end by that.
    content = with_right_sums(b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + header + b"....")
    content += struct.pack(">I4sI", 0, b"IDAT", zlib.crc32(b"IDAT"))
    (block,) = picture_section(with_picture(read_subject(own), content)).blocks
    assert "cannot be shown: 8000 x 8000 pixels, and a page shows at most 40,000,000" in block.text


@pytest.mark.parametrize("name", ["pictures/" + "x" * 300, "pictures/a\0b", "p/" * 3000, "pictures/loop"])
def test_a_name_that_no_file_can_have_is_not_in_the_record(own: Path, name: str) -> None:
    (own / "pictures" / "loop").symlink_to("loop")
    (block,) = picture_section(with_picture(read_subject(own), b"", name)).blocks
    assert block.text.endswith(": not in the record.")


def test_a_part_that_cannot_be_read_does_not_take_the_page_with_it(record: Path, tmp_path: Path) -> None:
    odd = {"classes": {"x": {"share": 0.5}}, "utilisation": [[0, 1], [1, [2]]], "top": 3}
    assert BROKEN not in make_report([record], profile=write_reported_profile(tmp_path / "p", odd)).html
    broken = {"classes": {"x": {"share": 0.5}}, "layout": {"share": 1, "conversions": 7}}
    assert "Hashes" in headings(make_report([record], profile=write_reported_profile(tmp_path / "p", broken)).html)


def test_what_does_not_go_with_the_record_is_refused_or_said(record: Path, tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"no profile.json; make one: hpcai500 profile ic --out"):
        make_report([record], profile=tmp_path)
    odd = write_reported_profile(tmp_path / "p", {"fields": {"benchmark": "ewa"}})
    with pytest.raises(UsageError, match="benchmark is ewa in the profile, and ic in the run: give the profile of a"):
        make_report([record], profile=odd)
    machine = tmp_path / "machine.toml"
    machine.write_text(MACHINE.partition("[system]")[0], encoding="utf-8")
    assert "No roofline: two nodes: no model `system`" in words(page(record, machine=str(machine)))


def test_a_profile_is_shown_with_the_records_that_it_is_of(tmp_path: Path) -> None:
    one = write_reported(tmp_path / "one")
    others = [
        write_reported(tmp_path / "compressed", "communication.compression=fp16"),
        write_reported(tmp_path / "larger", "hyperparameters.batch_size=128"),
        write_reported(tmp_path / "alone", ranks=1, nodes=1),
    ]
    for other in others:
        shutil.rmtree(other / "profile")
    shutil.rmtree(one / "profile")
    given = write_reported_profile(tmp_path / "given")
    chart = "Kernel classes (V2.0 Fig. 10)"
    assert page(one, *others, profile=given).count(chart) == 1
    # Another seed, and other epochs, change nothing in a step.
    same = write_reported(tmp_path / "same", seed=7, epochs=2)
    assert page(one, same, profile=given).count(chart) == 2


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"device_name": "Zen 2"}, "it was made on another machine (Zen 2, not H100)"),
        ({"ranks": 8}, "ranks is 8 in the profile, and 4 in the run"),
        ({"fields": None}, "the profile does not say of which recipe and machine it is"),
    ],
)
def test_a_profile_of_another_machine_is_refused_by_name(facts: dict[str, Any], said: str, tmp_path: Path) -> None:
    record = write_reported(tmp_path / "r")
    given = write_reported_profile(tmp_path / "given", facts)
    with pytest.raises(UsageError, match=re.escape(said)):
        make_report([record], profile=given)
    write_reported_profile(record / "profile", facts)
    assert f"Not shown, because it is of another run: {said}" in words(page(record))


def test_a_real_run_is_shown_whole(images: Path, tmp_path: Path) -> None:
    assert train.main(train_arguments(images, tmp_path / "record")) == 0
    made = page(tmp_path / "record")
    text = words(made)
    assert {"Score", "Quality and loss", "Where the time goes", "System", "Recipe", "Hashes"} <= {*headings(made)}
    assert "compute" in text
    assert "data set, names and sizes" in text
    assert len(made) < 200_000


def test_the_command_writes_the_page_and_says_path_and_verdict(tmp_path: Path) -> None:
    failed, target = write_reported(tmp_path / "r", fail="the disk is full"), tmp_path / "page.html"
    done = CliRunner().invoke(app, ["report", str(failed), "-o", str(target)])
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout == f"report      {target}\nverdict     {failed}: INVALID: the disk is full\n"
    assert target.read_text(encoding="utf-8").startswith("<!doctype html>")
    target.unlink()
    refused = CliRunner().invoke(app, ["report", str(tmp_path), "-o", str(target)]).exception
    assert refused.exit_code == ExitCode.USAGE
    assert "not a record: recipe.toml is missing" in str(refused)
    assert not target.exists()


def test_score_page_and_timeline_say_one_share_of_waiting_for_sums(tmp_path: Path) -> None:
    """A fifth of the epochs; of the ranks' sums since the last start it is two fifths."""
    record = write_reported(tmp_path / "r")
    result = score_record(record)
    assert result.step_split is not None
    assert result.communication_fraction == result.step_split.communication == 0.2
    assert timeline_document(record, None)["communication_fraction"] == 0.2
    text = words(page(record))
    assert "data wait 10.0 %, compute 60.0 %, communication 20.0 %, other 10.0 %" in text
    assert "20.0 % of step time is spent waiting for the all-reduce" in text


# Several records.


def test_ten_thousand_ranks_are_the_worst_twenty_and_quantiles(tmp_path: Path) -> None:
    made = make_report([write_reported(tmp_path / "r", ranks=10_000, nodes=1250)]).html
    assert BROKEN not in made
    assert len(made) < 300_000
    text = words(made)
    assert "rank 9999 on n1249" in text, "the straggler is not shown"
    assert "Quantiles over 10,000 ranks" in text
    assert "9,980 more are left out" in text
    assert "1,250 nodes, which differ in 1 field" in text


def test_a_long_run_is_drawn_with_few_points(tmp_path: Path) -> None:
    made = make_report([write_reported(tmp_path / "r", epochs=200, ranks=1, nodes=1)]).html
    assert len(made) < 300_000
    assert "80 more are left out" in words(made)


def test_a_series_has_its_mean_and_variation_on_top(tmp_path: Path) -> None:
    for seed in (1, 2, 3):
        write_reported(tmp_path / "s" / f"trial-{seed}", seed=seed, step_seconds=1 + seed / 100)
    text = words(make_report([tmp_path / "s"]).html)
    assert (
        text.index("One line for each record") < text.index("Mean of 3 runs of one recipe") < text.index("NOT RANKABLE")
    )
    assert "Images per second 93.5 images/s 0.9 % 3" in text, "3000 images in 31.8, 32.1 and 32.4 s"
    assert "variation: coefficient of variation (standard deviation / mean) of all runs" in text
    assert "(FOM: figure of merit)" in text
    assert text.count("Quality and loss Quality") == 3


def test_records_that_do_not_belong_together_have_no_mean(tmp_path: Path) -> None:
    one = write_reported(tmp_path / "one")
    other = write_reported(tmp_path / "two", "hyperparameters.batch_size=32")
    text = words(make_report([one, other]).html)
    assert "No mean: " in text
    assert "hyperparameters.batch_size" in text[: text.index("Score")]


def test_records_of_several_sizes_are_a_scaling(tmp_path: Path) -> None:
    settings = ("os.threads=1",)
    records = [write_reported(tmp_path / f"{n}", *settings, ranks=n, nodes=1, step_seconds=1 + n / 20) for n in (1, 2)]
    made = make_report(records).html
    assert "<h2>Scaling</h2>" in made
    assert "efficiency against the smallest" in made
    other = write_reported(tmp_path / "other", "os.threads=2", ranks=4, nodes=1)
    assert "the records are not comparable" in words(make_report([*records, other]).html)


def test_a_failed_run_among_others_has_its_line(tmp_path: Path) -> None:
    good = write_reported(tmp_path / "good")
    made = make_report([good, write_reported(tmp_path / "bad", fail="a rank is lost", seed=2)])
    assert [verdict.rpartition("/")[2] for verdict in made.verdicts] == [
        "good: PASS, not rankable",
        "bad: INVALID: a rank is lost",
    ]
    assert re.search(r"2\. bad INVALID no ic 4", words(made.html))


def test_a_run_that_is_named_twice_is_refused(tmp_path: Path) -> None:
    record = write_reported(tmp_path / "r")
    with pytest.raises(UsageError, match="the same run"):
        make_report([record, Path(str(record))])


def test_axes_end_at_round_values_and_name_them() -> None:
    axis = spanning("loss", [0.3, 2.9])
    assert (axis.low, axis.high) == (0, 3)
    assert [name for _, name in axis.marks()] == ["0", "1", "2", "3"]
    assert round_values(0, 1) == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1.0])
    assert [name for _, name in Axis("FLOPS", 1e9, 1e12, log=True).marks()] == ["1G", "10G", "100G", "1T"]
    assert compact(2.5e6) == "2.5M"


def test_places_on_an_axis_never_leave_it() -> None:
    linear, logarithmic = Axis("", 0, 10), Axis("", 1, 100, log=True)
    assert [linear.place(value) for value in (-5, 0, 5, 10, 99)] == [0, 0, 0.5, 1, 1]
    assert [logarithmic.place(value) for value in (0.0, 1, 10, 100, 1e9)] == pytest.approx([0, 0, 0.5, 1, 1])


def test_a_line_of_many_points_keeps_its_peaks() -> None:
    points = [(float(index), 0.0) for index in range(100_000)]
    points[77_777] = (77_777.0, 5.0)
    few = thinned(points)
    assert len(few) <= 402
    assert (77_777.0, 5.0) in few
    assert (few[0], few[-1]) == (points[0], points[-1])


# The page's colours: text can be read on every ground, and curves be told apart, light and dark.


STYLE = files("hpcai500.results.report").joinpath("templates/style.css").read_text(encoding="utf-8")
LIGHT, DARK = (
    dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block))
    for block in re.findall(r":root \{(.*?)\}", STYLE, re.DOTALL)[:2]
)
# WCAG 2.2: 4.5 for text (AA), 3 for what is drawn.
TEXT, DRAWN = 4.5, 3.0


def channels(colour: str) -> list[float]:
    return [int(colour[index : index + 2], 16) / 255 for index in (1, 3, 5)]


def luminance(colour: str) -> float:
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in channels(colour)]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", [LIGHT, DARK], ids=["light", "dark"])
def test_what_is_written_and_drawn_stands_out_from_its_ground(scheme: dict[str, str]) -> None:
    pairs = [(text, ground) for text in ("ink", "soft", "link", "good", "bad", "flag") for ground in ("paper", "card")]
    pairs += [("good", "good-card"), ("flag", "good-card"), *((text, "bad-card") for text in ("bad", "flag", "ink"))]
    assert [pair for pair in pairs if contrast(*(scheme[name] for name in pair)) < TEXT] == []
    # Orange is for surfaces, which have their names and numbers beside them.
    assert all(contrast(scheme[f"c{n}"], scheme["paper"]) >= DRAWN for n in (1, 3, 4, 5, 6))


@pytest.mark.parametrize("scheme", [LIGHT, DARK], ids=["light", "dark"])
def test_parts_of_a_bar_differ_also_without_red_and_green_apart(scheme: dict[str, str]) -> None:
    """Deuteranopia by Viénot, Brettel and Mollon (1999), on linear channels: red and green become one."""
    for one, other in combinations(("c2", "c1", "c4", "c6"), 2):
        seen = [[0.29 * r + 0.71 * g, b] for r, g, b in (channels(scheme[name]) for name in (one, other))]
        assert max(abs(left - right) for left, right in zip(*seen, strict=True)) > 0.1, (one, other)


# Letters that no reader sees, in what a stranger named: each kind of file that people open spells them out.


HIDDEN = "a\x1b[2J\x9b1m\u202eb\u2066c\u200bd\u2028e\r\x7f\ud800"
SHOWN = r"a\x1b[2J\x9b1m\u202eb\u2066c\u200bd\u2028e\r\u007f\ud800"


def test_what_hides_is_spelt_out_and_lines_tabs_and_blanks_stay() -> None:
    assert legible(HIDDEN) == SHOWN
    plain = "one\n\ttwo\N{NO-BREAK SPACE}GB, 日本 é ± ≥ ✓"
    assert legible(plain) == plain


def test_a_report_spells_out_what_its_record_hides(tmp_path: Path) -> None:
    html = make_report([write_record(tmp_path / "run\u202e\x1b[31m")]).html
    assert r"run\u202e\x1b[31m" in html
    assert not {letter for letter in html if not letter.isprintable()} - {"\n"}


@pytest.mark.parametrize("environment", [report._environment(), site._environment()], ids=["report", "site"])
def test_templates_leave_markup_and_lines_as_they_are(environment: Environment) -> None:
    template = environment.from_string("<pre>{{ text }}</pre>{{ drawing }}")
    drawing = Markup("<svg>\n\u200b</svg>")
    assert template.render(text=f"<b>\n{HIDDEN}", drawing=drawing) == f"<pre>&lt;b&gt;\n{SHOWN}</pre>{drawing}"


def test_drawings_and_figures_spell_out_text_and_attributes() -> None:
    inner = element("title", HIDDEN)
    assert inner == f"<title>{SHOWN}</title>"
    assert element("g", inner, aria_label=HIDDEN) == f'<g aria-label="{SHOWN}"><title>{SHOWN}</title></g>'
    files = figure_files(lambda figure: figure.text(0.1, 0.5, "a\u202e\x1bb"), "name", (4, 3))
    assert rb">a\u202e\x1bb<" in files["name.svg"]
