"""The page in headless Chromium, driven as a person would: with keys, clicks and waiting."""
import base64
import importlib.machinery
import importlib.util
import json
import pathlib
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[3]
ACCESSIBILITY = (pathlib.Path(__file__).parent / "accessibility.js").read_text()
KEYS = {"Enter": 13, "Escape": 27, "Tab": 9}
CONTROLS = ("button", "textbox", "combobox", "spinbutton", "link", "checkbox", "searchbox", "DisclosureTriangle")
LANDMARKS = ("banner", "main", "navigation", "complementary")


def fail(what):
    sys.exit(f"check-serve-page: {what}")


def browser_class():
    loader = importlib.machinery.SourceFileLoader("screenshot_report", str(ROOT / "scripts/screenshot-report"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("screenshot_report", loader))
    loader.exec_module(module)
    return module.Browser


class Page:
    def __init__(self, folder):
        self.browser, self.folder, self.problems = browser_class()(), folder, []
        receive = self.browser.message

        def message():
            out = receive()
            if out.get("method") in ("Log.entryAdded", "Runtime.exceptionThrown"):
                self.problems.append(json.dumps(out["params"]))
            return out

        self.browser.message = message
        for domain in ("Page", "Log", "Runtime", "Accessibility"):
            self.call(domain + ".enable")

    def call(self, method, **parameters):
        return self.browser.call(method, **parameters)

    def close(self):
        self.browser.process.terminate()

    def value(self, expression):
        out = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in out:
            fail(f"{expression}: {json.dumps(out['exceptionDetails'].get('exception', {}).get('description'))}")
        return out["result"].get("value")

    def until(self, expression, what):
        for _ in range(1200):
            if self.value(f"Boolean({expression})"):
                return
            time.sleep(0.05)
        fail(f"{what}: not in a minute; the page says '{self.text('notice')}'")

    def expect(self, expression, what):
        got = self.value(expression)
        if not got:
            fail(f"{what}: {expression} is {json.dumps(got)}")

    def text(self, name):
        return self.value(f"document.getElementById({json.dumps(name)}).textContent")

    # Errors of the console that were meant to come.
    def forgive(self):
        self.value("1")  # what was said before has arrived then
        self.problems.clear()

    # ---- windows

    def window(self, width, height, theme, motion="no-preference"):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme},
                                                          {"name": "prefers-reduced-motion", "value": motion}])

    def open(self, url):
        self.call("Page.navigate", url=url)
        self.browser.wait("Page.loadEventFired")

    def reload(self):
        self.call("Page.reload")
        self.browser.wait("Page.loadEventFired")

    def screenshot(self, name):
        picture = self.call("Page.captureScreenshot", format="png")
        (self.folder / f"serve-{name}.png").write_bytes(base64.b64decode(picture["data"]))

    # ---- a person

    def press(self, key):
        text = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=KEYS[key],
                      **(text if kind == "keyDown" else {}))

    def type(self, text):
        self.call("Input.insertText", text=text)

    # Clicks the button with this text or name, the last one of them.
    def click(self, name, within="body"):
        self.until(f"""(() => {{
          const found = Array.from(document.querySelectorAll({json.dumps(within + ' button')})).filter(button => !button.disabled &&
            button.checkVisibility() && [button.textContent, button.getAttribute("aria-label")].includes({json.dumps(name)}));
          if (found.length) found.at(-1).click();
          return found.length;
        }})()""", f"a button {name}")

    def say(self, text, wait=True):
        self.value("document.getElementById('input').focus()")
        self.type(text)
        self.press("Enter")
        if wait:
            self.answered()

    def answered(self):
        self.until("running === null && !document.getElementById('send').hidden", "an answer")

    # ---- checks

    def check(self, where):
        width = self.value("innerWidth")
        wide = self.value("document.documentElement.scrollWidth")
        if wide > width:
            fail(f"{where}: {wide} pixels wide in a window of {width}")
        problems = self.value(ACCESSIBILITY)
        nodes = [node for node in self.call("Accessibility.getFullAXTree")["nodes"] if not node.get("ignored")]
        role = lambda node: node.get("role", {}).get("value")
        for node in nodes:
            if role(node) in CONTROLS and not node.get("name", {}).get("value", "").strip():
                problems.append(f"a {role(node)} has no name")
        there = [role(node) for node in nodes if role(node) in LANDMARKS]
        # On a phone the list of chats is in front of the others.
        whole = {"banner", "main", "complementary"} <= set(there) or there == ["banner", "navigation", "complementary"]
        if len(set(there)) != len(there) or not whole:
            problems.append(f"landmarks: {there}")
        if problems:
            fail(f"{where}:\n" + "\n".join(problems))
        if self.problems:
            fail(f"{where}: the browser says\n" + "\n".join(self.problems))
