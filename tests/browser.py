"""A browser for tests: Debian's chromium, which its driver controls by W3C WebDriver over HTTP."""

from __future__ import annotations

import json
import re
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PACKAGES = "Debian's packages chromium and chromium-driver"
DRIVER = "chromedriver"
# As root in a container, and without requests of its own to the network.
ARGUMENTS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-dev-shm-usage"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
_TIMEOUT_S = 120
# No proxy of the environment between this process and the driver.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Browser:
    """A session. Paths and values are those of WebDriver."""

    def __init__(self, address: str) -> None:
        self._address = address

    def send(self, method: str, path: str, **values: Any) -> Any:
        body = None if method in ("GET", "DELETE") else json.dumps(values).encode()
        request = urllib.request.Request(
            self._address + path, body, {"Content-Type": "application/json"}, method=method
        )
        with _OPENER.open(request, timeout=_TIMEOUT_S) as response:
            return json.load(response)["value"]

    def open(self, address: str) -> None:
        self.send("POST", "/url", url=address)

    def find(self, selector: str) -> str:
        """Wait for an element and return the path of its commands."""
        found = self.send("POST", "/element", using="css selector", value=selector)
        (name,) = found.values()
        return f"/element/{name}"

    def run(self, script: str, *arguments: Any) -> Any:
        return self.send("POST", "/execute/sync", script=script, args=list(arguments))


@contextmanager
def browser(folder: Path, *, width: int = 1280, height: int = 900) -> Iterator[Browser]:
    """Start a browser whose profile is in an empty folder, and end it with its driver."""
    command = [DRIVER, "--port=0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as driver:
        try:
            assert driver.stdout is not None
            lines = (re.search(r"started successfully on port (\d+)", line) for line in driver.stdout)
            address = f"http://127.0.0.1:{next(filter(None, lines))[1]}"
            arguments = [*ARGUMENTS, f"--user-data-dir={folder}", f"--window-size={width},{height}"]
            wanted = {
                "browserName": "chrome",
                "goog:chromeOptions": {"args": arguments},
                "timeouts": {"implicit": 30_000},
            }
            session = Browser(address).send("POST", "/session", capabilities={"alwaysMatch": wanted})
            opened = Browser(f"{address}/session/{session['sessionId']}")
            try:
                yield opened
            finally:
                opened.send("DELETE", "")
        finally:
            driver.terminate()
