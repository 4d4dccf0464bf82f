"""The site of a ranking: complete without script, closed to the network, blind to what strangers wrote.

It goes into an empty folder, or over a site of ours; nobody else's file is ever removed.
"""

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
from builders.submissions import refused, verified

from hpcai500.errors import UsageError
from hpcai500.results.ranking.documentation import anchor_of, docs_folder, first_sentence, title_of, to_html
from hpcai500.results.ranking.entries import Examined
from hpcai500.results.ranking.pages import _trial_chart, bar_chart, site_files
from hpcai500.results.ranking.ranking import rank
from hpcai500.results.ranking.site_folder import MARKER, check_place, write_site
from hpcai500.results.verification.finding import Finding

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
FILES = {"index.html": "one", "method/rules.html": "rules"}


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


@pytest.fixture(scope="module")
def pages(files: dict[str, str]) -> dict[str, Parsed]:
    """All pages but the reports of submissions."""
    return parsed(files)


def parsed(files: dict[str, str]) -> dict[str, Parsed]:
    return {name: Parsed(text) for name, text in files.items() if name.endswith(".html") and "-report" not in name}


def test_there_is_a_page_for_everything(files: dict[str, str], pages: dict[str, Parsed]) -> None:
    wanted = {"index.html", "published.html", "site.js", "ranking.json", "method/index.html", "method/rules.html"}
    assert wanted <= set(files)
    links = [one["href"] for one in pages["index.html"].all("a") if one["href"].startswith("submissions/")]
    assert len(links) == len(set(links)) == 3 + 1 + 2 * len(ATTACKS)
    assert set(links) <= set(files)
    assert "bomb.zip" in pages["index.html"].words
    assert json.loads(files["ranking.json"])["entries"]


def dead_links(pages: dict[str, Parsed], files: dict[str, str]) -> list[tuple[str, str]]:
    """Links within a site that lead nowhere in it."""
    found = []
    for name, page in pages.items():
        anchors = {attributes["id"] for _, attributes in page.elements if "id" in attributes}
        for link in page.all("a"):
            path, _, fragment = link["href"].partition("#")
            target = str(((Path("/") / name).parent / path).resolve().relative_to("/"))
            if ":" not in path and (target not in files if path else fragment not in anchors):
                found.append((name, link["href"]))
    return found


def test_every_link_within_the_site_leads_somewhere(files: dict[str, str], pages: dict[str, Parsed]) -> None:
    assert not [one for page in pages.values() for one in page.all("a") if ":" in one["href"].partition("#")[0]]
    assert dead_links(pages, files) == []


def test_the_documentation_of_this_installation_is_found_and_its_links_hold() -> None:
    assert (docs_folder() / "methodology.md").is_file()
    site = site_files(rank([]), DAY)
    assert {f"method/{path.stem}.html" for path in docs_folder().glob("*.md")} <= set(site)
    assert dead_links(parsed(site), site) == []
    assert "No submission is ranked yet" in site["index.html"]


def test_what_strangers_wrote_is_words_and_never_markup(pages: dict[str, Parsed]) -> None:
    for name, page in pages.items():
        assert "pwned" not in page.words or "<script>document" in page.words
        assert [one for one in page.all("script") if one != {"src": "site.js", "defer": ""}] == [], name
        assert not page.all("img"), name
        for tag, attributes in page.elements:
            assert not [key for key in attributes if key.startswith("on") or key == "style"], (name, tag, attributes)
            assert not attributes.get("href", "").startswith(("javascript:", "data:")), (name, attributes)
        assert "60481729" not in page.words, "a template was run"
        assert page.words.count("\u202e") == page.words.count("\x1b") == 0, name
    assert "<script>document.title='pwned'</script>" in pages["index.html"].words
    assert "\\u202egnp.exe" in pages["index.html"].words


def test_each_page_forbids_all_but_its_own_style_and_script(files: dict[str, str], pages: dict[str, Parsed]) -> None:
    for name, page in pages.items():
        [policy] = [one["content"] for one in page.all("meta") if one.get("http-equiv") == "Content-Security-Policy"]
        rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
        style = re.findall(r"<style>(.*?)</style>", files[name], re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(style[0].encode()).digest()).decode()
        assert (rules["style-src"], rules["default-src"]) == (f"'sha256-{digest}'", "'none'")
        has_script = bool(page.all("script"))
        assert rules.get("script-src") == ("'self'" if has_script else None), name
        assert has_script == (name in ("index.html", "published.html"))
    for forbidden in ("innerHTML", "eval(", "fetch(", "XMLHttpRequest", "http", "document.write", "new Function"):
        assert forbidden not in files["site.js"], forbidden


