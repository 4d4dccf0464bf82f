"""The pages of a ranking's site: complete without script, closed to the network, blind to what strangers wrote."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import replace
from datetime import date
from functools import cache
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest
from submitted import refused, verified

from hpcai500.results.ranking.documentation import anchor_of, docs_folder, first_sentence, title_of, to_html
from hpcai500.results.ranking.entries import Examined
from hpcai500.results.ranking.pages import bar_chart, site_files
from hpcai500.results.ranking.ranking import rank

DAY = date(2026, 11, 22)
ATTACKS = (
    "<script>document.title='pwned'</script>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "javascript:alert(1)",
    "</title><svg/onload=alert(1)>",
    "{{ 7777*7777 }}{% raw %}",
    "\u202egnp.exe\u2066\x1b[31m",
)
NAMES = ("system", "organisation", "accelerators", "framework", "contact", "created")


class Parsed(HTMLParser):
    """All elements of a page with their attributes, and its words."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.words = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_data(self, data: str) -> None:
        self.words += data

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.elements if name == tag]


@cache
def docs(folder: Path) -> Path:
    folder.mkdir()
    (folder / "methodology.md").write_text(
        "# Methodology\n\nHow it is done. More.\n\n## The clock\n\nSee [rules.md](rules.md).\n"
    )
    (folder / "rules.md").write_text("# Rules\n\nWhat may change: [this](../recipes/ic/reference.toml).\n")
    return folder


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = docs(tmp_path_factory.mktemp("written") / "docs")
    submissions = [
        verified(900e12, system="Quick", level="free", precision="fp32", report="<!doctype html><title>r</title>"),
        verified(700e12, system="Middle", created="2026-10-01T00:00:00Z", compression="fp16"),
        verified(500e12, system="Storm", benchmark="ewa", result={"time_to_quality_seconds": None}),
        refused(system="Forged"),
        Examined(Path("bomb.zip"), problem="archive: too large"),
        *(
            verified(1e12 + number, **dict.fromkeys(NAMES, attack), precision=attack, file=f"{number}.zip",
                     campaign=f"{number:064d}")
            for number, attack in enumerate(ATTACKS)
        ),
        *(
            refused(attack, **dict.fromkeys(NAMES, attack), file=f"r{number}{attack}.zip".replace("/", "_"))
            for number, attack in enumerate(ATTACKS)
        ),
    ]  # fmt: skip
    return site_files(rank(submissions), DAY, folder)


def pages(files: dict[str, str]) -> dict[str, Parsed]:
    return {name: Parsed(text) for name, text in files.items() if name.endswith(".html") and "-report" not in name}


def test_there_is_a_page_for_everything(files: dict[str, str]) -> None:
    assert {"index.html", "published.html", "site.js", "ranking.json", "method/index.html", "method/rules.html"} <= set(
        files
    )
    index = Parsed(files["index.html"])
    links = [link["href"] for link in index.all("a") if link["href"].startswith("submissions/")]
    assert len(links) == len(set(links)) == 3 + 1 + 2 * len(ATTACKS)
    assert set(links) <= set(files)
    assert "bomb.zip" in index.words
    assert json.loads(files["ranking.json"])["entries"]


def test_every_link_within_the_site_leads_somewhere(files: dict[str, str]) -> None:
    for name, page in pages(files).items():
        anchors = {attributes["id"] for _, attributes in page.elements if "id" in attributes}
        for link in page.all("a"):
            path, _, fragment = link["href"].partition("#")
            if not path:
                assert fragment in anchors, (name, link)
            else:
                target = (Path("/") / name).parent / path
                assert str(target.resolve().relative_to("/")) in files, (name, link)


def test_what_strangers_wrote_is_never_markup(files: dict[str, str]) -> None:
    for name, page in pages(files).items():
        assert "pwned" not in page.words or "<script>document" in page.words
        assert [one for one in page.all("script") if one != {"src": "site.js", "defer": ""}] == [], name
        assert not page.all("img"), name
        for tag, attributes in page.elements:
            assert not [key for key in attributes if key.startswith("on") or key == "style"], (name, tag, attributes)
            assert not attributes.get("href", "").startswith(("javascript:", "data:")), (name, attributes)
        assert "60481729" not in page.words, "a template was run"
        assert page.words.count("\u202e") == page.words.count("\x1b") == 0, name


