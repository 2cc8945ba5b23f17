"""Local reports on the wire: what arrives is what the randomizer made, and nothing else is let in."""

import json
import re
import time
from typing import Any

import numpy as np
import pytest

from streamdp.errors import BudgetError, ConfigError, NotAvailableError, RefusedReportError, SchemaError
from streamdp.estimators.ldp.randomizer import Answer, Report
from streamdp.learners.local_reports import LocalReports
from streamdp.privacy.entropy import SeededEntropy
from streamdp.protocol.local_half import LocalHalf
from streamdp.protocol.report_desk import OF_A_SHARD, ReportDesk
from streamdp.protocol.reports import read_document
from streamdp.scaling import unit_table as k
from tests.support.local_reports import JOBS, PERSON, definition, desk_of, report_of, truth
from tests.support.sizes import some
from tests.support.states import units_of

each = pytest.mark.parametrize("job", JOBS)


@each
def test_a_report_is_what_the_learners_randomizer_makes(job: str) -> None:
    """The same words give the same answer by the wire as in the process, and the desk changes nothing."""
    desk, learner = desk_of(job)
    found = desk.receive(report_of(desk, truth(job), seed=5)).report
    local = learner.randomizer
    object.__setattr__(local, "rng", SeededEntropy(5))
    schema = JOBS[job].build_schema()
    number = schema.encode_one({**PERSON, schema.target: truth(job)})[1]
    made = local(PERSON, truth(job) if schema.classes else number)
    assert type(found) is type(made)
    if isinstance(made, Report) and isinstance(found, Report):
        np.testing.assert_allclose(found.gradient, made.gradient, rtol=1e-12)
        assert (found.budget, found.changes) == (made.budget, made.changes)
    elif isinstance(made, Answer) and isinstance(found, Answer):
        assert (found.question.column, found.yes, found.budget) == (made.question.column, made.yes, made.budget)
        np.testing.assert_allclose(found.question[:2], made.question[:2], rtol=1e-15)


@pytest.mark.parametrize("job", some(JOBS, 1, 4, 5))
def test_honest_reports_are_never_refused_and_longer_ones_are(job: str) -> None:
    desk, learner = desk_of(job)
    if units_of(learner).summary.size:  # past the bits about the target: gradients are asked for
        units_of(learner).progress[k.TARGET] = k.DONE
        desk.show(1, learner)
    half = LocalHalf(desk.document().text, desk.agreement.digest())
    for n in range(100):
        report = half.report(PERSON, truth(job), f"r{n}")
        assert isinstance(desk.receive(report).report, Report)
        with pytest.raises(RefusedReportError, match="impossible"):
            desk.receive(report | {"gradient": [1.0001 * g for g in report["gradient"]]})


@pytest.mark.parametrize("job", some(JOBS, 0, 5))
@pytest.mark.slow
def test_a_job_of_reports_learns_and_asks_both_questions(job: str) -> None:
    desk, learner = desk_of(job)
    kinds = set[type]()
    asked = {Report, Answer} if len(units_of(learner).summary) > 0 else {Report}
    while learner.n_seen < 40 or (kinds != asked and learner.n_seen < 5000):  # the squared loss asks 2,700 first
        received = desk.receive(report_of(desk, truth(job), f"r{learner.n_seen}"))
        kinds.add(type(received.report))
        learner.absorb(received.report)
        desk.show(learner.n_seen, learner)
    assert learner.private
    assert kinds == asked


def liar(desk: ReportDesk, change: dict[str, Any]) -> str:
    with pytest.raises(RefusedReportError) as caught:
        desk.receive(report_of(desk, "True") | change)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None
    return caught.value.reason


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"version": 1}, "version"),
        ({"version": 2**60}, "malformed"),
        ({"version": "0"}, "malformed"),
        ({"version": True}, "malformed"),
        ({"budget": "eps=1.01"}, "budget"),
        ({"budget": "mu=0.5"}, "budget"),
        ({"budget": "eps=1e-300"}, "budget"),
        ({"budget": "eps=inf"}, "malformed"),
        ({"budget": "eps=0.5"}, "impossible"),
        ({"gradient": [1.0]}, "length"),
        ({"gradient": []}, "length"),
        ({"gradient": [0.0] * 5}, "impossible"),
        ({"gradient": [1e308] * 5}, "impossible"),
        ({"gradient": [float("nan")] * 5}, "malformed"),
        ({"gradient": ["0.5"] * 5}, "malformed"),
        ({"gradient": None}, "malformed"),
        ({"gradient": None, "bit": True}, "malformed"),
        ({"bit": True}, "malformed"),
        ({"gradient": None, "bit": True, "ask": {"column": "delay", "below": 0.0}}, "question"),
        ({"ask": {"column": "delay", "centre": 0.0, "within": -1.0}}, "malformed"),
        ({"id": ""}, "malformed"),
        ({"x": 0.5}, "malformed"),
    ],
    ids=str,
)
def test_what_the_randomizer_cannot_have_made_is_refused(change: dict[str, Any], reason: str) -> None:
    assert liar(desk_of("privunit")[0], change) == reason


