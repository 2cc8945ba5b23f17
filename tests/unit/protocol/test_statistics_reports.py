"""Reports about statistics: what arrives is what the estimator's own reports are, and nothing else is let in."""

import copy
import json
from hashlib import sha256
from typing import Any

import numpy as np
import pytest
import rfc8785

from streamdp.config.job import make_config
from streamdp.errors import ConfigError, RefusedReportError, SchemaError, StreamDPError
from streamdp.estimators.statistics import Statistics
from streamdp.learners import series
from streamdp.learners.drawn import DrawnAnswer
from streamdp.privacy.entropy import SeededEntropy
from streamdp.privacy.guarantees import PureDP
from streamdp.protocol.local_agreement import LocalAgreement
from streamdp.protocol.local_half import LocalHalf
from streamdp.protocol.report_desk import ReportDesk
from streamdp.protocol.report_mixer import ReportMixer
from streamdp.protocol.statistics_agreement import StatisticsAgreement
from tests.support.statistics_reports import (
    FEATURES,
    PERSON,
    STATISTICS,
    definition,
    desk_of,
    learned,
    people,
    report_of,
    state_of,
)


def test_reports_teach_what_the_records_teach_in_one_process() -> None:
    """With the same random words the statistics are the same, number for number: devices have no other randomiser."""
    given, rng, n = STATISTICS | {"median wage": STATISTICS["median wage"] | {"share": 20}}, SeededEntropy(7), 400
    desk, learner = desk_of(definition(given, model={"budget": "eps=8"}))
    alone = definition(given, model={"budget": "eps=8", "seed": 7}).build_estimator()
    assert isinstance(alone, Statistics)
    halves: dict[bytes, LocalHalf] = {}
    for i, record in enumerate(people(n)):
        alone.learn_one(record)
        text = desk.document(now=0.0).text.replace(b'"expires_at":600.0', b'"expires_at":4102444800.0')
        known = json.dumps(json.loads(text) | {"version": 0}).encode()  # what is asked is the same in many versions
        half = halves.get(known) or halves.setdefault(known, LocalHalf(text, None, rng))
        report = json.loads(json.dumps(half.report(record, None, str(i)))) | {"version": i}
        learned(desk, learner, i + 1, report)
    assert 2 < len(halves) < n / 10
    expected = state_of(alone)
    for name, value in state_of(learner).items():
        np.testing.assert_array_equal(value, expected[name], err_msg=name)
    assert learner.n_seen == alone.n_seen == n
    assert str(learner.interval()) == str(alone.interval())
    assert str(learner.guarantee.budgets[0]) == "eps=8"


def test_the_agreement_names_what_is_read_and_nothing_else() -> None:
    desk, _ = desk_of(definition())
    found = json.loads(desk.document().text)
    assert [feature["name"] for feature in found["schema"]["features"]] == ["age", "hours", "wage", "sector", "word"]
    assert sum(one["share"] for one in found["statistics"]) == pytest.approx(1)
    assert [one["name"] for one in found["statistics"]] == sorted([*STATISTICS, "median wage"])
    assert isinstance(desk.agreement, StatisticsAgreement)
    assert desk.agreement.digest() == found["agreement"]
    other, _ = desk_of(definition(STATISTICS | {"hours": {"mean": "hours"}}))
    assert other.agreement.digest() != found["agreement"]


def test_a_device_needs_no_more_than_what_is_read() -> None:
    desk, _ = desk_of(definition({"share": {"proportion": "sector"}}))
    half = LocalHalf(desk.document().text, desk.agreement.digest())
    assert desk.receive(half.report({"sector": "none"}, None, "a")).report.answer in [(0,), (1,), (2,)]  # type: ignore[union-attr]
    for x, y in (({}, None), ({"sector": "other"}, None), ({"sector": "none"}, 1.0)):
        with pytest.raises(SchemaError) as caught:
            half.report(x, y, "b")
        assert "other" not in str(caught.value)
    with pytest.raises(ConfigError, match="which all reports about statistics spend"):
        half.report({"sector": "none"}, None, "b", budget="eps=0.5")