def test_the_page_of_an_attack_shows_its_words(files: dict[str, str]) -> None:
    assert "<script>document.title='pwned'</script>" in Parsed(files["index.html"]).words
    assert "\\u202egnp.exe" in Parsed(files["index.html"]).words


def test_each_page_forbids_all_but_its_own_style_and_script(files: dict[str, str]) -> None:
    for name, page in pages(files).items():
        [policy] = [one["content"] for one in page.all("meta") if one.get("http-equiv") == "Content-Security-Policy"]
        rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
        style = re.findall(r"<style>(.*?)</style>", files[name], re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(style[0].encode()).digest()).decode()
        assert rules["style-src"] == f"'sha256-{digest}'"
        assert rules["default-src"] == "'none'"
        has_script = bool(page.all("script"))
        assert rules.get("script-src") == ("'self'" if has_script else None), name
        assert has_script == (name in ("index.html", "published.html"))


def test_pages_are_there_for_those_who_hear_them(files: dict[str, str]) -> None:
    for name, page in pages(files).items():
        assert page.all("html") == [{"lang": "en"}]
        assert len(page.all("h1")) == 1, name
        assert len(page.all("main")) == 1
        assert next(iter(page.all("a"))) == {"class": "skip", "href": "#content"}
        assert all(one.get("scope") in ("col", "row") for one in page.all("th")) or name.startswith("method/"), name
        if not name.startswith("method/"):
            assert len(page.all("caption")) == len(page.all("table")), name
        levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch(r"h[1-6]", tag)]
        assert all(later <= earlier + 1 for earlier, later in pairwise(levels)), (name, levels)


def test_without_script_the_table_is_sorted_and_says_by_what(files: dict[str, str]) -> None:
    page = Parsed(files["index.html"])
    sorted_by = [one for one in page.all("th") if "aria-sort" in one]
    assert [one["aria-sort"] for one in sorted_by] == ["descending"] * 2
    assert page.words.index("Quick") < page.words.index("Middle")
    assert page.all("form")[0]["hidden"] == ""
    assert not page.all("th")[0].get("aria-sort")


def test_rows_carry_their_ranks_for_each_level(files: dict[str, str]) -> None:
    rows = [one for one in Parsed(files["index.html"]).all("tr") if "data-entry" in one]
    free = next(one for one in rows if one["data-level"] == "free")
    assert (free.get("data-hardware"), free.get("data-system"), free["data-free"]) == (None, None, "1")
    strict = next(one for one in rows if one["data-level"] == "hardware")
    assert (strict["data-hardware"], strict["data-free"], strict["data-date"]) == ("1", "2", "2026-10-01")


def test_the_page_of_a_submission_tells_all(files: dict[str, str]) -> None:
    [text] = [
        text
        for name, text in files.items()
        if name.startswith("submissions/") and "VERIFIED, RANK 1" in text and "Quick" in text
    ]
    words = Parsed(text).words
    for said in ("free level: rank 1 of", "SHA256:abc", "trial-12", "signature", "epoch-89.pt", "c" * 64, "per watt"):
        assert said in words, said
    assert "-report.html" in text
    [forged] = [text for text in files.values() if "Forged: HPC AI500" in text]
    assert "REFUSED" in forged
    assert "line 7" in forged
    assert "RANK 1" not in forged
    assert "-report.html" not in forged


def test_a_warning_is_counted_beside_the_verdict_and_a_missing_report_said() -> None:
    from hpcai500.results.verification.finding import Finding

    warned = verified(findings=(Finding("clock", "warning", "a pause"),))
    assert warned.facts is not None
    warned = replace(warned, facts=replace(warned.facts, report_problem="RecordError: no"))
    [text] = [t for name, t in site_files(rank([warned]), DAY).items() if name.startswith("submissions/")]
    assert "1 warning for people to judge" in text
    assert "There is no report of its runs: <bdi>RecordError: no" in text


def test_published_systems_stand_apart(files: dict[str, str]) -> None:
    assert "Fujitsu" in files["published.html"]
    assert "Fujitsu" not in files["index.html"]
    assert "Fujitsu" not in files["ranking.json"]
    words = " ".join(Parsed(files["published.html"]).words.split())
    assert "unverified" in words
    assert "31.41" in words
    assert "34.03" in words
    assert "31.43" in words


