"""A headless Chromium, driven through chromedriver's own protocol (W3C WebDriver) with nothing but the standard library."""
import base64
import json
import shutil
import socket
import struct
import subprocess
import time
import urllib.error
import urllib.request
import zlib

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # the name under which WebDriver passes elements
KEYS = {"Enter": "\ue007", "Escape": "\ue00c", "Tab": "\ue004", "ArrowLeft": "\ue012", "ArrowUp": "\ue013", "ArrowRight": "\ue014",
        "ArrowDown": "\ue015", "PageDown": "\ue00f", "Home": "\ue011", "End": "\ue010", "Control": "\ue009"}


def find_browser():
    """(browser, driver), or None where one of them is missing."""
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    driver = shutil.which("chromedriver")
    return (browser, driver) if browser and driver else None


class Browser:
    def __init__(self, browser, driver, width=1000, height=900):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.process = subprocess.Popen([driver, f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.root = f"http://127.0.0.1:{port}"
        try:
            for _ in range(100):
                try:
                    self.call("GET", "/status")
                    break
                except (urllib.error.URLError, ConnectionError):
                    time.sleep(0.1)
            arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
                         "--force-device-scale-factor=1", f"--window-size={width},{height}"]
            wanted = {"alwaysMatch": {"goog:chromeOptions": {"binary": browser, "args": arguments}, "goog:loggingPrefs": {"browser": "ALL"}}}
            self.root += "/session/" + self.call("POST", "/session", {"capabilities": wanted})["sessionId"]
        except BaseException:
            self.process.kill()
            raise

    def close(self):
        try:
            self.call("DELETE", "")
        finally:
            self.process.terminate()
            self.process.wait(20)

    def call(self, method, path, body=None):
        data = None if method != "POST" else json.dumps(body or {}).encode()
        request = urllib.request.Request(self.root + path, data, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise RuntimeError(json.load(error)["value"]["message"]) from None

    def open(self, path):
        self.call("POST", "/url", {"url": "file://" + path})

    def run(self, script, *arguments):
        return self.call("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def find(self, selector):
        return self.call("POST", "/element", {"using": "css selector", "value": selector})[ELEMENT]

    def text(self, selector):
        return self.call("GET", f"/element/{self.find(selector)}/text")

    def label(self, selector):
        """The name that assistive technology is given."""
        return self.call("GET", f"/element/{self.find(selector)}/computedlabel")

    def role(self, selector):
        return self.call("GET", f"/element/{self.find(selector)}/computedrole")

    def devtools(self, command, **parameters):
        return self.call("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def errors(self):
        return [entry["message"] for entry in self.call("POST", "/se/log", {"type": "browser"}) if entry["level"] == "SEVERE"]

    def mouse(self, *steps):
        """Real mouse events: ("move", x, y) in the page's CSS pixels, "down" and "up"."""
        actions = []
        for step in steps:
            if step in ("down", "up"):
                actions.append({"type": "pointerDown" if step == "down" else "pointerUp", "button": 0})
            else:
                actions.append({"type": "pointerMove", "duration": 0, "x": round(step[1]), "y": round(step[2])})
        self.call("POST", "/actions", {"actions": [{"type": "pointer", "id": "mouse", "parameters": {"pointerType": "mouse"}, "actions": actions}]})

    def click(self, selector):
        self.call("POST", f"/element/{self.find(selector)}/click")

    def press(self, *keys):
        actions = []
        for key in keys:
            value = KEYS.get(key, key)
            actions += [{"type": "keyDown", "value": value}, {"type": "keyUp", "value": value}]
        self.call("POST", "/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": actions}]})

    def screenshot(self, file=None):
        png = base64.b64decode(self.call("GET", "/screenshot"))
        if file:
            with open(file, "wb") as out:
                out.write(png)
        return Picture(png)


class Picture:
    """The pixels of a PNG of 8 bits a channel without interlacing, as browsers write them."""

    def __init__(self, png):
        at, packed = 8, b""
        while at < len(png):
            length, kind = struct.unpack(">I4s", png[at:at + 8])
            body = png[at + 8:at + 8 + length]
            if kind == b"IHDR":
                self.width, self.height, depth, colour, _, _, interlace = struct.unpack(">IIBBBBB", body)
                assert depth == 8 and colour in (2, 6) and interlace == 0
                self.channels = 3 if colour == 2 else 4
            elif kind == b"IDAT":
                packed += body
            at += 12 + length
        raw, stride, n = zlib.decompress(packed), self.width * self.channels, self.channels
        self.lines, before = [], bytearray(stride)
        for y in range(self.height):
            start = y * (stride + 1)
            kind, line = raw[start], bytearray(raw[start + 1:start + 1 + stride])
            for i in range(stride) if kind else ():
                left, up, corner = (line[i - n] if i >= n else 0), before[i], (before[i - n] if i >= n else 0)
                if kind == 1:
                    guess = left
                elif kind == 2:
                    guess = up
                elif kind == 3:
                    guess = (left + up) // 2
                else:
                    estimate = left + up - corner
                    guess = min((abs(estimate - left), 0, left), (abs(estimate - up), 1, up), (abs(estimate - corner), 2, corner))[2]
                line[i] = (line[i] + guess) & 255
            self.lines.append(line)
            before = line

    def __call__(self, x, y):
        """(red, green, blue) of a pixel."""
        start = round(x) * self.channels
        return tuple(self.lines[round(y)][start:start + 3])
