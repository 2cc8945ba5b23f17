"""Times that an outsider sends: they move the present out of no statistic, and nobody is charged for nothing."""

from collections import Counter
from datetime import datetime
from typing import Any

import numpy as np
import polars as pl
import pytest

from streamdp import Ledger
from streamdp.config.job import make_config
from streamdp.data import times
from streamdp.errors import SchemaError
from streamdp.estimators import statistics
from streamdp.learners import series
from streamdp.stats import Statistics
from tests.support.sizes import some
from tests.support.states import pending_of

MINUTE, HOUR, DAY = 60, 3600, 86_400
NOW = 1.8e9
COUNT = {"n": {"count": "g"}}
FEATURES = {"g": ["a", "b"]}


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [NOW]
    for module in (times, series, statistics):
        monkeypatch.setattr(module, "present", lambda: now[0], raising=False)
    return now


def window(seconds: float, every: int = MINUTE) -> int:
    return int(seconds // every)


@pytest.mark.parametrize(
    ("every", "allowed"), [("1 second", 40), ("1 minute", 40 * MINUTE), ("1 hour", DAY), ("1 week", DAY)]
)
@pytest.mark.parametrize("cap", [None, "eps=9 per 7 days", "eps=9 per 7 days, ahead 900 days"])
def test_a_job_reads_no_record_that_is_many_windows_ahead(every: str, allowed: int, cap: str | None) -> None:
    subject = {} if cap is None else {"subject": "who"}
    schema = {"features": FEATURES, "time": {"column": "at", "unit": "seconds"}, **subject}
    settings: dict[str, Any] = {"job": "j", "source": {"path": "a.csv"}, "schema": schema, "statistics": COUNT}
    config = make_config(settings | {"model": {"every": every, "trust": "process"}} | ({"cap": cap} if cap else {}))
    most = min(allowed, HOUR) if cap == "eps=9 per 7 days" else allowed
    at = [NOW - 3 * DAY, NOW, NOW + most, NOW + most + 1, NOW + 8 * HOUR + DAY]
    rows = pl.DataFrame({"g": ["a"] * 5, "at": [str(time) for time in at], "who": ["ann"] * 5})
    batch = config.build_schema().encode(rows, np.arange(5), {"row": 5})
    assert Counter(letter.reason for letter in batch.dead) == {"too_early": 2}


@pytest.mark.parametrize("reads", range(4))
def test_a_window_that_begins_within_a_call_ends_no_batch_that_its_record_has_joined(
    reads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch ended between joining and learning, and the record was in the next one, which its person could join."""
    model = Statistics(COUNT, FEATURES, "eps=1,delta=1e-6", "process", Ledger("eps=9,delta=1e-6"), every="1 minute")
    model.learn_one({"g": "a"}, NOW, subject="ann")
    left = [NOW] * reads
    monkeypatch.setattr(series, "present", lambda: left.pop() if left else NOW + MINUTE)
    model.learn_one({"g": "a"}, NOW + MINUTE, subject="bob")
    release = model.learner.open
    assert release is not None
    assert b"bob" in release.people
    assert len(release.people) == pending_of(model)


@pytest.mark.parametrize("trust", some(["process", "window", "shuffler", "nobody"], 0, 3))
def test_no_sender_of_times_moves_the_present_out(trust: Any) -> None:
    """A sender eight hours ahead filled the 400 windows that are kept, and the others were charged for nothing."""
    budget = "eps=1" if trust in ("nobody", "window") else "eps=1,delta=1e-6"
    ledger = Ledger("eps=1,delta=1e-6")
    model = Statistics(COUNT, FEATURES, budget, trust, ledger, every="1 minute")
    model.learn_one({"g": "a"}, NOW, subject="ann")
    for ahead in range(500):
        at = NOW + ahead * MINUTE
        if ahead <= 80:
            model.learn_one({"g": "b"}, at, subject=f"sender {ahead}")
        else:
            with pytest.raises(SchemaError, match="at most 80 minutes after the present"):
                model.learn_one({"g": "b"}, at, subject=f"sender {ahead}")
            with pytest.raises(SchemaError, match="at most 80 minutes after the present"):
                model.learn_encoded(np.zeros((1, 1)), np.array([at]), subjects=[f"sender {ahead}"])
    assert ledger.n_subjects == 82  # nobody who was refused was charged
    for person in range(300):
        model.learn_one({"g": "a"}, NOW, subject=person)
    assert [datetime.fromisoformat(start).timestamp() for start in model.get()] == [NOW + i * MINUTE for i in range(81)]
    model.close_batch()
    assert model.learner.windows[window(NOW)].weight == 302


def test_a_window_ahead_ends_no_batch_and_the_present_one_does(clock: list[float]) -> None:
    model = Statistics(COUNT, FEATURES, "eps=1,delta=1e-6", every="1 minute")
    model.learn_one({"g": "a"}, NOW)
    model.learn_one({"g": "a"}, NOW + 10 * MINUTE)
    model.learn_one({"g": "a"}, NOW)
    assert pending_of(model) == 3
    clock[0] += MINUTE
    model.learn_one({"g": "a"}, NOW + MINUTE)  # the next window has begun by the clock
    assert pending_of(model) == 1
    model.learn_one({"g": "a"}, NOW + 20 * MINUTE)
    model.learn_one({"g": "a"}, NOW - MINUTE)
    assert pending_of(model) == 3
