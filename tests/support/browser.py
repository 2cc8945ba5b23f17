"""A real Chromium, driven by Playwright."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from servers import programs

expect.set_options(timeout=60_000)  # tests do not depend on how busy the machine is


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser of its own. A machine without one fails the test: nothing else sees the pages."""
    found = programs.chromium()
    with sync_playwright() as playwright:
        if found is None and not os.path.exists(playwright.chromium.executable_path):
            pytest.fail("the pages are tested in Chromium; `python servers/programs.py` says how to install it")
        sandbox = [] if os.geteuid() else ["--no-sandbox"]  # root has none
        browser = playwright.chromium.launch(executable_path=found, args=sandbox)
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def page_of(browser: Browser, **options: Any) -> Iterator[Page]:
    """A page in a fresh profile, on which no script may fail and nothing may be loaded from elsewhere."""
    context = browser.new_context(**options)
    context.set_default_timeout(60_000)
    page = context.new_page()
    faults: list[str] = []
    page.on("pageerror", lambda error: faults.append(f"error: {error}"))
    page.on("console", lambda said: faults.append(said.text) if "Content Security Policy" in said.text else None)
    page.on("request", lambda sent: None if "127.0.0.1" in sent.url else faults.append(f"loads {sent.url}"))
    try:
        yield page
    finally:
        context.close()
    assert not [fault for fault in faults if not fault.startswith("loads data:")]
