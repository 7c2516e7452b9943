"""A real browser without a window: Chromium, driven through its DevTools over a pipe.

It starts once, in a folder of its own, and is closed or killed when the tests are over. Where there is none, tests
that need it say so in one line.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PATIENCE = 300.0  # seconds; the machine may be busy with other things


def find_browser() -> str:
    """The browser's command, or a skip that says that there is none."""
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip("no browser found: install chromium to see the report rendered")
    return found


class Browser:
    """Messages of the DevTools protocol, over the two ends of a pipe."""

    def __init__(self, process: subprocess.Popen[bytes], write: int, read: int) -> None:
        self.process, self.write, self.read = process, write, read
        self.number, self.rest = 0, b""
        self.events: list[dict[str, Any]] = []
        self.session = ""

    def __call__(self, method: str, **params: Any) -> dict[str, Any]:
        """Ask for something, and wait for the answer."""
        self.number += 1
        message: dict[str, Any] = {"id": self.number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.write, json.dumps(message).encode() + b"\0")
        while True:
            heard = self._message()
            if heard.get("id") == self.number:
                assert "error" not in heard, f"{method}: {heard['error']}"
                return heard["result"]
            self.events.append(heard)

    def wait_for(self, event: str) -> None:
        """Until the browser says so."""
        while not any(heard.get("method") == event for heard in self.events):
            self.events.append(self._message())

    def _message(self) -> dict[str, Any]:
        until = time.monotonic() + PATIENCE
        while b"\0" not in self.rest:
            assert time.monotonic() < until, "the browser does not answer"
            if select.select([self.read], [], [], 1.0)[0]:
                part = os.read(self.read, 1 << 20)
                assert part, "the browser has gone"
                self.rest += part
        message, _, self.rest = self.rest.partition(b"\0")
        return json.loads(message)

    # --- what tests ask ---------------------------------------------------------------------------

    def open(
        self, page: Path, *, width: int = 1100, height: int = 900, scheme: str = "light", media: str = ""
    ) -> None:
        """Show a page in a window of this size, in light or dark."""
        self.events.clear()
        self(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        self(
            "Emulation.setEmulatedMedia",
            media=media,
            features=[{"name": "prefers-color-scheme", "value": scheme}],
        )
        self("Page.navigate", url=page.resolve().as_uri())
        self.wait_for("Page.loadEventFired")

    def value(self, expression: str) -> Any:
        """What an expression of JavaScript comes to in the page."""
        answer = self("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def complaints(self) -> list[str]:
        """What the console holds: errors, warnings, what a policy blocked."""
        found = []
        for heard in self.events:
            if heard.get("method") == "Log.entryAdded":
                found.append(heard["params"]["entry"]["text"])
            elif heard.get("method") in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown"):
                found.append(json.dumps(heard["params"]))
        return found

    def screenshot(self) -> bytes:
        """The whole page as PNG."""
        size = self("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        return base64.b64decode(self("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)["data"])

    def pdf(self) -> bytes:
        """The page as it prints."""
        return base64.b64decode(self("Page.printToPDF", printBackground=False)["data"])

    def images(self) -> list[str]:
        """The accessible names of all pictures, as a screen reader is told them."""
        nodes = self("Accessibility.getFullAXTree")["nodes"]
        shown = [
            node for node in nodes if not node.get("ignored") and node.get("role", {}).get("value") == "image"
        ]
        return [node.get("name", {}).get("value", "") for node in shown]


@contextmanager
def started() -> Iterator[Browser]:
    """A browser with one empty page, which ends with the block."""
    command = find_browser()
    read_commands, write = os.pipe()
    read, write_answers = os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:

        def as_three_and_four() -> None:
            # the two ends may be 3 or 4 themselves, so both are first moved out of the way
            first, second = os.dup(read_commands), os.dup(write_answers)
            first, second = os.dup(first), os.dup(second)
            os.dup2(first, 3)
            os.dup2(second, 4)

        process = subprocess.Popen(
            [
                command, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
                "--disable-extensions", "--disable-background-networking", "--hide-scrollbars",
                f"--user-data-dir={profile}", "--remote-debugging-pipe", "about:blank",
            ],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, close_fds=False,
            preexec_fn=as_three_and_four, start_new_session=True,
        )  # fmt: skip
        os.close(read_commands)
        os.close(write_answers)
        browser = Browser(process, write, read)
        try:
            target = browser("Target.createTarget", url="about:blank")["targetId"]
            browser.session = browser("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            for domain in ("Page", "Runtime", "Log", "Accessibility"):
                browser(f"{domain}.enable")
            yield browser
        finally:
            _ended(process)
            os.close(write)
            os.close(read)


def _ended(process: subprocess.Popen[bytes]) -> None:
    """The browser and all that it started are gone: it leads a session of its own."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, sign)
            process.wait(timeout=20)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue
    process.wait(timeout=20)