def test_an_empty_ranking_is_a_page_too() -> None:
    assert "No submission is ranked yet" in site_files(rank([]), DAY)["index.html"]


def test_the_drawing_says_what_it_shows_and_is_bounded() -> None:
    submissions = [
        verified(1e15 / n, system=f"System {n}", precision=f"kind {n % 9}", compression="none",
                 result={"time_to_quality_seconds": None if n == 3 else 60.0 * n})
        for n in range(1, 60)
    ]  # fmt: skip
    [group] = rank(submissions).groups
    chart = bar_chart(group)
    assert chart.drawing.count("data-entry") == 40
    assert "1. System 1: 1 PFLOPS, 60.0 s to quality" in chart.drawing
    assert "3. System 3: 333 TFLOPS, target quality not reached" in chart.drawing
    assert chart.keys[-1].name == "4 others"
    widths = [float(width) for width in re.findall(r'<rect x="0" y="16" width="([\d.]+)"', chart.drawing)]
    assert widths[1] == pytest.approx(widths[0] / 2, rel=0.01), "bars begin at 0"


def test_the_script_uses_nothing_that_a_policy_would_have_to_allow(files: dict[str, str]) -> None:
    script = files["site.js"]
    for forbidden in ("innerHTML", "eval(", "fetch(", "XMLHttpRequest", "http", "document.write", "new Function"):
        assert forbidden not in script, forbidden


def test_raw_html_in_markdown_stays_text() -> None:
    html = to_html("a <script>alert(1)</script> <b>b</b>\n\n<img src=x onerror=alert(1)>\n", {})
    assert "<script" not in html
    assert "<img" not in html
    assert "<b>" not in html


@pytest.mark.parametrize(
    "link", ["javascript:alert(1)", "data:text/html,x", "//elsewhere.example/x", "../recipes/x.toml", "gone.md"]
)
def test_links_that_lead_nowhere_are_words(link: str) -> None:
    html = to_html(f"[words]({link}) and [more](rules.md#the-clock)", {"rules.md": "Rules"})
    assert html.count("<a ") == 1
    assert '<a href="rules.html#the-clock">more</a>' in html
    assert "words" in html


def test_a_picture_is_not_loaded() -> None:
    assert "<img" not in to_html("![alt](https://elsewhere.example/x.png)", {})


def test_tables_need_no_styles_of_their_own() -> None:
    html = to_html("| a | b |\n|---|--:|\n| 1 | 2 |\n", {})
    assert '<td class="to-end">2</td>' in html
    assert "style=" not in html
    assert 'tabindex="0"' in html


def test_headings_have_the_names_that_links_use() -> None:
    assert 'id="flops-vflops"' in to_html("## FLOPS, VFLOPS\n", {})
    assert anchor_of("What `doctor` looks at") == "what-doctor-looks-at"
    assert to_html("# A\n\n# A\n", {}).count('id="a-1"') == 1


def test_a_link_that_is_only_a_file_gets_the_title() -> None:
    html = to_html("[rules.md](rules.md)", {"rules.md": "Rules and levels"})
    assert html == '<p><a href="rules.html">Rules and levels</a></p>\n'


def test_title_and_first_sentence_are_words() -> None:
    text = "# Ceilings: `hpcai500 micro`\n\n    hpcai500 micro\n\nWhat *it* does\nat [best](x.md). And more.\n"
    assert title_of(text) == "Ceilings: hpcai500 micro"
    assert first_sentence(text) == "What it does at best."


def test_the_documentation_of_this_installation_is_found_and_its_links_hold() -> None:
    assert (docs_folder() / "methodology.md").is_file()
    written = {path.stem for path in docs_folder().glob("*.md")}
    site = site_files(rank([]), DAY)
    assert {f"method/{name}.html" for name in written} <= set(site)
    for name, page in pages(site).items():
        for link in page.all("a"):
            path = link["href"].partition("#")[0]
            if path and ":" not in path:
                assert str(((Path("/") / name).parent / path).resolve().relative_to("/")) in site, (name, link)
