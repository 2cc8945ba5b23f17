"""`--accept-budget`: when somebody is promised less than before, in one step or in several, and never otherwise."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamdp.config.definition import read_definition
from streamdp.config.job import Accepted, JobConfig, make_config
from streamdp.config.promise import Promise, weaker
from streamdp.errors import ConfigError
from streamdp.store.identity import Terms
from streamdp.store.operator import set_cap
from streamdp.store.snapshot import Counts

SUMS = {"a": {"mean": "x"}, "b": {"count": "g"}}


def job(cap: str | None = "eps=3", budget: str = "eps=1", *, statistics: Any = None, **more: Any) -> JobConfig:
    model = {"budget": budget, **more.pop("model", {"trust": "nobody"})}
    target = None if statistics and not more.pop("beside", False) else {"column": "y", "bounds": [0, 1]}
    schema = {
        "features": {"x": [0, 1], "g": ["a", "b"]},
        "target": target,
        "subject": more.pop("subject", "who"),
        **more.pop("schema", {}),
    }
    schema = {name: value for name, value in schema.items() if value is not None}
    whole = {"cap": cap, "statistics": statistics, **more}
    return make_config(
        {"job": more.pop("job", "j"), "source": {"path": "a.csv"}, "schema": schema, "model": model}
        | {name: value for name, value in whole.items() if value is not None}
    )


def on(steps: Sequence[tuple[JobConfig, int]], then: JobConfig, *, accept: bool = False) -> Terms:
    """Go through configurations, each with the records that its model has learned at its end; a new model if needed."""
    text, learned = "", 0
    for config, more in steps:
        terms = config.continued(text, learned, True, True)
        goes_on = text != "" and terms.fingerprint == read_definition(text).fingerprint()
        learned = learned + more if goes_on else more
        text = terms.config
    return then.continued(text, learned, accept, True)


DELTA, DAY = "eps=3,delta=1e-5", "eps=3 per 1 day"
OF_8 = {"trust": "window", "items_per_user": 8}
BY_T, BY_U = ({"time": {"column": column, "unit": "iso"}} for column in "tu")
BY_DAY = {"trust": "nobody", "every": "1 day"}
WEAKER: dict[str, tuple[list[tuple[JobConfig, int]], JobConfig, str]] = {
    "a larger budget": ([(job(), 9)], job(budget="eps=2"), "spent eps=1 in all and now spends eps=2"),
    "a larger cap": ([(job(), 9)], job("eps=4"), "could spend eps=3 and now eps=4"),
    "the delta of a cap for more, smaller spends": ([(job("eps=20", model={"trust": "process"}), 9)],
        job("eps=20", "eps=0.5", model={"trust": "process"}),
        "now eps=20,delta=4e-07 (cap: eps=20,delta=2e-07 keeps it)"),
    "another kind of cap": ([(job(), 9)], job("mu=50"), "could spend eps=3 and now mu=50, a cap of another kind"),
    "a cap with delta": ([(job(), 9)], job("eps=300,delta=1e-5"), "a cap of another kind"),
    "a cap that renews": ([(job(), 9)], job("eps=3 per 1 minute"), "a cap of another kind"),
    "another period": ([(job("eps=3 per 2 days"), 9)], job("eps=3 per 1 day"), "a cap of another kind"),
    "a total removed": ([(job("eps=3 per 1 day, total eps=3"), 9)], job("eps=3 per 1 day"), "a cap of another kind"),
    "a larger total": ([(job("eps=3 per 1 day, total eps=3"), 9)], job("eps=3 per 1 day, total eps=4"), "total eps=4"),
    "answers": ([(job("eps=30"), 9)], job("eps=30", validation={"budget": "eps=9"}), "now spends eps=10"),
    "a cap after a new model that learned nothing": ([(job(), 9), (job(model={"trust": "nobody", "eta": 0.5}), 0)],
        job("eps=4", model={"trust": "nobody", "eta": 0.5}), "could spend eps=3 and now eps=4"),
    "a cap that was lower in between": ([(job(), 9), (job("eps=2"), 0)], job(), "could spend eps=2 and now eps=3"),
    "trust": ([(job(DELTA), 9)], job(DELTA, model={"trust": "process"}),
        "for trust: nobody and are now for trust: proc"),
    "a delta": ([(job(DELTA), 9)], job(DELTA, "eps=1,delta=1e-6"), "now spends eps=1,delta=1e-06"),
    "people by another column": ([(job(), 9)], job(subject="plane"), "by plane (text) and no longer by who (text)"),
    "people of windows by another column": ([(job(None, DELTA, model=OF_8), 9)],
        job(None, DELTA, model=OF_8, subject="plane"), "by plane"),
    "nobody named in windows that take one record of each": ([(job(None, DELTA, model=OF_8 | {"items_per_user": 1}),
        9)], job(None, DELTA, model=OF_8 | {"items_per_user": 1}, subject=None), "by no column"),
    "nobody named": ([(job(None, DELTA, model=OF_8), 9)], job(None, DELTA, model=OF_8, subject=None),
        "covered up to 8 records of a person and now covers 1"),
    "no noise": ([(job(), 9)], job(model={"trust": "nobody", "mechanism": "none"}), "now has no noise"),
    "another time": ([(job(DAY, schema=BY_T), 9)], job(DAY, schema=BY_U), "was t (iso) and is now u (iso)"),
    "no time": ([(job(DAY, schema=BY_T), 9)], job(DAY), "was t (iso) and is now no column"),
    "budgets of records": ([(job(), 9)], job(schema={"budget": "b"}), "bring a budget of its own"),
    "records of calls": ([(job(), 9)], job(source={"type": "http"}), "bring a budget of its own"),
    "records of calls beside a topic of reports": ([(job(), 9)],
        job(source={"type": "kafka", "content": "reports", "topic": "t"}), "bring a budget of its own"),
    "windows of time": ([(job(statistics=SUMS), 9)], job(statistics=SUMS, model=BY_DAY),
        "shown of all time together and are now of windows of 1 day (UTC)"),
    "other windows of time": ([(job(statistics=SUMS, model=BY_DAY | {"every": "2 days"}), 9)],
        job(statistics=SUMS, model=BY_DAY | {"every": "3 days"}),
        "windows of 2 days (UTC) and are now of windows of 3 days (UTC)"),
    "windows of another zone": ([(job(statistics=SUMS, model=BY_DAY), 9)],
        job(statistics=SUMS, model=BY_DAY | {"zone": "Europe/Berlin"}), "windows of 1 day (Europe/Berlin)"),
    "fewer records under a budget": ([(job(DELTA, model=OF_8), 9)],
        job(DELTA, model={"trust": "window", "items_per_user": 4}),
        "covered up to 8 records of a person and now covers 4"),
}  # fmt: skip


@pytest.mark.parametrize("name", WEAKER)
def test_a_weaker_promise_needs_the_flag(name: str) -> None:
    steps, then, said = WEAKER[name]
    with pytest.raises(ConfigError, match="--accept-budget") as refused:
        on(steps, then)
    assert said in str(refused.value)
    made = read_definition(on(steps, then, accept=True).config).promises
    assert made[0] == steps[0][0].promise().model_copy(update={"learned": 9, "ended": made[0].ended})


@pytest.mark.parametrize(
    ("old", "new", "back"),
    [
        (job(), job("eps=2"), False),
        (job(), job(budget="eps=0.5"), False),
        (job(), job(model={"trust": "nobody", "eta": 0.5}), True),
        (job("eps=30", validation={"budget": "eps=9"}), job("eps=30"), False),
        (job(DELTA, model={"trust": "window", "items_per_user": 1}), job(DELTA, model={"trust": "process"}), False),
        (job(DELTA, "eps=1,delta=1e-6"), job(DELTA), False),
        (job(statistics=SUMS), job(statistics=dict(reversed(SUMS.items()))), True),
        (job(None), job(None, subject="plane"), True),
        (job(None, DELTA, model=OF_8, subject=None), job(None, DELTA, model=OF_8), False),
        (job(model={"trust": "nobody", "mechanism": "none"}), job(), False),
        (job(None), job(None, statistics=SUMS, beside=True), True),
        (job(statistics=SUMS, model=BY_DAY), job(statistics=SUMS, model=BY_DAY | {"every": "2 days"}), False),
        (job(statistics=SUMS, model=BY_DAY), job(statistics=SUMS), False),
    ],
)
def test_a_promise_that_is_not_weaker_needs_no_word(old: JobConfig, new: JobConfig, back: bool) -> None:
    on([(old, 9)], new)
    if back:
        on([(new, 9)], old)
    else:
        with pytest.raises(ConfigError, match="--accept-budget"):
            on([(new, 9)], old)


@pytest.mark.parametrize(
    ("former", "now"),
    [(job(DAY, schema=BY_T), job(DAY, schema=BY_U)), (job(model={"trust": "nobody", "mechanism": "none"}), job())],
)
def test_a_cap_bounds_no_total_over_other_times_and_over_no_noise(former: JobConfig, now: JobConfig) -> None:
    said = read_definition(on([(former, 9)], now, accept=True).config).said_of_former()
    assert "does not bound a person's total" in said
    assert ("no noise that protects it" in said) == (former.model.mechanism == "none")


@pytest.mark.parametrize("former", [job(schema={"budget": "b"}), job(source={"type": "http"}, subject=None, cap=None)])
def test_the_records_of_a_former_model_may_have_brought_budgets(former: JobConfig) -> None:
    said = read_definition(on([(former, 9)], job(), accept=True).config).said_of_former()
    assert "learned 9 records with eps=1 or a budget of their own (trust: nobody)" in said


def test_an_order_of_statistics_is_no_change() -> None:
    one, other = job(statistics=SUMS), job(statistics=dict(reversed(SUMS.items())))
    assert one.fingerprint() == other.fingerprint() != job(statistics={"a": SUMS["a"]}).fingerprint()
    first, second = one.build_estimator(), other.build_estimator()
    first.learn_one({"x": 0.5, "g": "b"}, subject="ann")
    second.load_state_dict(first.state_dict())
    assert list(second.get()) == ["b", "a"]
    assert repr(second.get()["a"]) == repr(first.get()["a"])
    assert second.get()["b"] == first.get()["b"]


def test_nobody_was_promised_anything_before_a_record_was_learned() -> None:
    assert read_definition(on([(job(), 0)], job("mu=50")).config).promises == ()


def test_an_operator_s_lower_cap_is_a_promise(tmp_path: Path) -> None:
    config = job(store=str(tmp_path / "people.db"))
    with config.open_store(Accepted()) as store:
        estimator = config.build_estimator(store.ledger)
        estimator.learn_one({"x": 0.5, "g": "a"}, 0.5, subject="ann")
        store.commit(estimator.state_dict(), {"row": 1}, Counts(learned=1))
    set_cap(config.store_path, "eps=2")
    with pytest.raises(ConfigError, match="could spend eps=2 and now eps=3"):
        config.open_store(Accepted())
    with pytest.raises(ConfigError, match="--accept-budget"):
        set_cap(config.store_path, "eps=3")
    set_cap(config.store_path, "eps=3", accept=True)
    config.open_store(Accepted()).close()


def test_the_cap_of_other_jobs_is_no_promise_of_a_job_without_one(tmp_path: Path) -> None:
    store = str(tmp_path / "people.db")
    job(store=store).open_store(Accepted()).close()
    free = job(None, store=store, job="free")
    with free.open_store(Accepted()) as opened:
        estimator = free.build_estimator(opened.ledger)
        estimator.learn_one({"x": 0.5, "g": "a"}, 0.5)
        opened.commit(estimator.state_dict(), {"row": 1}, Counts(learned=1))
    free.open_store(Accepted()).close()


BUDGETS = st.sampled_from(["eps=1", "eps=2", "mu=0.3", "mu=2", "eps=1,delta=1e-6", "eps=2,delta=1e-6"])
CAPS = st.sampled_from(
    [None, "eps=3", "eps=4", "mu=3", "eps=3 per 1 day", "eps=4 per 1 day", "eps=3 per 1 day, total eps=9"]
)
PROMISES = st.builds(
    Promise,
    budget=BUDGETS,
    own=st.booleans(),
    private=st.booleans(),
    covers=st.integers(1, 3),
    cap=CAPS,
    people=st.sampled_from([("a", "text"), ("b", "text")]),
    time=st.sampled_from([None, ("t", "iso"), ("u", "iso")]),
    windows=st.sampled_from([None, (1, "UTC"), (2, "UTC"), (6, "UTC"), (6, "Asia/Tokyo")]),
    trust=st.sampled_from(["nobody", "process", "window", "shuffler"]),
)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(PROMISES, PROMISES, PROMISES)
def test_what_needs_the_flag_in_one_step_needs_it_in_two(first: Promise, between: Promise, last: Promise) -> None:
    if weaker(first, last):
        assert weaker(first, between) or weaker(between, last)
    assert not weaker(first, first)
