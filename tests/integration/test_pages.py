"""The pages in a real Chromium: content, live commits, keyboard, phone, dark mode, and answers that stay there."""

import gzip
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, Page, Request, Route, expect

from streamdp.client import Device
from streamdp.config.http import TokenConfig
from tests.support.browser import chromium, page_of
from tests.support.pages import flights, learn, survey, wages
from tests.support.paths import ROOT
from tests.support.service import client, job

SECRET = "13.572468"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def http(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A service with a job on flights and a survey."""
    folder = tmp_path_factory.mktemp("pages")
    with client(flights(folder), survey(folder), wages(folder)) as found:
        learn(found, 0, 500)
        yield found


def address(http: httpx.Client, path: str = "/") -> str:
    return f"{str(http.base_url).rstrip('/')}{path}"


def fits(page: Page) -> bool:
    """Whether the page is no wider than its window."""
    return bool(page.evaluate("document.documentElement.scrollWidth <= innerWidth"))


def test_the_live_page_shows_the_model_each_commit_and_plans(
    http: httpx.Client, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    unread = 1234  # of a topic; test_report_topic.py has a real one
    monkeypatch.setattr("streamdp.service.pages.lag", lambda _: unread)
    with page_of(browser, viewport={"width": 1100, "height": 1500}) as page:
        page.goto(address(http))
        learned = page.locator("[data-number=Learned]")
        before = http.get("/v1/models/late").json()["learned"]
        expect(learned).to_have_text(f"{before:,}")
        lag = page.locator("[data-number='Not read yet']")
        expect(lag).to_have_text("1,234")
        unread = 0
        statement = http.get("/v1/models/late").json()["statement"]
        expect(page.locator("#statement")).to_have_text(statement)
        promise = page.locator("#promise p")
        expect(promise).to_have_count(2)
        expect(promise.first).to_contain_text("Who must be trusted: ")
        expect(promise.last).to_contain_text("at most: epsilon = 1: no output is more than 2.72 times as likely")
        expect(page.locator("#statement")).to_be_hidden()
        assert page.locator("h2").first.text_content() == "Weights"
        weights = http.get("/v1/models/late/weights").json()["weights"]
        expect(page.locator("#weights tr")).to_have_count(len(weights))
        expect(page.locator("#weights tr").first).to_contain_text(weights[0]["name"])
        expect(page.locator("#weights tr").first).to_contain_text(weights[0]["unit"])
        expect(page.locator("#records canvas")).to_be_visible()
        rows = page.locator("#measures tr")
        expect(rows).to_have_count(2)
        expect(rows.first).to_contain_text("accuracy")
        expect(rows.first).to_contain_text("0.68")  # the share of the late ones
        for k in range(1, 4):  # no reload
            learn(http, before + 10 * k, 10)
            expect(learned).to_have_text(f"{before + 10 * k:,}")
        statement = http.get("/v1/models/late").json()["statement"]
        expect(page.locator("#statement")).to_have_text(statement)
        expect(lag).to_have_text("0")
        http.post("/v1/models/late/learn", json={"records": [{"x": {}, "y": "x", "subject": "s"}]})
        expect(page.locator("[data-number='Not usable']")).to_have_text("1")
        expect(page.locator("#reasons")).to_contain_text("by reason: missing 1.")
        validation = http.get("/v1/models/late").json()["validation"]
        expect(page.locator("#verdict")).to_have_text(validation["sentence"])
        expect(page.locator("#quality tr")).to_have_count(6)
        spent = page.locator("#spent tr")
        expect(spent).to_have_count(5)
        expect(spent.first).to_contain_text("at most 25 %")
        people = sum(int(n.replace(",", "")) for n in page.locator("#spent .number").all_inner_texts())
        assert before <= people <= before + 30  # the counts may be some seconds old


@pytest.mark.campaign
def test_no_number_of_the_live_page_is_minus_zero_or_a_zero_that_is_none(http: httpx.Client, browser: Browser) -> None:
    def small(route: Route) -> None:
        event = {"version": 1, "learned": 3, "refused": 0, "left_out": 0, "dead": 0, "weights": []}
        for value, low, high in ((-0.0, -0.00004, 0.0), (-1e-17, None, None), (0.000123, 1.5, 123456.0)):
            row = {"name": "w", "value": value, "low": low, "high": high, "settles_at": None, "unit": "score"}
            event["weights"].append(row)  # type: ignore[attr-defined]
        route.fulfill(body=f"data: {json.dumps(event)}\n\n", content_type="text/event-stream")

    with page_of(browser, viewport={"width": 390, "height": 800}) as page:
        page.route("**/events", small)
        page.goto(address(http))
        rows = page.locator("#weights tr")
        expect(rows).to_have_count(3)
        cells = [row.split("\t") for row in rows.all_inner_texts()]
        expect(rows.locator("svg circle")).to_have_count(3)
        expect(rows.locator("svg rect")).to_have_count(2)  # of those with an interval
        assert fits(page)
        assert [[cell.strip() for cell in row[1:3]] for row in cells] == [
            ["0", "-0.00004 to 0"],
            ["-1E-17", "not settled"],
            ["0.000123", "1.5 to 123,500"],
        ]


@pytest.mark.campaign
def test_the_live_page_says_what_the_columns_mean(http: httpx.Client, browser: Browser) -> None:
    with page_of(browser) as page:
        page.goto(address(http))
        page.select_option("#job", "survey")
        rows = page.locator("#meanings tr")
        expect(rows.first).to_contain_text("How late did your flight leave? (minutes)")
        expect(rows).to_have_count(3)
        page.select_option("#job", "late")
        expect(page.locator("#columns")).to_be_hidden()


@pytest.mark.parametrize(("locale", "date"), [("de-DE", r"\d+\.\d+\.20\d\d"), ("en-US", r"\d+/\d+/20\d\d")])
def test_dates_are_those_of_the_readers_locale(http: httpx.Client, browser: Browser, locale: str, date: str) -> None:
    with page_of(browser, locale=locale) as page:
        page.goto(address(http))
        chart, legend = page.locator("#records .u-over"), page.locator("#records .u-legend .u-value").first
        for place in range(600):  # records may come after the pointer, and the legend follows the pointer
            chart.hover(position={"x": 50 + place % 2, "y": 20})
            if re.search(date, legend.inner_text()):
                return
            page.wait_for_timeout(100)
        expect(legend).to_have_text(re.compile(date))


def luminance(page: Page, name: str) -> float:
    """The brightness of a colour of the page, 0 to 1."""
    found: float = page.evaluate(
        """(name) => {
            const canvas = document.createElement("canvas").getContext("2d");
            canvas.fillStyle = getComputedStyle(document.body)[name];
            canvas.fillRect(0, 0, 1, 1);
            return canvas.getImageData(0, 0, 1, 1).data.slice(0, 3).reduce((a, b) => a + b, 0) / 765;
        }""",
        name,
    )
    return found


@pytest.mark.campaign
def test_pages_fit_a_phone_and_can_be_read_in_light_and_dark(http: httpx.Client, browser: Browser) -> None:
    with page_of(browser, viewport={"width": 360, "height": 740}) as page:
        for path in ("/", "/join/survey", "/join/wages"):
            page.goto(address(http, path))
            expect(page.locator("#main")).to_be_visible()
            assert fits(page)
            page.emulate_media(color_scheme="light")
            assert luminance(page, "color") < 0.3
            assert luminance(page, "backgroundColor") > 0.7
            page.emulate_media(color_scheme="dark")
            assert luminance(page, "color") > 0.7
            assert luminance(page, "backgroundColor") < 0.3


def posted(page: Page) -> list[Request]:
    sent: list[Request] = []
    page.on("request", lambda request: sent.append(request))
    return sent


def learned(http: httpx.Client) -> int:
    return int(http.get("/v1/models/survey").json()["learned"])


def test_a_person_takes_part_by_keyboard_and_the_answers_stay_in_the_browser(
    http: httpx.Client, browser: Browser
) -> None:
    with page_of(browser, viewport={"width": 700, "height": 1500}) as page:
        sent, before = posted(page), learned(http)
        with Device(str(http.base_url), "survey") as device:
            half = device._randomizer()
        page.goto(address(http, f"/join/survey#agreement={'0' * 64}"))  # of another agreement than the link names
        expect(page.locator("#trouble")).to_contain_text("another agreement")
        expect(page.locator("#main")).to_be_hidden()
        page.goto("about:blank")
        page.goto(address(http, f"/join/survey#agreement={half.agreement}"))
        expect(page.locator("h1")).to_have_text("Take part: survey")
        expect(page.locator("#fields")).to_contain_text("How late did your flight leave?")
        expect(page.locator("#fields")).to_contain_text("-30 to 60 minutes")
        expect(page.locator("#fields")).to_contain_text("Write a negative number if it left early.")
        expect(page.locator("#identity")).to_be_hidden()
        assert page.locator("#digest").text_content() == half.agreement
        expect(page.locator("#agreed")).to_be_visible()  # without a click
        for key in ("Tab", "Tab"):
            page.keyboard.press(key)
        page.keyboard.type(SECRET)
        page.keyboard.press("Tab")
        page.keyboard.type("JFK")
        page.keyboard.press("Tab")
        page.keyboard.type("late")
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        expect(page.locator("#outcome")).to_contain_text("Your report was learned")
        assert learned(http) == before + 1

        expect(page.locator("#report")).to_be_hidden()  # numbers are details
        page.click("text=Show details")
        expect(page.locator("#report")).to_be_visible()
        shown = json.loads(page.locator("#report").text_content() or "")
        (post,) = [request for request in sent if request.method == "POST"]
        assert json.loads(post.post_data or "")["reports"] == [shown]
        assert shown.keys() == {"version", "budget", "id", "gradient"}
        truth = json.loads(page.locator("#truth").text_content() or "")
        row, y = half.schema.encode_one({"dep_delay": SECRET, "origin": "JFK", "late": "late"})
        local = half.randomizer
        object.__setattr__(local, "mechanism", "none")
        assert truth == pytest.approx(local(row, y).gradient.tolist(), rel=1e-12)
        for request in sent:
            wire = f"{request.url} {request.headers} {request.post_data}"
            for value in [SECRET, "JFK", *(str(g) for g in truth if g)]:
                assert value not in wire

        assert "73.1 %" in page.inner_text("#bound")  # e / (1 + e)
        beliefs = [float(cell.split()[0]) for cell in page.locator("#belief-rows td:last-child").all_text_contents()]
        assert sum(beliefs) == pytest.approx(100, abs=0.2)
        assert 26.8 <= min(beliefs) <= max(beliefs) <= 73.2

        page.reload()  # a second answer is not possible in this browser
        expect(page.locator("#outcome")).to_contain_text("Your report was learned")
        expect(page.locator("#form")).to_be_hidden()


@pytest.mark.campaign
def test_a_lost_answer_is_asked_for_again_with_the_same_report(http: httpx.Client, browser: Browser) -> None:
    with page_of(browser) as page:
        sent, before = posted(page), learned(http)
        page.route("**/reports", lambda route: route.abort())
        page.goto(address(http, "/join/survey"))
        page.fill("[name='x:dep_delay']", "20")
        page.select_option("[name='x:origin']", "LGA")
        page.select_option("[name=y]", "on time")
        page.click("#send")
        expect(page.locator("#trouble")).to_contain_text("does not answer")
        page.reload()
        page.unroute("**/reports")
        expect(page.locator("#send")).to_have_text("Send the same report again")
        page.click("#send")
        expect(page.locator("#outcome")).to_contain_text("Your report was learned")
        bodies = {request.post_data for request in sent if request.method == "POST"}
        assert len(bodies) == 1
        assert learned(http) == before + 1


@pytest.mark.campaign
def test_two_tabs_send_one_report(http: httpx.Client, browser: Browser) -> None:
    """Both are between the look at the notes and the note: without a lock, each would draw a report."""
    with page_of(browser) as page:
        tabs, before, held = [page, page.context.new_page()], learned(http), []
        sent = [posted(tab) for tab in tabs]
        for tab in tabs:
            tab.goto(address(http, "/join/survey"))
            tab.fill("[name='x:dep_delay']", "20")
            tab.select_option("[name='x:origin']", "LGA")
            tab.select_option("[name=y]", "late")
        page.context.route("**/randomizer", lambda route: held.append(route))
        for tab in tabs:
            tab.click("#send")
        page.wait_for_timeout(1000)  # a second one comes in this time, if there is no lock
        page.context.unroute("**/randomizer")  # which lets the held ones go on
        for tab in tabs:
            expect(tab.locator("#outcome")).to_contain_text("Your report was learned")
        bodies = {request.post_data for requests in sent for request in requests if request.method == "POST"}
        assert len(bodies) == 1
        assert learned(http) == before + 1


def test_a_person_answers_a_question_with_one_noisy_bit(http: httpx.Client, browser: Browser) -> None:
    with page_of(browser) as page:
        sent = posted(page)
        page.goto(address(http, "/join/wages"))
        identity = page.locator("#identity")
        expect(identity).to_contain_text("which reports are from you, such as your member number")
        expect(identity).to_contain_text("It is sent as you write it, without noise")
        expect(identity).to_contain_text("Your name")
        expect(identity).to_contain_text("As on your badge.")
        expect(page.locator("#fields [name=subject]")).to_have_count(0)
        for name, value in (("x:age", "33"), ("y", "77.125"), ("subject", "ann")):
            page.fill(f"[name='{name}']", value)
        page.click("#send")
        expect(page.locator("#outcome")).to_contain_text("Your report was learned")
        (post,) = [json.loads(request.post_data or "")["reports"][0] for request in sent if request.method == "POST"]
        assert post.keys() == {"version", "budget", "id", "ask", "bit", "subject"}
        assert post["ask"] == {"column": "wage", "below": 0.0}
        assert "The true answer: no" in (page.locator("#truth").text_content() or "")
        likely, less = (f"{100 * p:.1f} %" for p in (1 / (1 + math.exp(-1)), 1 / (1 + math.e)))
        after = page.locator("#belief-rows td:last-child").all_text_contents()
        assert after == ([likely, less] if post["bit"] else [less, likely])  # of a wage of 0, and of 100


def test_a_person_reports_about_statistics_and_the_answers_stay_in_the_browser(
    tmp_path: Path, browser: Browser
) -> None:
    hours = {"bounds": [0, 60], "label": "How long do you work?"}
    declared = {"mean hours": {"mean": "hours", "by": "sector"}, "median": {"quantile": 0.5, "of": "hours"}}
    schema = {"features": {"hours": hours, "sector": ["public", "none"]}}
    config = job(tmp_path, "week", schema=schema, statistics=declared, model={"trust": "nobody"}, cap=None)
    with client(config) as http, page_of(browser) as page:
        sent = posted(page)
        page.goto(address(http, "/join/week"))
        expect(page.locator("#agreed")).to_contain_text(
            "mean hours: mean of hours by sector; median: quantile 0.5 of hours"
        )
        expect(page.locator("#fields")).to_contain_text("How long do you work?")
        expect(page.locator("#fields label")).to_have_count(2)
        assert "73.1 %" in page.inner_text("#bound")
        page.fill("[name='x:hours']", SECRET)
        page.select_option("[name='x:sector']", "none")
        page.click("#send")
        expect(page.locator("#outcome")).to_contain_text("Your report was learned")
        (post,) = [json.loads(request.post_data or "")["reports"][0] for request in sent if request.method == "POST"]
        assert post.keys() == {"version", "budget", "id", "statistic", "answer"}
        truth = json.loads(page.locator("#truth").text_content() or "")
        assert truth == {"hours": pytest.approx(float(SECRET) / 30 - 1), "sector": 1}
        for request in sent:
            assert SECRET not in f"{request.url} {request.headers} {request.post_data}"
        expect(page.locator("#beliefs")).to_be_hidden()
        assert http.get("/v1/models/week").json()["learned"] == 1


@pytest.mark.campaign
def test_the_live_page_shows_statistics_beside_the_weights(tmp_path: Path, browser: Browser) -> None:
    with (
        client(job(tmp_path, statistics={"flights": {"count": "origin"}})) as http,
        page_of(browser, viewport={"width": 1100, "height": 1500}) as page,
    ):
        learn(http, 0, 50)
        page.goto(address(http))
        expect(page.locator("#numbers-title")).to_have_text("Statistics and weights")
        weights = http.get("/v1/models/late/weights").json()["weights"]
        expect(page.locator("#weights tr")).to_have_count(3 + len(weights))
        expect(page.locator("#weights tr").first).to_contain_text("flights EWR")
        expect(page.locator("#weights tr").last).to_contain_text(weights[-1]["name"])


def test_with_tokens_the_live_page_asks_for_one(tmp_path: Path, browser: Browser) -> None:
    from hashlib import sha256

    tokens = [TokenConfig(sha256=sha256(b"open sesame").hexdigest(), scopes=("read",))]
    with client(flights(tmp_path), tokens=tokens) as http, page_of(browser) as page:
        page.goto(address(http))
        expect(page.locator("#trouble")).to_contain_text("expected a known token")
        page.fill("#token", "open sesame")
        page.keyboard.press("Enter")
        expect(page.locator("#main")).to_be_visible()
        expect(page.locator("#trouble")).to_have_text("")


@pytest.mark.campaign
def test_calls_are_described_without_the_internet_on_a_phone_and_in_the_dark(
    http: httpx.Client, browser: Browser
) -> None:
    with page_of(browser, viewport={"width": 390, "height": 800}, color_scheme="dark") as page:
        page.goto(address(http, "/docs"))
        expect(page.get_by_text("/v1/models/{job}/predict", exact=False).first).to_be_visible()
        assert fits(page)
        page.get_by_text("/v1/models/{job}/predict", exact=False).first.click()
        expect(page.get_by_text("Try it out")).to_be_visible()
        assert fits(page)
        assert luminance(page, "backgroundColor") < 0.3


def test_pages_have_a_policy_and_serve_no_other_file(http: httpx.Client) -> None:
    for path in ("/", "/join/survey", "/device.js", "/static/live.js", "/static/uPlot.iife.min.js"):
        answer = http.get(path)
        assert answer.status_code == 200
        policy = answer.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
    for path in ("/static/..%2Fpages.py", "/static/pages.py", "/static/live.html", "/static/vendor"):
        assert http.get(path).status_code == 404


def test_the_device_is_small_on_the_wire(http: httpx.Client) -> None:
    with http.stream("GET", "/device.js") as answer:
        packed = b"".join(answer.iter_raw())
    assert answer.headers["Content-Encoding"] == "gzip"
    assert len(packed) < 12_500  # with models and statistics
    plain = http.get("/device.js", headers={"Accept-Encoding": "identity"})
    assert "Content-Encoding" not in plain.headers
    assert plain.content == (ROOT / "clients" / "js" / "streamdp.min.js").read_bytes()
    assert plain.content == gzip.decompress(packed)
