"""The page to sign in a real browser without a network: on a phone, on a screen, and on paper."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Browser, why_no_browser
from builders.campaigns import SHORT, write_campaign

from hpcai500.results.acceptance.contract import contracts_folder, load_contract
from hpcai500.results.acceptance.page import acceptance_page
from hpcai500.results.acceptance.verdict import Request, accept

PHONE, SCREEN = 390, 1200
# A word that no line can hold, where a record lets anybody write.
LONG = "a-host-name-that-is-much-too-long-for-a-telephone" * 3

pytestmark = pytest.mark.skipif(bool(why_no_browser()), reason=why_no_browser() or "")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Browser:
    return Browser(tmp_path_factory.mktemp("browser"))


@pytest.fixture(scope="module")
def page() -> Iterator[Path]:
    """Ten runs judged by a contract with some criteria kept and most missing."""
    # Its name is on the page: as long as a user's, and the same on every worker.
    with tempfile.TemporaryDirectory(prefix="site-of-a-user-") as folder:
        yield written_page(Path(folder))


def written_page(folder: Path) -> Path:
    hosts = (f"1-{LONG}", f"2-{LONG}")
    runs = write_campaign(folder / "campaign", *SHORT, trials=10, quality=0.77, hosts=hosts)
    contract = folder / "contract.toml"
    text = (contracts_folder() / "example.toml").read_text(encoding="utf-8")
    contract.write_text(re.sub(r"^nodes = 16", "nodes = 2", text, flags=re.MULTILINE), encoding="utf-8")
    path = folder / "acceptance.html"
    path.write_text(acceptance_page(accept(Request(load_contract(contract), [runs]))), encoding="utf-8")
    return path


@pytest.mark.parametrize("width", [PHONE, SCREEN])
def test_nothing_is_wider_than_the_window_cut_off_or_loaded(browser: Browser, page: Path, width: int) -> None:
    found = browser.measured(page, width)
    assert (found["client"], found["width"]) == (width, width), f"the page scrolls sideways: {found['wide'][:5]}"
    assert found["wide"] == []
    assert found["cut"] == [], "words of a drawing leave it"
    assert found["loaded"] == []


def test_ten_runs_and_two_signatures_are_two_sheets_of_paper(browser: Browser, page: Path) -> None:
    printed = browser.printed(page)
    assert len(re.findall(rb"/Type\s*/Page\b", printed)) <= 2
    # A4 in points.
    sizes = {(round(float(width)), round(float(height))) for width, height in
             re.findall(rb"/MediaBox\s*\[\s*0\s+0\s+([\d.]+)\s+([\d.]+)", printed)}  # fmt: skip
    assert sizes == {(595, 842)}
