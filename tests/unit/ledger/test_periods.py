"""Caps that renew: each period, each span of a period's length and all time, recomputed from the input alone."""

import itertools
import warnings
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamdp import (
    ApproxDP,
    GaussianDP,
    LDPSGDClassifier,
    Ledger,
    PanPrivateClassifier,
    PureDP,
    ShuffleClassifier,
    Store,
    UserLevelLDPClassifier,
    WindowedClassifier,
)
from streamdp.config.definition import read_definition
from streamdp.data.records import WHOLE, Shard
from streamdp.data.subjects import Dated
from streamdp.errors import BudgetError, ConfigError, LedgerConflictError, SchemaError, StoreMismatchError
from streamdp.ledger import paging, sqlite_pages
from streamdp.ledger.periods import DAY, HOUR, MINUTE, RenewingCap, parse_cap
from streamdp.store.operator import set_cap, set_caps
from streamdp.store.report import ledger_status
from streamdp.store.snapshot import Counts, Part
from tests.support.interruptions import interrupted
from tests.support.plain_method import Plain

NOW = 1.76e9
"""The present of these tests: not the beginning of a period."""
ONE = PureDP(1)


def at(ledger: Any, now: float) -> Any:
    """A ledger whose clock stands still."""
    ledger.moments.clock = lambda: now
    return ledger


# -- the text ---------------------------------------------------------------------------------------------------------

BUDGETS = st.one_of(
    st.builds(PureDP, st.floats(0.01, 100)),
    st.builds(ApproxDP, st.floats(0.01, 100), st.floats(1e-9, 0.5)),
    st.builds(GaussianDP, st.floats(0.01, 100)),
)


@given(BUDGETS, st.data())
def test_a_cap_is_read_from_its_own_text(budget: Any, data: st.DataObject) -> None:
    kind = {PureDP: PureDP(2), ApproxDP: ApproxDP(2, 1e-3), GaussianDP: GaussianDP(2)}[type(budget)]
    lengths = data.draw(st.lists(st.integers(0, 10**6), min_size=2, max_size=2))
    cap = RenewingCap(budget, data.draw(st.integers(60, 10**9)), *lengths, data.draw(st.sampled_from([None, kind])))
    assert parse_cap(str(cap)) == cap


def test_units_and_defaults() -> None:
    cap = parse_cap("eps=8,delta=1e-6 per 2 Weeks , late 90 minutes, total epsilon=40,delta=1e-5")
    assert cap == RenewingCap(ApproxDP(8, 1e-6), 14 * DAY, 90 * MINUTE, HOUR, ApproxDP(40, 1e-5))
    assert str(parse_cap("mu=2 per 1 hour")) == "mu=2 per 1 hour, late 7 days, ahead 1 hour"
    assert parse_cap("eps=3") == PureDP(3)


