"""The CPU image as the users of a site meet it: without root, read-only, without home; what it holds and says."""

from __future__ import annotations

import hashlib
import json
import re
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from image import BUILT, ROOT, Image

from hpcai500.record import iterate, read_record

SHARE = "/opt/hpcai500/share/hpcai500"
# A real training run that is over in seconds, in which quality is not the point.
TINY = [
    *("--set", "problem.epochs=1", "--set", "problem.target_quality=0.01", "--set", "workload.depths=[1, 1, 1, 1]"),
    *("--set", "workload.width=8"),
]
LABELS = {
    "org.opencontainers.image.title": "hpcai500-cpu",
    "org.opencontainers.image.licenses": "Apache-2.0",
}


def records(folder: Path) -> list[Path]:
    """Records below `folder`, oldest first."""
    return sorted(path.parent for path in folder.rglob("events.jsonl"))


def start_of(record: Path) -> dict[str, Any]:
    """Who trained, as the record says."""
    value: dict[str, Any] = next(iterate(read_record(record).events, "run_start"))["value"]
    return value


def test_size_build_time_and_start_up_are_told(image: Image, measured: Callable[[str, float, str], None]) -> None:
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        helped = image.run("run", "IMAGE", "--help")
        seconds.append(time.perf_counter() - start)
        assert "Usage: hpcai500" in helped.out, helped.said
    measured("image", BUILT.stat().st_size / 1e6, "MB")
    measured("build of the image", float((BUILT.parent / "build-cpu.seconds").read_text()), "s")
    measured("hpcai500 --help in the image", statistics.median(seconds), "s")


def test_the_smoke_run_ends_in_a_score(image: Image) -> None:
    ended = image.run("run", "IMAGE", "ic", seconds=600)
    assert ended.code == 0, ended.said
    assert ended.out.splitlines()[-1] == "HPCAI500 RESULT PASS"
    assert "HPCAI500 FOM flops=" in ended.out
    assert "NOT RANKABLE" in ended.out
    [record] = records(image.home)
    assert read_record(record).status == "done"


def test_extreme_weather_trains_by_its_app_and_leaves_its_picture(image: Image) -> None:
    short = ["--set", "problem.epochs=2", "--set", "problem.target_quality=0.01"]
    ended = image.run("run", "--app", "ewa", "IMAGE", "--out", "weather", *short, seconds=600)
    assert ended.out.splitlines()[-1].startswith("HPCAI500 RESULT"), ended.said
    assert read_record(image.home / "weather").status == "done"
    assert (image.home / "weather" / "pictures" / "detections.png").stat().st_size > 10_000


def test_the_command_is_on_the_path_for_harnesses_that_use_exec(image: Image) -> None:
    ended = image.run("exec", "IMAGE", "hpcai500", "ic", "--out", "by-exec", *TINY)
    assert ended.code == 0, ended.said
    scored = image.run("exec", "IMAGE", "hpcai500", "score", "by-exec", "--json")
    assert json.loads(scored.out)["quality"]["achieved"] > 0, scored.said


def test_what_measures_the_machine_and_what_shows_it_work_inside(image: Image) -> None:
    described = json.loads(image.run("run", "IMAGE", "system", "--json").out)
    assert described["nodes"][0]["host"]
    assert described["installation"]["image"]["name"] == "hpcai500-cpu"
    ceilings = image.run("run", "IMAGE", "micro", "copy", "--seconds", "0.2", "-o", "micro.json")
    assert ceilings.out.splitlines()[-1] == "HPCAI500 RESULT PASS", ceilings.said
    # Figures need fonts and a place for what their library keeps; pages need their templates.
    drawn = image.run("run", "IMAGE", "roofline", "--machine", "v100-64", "-o", "figures")
    assert drawn.code == 0, drawn.said
    assert (image.home / "figures" / "roofline-system-16.svg").stat().st_size > 10_000
    assert image.run("run", "IMAGE", "ic", "--out", "reported", *TINY).code == 0
    told = image.run("run", "IMAGE", "report", "reported", "-o", "report.html")
    assert told.code == 0, told.said
    assert "<svg" in (image.home / "report.html").read_text(encoding="utf-8")


def test_the_self_test_passes_within_its_minute(image: Image, measured: Callable[[str, float, str], None]) -> None:
    start = time.perf_counter()
    ended = image.run("test", "IMAGE")
    measured("apptainer test", time.perf_counter() - start, "s")
    assert ended.code == 0, ended.said
    assert "SELF-TEST PASS" in ended.out, ended.said


def test_help_labels_and_versions_tell_one_story(image: Image) -> None:
    helped = image.run("run-help", "IMAGE")
    assert "apptainer run hpcai500-cpu.sif ic" in helped.out, helped.said
    labels = json.loads(image.run("inspect", "--json", "IMAGE").out)["data"]["attributes"]["labels"]
    assert LABELS.items() <= labels.items()
    document = json.loads(image.run("run", "IMAGE", "version", "--json").out)
    described = json.loads(image.run("exec", "IMAGE", "cat", f"{SHARE}/image.json").out)
    assert labels["org.opencontainers.image.version"] == document["package"]["version"] == described["version"]
    assert labels["org.opencontainers.image.revision"] == (described["revision"] or "")
    assert document["image"]["content_sha256"] == described["content_sha256"]
    named = [{key: one[key] for key in ("name", "package", "version")} for one in document["plugins"]]
    assert described["plugins"] == named
    assert set(document["editions"]) == {path.stem for path in (ROOT / "hpcai500" / "editions").glob("v*.toml")}


