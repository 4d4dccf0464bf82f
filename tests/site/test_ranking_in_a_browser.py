"""The ranking's site in a real browser without a network: keyboard, mouse, phone, screen, dark, paper, no script."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import date
from pathlib import Path

import pytest
from browser import why_no_browser
from builders.submissions import refused, verified
from devtools import Tab

from hpcai500.results.ranking.entries import Examined
from hpcai500.results.ranking.pages import site_files
from hpcai500.results.ranking.ranking import rank
from hpcai500.results.ranking.site_folder import write_site

PHONE, SCREEN = 390, 1280
ATTACK = "<img src=https://elsewhere.example/x onerror=console.log('run')><script>console.log('run')</script>"
LONG = "a-system-with-a-name-that-is-much-too-long-for-a-telephone" * 2

pytestmark = pytest.mark.skipif(bool(why_no_browser()), reason=why_no_browser() or "")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    submissions = [
        verified(900e12, system="Cobalt", level="free", precision="fp32", created="2026-03-01T00:00:00Z"),
        verified(700e12, system="Amber", level="hardware", created="2026-05-01T00:00:00Z", compression="fp16"),
        verified(500e12, system="Beryl", level="system", created="2026-07-01T00:00:00Z",
                 result={"time_to_quality_seconds": None, "vflops_per_watt": None}),
        verified(100e12, system=ATTACK, organisation=ATTACK, created="not a day", level="free"),
        verified(200e12, system=LONG, benchmark="ewa"),
        refused(ATTACK, system=ATTACK, file="attack.zip", campaign="e" * 64),
        Examined(Path(f"{LONG}.zip"), problem=LONG * 3),
    ]  # fmt: skip
    folder = tmp_path_factory.mktemp("ranking") / "site"
    write_site(folder, site_files(rank(submissions), date(2026, 11, 22)))
    return folder


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    with Tab(tmp_path_factory.mktemp("browser")) as tab:
        yield tab


@pytest.fixture(autouse=True)
def nothing_is_complained_of_or_loaded_from_elsewhere(tab: Tab, site: Path) -> Iterator[None]:
    tab.said.clear()
    tab.wanted.clear()
    yield
    assert tab.said == []
    # Signs of a browser's own fields are its own data.
    assert [url for url in tab.wanted if not url.startswith((site.as_uri(), "data:image/svg+xml"))] == []


IC = "document.querySelector('[data-benchmark=ic]')"


def column(tab: Tab, number: int) -> list[str]:
    """The first words of the cells that are shown, of Image Classification."""
    rows = f"[...{IC}.querySelectorAll('tbody tr')].filter(row => !row.hidden)"
    return list(tab.value(f"{rows}.map(row => row.cells[{number}].innerText.split('\\n')[0].slice(0, 6))"))


def heading(name: str) -> str:
    return f"[...{IC}.querySelectorAll('th button')].find(one => one.textContent === '{name}')"


def test_a_click_sorts_and_another_one_turns(tab: Tab, site: Path) -> None:
    tab.open(site / "index.html", width=SCREEN)
    assert column(tab, 1) == ["Cobalt", "Amber", "Beryl", "<img s"]
    tab.click(heading("System"))
    assert column(tab, 1) == ["<img s", "Amber", "Beryl", "Cobalt"]
    assert tab.value(f"{heading('System')}.parentElement.getAttribute('aria-sort')") == "ascending"
    assert tab.value(f"{IC}.querySelectorAll('th[aria-sort]').length") == 1
    tab.click(heading("System"))
    assert column(tab, 1) == ["Cobalt", "Beryl", "Amber", "<img s"]
    tab.click(heading("VFLOPS"))
    assert column(tab, 1) == ["Cobalt", "Amber", "Beryl", "<img s"], "most comes first"


def test_keys_reach_every_heading_and_sort(tab: Tab, site: Path) -> None:
    tab.open(site / "index.html", width=SCREEN)
    tab.press("Tab")
    assert tab.value("document.activeElement.className") == "skip"
    assert tab.value("document.activeElement.getBoundingClientRect().left >= 0"), "it is seen once it has the focus"
    for _ in range(60):
        tab.press("Tab")
        if tab.value("document.activeElement.textContent") == "Rank":
            break
    for name in ("Rank", "System"):
        assert tab.value("document.activeElement.textContent") == name
        assert tab.value("getComputedStyle(document.activeElement).outlineStyle") == "solid"
        tab.press("Tab")
    tab.press("Enter")
    assert column(tab, 1) == ["<img s", "Beryl", "Amber", "Cobalt"], "VFLOPS was sorted by, so it turns"
    tab.press(" ")
    assert column(tab, 1) == ["Cobalt", "Amber", "Beryl", "<img s"]
    assert tab.value("document.activeElement.textContent") == "VFLOPS", "the focus stays"


@pytest.mark.parametrize("turns", [1, 2])
def test_unknown_values_stand_last_either_way(tab: Tab, site: Path, turns: int) -> None:
    tab.open(site / "index.html", width=SCREEN)
    for _ in range(turns):
        tab.click(heading("per watt"))
    assert column(tab, 1)[-1] == "Beryl"


def choose(tab: Tab, name: str, value: str) -> None:
    field = f"document.querySelector('[name={name}]')"
    tab.value(f"{field}.value = '{value}', {field}.dispatchEvent(new Event('input', {{bubbles: true}}))")


def bars(tab: Tab) -> list[str]:
    shown = f"[...{IC}.querySelectorAll('g[data-entry]')].filter(one => getComputedStyle(one).display !== 'none')"
    return list(tab.value(f"{shown}.map(one => one.getAttribute('transform'))"))


def test_a_level_holds_what_is_stricter_with_the_ranks_of_its_list(tab: Tab, site: Path) -> None:
    tab.open(site / "index.html", width=SCREEN)
    assert len(bars(tab)) == 4
    choose(tab, "level", "system")
    assert (column(tab, 0), column(tab, 1)) == (["1", "2"], ["Amber", "Beryl"])
    assert bars(tab) == ["translate(0 24)", "translate(0 64)"], "bars close the gap"
    names = f"[...{IC}.querySelectorAll('g[data-entry]:not(.gone) .name')].map(one => one.textContent)"
    assert tab.value(names) == ["1  Amber", "2  Beryl"]
    assert tab.value("document.querySelector('[role=status]').textContent") == "3 of 5 ranked submissions shown"
    choose(tab, "level", "hardware")
    assert column(tab, 1) == ["Amber"]
    tab.click("document.querySelector('button[type=reset]')")
    tab.value("new Promise(done => setTimeout(done, 20)).then(() => true)")
    assert column(tab, 1) == ["Cobalt", "Amber", "Beryl", "<img s"]


def test_dates_and_benchmark_filter(tab: Tab, site: Path) -> None:
    tab.open(site / "index.html", width=SCREEN)
    choose(tab, "from", "2026-04-01")
    assert column(tab, 1) == ["Amber", "Beryl"], "what has no date is not known to be late enough"
    choose(tab, "to", "2026-06-01")
    assert column(tab, 1) == ["Amber"]
    choose(tab, "benchmark", "ewa")
    assert tab.value(f"{IC}.hidden")
    choose(tab, "benchmark", "ic")
    choose(tab, "from", "2030-01-01")
    assert column(tab, 1) == []
    assert tab.value(f"{IC}.querySelector('.nothing').hidden") is False


def test_without_script_all_is_there(tab: Tab, site: Path) -> None:
    tab.open(site / "index.html", width=SCREEN, script=False)
    words = tab.do("Runtime.evaluate", expression="document.body.innerText", returnByValue=True)["result"]["value"]
    for said in ("Cobalt", "Amber", "Beryl", "Not ranked", "hash-chain", "How to read this"):
        assert said in words
    assert "Reset" not in words, "no field that does nothing"


def all_pages(site: Path) -> list[Path]:
    return sorted(path for path in site.rglob("*.html"))


SCROLLS = """(() => { document.querySelectorAll("details").forEach(one => { one.open = true; });
const width = document.documentElement.clientWidth;
return [...document.querySelectorAll("body *")].filter(one => !one.closest(".scroll, pre, svg, .skip, .unranked thead")
  && one.getBoundingClientRect().right > width + 0.5).map(one => one.tagName + "." + one.className); })()"""


@pytest.mark.parametrize("width", [PHONE, SCREEN])
def test_no_page_is_wider_than_the_window(tab: Tab, site: Path, width: int) -> None:
    for page in all_pages(site):
        tab.open(page, width=width)
        assert tab.value("document.documentElement.scrollWidth") <= width, page
        assert tab.value(SCROLLS) == [], page


def test_words_of_the_drawing_can_be_read_and_do_not_leave_it(tab: Tab, site: Path) -> None:
    for width in (PHONE, SCREEN):
        tab.open(site / "index.html", width=width)
        boxes = "[...document.querySelectorAll('svg text')].map(one => [one, one.getBoundingClientRect()])"
        assert tab.value(f"Math.min(...{boxes}.map(([, box]) => box.height))") > 10
        outside = "box.left < svg.left - 1 || box.right > svg.right + 1 || box.bottom > svg.bottom + 1"
        svg = "const svg = one.ownerSVGElement.getBoundingClientRect();"
        cut = f"{boxes}.filter(([one, box]) => {{ {svg} return {outside}; }}).map(([one]) => one.textContent)"
        assert tab.value(cut) == []


def test_the_name_of_a_system_is_shown_and_not_run(tab: Tab, site: Path) -> None:
    for page in all_pages(site):
        if "submissions" in page.parts or page.name == "index.html":
            tab.open(page, width=SCREEN)
            assert tab.value("document.querySelectorAll('img').length") == 0
            assert tab.value("document.querySelectorAll('script:not([src])').length") == 0
    tab.open(site / "index.html", width=SCREEN)
    assert ATTACK in tab.value("document.body.innerText")


def test_the_policy_holds_against_markup_that_got_in(tab: Tab, site: Path, tmp_path: Path) -> None:
    """The second wall: even a page that had an element of a stranger's in it would not run or load it."""
    broken = (site / "index.html").read_text().replace("<main", f"{ATTACK}<main", 1)
    (tmp_path / "broken.html").write_text(broken.replace('src="site.js"', f'src="{(site / "site.js").as_uri()}"'))
    tab.open(tmp_path / "broken.html")
    said = "\n".join(tab.said)
    assert "run" not in [line.strip() for line in tab.said]
    assert said.count("violates the following Content Security Policy directive") >= 2
    assert all(directive in said for directive in ("img-src", "script-src"))
    tab.said.clear()
    tab.wanted.clear()