@pytest.mark.parametrize("item", [None, 3, "x", [], {}, {"version": 0}])
def test_what_is_no_report_is_refused(item: Any) -> None:
    with pytest.raises(RefusedReportError, match="malformed"):
        desk_of("privunit")[0].receive(item)


@pytest.mark.parametrize("job", ["laplace", "gaussian", "approx"])
def test_additive_reports_lie_on_the_grid_and_are_not_too_long(job: str) -> None:
    desk, _ = desk_of(job)
    report = report_of(desk, "True")
    g = np.array(report["gradient"])
    for bad in (g * (1 + 1e-9), g + 2**12, g * 1e6):
        with pytest.raises(RefusedReportError, match="impossible"):
            desk.receive(report | {"gradient": bad.tolist()})
    desk.receive(report)


def test_a_liar_moves_the_model_no_further_than_an_honest_report_may() -> None:
    """Of all reports that pass, PrivUnit's longest is the honest one's norm, and not 1e15 bounds."""
    desk, _ = desk_of("privunit")
    report = report_of(desk, "True")
    honest = np.array(report["gradient"])
    aimed = np.zeros(5)
    aimed[0] = np.linalg.norm(honest)
    for size in (1.001, 2.0, 1e6):
        with pytest.raises(RefusedReportError, match="impossible"):
            desk.receive(report | {"gradient": (size * honest).tolist()})
        with pytest.raises(RefusedReportError, match="impossible"):
            desk.receive(report | {"gradient": (size * aimed).tolist()})


def test_reports_for_old_versions_are_stale() -> None:
    desk, learner = desk_of("privunit", max_staleness=2)
    old = report_of(desk, "True")
    for version in (1, 2):
        desk.show(version, learner)
        desk.receive(old)
    desk.show(3, learner)
    with pytest.raises(RefusedReportError, match="stale"):
        desk.receive(old)
    restarted = ReportDesk("privunit", JOBS["privunit"])  # it does not know what earlier versions asked
    restarted.show(3, learner)
    with pytest.raises(RefusedReportError, match="stale"):
        restarted.receive(old)


def test_reports_for_another_shard_are_for_its_service() -> None:
    here, learner = desk_of("privunit")
    there = ReportDesk("privunit", JOBS["privunit"])
    there.show(3 * OF_A_SHARD, learner)
    report = report_of(there, "True")
    here.elsewhere = frozenset({3})
    with pytest.raises(RefusedReportError, match="elsewhere"):
        here.receive(report)
    here.elsewhere = frozenset()
    with pytest.raises(RefusedReportError, match="stale"):  # no service has the shard any more
        here.receive(report)
    there.receive(report)
    here.show(3 * OF_A_SHARD, learner)  # it has taken the shard over
    here.receive(report)
    with pytest.raises(RefusedReportError, match="version"):
        here.receive(report | {"version": 3 * OF_A_SHARD + 1})


def test_a_gradient_for_older_scales_is_counted_and_not_learned() -> None:
    desk, learner = desk_of("huber")
    units_of(learner).progress[k.TARGET] = k.DONE
    desk.show(1, learner)
    received = desk.receive(report_of(desk, 3.0)).report
    units_of(learner).progress[k.CHANGES] += 1
    before = learner.theta
    learner.absorb(received)
    assert learner.n_seen == 1
    np.testing.assert_array_equal(learner.theta, before)


def test_smaller_budgets_are_served_and_larger_ones_are_not() -> None:
    desk, learner = desk_of("privunit")
    received = desk.receive(report_of(desk, "True", budget="eps=0.3")).report
    assert str(received.budget) == "eps=0.3"
    learner.absorb(received)
    with pytest.raises(ConfigError, match="at most the agreed eps=1"):
        report_of(desk, "True", budget="eps=2")


