"""Jobs for the pages, and screenshots of them: `python -m tests.support.pages` writes docs/images."""

import tempfile
from pathlib import Path
from typing import Any

import httpx

from streamdp.config.job import JobConfig
from tests.support.paths import ROOT
from tests.support.service import client, job, record

FEATURES = {"dep_delay": [-30, 60], "origin": ["EWR", "JFK", "LGA"]}


def flights(folder: Path) -> JobConfig:
    """A job with a public holdout, of which 68 % are late."""
    holdout = folder / "public.csv"
    rows = [f"{i % 60},{('EWR', 'JFK', 'LGA')[i % 3]},{i % 60 > 15}" for i in range(200)]
    holdout.write_text("dep_delay,origin,late\n" + "\n".join(rows) + "\n")
    return job(folder, holdout=str(holdout), validation={"share": 0.5})


def survey(folder: Path) -> JobConfig:
    """A job without subjects, so that its form has answers only. Its columns have words for people."""
    delay: Any = {"bounds": [-30, 60], "label": "How late did your flight leave?", "unit": "minutes"}
    delay["help"] = "Write a negative number if it left early."
    origin: Any = {"categories": FEATURES["origin"], "label": "From which airport?"}
    target: Any = {"column": "late", "classes": ["on time", "late"], "label": "How did it arrive?"}
    schema: Any = {"features": {"dep_delay": delay, "origin": origin}, "target": target}
    model: Any = {"estimator": "LDPASGDClassifier", "budget": "eps=1", "scaling": "none"}
    return job(folder, "survey", schema=schema, cap=None, model=model)


def wages(folder: Path) -> JobConfig:
    """A regression that asks for a bit about the target first, of people with a cap."""
    subject = {"column": "name", "label": "Your name", "help": "As on your badge."}
    schema: Any = {"features": {"age": [18, 90]}, "target": {"column": "wage", "bounds": [0, 100]}, "subject": subject}
    model: Any = {"estimator": "LDPASGDRegressor", "budget": "eps=1"}
    return job(folder, "wages", schema=schema, model=model)


def learn(http: httpx.Client, start: int, n: int) -> None:
    """Learn n records of the job on flights."""
    answer = http.post("/v1/models/late/learn", json={"records": [record(start + i) for i in range(n)]})
    assert answer.status_code == 200, answer.text


def screenshots() -> None:
    """Write a screenshot of each page: one on a computer, one on a phone in dark mode."""
    from playwright.sync_api import expect

    from tests.support.browser import chromium, page_of

    images = ROOT / "docs" / "images"
    images.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name, client(flights(Path(name)), survey(Path(name))) as http:
        for k in range(60):
            learn(http, 500 * k, 500)
        with chromium() as browser:
            wide: Any = {"viewport": {"width": 1000, "height": 800}}
            with page_of(browser, **wide) as page:
                page.goto(f"{http.base_url}")
                expect(page.locator("#main")).to_be_visible()
                for k in range(60, 80):
                    learn(http, 500 * k, 500)
                expect(page.locator("#errors canvas")).to_be_visible()
                expect(page.locator("#statement")).to_contain_text("40,000")
                page.screenshot(path=images / "live-light.png", full_page=True)
            phone: Any = {"viewport": {"width": 390, "height": 800}, "color_scheme": "dark"}
            with page_of(browser, **phone) as page:
                page.goto(f"{http.base_url}/join/survey".replace("//join", "/join"))
                page.fill("[name='x:dep_delay']", "20")
                page.select_option("[name='x:origin']", "JFK")
                page.select_option("[name=y]", "late")
                page.click("#send")
                expect(page.locator("#result")).to_be_visible()
                page.screenshot(path=images / "join-dark.png", full_page=True)


if __name__ == "__main__":
    screenshots()
