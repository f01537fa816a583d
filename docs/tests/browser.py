"""A headless Chromium that pages are looked at with, by the DevTools protocol."""

import base64
import json
import pathlib
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import websocket

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
OPTIONS = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars")
# What the protocol answers while one page gives way to the next.
LEFT = ("navigated or closed", "context was destroyed", "Cannot find context")
PORT = ("--remote-debugging-port=0", "--remote-allow-origins=*")


def installed() -> str | None:
    """The browser's program, if there is one."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One tab. What it finds wrong on a page is in `complaints`, from one `open` to the next."""

    def __init__(self, address: str) -> None:
        self.socket = websocket.create_connection(address, timeout=60)
        self.number = 0
        self.complaints: list[str] = []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **given: Any) -> dict[str, Any]:
        """The answer to a command; what is told in the meantime is noted."""
        self.number += 1
        self.socket.send(json.dumps({"id": self.number, "method": method, "params": given}))
        while True:
            message = json.loads(self.socket.recv())
            if message.get("id") == self.number:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                return message["result"]
            self.note(message)

    def note(self, message: dict[str, Any]) -> None:
        """Keep errors and warnings of the console, uncaught errors, and files that did not load."""
        told = message.get("params", {})
        match message.get("method"):
            case "Runtime.consoleAPICalled" if told["type"] in ("error", "warning", "assert"):
                self.complaints.append(json.dumps(told["args"]))
            case "Runtime.exceptionThrown":
                self.complaints.append(json.dumps(told["exceptionDetails"]))
            case "Log.entryAdded" if told["entry"]["level"] in ("error", "warning"):
                self.complaints.append(told["entry"]["text"])
            case "Network.loadingFailed" if not told.get("canceled"):
                self.complaints.append(told["errorText"])
            case "Network.requestWillBeSent":
                url = told["request"]["url"]
                if not url.startswith(("file:", "data:", "blob:")):
                    self.complaints.append(f"asked for {url}")

    def look(self, width: int, scheme: str, height: int = 900) -> None:
        """Show pages at this width in CSS pixels, in the scheme "light" or "dark"."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1}
        self.call("Emulation.setDeviceMetricsOverride", mobile=False, **size)
        wanted = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", features=wanted)

    def open(self, page: pathlib.Path, query: str = "") -> None:
        """Load a page from disk, its fonts and lazy images included."""
        if not page.exists():
            raise FileNotFoundError(page)
        self.complaints = []
        self.call("Page.navigate", url=page.as_uri() + query)
        self.until(f"location.href.startsWith({json.dumps(page.as_uri())})")
        self.until("document.readyState === 'complete'")
        self.run("for (const image of document.images) image.loading = 'eager'")
        self.run("document.fonts.ready.then(() => 0)")
        self.until("[...document.images].every((image) => image.complete)")

    def run(self, script: str) -> Any:
        """The value of an expression of JavaScript; a promise is waited for."""
        given = {"expression": script, "awaitPromise": True, "returnByValue": True}
        answer = self.call("Runtime.evaluate", **given)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{script}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def follow(self, link: str) -> None:
        """Click on a link, after the answer: the page that would give it is then left."""
        self.run(f"void setTimeout(() => {link}.click())")

    def until(self, condition: str, seconds: float = 20) -> None:
        """Wait for an expression of JavaScript to be true; `TimeoutError` names it.

        A page that is left while it is asked answers with an error; the next one is asked again.
        """
        end = time.monotonic() + seconds
        while not self.answered(condition):
            if time.monotonic() > end:
                raise TimeoutError(f"not within {seconds} s: {condition}")
            time.sleep(0.02)

    def answered(self, condition: str) -> bool:
        """Whether a page is there to answer, and says that the condition is true."""
        try:
            return bool(self.run(condition))
        except RuntimeError as error:
            if any(words in str(error) for words in LEFT):
                return False
            raise

    def picture(self, path: pathlib.Path, whole: bool = False) -> None:
        """Save what is seen, or the whole page, as a PNG."""
        answer = self.call("Page.captureScreenshot", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(answer["data"]))


@contextmanager
def browser(folder: pathlib.Path) -> Iterator[Browser]:
    """A browser that keeps its files in `folder`, and ends at the end."""
    program = installed()
    assert program is not None
    command = [program, *OPTIONS, *PORT, f"--user-data-dir={folder}", "about:blank"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        tab = Browser(tab_address(folder / "DevToolsActivePort"))
        yield tab
        tab.socket.close()
    finally:
        process.terminate()
        process.wait(timeout=20)


def tab_address(file: pathlib.Path, seconds: float = 30) -> str:
    """The address of the browser's tab, once the browser has written its port to `file`."""
    end = time.monotonic() + seconds
    while not (file.exists() and file.read_text().strip()):
        if time.monotonic() > end:
            raise TimeoutError("the browser does not start.")
        time.sleep(0.05)
    port = file.read_text().split()[0]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/json") as answer:
        tabs = json.load(answer)
    return next(tab["webSocketDebuggerUrl"] for tab in tabs if tab["type"] == "page")