def test_pages_are_there_for_those_who_hear_them(pages: dict[str, Parsed]) -> None:
    for name, page in pages.items():
        assert page.all("html") == [{"lang": "en"}]
        assert (len(page.all("h1")), len(page.all("main"))) == (1, 1), name
        assert next(iter(page.all("a"))) == {"class": "skip", "href": "#content"}
        assert all(one.get("scope") in ("col", "row") for one in page.all("th")) or name.startswith("method/"), name
        if not name.startswith("method/"):
            assert len(page.all("caption")) == len(page.all("table")), name
        levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch(r"h[1-6]", tag)]
        assert all(later <= earlier + 1 for earlier, later in pairwise(levels)), (name, levels)


def test_without_script_the_table_is_sorted_and_says_by_what(pages: dict[str, Parsed]) -> None:
    page = pages["index.html"]
    assert [one["aria-sort"] for one in page.all("th") if "aria-sort" in one] == ["descending"] * 2
    assert page.words.index("Quick") < page.words.index("Middle")
    assert page.all("form")[0]["hidden"] == ""
    assert not page.all("th")[0].get("aria-sort")
    rows = {one["data-level"]: one for one in reversed(page.all("tr")) if "data-entry" in one}
    free, strict = rows["free"], rows["hardware"]
    assert (free.get("data-hardware"), free.get("data-system"), free["data-free"]) == (None, None, "1")
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
    warned = verified(findings=(Finding("clock", "warning", "a pause"),))
    warned = replace(warned, facts=replace(warned.facts, report_problem="RecordError: no"))
    [text] = [t for name, t in site_files(rank([warned]), DAY).items() if name.startswith("submissions/")]
    assert "See the 1 warning below" in text
    assert "The report of its runs is missing: <bdi>RecordError: no" in text


def test_published_systems_stand_apart(files: dict[str, str], pages: dict[str, Parsed]) -> None:
    with_fujitsu = {name for name in ("published.html", "index.html", "ranking.json") if "Fujitsu" in files[name]}
    assert with_fujitsu == {"published.html"}
    assert {"unverified", "31.41", "34.03", "31.43"} <= set(re.findall(r"[\w.]+", pages["published.html"].words))


def test_published_systems_are_on_the_first_page_when_asked_for(tmp_path: Path) -> None:
    ranking = rank([verified(700e12, system="Amber")])
    asked = site_files(ranking, DAY, docs(tmp_path / "docs"), with_published=True)
    assert "Fujitsu" in asked["index.html"]
    assert asked["index.html"].index("Amber") < asked["index.html"].index("Fujitsu")
    assert "unverified" in asked["index.html"]
    assert "Fujitsu" not in asked["ranking.json"]


@pytest.mark.parametrize(("rates", "is_cut"), [((700e12, 705e12), True), ((700e12, 1e12), False)])
def test_trials_are_dots_and_the_axis_says_where_it_is_cut(rates: tuple[float, float], is_cut: bool) -> None:
    chart = _trial_chart([(1.0, rates[0]), (2.0, rates[1])], sum(rates) / 2)
    assert "polyline" not in chart.drawing
    assert chart.drawing.count("<circle") == 2
    assert ("does not begin at 0" in chart.note) == is_cut


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
    widths = [float(width) for width in re.findall(r'<rect x="0" y="16" width="([\d.]+)%"', chart.drawing)]
    assert widths[1] == pytest.approx(widths[0] / 2, rel=0.01), "bars begin at 0"


@pytest.mark.parametrize(
    "link", ["javascript:alert(1)", "data:text/html,x", "//elsewhere.example/x", "../recipes/x.toml", "gone.md"]
)
def test_links_that_lead_nowhere_are_words(link: str) -> None:
    html = to_html(f"[words]({link}) and [more](rules.md#the-clock)", {"rules.md": "Rules"})
    assert html.count("<a ") == 1
    assert '<a href="rules.html#the-clock">more</a>' in html
    assert "words" in html


