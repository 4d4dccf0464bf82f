"""Chromium without a window and without a network: what it draws, prints and says of a page."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

from PIL import Image

# Holds the page as a phone or a screen does, and writes what it measures into its own document.
_FRAME = """<!doctype html><meta charset="utf-8"><body style="margin:0"><iframe id="frame" style="border:0;height:800px;
width:WIDTHpx"></iframe><pre id="found"></pre><script>
const frame = document.getElementById("frame");
frame.onload = () => {
  const inside = frame.contentDocument, root = inside.documentElement, width = frame.clientWidth;
  inside.querySelectorAll("details").forEach(one => { one.open = true; });
  const wide = [...inside.querySelectorAll("body *")].filter(one => !one.closest(".scroll, svg")
    && one.getBoundingClientRect().right > width + 0.5).map(one => one.tagName + "." + one.className);
  const cut = [...inside.querySelectorAll("svg text")].filter(one => {
    const svg = one.ownerSVGElement.getBoundingClientRect(), box = one.getBoundingClientRect();
    return box.width && (box.left < svg.left - 1 || box.right > svg.right + 1 || box.top < svg.top - 1
      || box.bottom > svg.bottom + 1);
  }).map(one => one.textContent);
  const letters = [...inside.querySelectorAll("svg text")].map(one => one.getBoundingClientRect().height);
  document.getElementById("found").textContent = JSON.stringify({
    width: root.scrollWidth, client: root.clientWidth, wide, cut, smallest: Math.min(...letters), texts: letters.length,
    loaded: frame.contentWindow.performance.getEntriesByType("resource").map(one => one.name.slice(0, 80)),
  });
};
frame.srcdoc = PAGE;
</script>"""


def why_no_browser() -> str | None:
    """Why there is no browser here, or None."""
    return (
        None if shutil.which("chromium") else "no chromium on this machine: run scripts/bootstrap --with site as root"
    )


class Browser:
    """One browser that has never been used before.

    Args:
        folder: for its profile and for what it writes.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def picture(self, page: Path, *, width: int, height: int, dark: bool = False) -> Image.Image:
        """The top of `page` in a window of this size."""
        target = self._folder / f"{page.stem}-{width}{'-dark' if dark else ''}.png"
        scheme = 0 if dark else 1
        self._run(
            page, f"--screenshot={target}", f"--window-size={width},{height}",
            f"--blink-settings=preferredColorScheme={scheme}",
        )  # fmt: skip
        with Image.open(target) as opened:
            return opened.convert("RGB")

    def printed(self, page: Path) -> bytes:
        """The PDF of `page`."""
        target = self._folder / f"{page.stem}.pdf"
        self._run(page, f"--print-to-pdf={target}", "--no-pdf-header-footer")
        return target.read_bytes()

    def measured(self, page: Path, width: int) -> dict[str, Any]:
        """How `page` lies in a frame of `width` pixels: what is too wide, which words are cut off, what it loads."""
        text = json.dumps(page.read_text(encoding="utf-8")).replace("</", "<\\/")
        frame = self._folder / f"{page.stem}-{width}.html"
        frame.write_text(_FRAME.replace("WIDTH", str(width)).replace("PAGE", text), encoding="utf-8")
        shown = self._run(frame, "--dump-dom", "--virtual-time-budget=10000")
        [found] = re.findall(r'<pre id="found">(.*?)</pre>', shown, re.DOTALL)
        document: dict[str, Any] = json.loads(unescape(found))
        return document

    def _run(self, page: Path, *options: str) -> str:
        """Standard output of a browser with `options` that looks at `page`; what the page complains of fails."""
        line = [
            "unshare", "--net", "chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
            "--enable-logging=stderr",
            f"--user-data-dir={self._folder / 'profile'}", *options, page.as_uri(),
        ]  # fmt: skip
        environment = os.environ | {"HOME": str(self._folder)}
        ended = subprocess.run(line, capture_output=True, text=True, check=True, timeout=120, env=environment)
        # The browser's own pages complain as well.
        said = [line for line in ended.stderr.splitlines() if "CONSOLE" in line and "source: chrome" not in line]
        assert not said, said
        return ended.stdout