@pytest.mark.parametrize(
    "text",
    [
        *("eps=8 per", "eps=8 per day", "eps=8 per 30 moons", "eps=8 per 1 second", "eps=8 per -1 days"),
        *("per 30 days", "x per 30 days", "eps=8 per 99999999 days"),
        *("eps=8 per 30 days, total mu=3", "eps=8 per 30 days total eps=40"),
    ],
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(BudgetError):
        parse_cap(text)


# -- spends against a count of the input -------------------------------------------------------------------------------

LENGTH = 10 * MINUTE


def size(budget: Any) -> float:
    """What a spend adds to the sum that its cap bounds."""
    return budget.mu**2 if isinstance(budget, GaussianDP) else budget.epsilon


@given(data=st.data())
@pytest.mark.slow
def test_no_period_no_span_and_no_total_is_passed(data: st.DataObject) -> None:
    """Every admission is that of a plain count, and no span that begins at any record has more than two budgets."""
    gaussian = data.draw(st.booleans())
    kind: Any = GaussianDP if gaussian else PureDP
    most, total = (4.0, 6.0) if gaussian else (2.0, 3.0)
    bounded = data.draw(st.booleans())
    cap = RenewingCap(kind(most**0.5 if gaussian else most), LENGTH, 3 * LENGTH, LENGTH, None)
    if bounded:
        cap = RenewingCap(cap.budget, LENGTH, 3 * LENGTH, LENGTH, kind(total**0.5 if gaussian else total))
    person, amount = st.sampled_from(["ann", "bob", b"ann", None]), st.sampled_from([0.25, 0.5, 1.0])
    time = st.one_of(st.none(), st.integers(-5 * LENGTH, 2 * LENGTH))
    batches = st.lists(st.lists(st.tuples(person, time, amount), max_size=12), max_size=8)
    in_period: Counter[Any] = Counter()
    over_all: Counter[Any] = Counter()
    learned: dict[Any, list[tuple[float, float]]] = defaultdict(list)
    now = NOW
    with Ledger(cap) as ledger:
        for batch in data.draw(batches):
            now += data.draw(st.integers(0, LENGTH))
            at(ledger, now)
            people = [who if who is None or when is None else Dated(who, now + when) for who, when, _ in batch]
            found = ledger.admit_many(people, kind(1), np.array([a for _, _, a in batch], dtype=float))
            for (who, when, a), admitted in zip(batch, found.tolist(), strict=True):
                if who is None:
                    assert admitted
                    continue
                who = who if isinstance(who, str) else who.decode()
                moment = now + (when or 0)
                spend, place = size(kind(a)), (who, moment // LENGTH)
                expected = -3 * LENGTH <= (when or 0) <= LENGTH and in_period[place] + spend <= most
                expected = expected and not (bounded and over_all[who] + spend > total)
                assert admitted == expected
                if expected:
                    in_period[place] += spend
                    over_all[who] += spend
                    learned[who].append((moment, spend))
        for (who, period), spend in in_period.items():
            assert ledger.spent(who, period * LENGTH).records or not spend
        for who, spend in over_all.items():
            if bounded:
                row = ledger.spent(who)
                assert (row.mu_squared if gaussian else row.epsilon) == pytest.approx(spend)
    for records in learned.values():
        for begin, _ in records:
            assert sum(spend for moment, spend in records if begin <= moment < begin + LENGTH) <= 2 * most
            assert sum(spend for moment, spend in records if begin - LENGTH < moment <= begin) <= 2 * most


def test_two_budgets_in_a_span_are_reached() -> None:
    """The claim of twice the budget is not too large: a cap of two budgets a span would not hold."""
    border = (NOW // LENGTH) * LENGTH
    with Ledger(RenewingCap(PureDP(2), LENGTH, LENGTH, LENGTH)) as ledger:
        at(ledger, border)
        people = [Dated("ann", border - 1)] * 3 + [Dated("ann", border + 1)] * 3
        assert ledger.admit_many(people, ONE).tolist() == [True, True, False] * 2


@pytest.mark.parametrize(("late", "ahead"), [(0, 0), (0, 1), (LENGTH, 0), (3 * LENGTH + 7, LENGTH - 9), (61, 59)])
@pytest.mark.slow
def test_false_times_reach_as_many_periods_as_the_statement_says(late: int, ahead: int) -> None:
    """In each span of a period's length by the clock, tried from several places in a period."""
    cap = RenewingCap(PureDP(1), LENGTH, late, ahead)
    most = 0
    for begin in (*range(0, LENGTH, 37), 0.5, LENGTH - 0.5):
        first = (NOW // LENGTH) * LENGTH + begin
        with Ledger(cap) as ledger:
            admitted = 0
            for now in (first, first + LENGTH / 2, first + LENGTH - 1e-3):
                times = [now - late, now, now + ahead, *np.arange(now - late, now + ahead, LENGTH / 3)]
                admitted += int(at(ledger, now).admit_many([Dated("eve", time) for time in times], ONE).sum())
        most = max(most, admitted)
    assert most == cap.forged


def test_times_at_the_limits() -> None:
    with Ledger("eps=9 per 1 day, late 1 hour, ahead 1 minute") as ledger:
        at(ledger, NOW)
        times = [NOW - HOUR - 1, NOW - HOUR, NOW + MINUTE, NOW + MINUTE + 1, -5.0, 1e300]
        assert [ledger.admit(Dated("ann", time), ONE) for time in times] == [False, True, True, False, False, False]
        assert ledger.n_refused == 4
    for bad in ("monday", float("nan"), None, 10**400):
        with pytest.raises(SchemaError, match="expected a finite number"):
            Dated("ann", bad)


def test_two_kinds_of_spends_in_two_periods() -> None:
    cap = "eps=2,delta=1e-3 per 10 minutes, late 10 minutes"
    with Ledger(cap) as ledger:
        at(ledger, NOW)
        assert ledger.admit(Dated("ann", NOW - LENGTH), GaussianDP(0.1))
        assert not ledger.admit(Dated("ann", NOW - LENGTH), ONE)
        assert ledger.admit(Dated("ann", NOW), ONE)


def test_an_estimator_takes_dated_subjects_and_says_the_promise() -> None:
    """As River's users learn: `subject` alone is counted now, a `Dated` one in the period of its record."""
    ledger = at(Ledger("eps=2 per 10 minutes, late 1 hour, total eps=5"), NOW)
    model = LDPSGDClassifier(features=["a"], ledger=ledger)
    for subject in ["ann", "ann", "ann", Dated("ann", NOW - LENGTH), Dated("ann", NOW - 2 * HOUR)]:
        model.learn_one({"a": 1.0}, True, subject=subject)
    assert (model.n_seen, model.n_refused) == (3, 2)
    said = model.statement()
    for phrase in (
        "in one period of 10 minutes would pass eps=2, or over all time eps=5",
        "in any span of 10 minutes, wherever it begins, the records of a person spend at most the budgets of two",
        "eps=4 together; what a person spends over all time is bounded by the total",
        "more than 1 hour past or more than 1 hour ahead is not learned",
        "at most 14 periods in 10 minutes by the clock",
    ):
        assert phrase in said


def test_a_single_subject_has_a_total_of_its_own() -> None:
    with Ledger("eps=2 per 10 minutes, late 1 day, total eps=5") as ledger:
        at(ledger, NOW)
        ledger.set_cap("ann", "eps=1")
        assert [ledger.admit(Dated("ann", NOW - k * LENGTH), ONE) for k in range(3)] == [True, False, False]
        assert (ledger.cap_of("ann"), ledger.cap_of("bob")) == (PureDP(1), PureDP(5))
        with pytest.raises(BudgetError):
            ledger.set_cap("ann", "mu=1")
    with Ledger("eps=2 per 10 minutes") as ledger:
        for call in (lambda: ledger.set_cap("ann", "eps=1"), lambda: ledger.cap_of("ann"), lambda: ledger.spent("ann")):
            with pytest.raises(BudgetError, match="has no total"):
                call()


@pytest.mark.no_cover  # a tracer replaces that of the coverage
@pytest.mark.slow
def test_an_interruption_passes_no_limit() -> None:
    """What was returned as admitted is in both rows, before and after an exception at some lines of an admission."""
    people = [
        Dated("ann", NOW),
        Dated("bob", NOW - LENGTH),
        "ann",
        None,
        Dated("ann", NOW - LENGTH),
        Dated("eve", 0),
    ] * 3
    amounts = np.tile([1.0, 0.5, 1.0, 1.0, 0.5, 1.0], 3)

    def run(after: int) -> int:
        admitted: Counter[Any] = Counter()
        with Ledger("eps=2 per 10 minutes, total eps=3") as ledger:
            at(ledger, NOW)

            def learn() -> None:
                mask = ledger.admit_many(people, ONE, amounts)
                for who, amount in itertools.compress(zip(people, amounts, strict=True), mask):
                    if who is not None:
                        time = who.time if isinstance(who, Dated) else NOW
                        admitted[bytes(who) if isinstance(who, bytes) else who.encode(), time] += amount

            learn()
            lines = interrupted(learn, after)
            learn()
            for who in (b"ann", b"bob"):
                periods = [(ledger.spent(who, t).epsilon, admitted[who, t]) for t in (NOW, NOW - LENGTH)]
                assert all(learned <= spent <= 2 for spent, learned in periods)
                assert sum(learned for _, learned in periods) <= ledger.spent(who).epsilon <= 3
            assert (b"eve", 0) not in admitted
        return lines

    lines = run(10**6)
    assert lines > 40
    for after in range(0, lines, 5):
        run(after)


@pytest.mark.parametrize(
    "kind", [LDPSGDClassifier, PanPrivateClassifier, ShuffleClassifier, UserLevelLDPClassifier, WindowedClassifier]
)
def test_every_estimator_counts_a_record_in_its_own_period(kind: Any) -> None:
    """Also those that collect the records of a person: a window counts in each period that it has records of."""
    ledger = at(Ledger("eps=1,delta=1e-3 per 10 minutes, late 1 hour"), NOW)
    more = {"method": Plain(), "items_per_user": 2, "window": 20} if kind is WindowedClassifier else {}
    more |= {"items_per_user": 2, "window": 20} if kind is UserLevelLDPClassifier else {}
    model = kind(features=["a"], ledger=ledger, budget="eps=1,delta=1e-4", **more)
    model.learn_one({"a": 1.0}, True, subject=Dated("ann", NOW - LENGTH))
    X, y = np.ones((3, 1)), np.ones(3)
    model.learn_encoded(X, y, subjects=[Dated("ann", NOW - 2 * LENGTH), Dated("bob", NOW - 3 * LENGTH), "eve"])
    found = {who: [ledger.spent(who, NOW - k * LENGTH).records for k in range(4)] for who in ("ann", "bob", "eve")}
    in_batch = kind in (PanPrivateClassifier, ShuffleClassifier)  # the second record of ann is left out
    assert found == {"ann": [0, 1, int(not in_batch), 0], "bob": [0, 0, 0, 1], "eve": [1, 0, 0, 0]}
    assert (model.n_seen, model.n_left_out) == (4 - in_batch, in_batch)
    collects = kind in (UserLevelLDPClassifier, WindowedClassifier)
    assert ("count in each period in which they have records of the person" in model.statement()) == collects


# -- stores -----------------------------------------------------------------------------------------------------------


def open_store(place: str, cap: str, now: float, **more: Any) -> Store:
    store = Store(place, "job", "print", cap=cap, **more)
    at(store.ledger, now)
    return store


def admit(store: Store, *people: Any) -> list[bool]:
    found: list[bool] = store.ledger.admit_many(people, ONE).tolist()
    return found


def commit(store: Store, n: int) -> None:
    store.commit({"n": n}, {"row": n}, Counts(learned=n))


CAP = "eps=2 per 10 minutes, late 20 minutes, total eps=30"


@pytest.mark.parametrize("logged", [True, False])
@pytest.mark.slow
def test_old_periods_are_deleted_and_never_open_again(
    place: str, logged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their rows go with a commit, the totals stay; a clock that is set back finds the ledger's time."""
    monkeypatch.setattr(paging, "LOGGED_ROWS", 10_000 if logged else 0)
    monkeypatch.setattr(sqlite_pages, "PAGE_ROWS", 4)
    people = [f"p{i}" for i in range(40)]
    with open_store(place, CAP, NOW) as store:
        assert all(admit(store, *(Dated(p, NOW - LENGTH) for p in people), *people))
        commit(store, 1)
        assert store.ledger.n_subjects == 3 * 40
    for step, rows in ((2, 121), (3, 82), (4, 43), (5, 44)):  # a period is kept that late records cannot reach
        with open_store(place, CAP, NOW + step * LENGTH) as store:
            assert admit(store, "p0", "p0", "p0") == [True, True, False]
            commit(store, step)
            assert store.ledger.n_subjects == rows
            assert store.ledger.spent("p1").epsilon == 2
            assert store.ledger.spent("p1", NOW - LENGTH).records == (step == 2)
    with open_store(place, CAP, NOW) as store:
        assert admit(store, Dated("p1", NOW), Dated("p1", NOW - LENGTH)) == [False, False]
        assert admit(store, "p1", "p0") == [True, False]  # counted in the period of the last commit
        commit(store, 9)
        snapshot = store.load()
        assert snapshot.committed_at == NOW + 5 * LENGTH


def test_what_is_left_after_all_periods_were_deleted_can_be_counted(place: str) -> None:
    cap = "eps=2 per 10 minutes, late 20 minutes"
    with open_store(place, cap, NOW) as store:
        assert admit(store, "ann") == [True]
        commit(store, 1)
    with open_store(place, cap, NOW + 9 * LENGTH) as store:
        for step, person in ((2, None), (3, "bob")):  # None: no row is written where the others were deleted
            assert admit(store, person) == [True]
            commit(store, step)
        assert ledger_status(place, now=NOW + 9 * LENGTH).people == 1


def test_a_commit_that_fails_deletes_nothing(place: str) -> None:
    with open_store(place, CAP, NOW) as store:
        assert admit(store, "ann") == [True]
        commit(store, 1)
    with open_store(place, CAP, NOW + 9 * LENGTH) as store:
        with pytest.raises(ZeroDivisionError):
            store.commit_parts({WHOLE: Part({"n": 2}, {"row": 2}, Counts(2))}, lambda *_: 1 / 0)
        store.rollback()
        assert store.ledger.spent("ann", NOW).records == 1
    with open_store(place, CAP, NOW) as store:
        assert admit(store, "ann", "ann") == [True, False]


def test_workers_delete_periods_that_others_have_in_memory(server_database: str) -> None:
    """A worker that has read such a row, and adds to it, must learn again."""
    first, second = Shard("t", 0), Shard("t", 1)
    with (
        open_store(server_database, CAP, NOW, shared=True) as a,
        open_store(server_database, CAP, NOW, shared=True) as b,
    ):
        a.claim([first])
        b.claim([second])
        for store, shard in ((a, first), (b, second)):
            assert admit(store, shard.partition) == [True]
            store.commit_parts({shard: Part({}, {"offset": 1}, Counts(1))})
        at(b.ledger, NOW + 9 * LENGTH)
        assert admit(b, "new") == [True]
        assert admit(a, 0) == [True]
        b.commit_parts({second: Part({}, {"offset": 2}, Counts(2))})
        with pytest.raises(LedgerConflictError):
            a.commit_parts({first: Part({}, {"offset": 2}, Counts(2))})


def test_a_cap_of_another_kind_needs_the_flag(tmp_path: Path) -> None:
    """A cap that begins to renew, or does so at other times, counts anew what was spent."""
    from streamdp.config.job import make_config

    def continued(cap: str, accept: bool) -> str:
        settings = {
            "job": "j",
            "schema": {"features": {"a": [0, 1]}, "target": {"column": "y"}, "subject": "p"},
            "model": {"estimator": "LDPSGDRegressor"},
            "source": {"type": "csv", "path": "x.csv"},
            "cap": cap,
        }
        job = make_config(settings)
        nonlocal stored
        stored = stored or job.text()
        return job.continued(stored, 5, accept).config

    stored = ""
    continued("eps=2 per 1 day, total eps=9", False)
    assert continued("eps=2 per 24 hours, total eps=8", False)
    others = ["eps=2", "eps=2 per 2 days, total eps=9", "eps=2 per 1 day", "eps=2 per 1 day, late 1 day, total eps=9"]
    for other in [*others, "mu=2 per 1 day, total mu=9"]:
        with pytest.raises(ConfigError, match="a cap of another kind"):
            continued(other, False)
        notes = read_definition(continued(other, True)).limits(0)
        assert "a person's total is bounded by caps of several kinds together only" in notes[-1]


def test_a_cap_of_another_kind_in_between_deletes_no_spends(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its periods have other numbers, and plain rows have none: what the first cap counted holds when it comes back."""
    people = [f"p{i}" for i in range(300)]
    of_a_month, plain = "eps=1 per 30 days", "eps=1"
    for n, cap in enumerate((of_a_month, plain), 1):
        with open_store(place, cap, NOW) as store:
            assert all(admit(store, *people))
            commit(store, n)
    for n, minutes in enumerate((0, 3 * 24 * 60), 3):
        with open_store(place, "eps=1 per 1 minute, late 1 minute", NOW + 60 * minutes) as store:
            assert all(admit(store, *people))
            commit(store, n)
    for cap in (plain, of_a_month):
        with open_store(place, cap, NOW + 3 * 86_400) as store:
            assert not any(admit(store, *people))


# -- several jobs in one database --------------------------------------------------------------------------------------


def open_job(place: str, job: str, cap: str, now: float) -> Store:
    store = Store(place, job, "f", cap=parse_cap(cap))
    at(store.ledger, now)
    return store


def test_two_jobs_share_a_cap_that_renews(place: str) -> None:
    cap = "eps=2 per 10 minutes, late 20 minutes, total eps=3"
    with open_job(place, "a", cap, NOW) as a, open_job(place, "b", cap, NOW) as b:
        assert admit(a, "ann", Dated("ann", NOW - LENGTH), "bob") == [True] * 3
        commit(a, 3)
        assert admit(b, Dated("ann", NOW - LENGTH), "ann", "bob") == [True, False, True]
        commit(b, 3)
        assert admit(a, "bob", Dated("bob", NOW - LENGTH), Dated("bob", NOW - LENGTH)) == [False, True, False]
        commit(a, 6)
    found = ledger_status(place, now=NOW)
    assert (found.people, found.records, found.older) == (2, 6, 2)
    with pytest.raises(StoreMismatchError, match="one cap for all its jobs"):
        open_job(place, "c", "eps=2 per 11 minutes", NOW)


def test_spends_at_the_same_time_that_pass_the_total_together(place: str) -> None:
    """Each fits its period, and the total of what was read; together they pass it."""
    cap = "eps=2 per 10 minutes, late 20 minutes, total eps=3"
    with open_job(place, "a", cap, NOW) as a, open_job(place, "b", cap, NOW) as b:
        assert admit(a, "ann", "ann") == [True, True]
        assert admit(b, *[Dated("ann", NOW - LENGTH)] * 2) == [True, True]
        commit(a, 2)
        with pytest.raises(LedgerConflictError):
            commit(b, 2)
        b.rollback()
        assert admit(b, *[Dated("ann", NOW - LENGTH)] * 2) == [True, False]
        commit(b, 2)


def test_a_start_says_if_the_clock_is_far_behind_the_last_commit(tmp_path: Path) -> None:
    """It is so after a commit by a clock that was ahead. The store of these tests has a clock in the past."""
    cap, far = "eps=2 per 10 minutes, late 20 minutes", 4e9

    def learn(now: float, *, warns: bool) -> list[bool]:
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            store = open_store(str(tmp_path / "job.db"), cap, now)
        assert [str(one.message).split(" UTC")[0] for one in seen if one.category is not ResourceWarning] == warns * [
            "this clock is behind the last commit: until 2096-10-02 06:46"
        ]
        with store:
            admitted = admit(store, Dated("ann", NOW), "ann")
            commit(store, 1)
        return admitted

    assert learn(NOW, warns=False) == [True, True]
    assert learn(far, warns=False) == [False, True]
    assert learn(NOW, warns=True) == [False, True]  # counted by the time of the last commit
    assert learn(NOW, warns=True) == [False, False]


def test_a_clock_that_was_ahead_opens_no_deleted_period(place: str) -> None:
    """A job whose clock is ahead deletes the periods of all jobs, and charges nothing itself."""
    cap = "eps=2 per 10 minutes, late 20 minutes"
    with open_job(place, "b", cap, NOW) as b:
        assert admit(b, "ann", "ann") == [True, True]
        commit(b, 2)
    with open_job(place, "a", cap, NOW + 9 * LENGTH) as a:
        assert admit(a, Dated("bob", NOW)) == [False]
        commit(a, 1)
    with open_job(place, "b", cap, NOW) as b:
        assert admit(b, Dated("ann", NOW)) == [False]


def test_a_running_job_charges_no_period_that_a_later_clock_has_deleted(place: str) -> None:
    """Before: the two records of ann were learned twice under a cap of two."""
    cap = "eps=2 per 10 minutes, late 20 minutes"
    with open_job(place, "a", cap, NOW) as a, open_job(place, "b", cap, NOW) as b:
        assert admit(a, "ann", "ann") == [True, True]
        commit(a, 2)
        with open_job(place, "late", cap, NOW + 9 * LENGTH) as later:
            assert admit(later, "eve") == [True]
            commit(later, 1)
        assert admit(b, Dated("ann", NOW)) == [True]  # its row is gone
        with pytest.raises(LedgerConflictError, match="by a later clock, has deleted"):
            commit(b, 1)
        b.rollback()
        assert admit(b, Dated("ann", NOW), "ann") == [False, True]  # too late now; counted by the later clock
        commit(b, 1)


def test_set_cap_keeps_the_periods(place: str) -> None:
    with open_job(place, "a", CAP, NOW) as store:
        assert admit(store, "ann") == [True]
        commit(store, 1)
    set_caps(place, {"ann": "eps=1"})
    with pytest.raises(Exception, match="amounts only"):
        set_cap(place, "eps=2 per 1 day")
    set_cap(place, "eps=3 per 10 minutes, late 20 minutes, total eps=31", accept=True)
    with open_job(place, "a", "eps=3 per 10 minutes, late 20 minutes, total eps=31", NOW) as store:
        assert admit(store, "ann", "bob", "bob", "bob") == [False, True, True, True]


def test_repeated_records_of_a_batch_leave_no_moment_to_later_records() -> None:
    """A batch refuses a person's second record without the ledger; the next record counts in its own period still."""
    budget = ApproxDP(1.0, 1e-6)
    with at(Ledger("eps=1,delta=1e-6 per 1 day"), NOW) as ledger:
        model = PanPrivateClassifier(features=["a"], budget=budget, ledger=ledger)
        model.learn_encoded(np.zeros((40, 1)), np.zeros(40), subjects=["bob"] * 40)
        at(ledger, NOW + 5 * DAY)
        model.learn_one({"a": 0.0}, False, subject="ann")
        assert ledger.spent("ann", NOW).records == 0
        assert ledger.spent("ann", NOW + 5 * DAY).records == 1
