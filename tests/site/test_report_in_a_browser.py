"""The report and the comparison in a real browser without a network: phone, screen, light, dark and paper."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from browser import Browser, why_no_browser
from builders.records import write_reported
from PIL import Image

from hpcai500.results.compare import compare_records, comparison_page
from hpcai500.results.report.page import make_report

PHONE, SCREEN = 390, 1200
# A word that no line can hold, where a record lets anybody write: hosts, and why a run failed.
LONG = "a-host-name-that-is-much-too-long-for-a-telephone" * 3
MACHINE = """
name = "{}"
source = "a test"
nodes = 2
accelerators_per_node = 2
[system]
accelerators = 4
ceilings."GEMM fp32" = 2e12
ceilings."CONV fp32" = 1.9e12
bandwidths.network = 1e7
bound = "network"
"""

pytestmark = pytest.mark.skipif(bool(why_no_browser()), reason=why_no_browser() or "")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Browser:
    return Browser(tmp_path_factory.mktemp("browser"))


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """Pages by what they show."""
    folder = tmp_path_factory.mktemp("pages")
    machine = folder / "machine.toml"
    machine.write_text(MACHINE.format(LONG), encoding="utf-8")
    good = write_reported(folder / "good", epochs=30)
    sizes = [write_reported(folder / f"procs-{n}", "os.threads=1", ranks=n, nodes=1) for n in (1, 2, 4)]
    long = write_reported(folder / "long", hosts=LONG + "{}", seed=2)
    failed = write_reported(folder / "failed", fail=f"the rank on {LONG} is lost")
    many = write_reported(folder / "many", ranks=2000, nodes=250)
    texts = {
        "good": make_report([good], str(machine)).html,
        "long names": make_report([long], str(machine)).html,
        "failed": make_report([failed]).html,
        "many ranks": make_report([many]).html,
        "scaling": make_report(sizes).html,
        "comparison": comparison_page(compare_records(good, failed)),
    }
    for name, text in texts.items():
        (folder / f"{name}.html").write_text(text, encoding="utf-8")
    return {name: folder / f"{name}.html" for name in texts}


NAMES = ("good", "long names", "failed", "many ranks", "scaling", "comparison")


@pytest.mark.parametrize("width", [PHONE, SCREEN])
@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_wider_than_the_window_cut_off_or_loaded(
    browser: Browser, pages: Mapping[str, Path], name: str, width: int
) -> None:
    found = browser.measured(pages[name], width)
    assert (found["client"], found["width"]) == (width, width), f"the page scrolls sideways: {found['wide'][:5]}"
    assert found["wide"] == []
    assert found["cut"] == [], "words of a drawing leave it"
    assert found["loaded"] == []


def test_letters_of_drawings_can_be_read_on_a_phone(browser: Browser, pages: Mapping[str, Path]) -> None:
    found = browser.measured(pages["good"], PHONE)
    assert found["texts"] > 50
    assert found["smallest"] > 10


def lightness(picture: Image.Image, box: tuple[int, int, int, int] | None = None) -> float:
    grey = picture.crop(box).convert("L") if box else picture.convert("L")
    return sum(value * times for value, times in enumerate(grey.histogram())) / (grey.width * grey.height)


@pytest.mark.parametrize("width", [PHONE, SCREEN])
def test_light_is_light_and_dark_is_dark(browser: Browser, pages: Mapping[str, Path], width: int) -> None:
    light, dark = (browser.picture(pages["good"], width=width, height=2000, dark=is_dark) for is_dark in (False, True))
    for corner in ((0, 0), (width - 1, 1999)):
        assert min(light.getpixel(corner)) > 240
        assert max(dark.getpixel(corner)) < 40
    assert lightness(light) > 200
    assert lightness(dark) < 70


def colours(picture: Image.Image) -> set[tuple[int, ...]]:
    found = picture.getcolors(picture.width * picture.height) or []
    return {colour for times, colour in found if times > 20}


def test_curves_take_their_colours_from_the_scheme(browser: Browser, pages: Mapping[str, Path]) -> None:
    light, dark = (browser.picture(pages["good"], width=SCREEN, height=2600, dark=is_dark) for is_dark in (False, True))
    assert (0x00, 0x72, 0xB2) in colours(light)
    assert (0x56, 0xB4, 0xE9) in colours(dark)
    assert (0x00, 0x72, 0xB2) not in colours(dark)


def test_the_verdict_is_on_the_first_screen_of_a_phone(browser: Browser, pages: Mapping[str, Path]) -> None:
    passed = browser.picture(pages["good"], width=PHONE, height=844)
    failed = browser.picture(pages["failed"], width=PHONE, height=844)
    assert (0xFD, 0xF3, 0xE1) in colours(passed), "no ground of a pass that is not rankable"
    assert (0xFB, 0xEA, 0xE8) in colours(failed), "no ground of a failure"


@pytest.mark.parametrize("name", NAMES)
def test_it_prints_on_a_few_sheets(browser: Browser, pages: Mapping[str, Path], name: str) -> None:
    content = browser.printed(pages[name])
    assert content.startswith(b"%PDF")
    sheets = len(re.findall(rb"/Type\s*/Page\b", content))
    assert 1 <= sheets <= 20 * (3 if name == "scaling" else 1)
