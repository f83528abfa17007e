# SPDX-License-Identifier: Apache-2.0
"""Drives Chromium: starts it, opens the page, clicks and reads, and says what it asked for."""

import json
from urllib.parse import urlsplit

from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By

from harness import wait_until

# As root it has no sandbox of its own; what it loads is ours. Nothing that asks other hosts.
FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
         "--disable-background-networking", "--disable-component-update", "--disable-default-apps",
         "--disable-sync", "--disable-extensions", "--hide-scrollbars", "--disable-lcd-text",
         "--window-size=1280,900")


def start_browser(chromium, driver, downloads):
    options = ChromeOptions()
    options.binary_location = chromium
    for flag in FLAGS:
        options.add_argument(flag)
    options.add_experimental_option("prefs", {"download.default_directory": str(downloads)})
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    return Chrome(options=options, service=Service(driver))


class Page:
    def __init__(self, driver):
        self.driver = driver
        self.allowed, self.hosts, self.events = [], set(), []

    def __call__(self, server, part="try", **sizes):
        self.hosts.add(urlsplit(server.url).netloc)
        self.driver.get(f"{server.url}/#{part}")
        self.wait_ready()
        return self

    def wait_ready(self):
        self.wait(lambda: self.run("return 'ready' in document.documentElement.dataset"), "ready")

    def reload(self):
        self.driver.refresh()
        self.wait_ready()

    def wait(self, condition, what, seconds=20):
        return wait_until(condition, what, seconds)

    def run(self, script, *arguments):
        return self.driver.execute_script(script, *arguments)

    def all(self, selector):
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def one(self, selector):
        """The element that is shown."""
        return self.wait(lambda: next((found for found in self.all(selector) if found.is_displayed()), None),
                         selector)

    def button(self, text):
        def found():
            return next((one for one in self.all("button") if one.is_displayed() and one.text == text
                         and one.is_enabled()), None)
        return self.wait(found, f"a button {text}")

    def click(self, text):
        found = self.button(text)
        self.run("arguments[0].scrollIntoView({block: 'center'})", found)
        found.click()

    def field(self, label):
        """The field of a label that is shown."""
        def found():
            for one in self.all("label"):
                if one.is_displayed() and one.text == label:
                    return self.driver.find_element(By.ID, one.get_attribute("for"))
            return None
        return self.wait(found, f"a field {label}")

    def fill(self, label, text):
        field = self.field(label)
        field.clear()
        field.send_keys(text)

    def text(self, selector):
        return self.one(selector).get_attribute("textContent")

    def alert(self):
        """What the part that is shown says went wrong."""
        return self.run("return [...document.querySelectorAll('[role=alert]')].filter("
                        "(one) => one.checkVisibility()).map((one) => one.textContent).join('')")

    def wait_alert(self, part):
        self.wait(lambda: part in self.alert(), lambda: f"{part!r} in {self.alert()!r}")

    def generate(self, prompt=None, tokens=None):
        """Sends a prompt and waits for the end."""
        self.wait(lambda: self.all("#try details"), "Try")
        if tokens:
            self.run("document.querySelector('#try details').open = true")
            self.fill("Tokens, at most", str(tokens))
        if prompt:
            self.fill("Prompt", prompt)
        self.click("Generate")
        self.wait_done()

    def begin_long(self, prompt):
        """A text that goes on until somebody ends it; it has begun."""
        self.run("document.querySelector('#try details').open = true")
        self.fill("Tokens, at most", "200000")
        self.fill("Prompt", prompt)
        self.click("Generate")
        self.wait(lambda: len(self.all(".token")) > 5, "tokens")

    def wait_done(self):
        self.wait(lambda: "tokens generated" in self.run(
            "return document.querySelector('#try [role=status]').textContent"), "the end of a text")
        self.button("Generate")

    def emulate(self, width, height=900, dark=False, still=False):
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
            "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600})
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"},
            {"name": "prefers-reduced-motion", "value": "reduce" if still else "no-preference"}]})

    def bodies(self, path):
        """What was sent to this path so far."""
        self.requests()
        sent = [event["params"]["request"] for event in self.events
                if event["method"] == "Network.requestWillBeSent"]
        return [json.loads(one["postData"]) for one in sent if urlsplit(one["url"]).path == path]

    def requests(self):
        """(url, start, end) of each request so far; end is None where none was seen."""
        for entry in self.driver.get_log("performance"):
            self.events.append(json.loads(entry["message"])["message"])
        begun, found = {}, []
        for event in self.events:
            params = event["params"]
            if event["method"] == "Network.requestWillBeSent":
                begun[params["requestId"]] = (params["request"]["url"], params["timestamp"])
            elif event["method"] in ("Network.loadingFinished", "Network.loadingFailed") \
                    and params["requestId"] in begun:
                found.append((*begun.pop(params["requestId"]), params["timestamp"]))
        return found + [(*one, None) for one in begun.values()]
