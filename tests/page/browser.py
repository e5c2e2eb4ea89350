"""A headless Chromium, driven by the WebDriver protocol over HTTP."""

import base64
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from processes import PATIENCE_SECONDS, until  # noqa: E402

INSTALL = "install Chromium and its driver: .ci/tools chromium"

# No sandbox: continuous integration runs as root. The rest keeps it from talking to anybody else.
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
         "--disable-background-networking", "--disable-component-update", "--disable-sync",
         "--disable-dev-shm-usage", "--hide-scrollbars", "--force-color-profile=srgb"]

# The name that the protocol gives an element.
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
KEYS = {"tab": "\ue004", "enter": "\ue007", "space": " ", "right": "\ue014", "left": "\ue012", "escape": "\ue00c"}


def program(*names):
    found = next((path for name in names if (path := shutil.which(name))), None)
    assert found, f"{names[0]} is missing: {INSTALL}"
    return found


class Browser:
    """A browser with a profile of its own, which is gone when it is closed."""

    def __init__(self):
        self.profile = tempfile.TemporaryDirectory()
        self.driver = subprocess.Popen(
            [program("chromedriver"), "--port=0"], stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        started = next((line for line in self.driver.stdout if "started successfully" in line), "")
        port = re.search(r"on port (\d+)", started)
        assert port, f"chromedriver does not start; {INSTALL}"
        self.base = f"http://127.0.0.1:{port[1]}"
        options = {"binary": program("chromium", "chromium-browser", "google-chrome"),
                   "args": FLAGS + [f"--user-data-dir={self.profile.name}"]}
        session = self.ask("POST", "/session", {"capabilities": {"alwaysMatch": {
            "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}}})
        self.base += f"/session/{session['sessionId']}"

    def close(self):
        try:
            self.ask("DELETE", "")
        finally:
            self.driver.kill()
            self.driver.wait()
            self.driver.stdout.close()
            # The browser may still write as it leaves.
            until("the profile is gone", lambda: self.forget())

    def forget(self):
        try:
            self.profile.cleanup()
            return True
        except OSError:
            return False

    def ask(self, method, path, body=None):
        data = None if body is None and method != "POST" else json.dumps(body or {}).encode()
        request = urllib.request.Request(self.base + path, data, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as reply:
                return json.load(reply)["value"]
        except urllib.error.HTTPError as refused:
            raise AssertionError(refused.read().decode()) from None

    def open(self, url):
        self.ask("POST", "/url", {"url": url})

    def run(self, script, *arguments):
        return self.ask("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def text(self, selector):
        return self.run("const n = document.querySelector(arguments[0]); return n && n.innerText", selector)

    def fill(self, selector, value):
        found = self.ask("POST", "/element", {"using": "css selector", "value": selector})[ELEMENT]
        self.ask("POST", f"/element/{found}/clear")
        self.ask("POST", f"/element/{found}/value", {"text": value})

    def click(self, selector):
        found = self.ask("POST", "/element", {"using": "css selector", "value": selector})[ELEMENT]
        self.ask("POST", f"/element/{found}/click")

    def press(self, *names):
        keys = [KEYS.get(name, name) for name in names]
        actions = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        self.ask("POST", "/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": actions}]})

    def devtools(self, command, **parameters):
        return self.ask("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def look(self, scheme, width, height, scale=1):
        """Light or dark, in a window of that size; pictures of it are that much larger."""
        self.devtools("Emulation.setEmulatedMedia", features=[
            {"name": "prefers-color-scheme", "value": scheme}, {"name": "prefers-reduced-motion", "value": "reduce"}])
        self.devtools("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=False)

    def picture(self):
        return base64.b64decode(self.ask("GET", "/screenshot"))

    def console(self):
        """What was said on the console since the last look."""
        return self.ask("POST", "/se/log", {"type": "browser"})