def about(statistic: str) -> tuple[ReportDesk, dict[str, Any]]:
    desk, _ = desk_of(definition({statistic: STATISTICS[statistic]}))
    return desk, report_of(desk)


@pytest.mark.parametrize(
    ("statistic", "change", "reason"),
    [
        ("ages", {"version": 1}, "version"),
        ("ages", {"budget": "eps=0.5"}, "budget"),
        ("ages", {"budget": "mu=1"}, "budget"),
        ("ages", {"statistic": 1}, "question"),
        ("ages", {"statistic": -1}, "malformed"),
        ("ages", {"statistic": True}, "malformed"),
        ("ages", {"answer": []}, "impossible"),
        ("ages", {"answer": [0, 1]}, "impossible"),
        ("ages", {"answer": [3]}, "impossible"),
        ("ages", {"answer": [-1]}, "malformed"),
        ("ages", {"answer": [0.5]}, "malformed"),
        ("ages", {"answer": None}, "malformed"),
        ("ages", {"gradient": [1.0]}, "malformed"),
        ("ages", {"id": ""}, "malformed"),
        ("ages", {"more": 1}, "malformed"),
        ("median wage", {"answer": [6]}, "impossible"),
        ("table", {"answer": [1, 0]}, "impossible"),
        ("table", {"answer": [0, 0]}, "impossible"),
        ("table", {"answer": list(range(14 * 6 * 3))}, "impossible"),
        ("words", {"answer": [0]}, "impossible"),
        ("words", {"answer": [9, 0, 0]}, "impossible"),
    ],
    ids=str,
)
def test_what_no_device_can_have_made_is_refused(statistic: str, change: dict[str, Any], reason: str) -> None:
    desk, report = about(statistic)
    desk.receive(report)
    with pytest.raises(RefusedReportError) as caught:
        desk.receive(report | change)
    assert (caught.value.reason, caught.value.__cause__, caught.value.__context__) == (reason, None, None)


def test_honest_reports_are_never_refused() -> None:
    desk, _ = desk_of(definition())
    half = LocalHalf(desk.document().text)
    seen = set()
    for i in range(600):
        found = desk.receive(half.report(PERSON, None, str(i))).report
        assert isinstance(found, DrawnAnswer)
        seen.add(found.part)
    assert seen == set(range(8))


def test_the_estimator_takes_nothing_that_its_noise_cannot_make() -> None:
    learner = definition({"ages": STATISTICS["ages"]}).build_estimator()
    assert isinstance(learner, Statistics)
    learner.state_dict()
    good = DrawnAnswer(0, (1,), 0, PureDP(1.0))
    forged = [(1, (1,), 1.0), (0, (3,), 1.0), (0, (1,), 0.5)]
    for bad in (None, *(DrawnAnswer(part, answer, 0, PureDP(epsilon)) for part, answer, epsilon in forged)):
        with pytest.raises(SchemaError, match="report: expected"):
            learner.absorb(bad)  # type: ignore[arg-type]
    learner.absorb(good)
    assert learner.n_seen == 1
    other = Statistics({"m": {"mean": "x"}}, {"x": (0, 1)})
    with pytest.raises(ConfigError, match="reports of devices need"):
        other.absorb(good)