def test_a_job_with_subjects_needs_one() -> None:
    job = definition(subject="person", cap="eps=2")
    learner = job.build_estimator()
    assert isinstance(learner.learner, LocalReports)
    desk = ReportDesk("capped", job)
    desk.show(0, learner)
    assert desk.receive(report_of(desk, "True", subject="ann")).subject == "ann"
    assert liar_without_subject(desk) == "missing"
    with pytest.raises(NotAvailableError, match="needs the subject"):
        report_of(desk, "True")


def liar_without_subject(desk: ReportDesk) -> str:
    report = report_of(desk, "True", subject="bob")
    del report["subject"]
    with pytest.raises(RefusedReportError) as caught:
        desk.receive(report)
    return caught.value.reason


def test_whole_numbers_are_one_person_however_they_are_written() -> None:
    job = definition(subject={"column": "person", "type": "integer"}, cap="eps=2")
    desk = ReportDesk("whole", job)
    learner = job.build_estimator()
    assert isinstance(learner.learner, LocalReports)
    desk.show(0, learner)
    report = report_of(desk, "True", subject=7)
    assert {desk.receive(report | {"subject": name}).subject for name in (7, "7", "+7", "007")} == {"7"}
    with pytest.raises(RefusedReportError, match="not_an_integer"):
        desk.receive(report | {"subject": "seven"})


@pytest.mark.parametrize("kind", ["text", "integer"])
def test_a_device_draws_nothing_for_a_subject_that_is_nobody(kind: str) -> None:
    """Before, its report was drawn and sent, and no desk took it: the record was spent for nothing."""
    desk = ReportDesk("named", job := definition(subject={"column": "person", "type": kind}, cap="eps=2"))
    desk.show(0, job.build_estimator())
    nobody = ["", "1.0", "1e+20", "z" * 1001, "\ud800"] if kind == "text" else ["", " ", "1.0", "seven", "7" * 301]
    for subject in nobody:
        with pytest.raises(SchemaError, match="subject"):
            report_of(desk, "True", subject=subject)
    named = ["z" * 1000, " ", "e\u0301"] if kind == "text" else [" 7", "+7"]
    assert all(desk.receive(report_of(desk, "True", subject=subject)).subject for subject in [*named, 7, 10**299])
    with pytest.raises(RefusedReportError, match="missing"):
        desk.receive(report_of(desk, "True", subject="7") | {"subject": ""})


# -- the device's side -----------------------------------------------------------------------------------------------


def announced(**changes: Any) -> bytes:
    document = json.loads(desk_of("huber")[0].document().text)
    for path, value in changes.items():
        *way, last = path.split("__")
        inner = document
        for step in way:
            inner = inner[int(step)] if step.isdigit() else inner[step]
        inner[int(last) if last.isdigit() else last] = value
    return json.dumps(document).encode()


AGREED = desk_of("huber")[0].agreement.digest()


@pytest.mark.parametrize(
    "change",
    [
        {"job": "other"},
        {"budget": "eps=40"},
        {"mechanism": "laplace"},
        {"loss__bound": 100.0},
        {"loss__sensitivity": 0.001},
        {"loss__parameters__c": 0.5},
        {"loss__name": "squared"},
        {"schema__target__bounds": [-1e9, 1e9]},
        {"schema__target__scale": 1e-9},
        {"schema__features__0__bounds": [0.0, 1e-9]},
        {"schema__features__2__categories": ["EWR", "LGA"]},
        {"schema__intercept": False},
        {"schema__subject": "text"},
        {"agreement": "0" * 64},
    ],
    ids=str,
)
def test_a_device_refuses_a_learner_that_changes_the_agreement(change: dict[str, Any]) -> None:
    text = announced(**change)
    with pytest.raises((ConfigError, SchemaError, BudgetError)):
        LocalHalf(text, AGREED)
    digest = read_document(text).agreed.digest()
    with pytest.raises((ConfigError, SchemaError, BudgetError)):
        LocalHalf(announced(**change | {"agreement": digest}), "0" * 64 if digest == AGREED else AGREED)
    LocalHalf(announced(), AGREED)


def test_a_device_refuses_a_bound_that_the_loss_does_not_have() -> None:
    """Also at first sight, with a digest that fits the lie."""
    desk, _ = desk_of("huber")
    loss = desk.agreement.loss
    lie = desk.agreement.model_copy(update={"loss": loss.model_copy(update={"bound": loss.bound / 2})})
    text = announced(loss__bound=loss.bound / 2, agreement=lie.digest())
    with pytest.raises(ConfigError, match="another bound than announced"):
        LocalHalf(text)


