# SPDX-License-Identifier: Apache-2.0
"""The page at `/` in Debian's Chromium, without a window. One browser for all tests; each test has a
tab of its own, at whose end the browser may not have logged an error, nor asked another host."""

import json
import shutil
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "http"))

import harness
import running
from page_browser import Page, start_browser
from running import finish

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")


def pytest_collection_modifyitems(config, items):
    if not (CHROMIUM and DRIVER):
        for item in items:
            item.add_marker(pytest.mark.skip("no chromium here: deploy/deps.sh page installs it"))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    running.tell((yield).get_result())


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    downloads = tmp_path_factory.mktemp("downloads")
    driver = start_browser(CHROMIUM, DRIVER, downloads)
    driver.downloads = downloads
    yield driver
    driver.quit()


def start(folder, **options):
    return running.start(folder, options.pop("model", harness.shipped_model()), **options)


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    """The shipped model."""
    begun = start(tmp_path_factory.mktemp("server"))
    yield begun
    finish(begun)


@pytest.fixture
def server_factory(tmp_path):
    yield from running.factory(tmp_path, harness.shipped_model())


@pytest.fixture
def page(browser):
    """page(server, part) opens it. allowed: parts of messages that the console may have."""
    window = browser.current_window_handle
    browser.switch_to.new_window("window")
    opened = Page(browser)
    opened.requests()  # what the page before has still asked for
    opened.events.clear()
    yield opened
    errors = [line["message"] for line in browser.get_log("browser") if line["level"] == "SEVERE"]
    hosts = {urlsplit(url).netloc for url, _, _ in opened.requests() if url.startswith("http")}
    browser.close()
    browser.switch_to.window(window)
    left = [line for line in errors if not any(part in line for part in opened.allowed)]
    assert not left, json.dumps(left, indent=1)
    assert hosts <= opened.hosts