def changed(document: dict[str, Any], path: str, value: Any) -> bytes:
    found = copy.deepcopy(document)
    *places, last = path.split(".")
    at: Any = found
    for place in places:
        at = at[int(place) if place.isdigit() else place]
    if value is KeyError:
        del at[last]
    else:
        at[int(last) if last.isdigit() else last] = value
    agreed = {name: found[name] for name in ("protocol", "job", "schema", "statistics", "budget") if name in found}
    found["agreement"] = sha256(rfc8785.dumps(agreed)).hexdigest()  # that of what it says
    return json.dumps(found).encode()


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("protocol", 2),
        ("schema.features.0.bounds", [3, 3]),
        ("schema.features.0.bounds", [0, 1e300]),
        ("schema.features.0.name", "hours"),
        ("schema.features.4.text", 65),
        ("schema.features.3.categories", ["one"]),
        ("statistics", []),
        ("statistics.0.by.0.edges", [0.5, 0.25]),
        ("statistics.0.by.0.edges", [2.0]),
        ("statistics.0.by.0.edges", None),
        ("statistics.0.by.0.column", "nobody"),
        ("statistics.0.by.0.column", "word"),
        ("statistics.0.levels", 3),
        ("statistics.1.levels", 40),
        ("statistics.1.levels", None),
        ("statistics.1.of", "sector"),
        ("statistics.1.of", None),
        ("statistics.1.share", 0),
        ("statistics.2.quantile", 1.0),
        ("statistics.2.quantile", None),
        ("statistics.2.kind", "mean"),
        ("statistics.7.of", "age"),
        ("statistics.7.of", None),
        ("thresholds.2", [0.0]),
        ("thresholds.2", [0.0, 0.0, 1.5]),
        ("thresholds.0", [0.0]),
        ("thresholds", []),
        ("more", 1),
        ("version", -1),
        ("loss", {}),
        ("budget", "eps=0"),
        ("statistics", KeyError),
    ],
    ids=str,
)
def test_a_device_refuses_a_document_that_contradicts_itself(path: str, value: Any) -> None:
    document = json.loads(desk_of(definition())[0].document().text)
    LocalHalf(changed(document, "version", 3))
    with pytest.raises(StreamDPError):
        LocalHalf(changed(document, path, value))


def test_reports_that_come_late_count_where_they_were_asked() -> None:
    """All 100 reports of a version answer its thresholds, and the median is found as by single reports."""
    job = definition({"m": {"quantile": 0.5, "of": "hours"}}, model={"budget": "eps=4"})
    desk, learner = desk_of(job)
    rng, sent, kept = np.random.default_rng(3), 0, None
    for version in range(15):
        half = LocalHalf(desk.document().text, None, SeededEntropy(version))
        late = LocalHalf(kept, None, SeededEntropy(100 + version)) if kept else half
        kept = desk.document().text
        reports = []
        for i in range(100):
            x = {"hours": float(rng.uniform(0, 40))}
            reports.append((late if i < 25 else half).report(x, None, str(i)))
        learned(desk, learner, version + 1, *reports)
        sent += 100
    state = state_of(learner)
    assert state["0 blocks"][:, 0].sum() + state["0 open"][-1] == sent == learner.n_seen
    low, high = learner.interval(0.999999)["m"]
    assert low < 20 < high
    assert high - low < 6
    again = job.build_estimator()
    again.load_state_dict(learner.state_dict())
    np.testing.assert_array_equal(state_of(again)["0 blocks"], state_of(learner)["0 blocks"])  # type: ignore[arg-type]