def test_markdown_becomes_markup_that_loads_and_runs_nothing() -> None:
    html = to_html("a <script>alert(1)</script> <b>b</b>\n\n<img src=x onerror=alert(1)>\n\n![a](https://b/x.png)", {})
    assert not [tag for tag in ("<script", "<img", "<b>") if tag in html]
    table = to_html("| a | b |\n|---|--:|\n| 1 | 2 |\n", {})
    assert '<td class="to-end">2</td>' in table
    assert ("style=" in table, 'tabindex="0"' in table) == (False, True)


def test_headings_and_titles_have_the_names_that_links_use() -> None:
    assert 'id="flops-vflops"' in to_html("## FLOPS, VFLOPS\n", {})
    assert anchor_of("What `doctor` looks at") == "what-doctor-looks-at"
    assert to_html("# A\n\n# A\n", {}).count('id="a-1"') == 1
    html = to_html("[rules.md](rules.md)", {"rules.md": "Rules and levels"})
    assert html == '<p><a href="rules.html">Rules and levels</a></p>\n'
    text = "# Ceilings: `hpcai500 micro`\n\n    hpcai500 micro\n\nWhat *it* does\nat [best](x.md). And more.\n"
    assert title_of(text) == "Ceilings: hpcai500 micro"
    assert first_sentence(text) == "What it does at best."


def there(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): path.read_text()
        for path in folder.rglob("*")
        if path.is_file() and path.name != MARKER
    }


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A site of ours, alone in its folder."""
    write_site(tmp_path / "site", FILES)
    return tmp_path / "site"


@pytest.mark.parametrize("exists", [False, True])
def test_a_new_or_empty_folder_takes_a_site(tmp_path: Path, exists: bool) -> None:
    target = tmp_path / "a" / "site"
    if exists:
        target.mkdir(parents=True)
    write_site(target, FILES)
    assert there(target) == FILES
    assert list(target.parent.iterdir()) == [target]


def test_a_site_of_ours_is_replaced_whole(site: Path) -> None:
    site.chmod(0o755)
    write_site(site, {"index.html": "two", "submissions/x.html": "a\ud800b"})
    assert there(site) == {"index.html": "two", "submissions/x.html": "a?b"}, "half a character is a question mark"
    assert site.stat().st_mode & 0o777 == 0o755
    assert list(site.parent.iterdir()) == [site]


def test_what_somebody_else_wrote_is_not_removed(site: Path, tmp_path: Path) -> None:
    (site / "CNAME").write_text("ranking.example")
    with pytest.raises(UsageError, match="holds CNAME, which hpcai500 did not write and would remove"):
        write_site(site, FILES)
    assert there(site)["CNAME"] == "ranking.example"
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years of work")
    with pytest.raises(
        UsageError, match=r"holds thesis.tex and is not a site of hpcai500; give --html an empty folder"
    ):
        write_site(tmp_path / "mine", FILES)
    assert there(tmp_path / "mine") == {"thesis.tex": "years of work"}


@pytest.mark.parametrize("marker", ["", "[]", "{}", '{"schema": "hpcai500-site-1", "files": 7}', '{"schema": "other"}'])
def test_a_marker_that_is_none_makes_no_site_ours(tmp_path: Path, marker: str) -> None:
    (tmp_path / MARKER).write_text(marker)
    with pytest.raises(UsageError, match="is not a site of hpcai500"):
        check_place(tmp_path)


def test_a_file_and_a_link_are_no_folders(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path)
    for name in ("file", "link"):
        with pytest.raises(UsageError, match="not a folder"):
            check_place(tmp_path / name)


def test_a_site_that_cannot_be_written_leaves_the_old_one(site: Path) -> None:
    with pytest.raises(UsageError, match="cannot be written"):
        write_site(site, {"index.html": "two", "x" * 300: "a name too long for any disk"})
    assert (there(site), list(site.parent.iterdir())) == (FILES, [site])


def test_ctrl_c_between_the_two_renames_brings_the_old_site_back(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rename, done = Path.rename, []

    def stopped(path: Path, target: Path) -> Path:
        done.append(path)
        if len(done) == 2:
            raise KeyboardInterrupt
        return rename(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", stopped)
        with pytest.raises(KeyboardInterrupt):
            write_site(site, {"index.html": "two"})
    assert (there(site), list(site.parent.iterdir())) == (FILES, [site])
