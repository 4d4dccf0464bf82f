"""`hpcai500 report`: the page of one record says the verdict first, and everything else that the record knows."""

from __future__ import annotations

import dataclasses
import hashlib
import html
import io
import json
import re
import struct
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image, PngImagePlugin
from reported import write_profile, write_reported
from tiny_runs import train_arguments

from hpcai500 import train
from hpcai500.errors import RecordError, UsageError
from hpcai500.results.report.blocks import Picture, Text
from hpcai500.results.report.page import make_report
from hpcai500.results.report.reading import Subject, read_subject
from hpcai500.results.report.sections import picture_section

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


def command(*arguments: object) -> subprocess.CompletedProcess[str]:
    line = [Path(sys.executable).with_name("hpcai500"), *map(str, arguments)]
    return subprocess.run(line, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_reported(tmp_path_factory.mktemp("reported") / "record")


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
        "Score", "Quality and loss", "Where the time goes", "Stragglers", "Communication", "Roofline", "Profile",
        "Power", "Pictures", "System", "Recipe", "Events", "All numbers", "Hashes",
    ]  # fmt: skip
    text = words(made)
    assert "is bound by communication" in text
    assert "rank 3 on n1" in text, "the straggler is not named"
    assert "software.cuda" in text, "the node that differs is not told"
    assert re.search(r"The run took 19\.\d kJ, 62\d W on average", text), "two nodes of some 313 W for 31.5 s"
    assert "Unclassified: 0.4 %" in text
    assert "problem.epochs 90 3" in text


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
    write_profile(
        record / "profile", {"benchmark": HOSTILE, "classes": {HOSTILE: {"share": 1.0}}, "top": [{"name": HOSTILE}]}
    )
    made = page(record)
    assert "<script" not in made
    assert "<img src=x" not in made
    assert "&lt;script&gt;" in made


def test_a_failed_run_has_a_page_that_says_why(tmp_path: Path) -> None:
    record = write_reported(tmp_path / "r", fail=f"the loss is nan {HOSTILE}")
    text = words(page(record))
    assert "! INVALID The loss is nan <script>" in text
    assert text.index("INVALID") < text.index("no score before the last epoch")
    assert "Epochs trained 1 of 3 ended as: error" in text
    assert "<script" not in page(record)


def test_an_unfinished_run_has_a_page_that_says_so(tmp_path: Path) -> None:
    record = write_reported(tmp_path / "r")
    (record / "DONE").unlink()
    log = record / "events.jsonl"
    lines = log.read_bytes().split(b"\n")
    stop = next(index for index, line in enumerate(lines) if b'"run_stop"' in line)
    log.write_bytes(b"\n".join(lines[:stop]) + b"\n")
    (record / "result.json").unlink()
    assert "INVALID The run has not come to its end" in words(page(record))


def test_a_changed_result_is_said_first(tmp_path: Path) -> None:
    record = write_reported(tmp_path / "r")
    result = json.loads((record / "result.json").read_text(encoding="utf-8"))
    (record / "result.json").write_text(json.dumps(result | {"vflops": 1e18}), encoding="utf-8")
    text = words(page(record))
    assert "FAIL" in text[: text.index("Score")]
    assert "vflops is 1e+18, but the events give" in text
    assert "1 EFLOPS" not in text


def test_a_missed_quality_is_a_fail(tmp_path: Path) -> None:
    text = words(page(write_reported(tmp_path / "r", quality=0.5)))
    assert "✗ FAIL NOT RANKABLE The quality top1 is 0.5000, below the target 0.85" in text


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


def test_samples_of_power_that_were_changed_are_not_shown(tmp_path: Path) -> None:
    record = write_reported(tmp_path / "r")
    (record / "power" / "n0.csv").write_text("time_s,unix_s,watts,joules\n1,2,3,\n", encoding="utf-8")
    with pytest.raises(RecordError, match="not the power samples that the events name"):
        make_report([record])


def test_a_picture_that_was_changed_is_not_shown(tmp_path: Path) -> None:
    record = write_reported(tmp_path / "r")
    assert "data:image/webp" in page(record)
    with (record / "pictures" / "detections.png").open("ab") as stream:
        stream.write(b"x")
    made = page(record)
    assert "data:image/webp" not in made
    assert "not the picture that the events name" in made


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


