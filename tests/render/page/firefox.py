"""Firefox, driven by WebDriver BiDi (w3.org/TR/webdriver-bidi): the few commands that tests need."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

PREFERENCES = {
    "browser.shell.checkDefaultBrowser": False, "datareporting.policy.dataSubmissionEnabled": False,
    "toolkit.telemetry.reportingpolicy.firstRun": False, "browser.startup.page": 0,
    "app.update.enabled": False, "network.captive-portal-service.enabled": False,
    "network.connectivity-service.enabled": False, "remote.active-protocols": 1,
}  # fmt: skip


class Firefox:
    """One tab of a running Firefox."""

    def __init__(self, socket: Any) -> None:
        self._socket = socket
        self._numbers = count(1)
        self.complaints: list[str] = []
        self._ask("session.new", {"capabilities": {}})
        self._ask("session.subscribe", {"events": ["log.entryAdded"]})
        self._tab = self._ask("browsingContext.getTree", {})["contexts"][0]["context"]

    def open(self, path: Path) -> None:
        self.complaints.clear()
        where = {"context": self._tab, "url": path.as_uri(), "wait": "complete"}
        self._ask("browsingContext.navigate", where)
        self.run("new Promise((done) => { const look = () => document.documentElement.dataset.ready"
                 " ? done() : setTimeout(look, 20); look(); })")  # fmt: skip

    def size(self, width: int, height: int) -> None:
        viewport = {"width": width, "height": height}
        self._ask("browsingContext.setViewport", {"context": self._tab, "viewport": viewport})
        self.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def run(self, expression: str) -> Any:
        """Evaluate in the page; what comes back is JSON."""
        told = self._ask("script.evaluate", {
            "expression": f"Promise.resolve({expression}).then((found) => JSON.stringify(found ?? null))",
            "target": {"context": self._tab, "sandbox": "test"}, "awaitPromise": True,
        })  # fmt: skip
        assert told["type"] == "success", told
        return json.loads(told["result"]["value"])

    def _ask(self, method: str, parameters: dict[str, Any]) -> Any:
        number = next(self._numbers)
        self._socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            told = json.loads(self._socket.recv(timeout=60))
            if told.get("method") == "log.entryAdded":
                self.complaints.append(told["params"]["text"])
            elif told.get("id") == number:
                assert told["type"] == "success", told
                return told["result"]


@contextmanager
def firefox(folder: Path, **preferences: Any) -> Iterator[Firefox]:
    """Start Firefox with a profile of its own; skip where there is none."""
    client = pytest.importorskip("websockets.sync.client", reason="needs the extra 'dev'")
    program = shutil.which("firefox-esr") or shutil.which("firefox")
    if program is None:
        pytest.skip("no firefox: apt-get install -y firefox-esr")
    lines = (
        f'user_pref("{n}", {json.dumps(v)});\n' for n, v in {**PREFERENCES, **preferences}.items()
    )
    (folder / "user.js").write_text("".join(lines), encoding="utf-8")
    running = subprocess.Popen(
        [program, "--headless", "--no-remote", "--profile", str(folder), "--remote-debugging-port", "0"],
        stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, encoding="utf-8",
    )  # fmt: skip
    assert running.stderr is not None
    try:
        for line in running.stderr:
            if found := re.search(r"BiDi listening on (ws://\S+)", line):
                break
        with client.connect(f"{found[1]}/session", max_size=None) as socket:
            yield Firefox(socket)
    finally:
        running.kill()
        running.wait()
        running.stderr.close()
