"""The pages of `hpcai500 demo` beside pictures of them that people have looked at: screen and phone, light and dark.

The pictures are in `pictures/`, at half the size. After a page was changed on purpose, HPCAI500_WRITE_GOLDEN=1 takes
them anew; look at each before you commit it.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from browser import Browser, why_no_browser
from PIL import Image, ImageChops

from hpcai500.demo.layout import lay_out

PICTURES = Path(__file__).with_name("pictures")
PAGES = ("ic", "campaign", "compare", "acceptance-miss", "ranking/index")
SCREEN, PHONE, HEIGHT = 1280, 400, 1600
# Letters are drawn a little differently by each version of a browser and of its fonts, and dates differ.
CELL, LEVELS, MOST_CELLS = 16, 12, 0.02

pytestmark = pytest.mark.skipif(bool(why_no_browser()), reason=why_no_browser() or "")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demo")
    lay_out(folder)
    return folder


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Browser:
    return Browser(tmp_path_factory.mktemp("browser"))


def differing(one: Image.Image, other: Image.Image) -> float:
    """The share of the cells of two pictures whose mean brightness differs."""
    cells = [picture.convert("L").resize((picture.width // CELL, picture.height // CELL), Image.Resampling.BOX)
             for picture in (one, other)]  # fmt: skip
    histogram = ImageChops.difference(*cells).histogram()
    return sum(histogram[LEVELS:]) / sum(histogram)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [SCREEN, PHONE])
@pytest.mark.parametrize("name", PAGES)
def test_a_page_looks_as_it_did(browser: Browser, folder: Path, name: str, width: int, dark: bool) -> None:
    taken = browser.picture(folder / f"{name}.html", width=width, height=HEIGHT, dark=dark)
    taken = taken.resize((width // 2, HEIGHT // 2), Image.Resampling.LANCZOS)
    golden = PICTURES / f"{name.replace('/', '-')}-{width}-{'dark' if dark else 'light'}.webp"
    if os.environ.get("HPCAI500_WRITE_GOLDEN"):
        golden.parent.mkdir(exist_ok=True)
        taken.save(golden, quality=70, method=6)
    with Image.open(golden) as kept:
        share = differing(taken, kept.convert("RGB"))
    if share > MOST_CELLS:
        seen = (folder / golden.name).with_suffix(".png")
        taken.save(seen)
        pytest.fail(f"{share:.1%} of {golden.name} differ; it looks like this now: {seen}")


def test_a_section_that_is_gone_or_a_wrong_colour_is_seen(browser: Browser, folder: Path) -> None:
    page = folder / "compare.html"
    changed = folder / "changed.html"
    before = browser.picture(page, width=SCREEN, height=HEIGHT)
    text = page.read_text(encoding="utf-8")
    start = text.index("<main>")
    changed.write_text(text[:start] + text[text.index("</main>") :], encoding="utf-8")
    assert differing(before, browser.picture(changed, width=SCREEN, height=HEIGHT)) > MOST_CELLS
    changed.write_text(text.replace('class="banner pass"', 'class="banner fail"'), encoding="utf-8")
    assert differing(before, browser.picture(changed, width=SCREEN, height=HEIGHT, dark=True)) > MOST_CELLS
