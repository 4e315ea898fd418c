"""A headless Chromium, driven through two pipes by the DevTools protocol: no library, no open port."""

import base64
import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time

KEYS = {"Enter": (13, "\r"), "Tab": (9, ""), "Escape": (27, ""), " ": (32, " "), "ArrowUp": (38, ""), "ArrowDown": (40, ""),
        "ArrowLeft": (37, ""), "ArrowRight": (39, ""), "Home": (36, ""), "End": (35, ""), "Backspace": (8, "")}
SHIFT = 8


class Failed(AssertionError):
    """Something did not become so."""


class Chromium:
    """A browser with one page; everything of it is gone when it is closed."""

    def __init__(self, program="chromium"):
        self.folder = tempfile.mkdtemp(prefix="page-test-")
        (to_read, self.write_end), (self.read_end, to_write) = os.pipe(), os.pipe()
        command = [program, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
                   "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--hide-scrollbars",
                   "--ignore-certificate-errors", f"--user-data-dir={self.folder}", "--remote-debugging-pipe", "about:blank"]

        # Chromium reads commands from 3 and writes answers to 4.
        def placed():
            os.setsid()
            high = os.dup(to_write), os.dup(to_read)
            os.dup2(high[1], 3)
            os.dup2(high[0], 4)

        self.process = subprocess.Popen(command, preexec_fn=placed, close_fds=False, stdout=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL)
        os.close(to_read)
        os.close(to_write)
        self.buffer, self.next, self.session = b"", 0, None
        self.complaints, self.answers = [], {}
        page = next(t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page")
        self.session = self.call("Target.attachToTarget", targetId=page["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def close(self):
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            pass
        # Its helpers write to the folder until they have ended, too.
        with contextlib.suppress(ProcessLookupError):
            while True:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.poll()
                time.sleep(0.05)
        os.close(self.read_end)
        os.close(self.write_end)
        shutil.rmtree(self.folder)

    # The protocol

    def call(self, method, **params):
        self.next += 1
        number = self.next
        message = {"id": number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.write_end, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + 30
        while number not in self.answers:
            self.listen(until)
        answer = self.answers.pop(number)
        if "error" in answer:
            raise Failed(f"{method}: {answer['error']}")
        return answer["result"]

    def listen(self, until):
        while b"\0" not in self.buffer:
            if not select.select([self.read_end], [], [], max(0, until - time.monotonic()))[0]:
                raise Failed("Chromium does not answer")
            read = os.read(self.read_end, 1 << 20)
            if not read:
                raise Failed("Chromium has ended")
            self.buffer += read
        message, self.buffer = self.buffer.split(b"\0", 1)
        message = json.loads(message)
        if "id" in message:
            self.answers[message["id"]] = message
        else:
            self.hear(message["method"], message["params"])

    def hear(self, method, params):
        """Notes what a page's author should see: exceptions, errors, what its policy has refused."""
        if method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.complaints.append(details.get("exception", {}).get("description") or details["text"])
        elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
            entry = params["entry"]
            # Refusals of the API are answers, which the page shows.
            if entry["source"] != "network":
                self.complaints.append(f"{entry['source']}: {entry['text']}")
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.complaints.append(" ".join(str(a.get("value", a.get("description"))) for a in params["args"]))

    # What a user does

    def open(self, url):
        self.call("Page.navigate", url=url)

    def js(self, code):
        """Value of an expression, or of a promise."""
        answer = self.call("Runtime.evaluate", expression=code, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            raise Failed(f"{code}: {answer['exceptionDetails'].get('exception', {}).get('description')}")
        return answer["result"].get("value")

    def wait(self, what, code, seconds=60):
        """Waits until an expression is true; its value."""
        until = time.monotonic() + seconds
        while True:
            try:
                value = self.js(f"(() => {code})()" if code.startswith("{") else code)
            except Failed:
                value = None
            if value:
                return value
            if time.monotonic() > until:
                seen = self.js("document.body.innerText")
                raise Failed(f"not so after {seconds} s: {what}\n{code}\nThe page says:\n{seen[:3000]}\nComplaints: {self.complaints}")
            time.sleep(0.05)

    def click(self, selector, text=None):
        """Clicks with the mouse on what can be seen, waiting for it."""
        find = (f"[...document.querySelectorAll({json.dumps(selector)})].find((node) => node.checkVisibility() && !node.disabled"
                f"{'' if text is None else f' && node.textContent.trim() === {json.dumps(text)}'})")
        self.wait(f"{selector} {text or ''} can be clicked", f"Boolean({find})", 30)
        place = self.js(f"(() => {{ const node = {find}; node.scrollIntoView({{ block: 'nearest' }}); "
                        "const box = node.getBoundingClientRect(); "
                        "return { x: box.x + Math.min(box.width / 2, 60), y: box.y + Math.min(box.height / 2, 14) }; })()")
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **place)

    def press(self, key, modifiers=0):
        code, text = KEYS.get(key) or (ord(key.upper()), key)
        # What xterm.js and tree views read is `key`; a text makes it a character for fields.
        common = {"key": key, "windowsVirtualKeyCode": code, "modifiers": modifiers,
                  "code": key if key in KEYS else f"Key{key.upper()}"}
        self.call("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", **common, **({"text": text} if text else {}))
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def type(self, text):
        """Types a text into what has the focus."""
        self.call("Input.insertText", text=text)

    def size(self, width, height):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def scheme(self, name):
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def picture(self, path):
        data = self.call("Page.captureScreenshot", format="png")["data"]
        with open(path, "wb") as file:
            file.write(base64.b64decode(data))
