"""The site that `make docs` builds, in a real Chromium: nothing is cut, and nothing comes from elsewhere."""

import re
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser
from sphinx.cmd.build import build_main

from tests.support.browser import chromium
from tests.support.paths import ROOT
from tests.support.serving import serving

pytestmark = pytest.mark.campaign
CUT = """[...document.querySelectorAll("div.highlight pre, .table-wrapper")]
    .filter((one) => one.scrollWidth > one.clientWidth + 1).map((one) => one.innerText.slice(0, 40))"""
"""The beginnings of the code blocks and tables of which a part is seen only after scrolling."""


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Write nothing."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """The site and its address on loopback."""
    folder = tmp_path_factory.mktemp("site")
    assert build_main(["-W", "--keep-going", "-q", "-b", "html", str(ROOT / "docs"), str(folder)]) == 0
    with serving(partial(Quiet, directory=folder)) as url:
        yield folder, url


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


def test_no_page_is_wider_than_its_window_and_nothing_is_cut(site: tuple[Path, str], browser: Browser) -> None:
    folder, address = site
    page = browser.new_page()
    wide, cut = [], []
    for path in sorted(folder.rglob("*.html")):
        page.goto(f"{address}/{path.relative_to(folder)}", wait_until="domcontentloaded")
        for width in (1400, 1320, 390):
            page.set_viewport_size({"width": width, "height": 800})
            if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
                wide.append((str(path.relative_to(folder)), width))
            found = page.evaluate(
                CUT if width == 1400 else CUT.replace(", .table-wrapper", "")
            )  # on a phone tables scroll
            cut += [(str(path.relative_to(folder)), part) for part in found]
    assert (wide, cut) == ([], [])


def test_pages_work_offline(site: tuple[Path, str]) -> None:
    """No page loads a script, a style or a picture from elsewhere."""
    elsewhere = re.compile(
        r"<(?:script|img|iframe|link(?![^>]*rel=\"canonical\"))[^>]*(?:src|href)=\"(?:https?:)?//[^>]*>"
    )
    loads = {str(path.relative_to(site[0])): elsewhere.findall(path.read_text()) for path in site[0].rglob("*.html")}
    assert {path: found for path, found in loads.items() if found} == {}
