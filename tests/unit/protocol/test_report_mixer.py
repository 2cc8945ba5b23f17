"""The shuffler of reports: what it shows, what it does not take, and that nothing is shown twice."""

import copy
import json
import os
import pickle
from functools import partial
from itertools import count
from typing import Any

import pytest

from streamdp.errors import ConfigError, NotAvailableError, SchemaError
from streamdp.protocol.local_half import LocalHalf
from streamdp.protocol.report_mixer import ReportMixer
from tests.support.interruptions import interrupted
from tests.support.local_reports import PERSON, desk_of
from tests.support.threads import in_threads


def opened(people: int = 3) -> tuple[ReportMixer, Any]:
    desk, _ = desk_of("privunit")
    mixer = ReportMixer(desk.agreement, people)
    mixer.open(desk.document().text)
    return mixer, desk


def answers(mixer: ReportMixer, *names: str) -> list[dict[str, Any]]:
    half = LocalHalf(mixer.document().text)
    return [half.report(PERSON, "True", name) for name in names]


def shown(mixer: ReportMixer) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    while (call := mixer.next_call()) is not None:
        found += json.loads(call[1])["reports"]
        mixer.sent()
    return found


def test_a_batch_is_shown_whole_without_names_and_the_learner_takes_it() -> None:
    mixer, desk = opened()
    given = answers(mixer, "ann", "bob", "cleo")
    assert mixer.take(given[:2]) == {}
    assert (mixer.waiting, mixer.next_call()) == (2, None)
    assert mixer.take(given[2:]) == {}
    assert not mixer.is_open
    found = shown(mixer)
    answer = "gradient" if "gradient" in given[0] else "bit"
    assert sorted(json.dumps(one[answer]) for one in found) == sorted(json.dumps(one[answer]) for one in given)
    for one in found:
        assert one.keys() == {"version", "budget", "id", "ask", answer}
        assert one["version"] == json.loads(desk.document().text)["version"]
        assert one["id"] not in ("ann", "bob", "cleo")
        desk.receive(one)


def test_an_exception_at_any_line_shows_no_report_twice() -> None:
    """Before, one at the end of a batch left reports in the next one that were written already."""
    for after in count():
        mixer, desk = opened()
        given = answers(mixer, "ann", "bob", "cleo")
        if interrupted(partial(mixer.take, given), after, "protocol") <= after:
            return
        found = shown(mixer)
        mixer.take(given)
        found += shown(mixer)
        mixer.open(desk.document().text)
        mixer.take(answers(mixer, "dan", "eve", "fay"))
        texts = [json.dumps(one.get("gradient", str(one))) for one in found + shown(mixer)]
        assert len(texts) == len(set(texts)) <= 6


def test_the_order_is_drawn() -> None:
    """The first of ten reports is at each place equally often: 2,000 batches, false alarm below 1e-6."""
    counts = [0] * 10
    mixer, desk = opened(10)
    report = answers(mixer, "0")[0]
    answer = "gradient" if "gradient" in report else "bit"
    marked, other = (
        ([1.0] * len(report["gradient"]), [0.0] * len(report["gradient"])) if answer == "gradient" else (True, False)
    )
    for _ in range(2_000):
        mixer.open(desk.document().text)
        version = json.loads(mixer.document().text)["version"]
        mixer.take([report | {"version": version, "id": str(i), answer: other if i else marked} for i in range(10)])
        counts[[one[answer] for one in shown(mixer)].index(marked)] += 1
    assert max(abs(count - 200) for count in counts) < 80


def test_what_would_not_hide_is_not_taken() -> None:
    mixer, _ = opened(100)
    (report,) = answers(mixer, "a")
    gradient = "gradient" in report
    wrong: list[tuple[Any, str]] = [
        ({"version": report["version"] - 1}, "stale"),
        ({"budget": "eps=0.5"}, "budget"),
        ({"subject": "ann"}, "malformed"),
        ({"more": 1}, "malformed"),
        ({"gradient": [0.0], "ask": "gradient", "bit": None} if gradient else {"ask": "gradient"}, "length"),
        ({"ask": {"column": "delay", "below": 0.25}, "gradient": None, "bit": True}, "question"),
    ]
    if not gradient:
        wrong[4] = ({"ask": "gradient", "gradient": [0.0], "bit": None}, "question")
    dead = mixer.take([report | change for change, _ in wrong])
    assert dead == {i: reason for i, (_, reason) in enumerate(wrong)}
    assert mixer.waiting == 0
    assert mixer.take([None, report, report]) == {0: "malformed"}
    other = report | ({"gradient": [-g for g in report["gradient"]]} if gradient else {"bit": not report["bit"]})
    assert mixer.take([other]) == {0: "id_reused"}
    assert mixer.waiting == 1  # a report that is sent again counts once


def test_reports_of_another_batch_are_in_none() -> None:
    """A batch that a crash has ended, or that was shown, is never shown again, by this shuffler or by another one."""
    mixer, desk = opened(2)
    first = answers(mixer, "a", "b", "c")
    assert mixer.take(first[:2]) == {}
    assert mixer.take(first[2:]) == {0: "stale"}
    assert len(shown(mixer)) == 2
    again = ReportMixer(desk.agreement, 2)
    for one in (mixer, again):
        one.open(desk.document().text)
        assert one.take(first) == {0: "stale", 1: "stale", 2: "stale"}
        assert (one.waiting, one.next_call()) == (0, None)


def test_all_devices_of_a_batch_answer_one_document() -> None:
    """A learner that shows another document while a batch is open does not change what its devices get."""
    mixer, desk = opened(10)
    before = json.loads(mixer.document(now=0.0).text)
    document = json.loads(desk.document().text)
    document["theta"] = [value + 1 for value in document["theta"]]
    mixer.open(json.dumps(document).encode())
    later = json.loads(mixer.document(now=1e6).text)
    assert later.pop("expires_at") > before.pop("expires_at")
    assert later == before


def test_another_agreement_is_refused() -> None:
    mixer, desk = opened()
    document = json.loads(desk.document().text)
    empty = ReportMixer(desk.agreement, 3)
    with pytest.raises(ConfigError, match="another agreement"):
        empty.open(json.dumps(document | {"budget": "eps=9"}).encode())
    with pytest.raises(SchemaError):
        empty.open(b"{}")
    with pytest.raises(NotAvailableError):
        empty.document()
    for copied in (copy.copy, pickle.dumps):
        with pytest.raises(TypeError, match="neither copied nor stored"):
            copied(mixer)


def test_threads_close_a_batch_once() -> None:
    mixer, _ = opened(40)
    given = answers(mixer, *map(str, range(60)))
    dead: list[dict[int, str]] = []
    taken = iter([mixer.take] * 60)

    def work() -> None:
        for take in taken:
            dead.append(take([given.pop()]))

    in_threads(work)
    assert len(shown(mixer)) == 40
    assert sum(map(len, dead)) == 20


def test_a_fork_shows_no_report_of_its_parent() -> None:
    closed, _ = opened(1)
    closed.take(answers(closed, "ann"))
    mixer, _ = opened()
    mixer.take(answers(mixer, "ann"))
    if (child := os.fork()) == 0:
        os._exit(int(closed.next_call() is not None or mixer.is_open or mixer.waiting > 0))
    assert os.waitpid(child, 0)[1] == 0
    assert closed.next_call() is not None
    assert mixer.waiting == 1