def test_the_content_hash_is_that_of_the_files(image: Image) -> None:
    """Computed by other tools than those that wrote it."""
    script = (
        "cd /opt/hpcai500 && find . \\( -type f -o -type l \\) ! -path './share/hpcai500/*' "
        "-exec test -f {} \\; -print | sed 's,^./,,' | LC_ALL=C sort | xargs -d '\\n' sha256sum | sha256sum"
    )
    found = image.run("exec", "IMAGE", "sh", "-c", script)
    described = json.loads(image.run("exec", "IMAGE", "cat", f"{SHARE}/image.json").out)
    assert found.out.split()[0] == described["content_sha256"], found.said


def test_the_bill_of_materials_names_every_package_of_the_image(image: Image) -> None:
    bill = json.loads(image.run("exec", "IMAGE", "cat", f"{SHARE}/sbom.cdx.json").out)
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    assert bill["metadata"]["component"]["name"] == "hpcai500"
    purls = {component["purl"].partition("?")[0] for component in bill["components"]}
    query = "dpkg-query --show --showformat '${Package} ${Version}\\n'"
    packages = [line.split() for line in image.run("exec", "IMAGE", "sh", "-c", query).out.splitlines()]
    assert len(packages) > 80
    debian = {purl.removeprefix("pkg:deb/debian/").partition("@")[0] for purl in purls if purl.startswith("pkg:deb/")}
    assert {name.replace("+", "%2B") for name, _ in packages} == {name.replace("+", "%2B") for name in debian}
    wheels = (BUILT.parent / "wheelhouse-cpu" / "requirements.txt").read_text().splitlines()
    python = {purl.removeprefix("pkg:pypi/").partition("@")[0] for purl in purls if purl.startswith("pkg:pypi/")}
    named = {re.sub(r"[-_.]+", "-", line.partition("==")[0]).lower() for line in wheels}
    assert named - python == {"hpcai500"}
    torch = next(component for component in bill["components"] if component["name"] == "torch")
    assert f"sha256:{torch['hashes'][0]['content']}" in "".join(line for line in wheels if line.startswith("torch=="))


def test_no_host_of_a_registry_or_mirror_is_written_into_the_image(image: Image) -> None:
    words = ["grep", "-rlE", "^(deb|URIs:|index-url|find-links)", "/etc/apt", "/var/lib/apt", "/etc/pip.conf"]
    mirror = subprocess.run([ROOT / "scripts" / "debian-mirror"], capture_output=True, text=True, check=True, cwd=ROOT)
    host = mirror.stdout.partition("//")[2].partition("/")[0]
    for sought in (words, ["grep", "-rlF", host or "/debian bookworm", "/etc", "/var/lib/apt", "/root", SHARE]):
        found = image.run("exec", "IMAGE", *sought)
        # Beside files that it may not read: the /etc of the image is readable.
        assert not found.out, found.said
        assert "grep: /etc/apt" not in found.err, found.said


def test_nothing_but_the_output_folder_is_written(image: Image) -> None:
    """Without home, confined, in an unwritable working folder: `--contain --no-home` and one bind."""
    out = image.home / "only-here"
    ended = image.command("mkdir", out)
    assert ended.code == 0, ended.said
    before = sorted(path for path in image.home.rglob("*") if out not in path.parents)
    ended = image.run(
        *("run", "--containall", "--no-home", "--bind", f"{out}:/out", "IMAGE", "ic", "--out", "/out/run", *TINY)
    )
    assert ended.code == 0, ended.said
    assert read_record(out / "run").status == "done"
    assert sorted(path for path in image.home.rglob("*") if out not in path.parents) == before


def test_the_records_say_which_image_made_them(image: Image) -> None:
    bound = image.run("run", "--bind", f"{image.path}:/image.sif:ro", "IMAGE", "ic", "--out", "bound", *TINY)
    assert bound.code == 0, bound.said
    made_by = json.loads((image.home / "bound" / "system.json").read_text())["installation"]["image"]
    with BUILT.open("rb") as file:
        assert made_by["file_sha256"] == hashlib.file_digest(file, "sha256").hexdigest()
    described = json.loads(image.run("exec", "IMAGE", "cat", f"{SHARE}/image.json").out)
    assert made_by["content_sha256"] == described["content_sha256"]
    assert f"content {described['content_sha256'][:12]}" in bound.out


def test_two_ranks_of_the_hosts_mpirun_train_together_over_mpi(image: Image) -> None:
    ranks = ["mpirun", "--oversubscribe", "-np", "2", image.apptainer, "run", "IMAGE", "ic", "--out", "ranks"]
    settings = [*TINY, "--set", "communication.backend=horovod", "--set", "hyperparameters.batch_size=16"]
    ended = image.command(*ranks, *settings)
    assert ended.code == 0, ended.said
    assert ended.out.count("HPCAI500 RESULT PASS") == 1
    start = start_of(image.home / "ranks")
    assert start["world_size"] == 2
    assert "MPI" in start["library"], start


def test_two_ranks_inside_one_container_train_together(image: Image) -> None:
    ended = image.run("run", "IMAGE", "ic", "--procs", "2", "--out", "procs", *TINY)
    assert ended.code == 0, ended.said
    assert start_of(image.home / "procs")["world_size"] == 2
