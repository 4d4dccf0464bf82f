"""Chromium as a hand uses it: real key strokes and clicks, by the protocol of its developer tools over two pipes.

It has no network (its own namespace), so what a page wanted to load from elsewhere would fail, and be seen.
"""

from __future__ import annotations

import base64
import io
import itertools
import json
import os
import select
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from PIL import Image

_PATIENCE_SECONDS = 60.0
_KEYS = {"Tab": ("Tab", 9, ""), "Enter": ("Enter", 13, "\r"), " ": ("Space", 32, " ")}


class Tab:
    """One window of a browser that was never used before. `said`: what pages complained of; `wanted`: what they loaded.

    Args:
        folder: for the browser's profile.
    """

    def __init__(self, folder: Path) -> None:
        to_browser, self._out = os.pipe()
        self._in, from_browser = os.pipe()
        line = [
            "unshare", "--net", "chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
            "--remote-debugging-pipe", f"--user-data-dir={folder / 'profile'}", "about:blank",
        ]  # fmt: skip
        # The browser reads descriptor 3 and writes 4.
        moved = ["bash", "-c", f'exec "$@" 3<&{to_browser} 4>&{from_browser}', "bash", *line]
        self._browser = subprocess.Popen(
            moved, pass_fds=(to_browser, from_browser), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            env=os.environ | {"HOME": str(folder)},
        )  # fmt: skip
        os.close(to_browser)
        os.close(from_browser)
        self._numbers = itertools.count(1)
        self._read = b""
        self._events: list[Mapping[str, Any]] = []
        self.said: list[str] = []
        self.wanted: list[str] = []
        [page] = [one for one in self._call("Target.getTargets")["targetInfos"] if one["type"] == "page"]
        attached = self._call("Target.attachToTarget", targetId=page["targetId"], flatten=True)
        self._session = str(attached["sessionId"])
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.do(f"{domain}.enable")

    _session: str | None = None

    def __enter__(self) -> Tab:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._out)
        try:
            self._browser.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._browser.kill()
            self._browser.wait()
        os.close(self._in)

    def do(self, method: str, **parameters: Any) -> Mapping[str, Any]:
        """One call of the protocol."""
        return self._call(method, **parameters)

    def open(
        self, page: Path, *, width: int = 1200, height: int = 900, dark: bool = False, script: bool = True
    ) -> None:
        """Show `page` in a window of this size."""
        self.do("Emulation.setScriptExecutionDisabled", value=not script)
        self.do(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.do("Emulation.setEmulatedMedia", features=[scheme])
        self._events.clear()
        self.do("Page.navigate", url=page.as_uri())
        self._until(lambda: any(event["method"] == "Page.loadEventFired" for event in self._events))

    def value(self, expression: str) -> Any:
        """What `expression` is in the page."""
        answer = self.do("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def press(self, key: str) -> None:
        """One key of `Tab`, `Enter` and the space bar."""
        code, number, text = _KEYS[key]
        same = {"key": key, "code": code, "windowsVirtualKeyCode": number}
        self.do("Input.dispatchKeyEvent", type="keyDown", text=text, **same)
        self.do("Input.dispatchKeyEvent", type="keyUp", **same)

    def click(self, expression: str) -> None:
        """The left button in the middle of the element that `expression` gives."""
        self.value(f"({expression}).scrollIntoView({{block: 'center', inline: 'center'}})")
        box = f"(() => {{ const box = ({expression}).getBoundingClientRect();"
        x, y = self.value(f"{box} return [box.x + box.width / 2, box.y + box.height / 2]; }})()")
        for kind in ("mousePressed", "mouseReleased"):
            self.do("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def picture(self, *, whole: bool = False) -> Image.Image:
        """What is seen, or all of the page."""
        shot = self.do("Page.captureScreenshot", captureBeyondViewport=whole, **(self._all() if whole else {}))
        with Image.open(io.BytesIO(base64.b64decode(shot["data"]))) as opened:
            return opened.convert("RGB")

    def printed(self) -> bytes:
        """The page on paper, as PDF."""
        return base64.b64decode(self.do("Page.printToPDF")["data"])

    def _all(self) -> dict[str, Any]:
        size = self.do("Page.getLayoutMetrics")["cssContentSize"]
        return {"clip": {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}}

    def _call(self, method: str, **parameters: Any) -> Mapping[str, Any]:
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        answers: list[Mapping[str, Any]] = []
        self._until(lambda: bool(answers), number, answers)
        assert "error" not in answers[0], f"{method}: {answers[0]}"
        result: Mapping[str, Any] = answers[0]["result"]
        return result

    def _until(
        self, is_done: Callable[[], bool], number: int | None = None, answers: list[Mapping[str, Any]] | None = None
    ) -> None:
        end = time.monotonic() + _PATIENCE_SECONDS
        while not is_done():
            head, found, rest = self._read.partition(b"\0")
            if found:
                self._read = rest
                message = json.loads(head)
                if "id" not in message:
                    self._note(message)
                elif answers is not None and message["id"] == number:
                    answers.append(message)
                continue
            ready, _, _ = select.select([self._in], [], [], max(0.0, end - time.monotonic()))
            received = os.read(self._in, 1 << 20) if ready else b""
            assert received, "the browser has ended, or does not answer"
            self._read += received

    def _note(self, event: Mapping[str, Any]) -> None:
        self._events.append(event)
        values = event.get("params", {})
        match event["method"]:
            case "Network.requestWillBeSent":
                self.wanted.append(values["request"]["url"])
            case "Runtime.consoleAPICalled":
                self.said.append(" ".join(str(one.get("value")) for one in values["args"]))
            case "Runtime.exceptionThrown":
                self.said.append(str(values["exceptionDetails"]))
            case "Log.entryAdded":
                self.said.append(values["entry"]["text"])
            case "Page.javascriptDialogOpening":
                self.said.append(f"dialog: {values['message']}")
            case _:
                pass