def test_no_damaged_picture_ends_the_report(tmp_path: Path) -> None:
    subject = read_subject(write_reported(tmp_path / "r"))
    shown, left_out = 0, set()
    for content in damaged_pictures():
        (block,) = picture_section(with_picture(subject, content)).blocks
        if isinstance(block, Picture):
            shown += 1
        else:
            assert isinstance(block, Text)
            assert "pictures/detections.png: cannot be shown: " in block.text
            left_out.add(block.text)
    # Some damage does no harm; what does is named by more than one reason.
    assert shown > 10
    assert len(left_out) > 5


def test_a_picture_of_too_many_pixels_is_not_decoded(tmp_path: Path) -> None:
    subject = read_subject(write_reported(tmp_path / "r"))
    header = struct.pack(">4sIIBBBBB", b"IHDR", 8000, 8000, 8, 2, 0, 0, 0)
    # There is no data behind the header: decoding it would end by that.
    content = with_right_sums(b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + header + b"....")
    content += struct.pack(">I4sI", 0, b"IDAT", zlib.crc32(b"IDAT"))
    (block,) = picture_section(with_picture(subject, content)).blocks
    assert "cannot be shown: 8000 x 8000 pixels, and a page shows at most 40,000,000" in block.text


@pytest.mark.parametrize("name", ["pictures/" + "x" * 300, "pictures/a\0b", "p/" * 3000, "pictures/loop"])
def test_a_name_that_no_file_can_have_is_not_in_the_record(tmp_path: Path, name: str) -> None:
    subject = read_subject(write_reported(tmp_path / "r"))
    (subject.path / "pictures" / "loop").symlink_to("loop")
    (block,) = picture_section(with_picture(subject, b"", name)).blocks
    assert block.text.endswith(": not in the record.")


def test_a_part_that_cannot_be_read_does_not_take_the_page_with_it(record: Path, tmp_path: Path) -> None:
    folder = write_profile(
        tmp_path / "p", {"classes": {"x": {"share": 0.5}}, "utilisation": [[0, 1], [1, [2]]], "top": 3}
    )
    assert BROKEN not in make_report([record], profile=folder).html
    (folder / "profile.json").write_text('{"classes": {"x": {"share": 0.5}}, "layout": {"share": 1, "conversions": 7}}')
    made = make_report([record], profile=folder).html
    assert "Hashes" in headings(made)


def test_a_folder_without_a_profile_is_refused_with_the_line_to_type(record: Path, tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"no profile.json there; make one: hpcai500 profile ic --out"):
        make_report([record], profile=tmp_path)


def test_a_profile_of_another_benchmark_is_refused(record: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="a profile of ewa, and no record here is of it"):
        make_report([record], profile=write_profile(tmp_path / "p", {"benchmark": "ewa"}))


def test_a_roofline_that_cannot_be_drawn_says_why(record: Path, tmp_path: Path) -> None:
    machine = tmp_path / "machine.toml"
    machine.write_text(MACHINE.partition("[system]")[0], encoding="utf-8")
    assert "No roofline: two nodes: no model `system`" in words(page(record, machine=str(machine)))


def test_a_real_run_is_shown_whole(images: Path, tmp_path: Path) -> None:
    assert train.main(train_arguments(images, tmp_path / "record")) == 0
    made = page(tmp_path / "record")
    text = words(made)
    assert {"Score", "Quality and loss", "Where the time goes", "System", "Recipe", "Hashes"} <= {*headings(made)}
    assert "compute" in text
    assert "data set, names and sizes" in text
    assert len(made) < 200_000


def test_the_command_writes_the_page_and_says_path_and_verdict(tmp_path: Path) -> None:
    failed = write_reported(tmp_path / "r", fail="the disk is full")
    done = command("report", failed, "-o", tmp_path / "page.html")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        f"report      {tmp_path / 'page.html'}",
        f"verdict     {failed}: INVALID: the disk is full",
    ]
    assert (tmp_path / "page.html").read_text(encoding="utf-8").startswith("<!doctype html>")


def test_what_is_no_record_is_refused(tmp_path: Path) -> None:
    done = command("report", tmp_path, "-o", tmp_path / "page.html")
    assert done.returncode == 64
    assert "not a record: recipe.toml is missing" in done.stderr
    assert not (tmp_path / "page.html").exists()