def test_reports_are_of_the_window_in_which_they_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the same reports in one process: with the same words all numbers of both windows are the same."""
    given = {name: one for name, one in STATISTICS.items() if "quantile" not in one}
    desk, learner = desk_of(definition(given, model={"every": "1 day", "budget": "eps=8"}))
    alone = definition(given, model={"every": "1 day", "budget": "eps=8", "seed": 7}).build_estimator()
    assert isinstance(alone, Statistics)
    half = LocalHalf(desk.document().text, None, SeededEntropy(7))
    for i, record in enumerate(people(200)):
        now = 86_400.0 * (1 + i // 120)
        monkeypatch.setattr(series, "present", lambda now=now: now)
        alone.learn_one(record, now)
        report = json.loads(json.dumps(half.report(record, None, str(i))))
        learned(desk, learner, i + 1, report | {"version": i})
    assert learner.get().keys() == alone.get().keys() == {"1970-01-02T00:00:00Z", "1970-01-03T00:00:00Z"}
    assert learner.n_seen == 200
    for name, value in learner.state_dict().items():
        if isinstance(value, np.ndarray):
            np.testing.assert_array_equal(value, alone.state_dict()[name], err_msg=name)
    with pytest.raises(ConfigError, match="no quantiles with every"):
        desk_of(definition(model={"every": "1 day"}))


def test_a_shuffler_shows_answers_without_names_and_the_learner_takes_them() -> None:
    desk, learner = desk_of(definition(shuffled={"people": 50}))
    mixer = ReportMixer(desk.agreement, 50)
    mixer.open(desk.document().text)
    half = LocalHalf(mixer.document().text)
    given = [half.report(PERSON, None, f"person {i}") for i in range(50)]
    bad = [given[0] | change for change in ({"statistic": 8}, {"gradient": [1.0]}, {"subject": "ann"})]
    assert mixer.take(bad) == {0: "question", 1: "malformed", 2: "malformed"}
    assert mixer.take(given) == {}
    call = mixer.next_call()
    found = json.loads(call[1])["reports"]
    assert all(one.keys() == {"version", "budget", "id", "statistic", "answer"} for one in found)
    told = [json.dumps([one["statistic"], one["answer"]]) for one in given]
    assert sorted(json.dumps([one["statistic"], one["answer"]]) for one in found) == sorted(told)
    for one in found:
        learner.absorb(desk.receive(one).report)
    assert learner.n_seen == 50


@pytest.mark.parametrize(
    "job",
    [
        definition({"hours": STATISTICS["hours"]}, model={"trust": "process", "budget": "eps=1,delta=1e-6"}),
        definition({"median": STATISTICS["median wage"]}, model={"every": "1 day"}),
    ],
    ids=["process", "quantiles with every"],
)
def test_statistics_that_take_no_reports_say_so(job: Any) -> None:
    with pytest.raises(ConfigError, match="take no reports"):
        StatisticsAgreement.of("j", job)
    with pytest.raises(ConfigError, match="take"):
        LocalAgreement.of("j", job)


def settings(**more: Any) -> dict[str, Any]:
    source = {"type": "kafka", "content": "reports", "topic": "t", "brokers": "b"}
    given = {"job": "j", "source": source, "schema": {"features": FEATURES}, "statistics": {"a": {"mean": "age"}}}
    return given | {"model": {"trust": "nobody"}} | more


def test_a_topic_of_reports_is_for_statistics_of_trust_nobody() -> None:
    assert make_config(settings()).build_estimator().takes_reports
    assert make_config(settings(model={"trust": "nobody", "every": "1 day"})).build_estimator().takes_reports
    with pytest.raises(ConfigError, match="devices' reports need"):
        make_config(settings(model={"trust": "process"}))
    target = {"features": {"age": FEATURES["age"]}, "target": {"column": "y", "bounds": [0, 1]}}
    with pytest.raises(ConfigError, match="devices' reports need"):
        make_config(settings(schema=target))


def test_shuffled_reports_about_statistics_have_a_second_promise() -> None:
    http = {"source": {"type": "http"}, "shuffled": {"people": 1000}, "model": {"trust": "nobody", "budget": "eps=2"}}
    said = make_config(settings(**http)).promise()
    assert (said.budget, said.trust) == ("eps=2", "nobody")
    model = {"features": {"age": FEATURES["age"]}, "target": {"column": "y", "bounds": [0, 1]}}
    assert said.shuffled == make_config(settings(**http, statistics=None, schema=model)).promise().shuffled
    with pytest.raises(ConfigError, match="shuffled: needs a model or statistics of trust: nobody"):
        make_config(settings(**http | {"model": {"trust": "process"}}))