def test_dark_is_dark_and_light_is_light(tab: Tab, site: Path) -> None:
    for dark in (False, True):
        tab.open(site / "index.html", width=SCREEN, dark=dark)
        corner = tab.picture().getpixel((2, 880))
        assert isinstance(corner, tuple)
        assert (max(corner) < 40) if dark else (min(corner) > 240)


@pytest.mark.parametrize("name", ["index.html", "published.html"])
def test_it_prints_on_a_few_sheets(tab: Tab, site: Path, name: str) -> None:
    tab.open(site / name, width=SCREEN)
    content = tab.printed()
    assert content.startswith(b"%PDF")
    assert 1 <= len(re.findall(rb"/Type\s*/Page\b", content)) <= 6


def test_text_can_be_read_on_its_ground(tab: Tab, site: Path) -> None:
    """WCAG 2.2 asks for 4.5 between letters and ground, and 3 for the edges of fields."""
    for dark in (False, True):
        tab.open(site / "index.html", width=SCREEN, dark=dark)
        poor = tab.value(CONTRAST)
        assert poor == []


CONTRAST = """(() => {
const light = rgb => { const [r, g, b] = rgb.match(/[\\d.]+/g).slice(0, 3).map(Number).map(one => one / 255)
  .map(one => one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4); return 0.2126*r + 0.7152*g + 0.0722*b; };
const ratio = (a, b) => { const [low, high] = [light(a), light(b)].sort((x, y) => x - y);
  return (high + 0.05) / (low + 0.05); };
const ground = one => { for (let at = one; at; at = at.parentElement) {
  const colour = getComputedStyle(at).backgroundColor;
  if (!/, 0\\)$/.test(colour) && colour !== "transparent") return colour; } return "rgb(255, 255, 255)"; };
const texts = [...document.querySelectorAll("body *")].filter(one => !one.closest("svg")
  && [...one.childNodes].some(node => node.nodeType === 3 && node.textContent.trim()) && one.getClientRects().length);
const fields = [...document.querySelectorAll("select, input, .filters button")];
return [...texts.filter(one => ratio(getComputedStyle(one).color, ground(one)) < 4.5),
  ...fields.filter(one => ratio(getComputedStyle(one).borderTopColor, ground(one.parentElement)) < 3)]
  .map(one => one.tagName + "." + one.className + ": " + one.textContent.slice(0, 40));
})()"""
