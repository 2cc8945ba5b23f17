"""Single records of subjects that compiled code admits: the same spends, refusals and models as of rows."""

import os
import random
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamdp import LDPASGDRegressor, Ledger, PanPrivateRegressor, PureDP, ShuffleRegressor, Store
from streamdp.errors import SchemaError, StoreError

FEATURES = ["a", "b"]


KINDS: dict[str, Any] = {
    "nobody": LDPASGDRegressor,
    "process": partial(PanPrivateRegressor, batch_size=300),
    "shuffler": partial(ShuffleRegressor, batch_size=300),
}


def model(cap: str, kind: str = "nobody", **given: Any) -> Any:
    return KINDS[kind](features=FEATURES, ledger=Ledger(cap), seed=1, **given)


def learned(given: Any, people: list[Any], one_by_one: bool) -> tuple[Any, ...]:
    rng = np.random.default_rng(0)
    X, y = rng.uniform(-1, 1, (len(people), 2)), rng.uniform(-1, 1, len(people))
    if one_by_one:
        for row, target, person in zip(X.tolist(), y.tolist(), people, strict=True):
            given.learn_one(dict(zip(FEATURES, row, strict=True)), target, subject=person)
    else:
        given.learn_arrays(X, y, subjects=people)
    spent = [given.ledger.spent(person) for person in people]
    release = given.learner.open
    open_ones = None if release is None else (release.people, release.taken, release.passed)
    counts = given.n_seen, given.n_refused, given.n_left_out, given.ledger.n_refused, given.ledger.n_subjects
    return counts, spent, open_ones, given.predict_one({"a": 0.5, "b": -0.5})


@pytest.mark.parametrize(
    ("cap", "kind", "several"),
    [
        *((cap, "nobody", 700) for cap in ("eps=5", "mu=3", "eps=5,delta=1e-6")),
        *((cap, "process", 700) for cap in ("eps=1,delta=1e-5", "eps=2,delta=1e-4")),
        ("eps=4,delta=1e-3", "shuffler", 700),
        ("eps=4,delta=1e-3", "process", 30),  # a batch ends, because it has read enough
    ],
)
def test_single_records_are_the_rows_of_a_call(cap: str, kind: str, several: int) -> None:
    rng = random.Random(0)
    kinds = [lambda i: f"p{i}", lambda i: b"p%d" % i, lambda i: i, lambda i: f"ü{i}", lambda i: f"p+{i}q"]
    people = [rng.choice(kinds)(rng.randrange(several)) for _ in range(4_000)]  # of 700 the cache grows twice
    one, many = (learned(model(cap, kind), people, each) for each in (True, False))
    assert one == many
    assert one[0][1] > 10


def test_a_charge_is_taken_back_exactly_if_random_words_ran_out() -> None:
    """The record is charged once: by the other way."""
    given = model("eps=1e6", budget="eps=0.1")
    for i in range(3_000):
        given.learn_one({"a": 0.5, "b": 0.5}, 0.5, subject=i % 7)
    spent = [given.ledger.spent(i) for i in range(7)]
    assert [one.records for one in spent] == [len(range(i, 3_000, 7)) for i in range(7)]
    total = 0.0
    for _ in range(spent[0].records):
        total += 0.1
    assert spent[0].epsilon == total


def test_a_number_is_its_digits() -> None:
    """Both ways of a record: the first one of a model is admitted by the ledger itself, all others by the gate."""
    numbers = [sign * (10**k + rest) for k in range(20) for rest in (-1, 0, 7) for sign in (1, -1)]
    numbers += [2**63 - 1, -(2**63), 2**63, -(2**63) - 1, 2**64]
    given = model("eps=1e6")
    given.learn_one({"a": 0.5, "b": 0.5}, 0.5, subject="ann")
    for number in numbers:
        given.learn_one({"a": 0.5, "b": 0.5}, 0.5, subject=number)
    for number in set(numbers):
        assert given.ledger.spent(str(number)).records == numbers.count(number)


def test_what_has_no_plain_subject_is_refused_as_before() -> None:
    given = model("eps=9")
    x = {"a": 0.5, "b": 0.5}
    given.learn_one(x, 0.5, subject="ann")
    for bad in (None, 1.5, "1.5", True, 10**400):
        with pytest.raises(SchemaError):
            given.learn_one(x, 0.5, subject=bad)
    assert (given.n_seen, given.ledger.n_subjects) == (1, 1)


def test_another_cap_of_a_subject_and_another_spend_hold_at_once() -> None:
    given = model("eps=9")
    x = {"a": 0.5, "b": 0.5}
    for _ in range(3):
        given.learn_one(x, 0.5, subject="ann")
    given.ledger.set_cap("ann", "eps=4")
    given.learn_one(x, 0.5, subject="ann", budget="eps=0.5")
    given.learn_one(x, 0.5, subject="ann")
    assert given.ledger.spent("ann").epsilon == 3.5
    assert given.n_refused == 1
    given.ledger = Ledger("eps=1")
    given.learn_one(x, 0.5, subject="ann")
    assert given.ledger.spent("ann").epsilon == 1


@pytest.mark.parametrize("stored", [False, True])
def test_a_fork_and_a_closed_ledger_admit_nothing(stored: bool, tmp_path: Path) -> None:
    """Also while spends wait for their commit."""
    given = model("eps=9")
    if stored:
        store = Store(tmp_path / "people.db", "job", "f", cap="eps=9")
        given.ledger = store.ledger
    for _ in range(2):
        given.learn_one({"a": 0.5, "b": 0.5}, 0.5, subject="ann")
    if (child := os.fork()) == 0:
        try:
            given.learn_one({"a": 0.5, "b": 0.5}, 0.5, subject="ann")
        except StoreError:
            os._exit(7)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    (store if stored else given.ledger).close()
    with pytest.raises(StoreError, match="closed"):
        given.learn_one({"a": 0.5, "b": 0.5}, 0.5, subject="ann")
    assert not Ledger("eps=1").admit("ann", PureDP(2))