@pytest.mark.parametrize(
    "change",
    [
        {"theta": [0.0]},
        {"theta": [0.0] * 7},
        {"theta": [0.0, 0.0, 0.0, 0.0, 0.0, 0.0]},  # Huber's scale is below its least value
        {"scales": [[0.0, 1.0]]},
        {"scales__0": [0.0, 0.0]},
        {"scales__1": [0.0, -1.0]},
        {"ask": {"column": "origin", "below": 0.5}},
        {"ask": {"column": "nobody", "below": 0.5}},
        {"ask": {"column": "delay", "centre": 0.0, "within": 0.0}},
        {"ask": "everything"},
        {"version": -1},
        {"protocol": 2},
        {"more": 1},
    ],
    ids=str,
)
def test_a_device_refuses_a_malformed_point(change: dict[str, Any]) -> None:
    with pytest.raises((ConfigError, SchemaError)):
        LocalHalf(announced(**change), AGREED)


@pytest.mark.parametrize("text", [b"", b"null", b"{", b'{"theta": NaN}', b"[" * 10_000, b" " * (9 << 20)])
def test_a_device_refuses_other_texts(text: bytes) -> None:
    with pytest.raises(SchemaError):
        LocalHalf(text)


def test_an_old_document_is_not_used() -> None:
    half = LocalHalf(announced(expires_at=time.time() - 1), AGREED)
    with pytest.raises(NotAvailableError, match="too old"):
        half.report(PERSON, 3.0, "r")


def test_no_error_shows_a_value() -> None:
    secret = "13572468"
    half = LocalHalf(announced(), AGREED)
    good: dict[str, Any] = {"x": PERSON, "y": 3.0, "name": "r"}
    for bad in ({"x": PERSON | {"delay": f"{secret}x"}}, {"x": PERSON | {"origin": secret}}, {"y": f"n{secret}"}):
        with pytest.raises(SchemaError) as caught:
            half.report(**good | bad)
        error: BaseException | None = caught.value
        while error is not None:
            assert secret not in f"{error} {error.args!r}"
            error = error.__cause__ or error.__context__


def test_models_without_a_local_half_say_so() -> None:
    for job, message in (
        (definition(mechanism="none"), "with noise"),
        (definition(estimator="PanPrivateClassifier", budget="eps=1,delta=1e-6"), "takes no reports"),
    ):
        with pytest.raises(ConfigError, match=message):
            ReportDesk("job", job)


def test_a_document_lasts_and_is_written_anew_in_time() -> None:
    desk, learner = desk_of("privunit", lifetime_s=100.0)
    first = desk.document(now=1000.0)
    assert desk.document(now=1040.0) == first
    later = desk.document(now=1060.0)
    assert later.etag != first.etag
    assert json.loads(later.text)["expires_at"] == 1160.0
    desk.show(1, learner)
    assert desk.document(now=1060.0).etag != later.etag
    assert re.fullmatch(r'"[0-9a-f]{16}-1-1160"', desk.document(now=1060.0).etag)


def test_a_report_that_is_nested_too_deep_keeps_no_other_one_out() -> None:
    desk, _ = desk_of(next(iter(JOBS)))
    good = report_of(desk, "True")
    deep = json.loads('{"id": "deep", "a": ' + "[" * 300 + "]" * 300 + "}")  # orjson reads it, and does not write it
    received, ids, dead = desk.receive_all([deep, good, good | {"version": 10**6}, {"id": "x"}, None])
    assert set(received) == {1}
    assert {i: name for i, (name, _) in ids.items()} == {1: good["id"], 2: good["id"]}
    assert dead == {0: "malformed", 2: "version", 3: "malformed", 4: "malformed"}


def test_a_report_with_a_number_beyond_64_bits_keeps_no_other_one_out() -> None:
    """The service answered 500 for the call, and a topic of reports would have stopped at it."""
    desk, _ = desk_of(next(iter(JOBS)))
    good = report_of(desk, "True")
    large = good | {"id": "large", "subject": 2**70, "version": 10**6}
    received, ids, dead = desk.receive_all([large, good])
    assert set(received) == {1}
    assert [name for name, _ in ids.values()] == ["large", good["id"]]
    assert dead == {0: "version"}
    assert desk.receive_all([large])[1][0] == ids[0]
