"""A statement names the caps under which records were charged, and never less than a person was charged."""

import re
import signal
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from streamdp import LDPSGDRegressor, Ledger, Store
from streamdp.ledger.memory_rows import MemoryRows
from streamdp.ledger.periods import parse_cap
from streamdp.privacy.release import JOINED, REFUSED
from streamdp.store.operator import set_cap, set_caps
from streamdp.store.snapshot import Counts
from tests.support.kept import kept

PEOPLE = ("ann", "bob")
OPEN = 1e9


def model(ledger: Ledger | None) -> LDPSGDRegressor:
    return LDPSGDRegressor(features={"a": (-1, 1)}, target=(-1, 1), budget="eps=1", ledger=ledger)


def learn(one: Any, n: int, budget: float = 1.0, people: tuple[str, ...] = PEOPLE) -> None:
    for _ in range(n):
        for person in people:
            one.learn_one({"a": 0.5}, 0.5, subject=person, budget=f"eps={budget}")


def bound(said: str) -> float:
    """The most that a person was charged, by a statement; infinite if it has no bound."""
    (line,) = (line for line in said.splitlines() if "One person, several" in line)
    if "no cap" in line:
        return OPEN
    if total := re.search(r"their sum is eps=([\d.e+]+)", line):
        return float(total[1].rstrip("."))
    return max(float(amount.rstrip(".")) for amount in re.findall(r"eps=([\d.e+]+)", line.split("; this is")[0]))


def spent(*ledgers: Ledger) -> float:
    return max(sum(ledger.spent(person).epsilon for ledger in ledgers) for person in PEOPLE)


def test_a_ledger_that_is_opened_with_a_lower_cap_names_the_one_that_held(tmp_path: Path) -> None:
    with kept("eps=51", tmp_path / "people.db") as ledger:
        learn(model(ledger), 51)
    with kept("eps=1", tmp_path / "people.db") as ledger:
        one = model(ledger)
        learn(one, 1, people=("eve",))
        assert (
            "would pass eps=51; this is the largest cap under which a record was charged, and the cap is eps=1 now"
            in (one.statement())
        )


def test_a_cap_under_which_nothing_was_charged_is_not_named(tmp_path: Path) -> None:
    with kept("eps=51", tmp_path / "people.db"):
        pass
    with kept("eps=1", tmp_path / "people.db") as ledger:
        one = model(ledger)
        learn(one, 3)
        assert "would pass eps=1." in one.statement()


def test_two_ledgers_add_up() -> None:
    with Ledger("eps=1") as one, Ledger("eps=1.5") as other:
        parts = model(one), model(other)
        for part in parts:
            learn(part, 3)
        merged = parts[0].merged(parts[1])
        assert "eps=1; eps=1.5; their sum is eps=2.5" in merged.statement()
        assert bound(merged.statement()) >= spent(one, other) == 2


@pytest.mark.parametrize("act", ["merged", "loaded"])
def test_records_without_a_ledger_have_no_bound(act: str) -> None:
    with Ledger("eps=1") as ledger:
        free, capped = model(None), model(ledger)
        learn(free, 50)
        learn(capped, 1)
        if act == "merged":
            capped = capped.merged(free)
        else:
            capped.load_state_dict(free.state_dict())
            learn(capped, 1, people=("eve",))
        said = capped.statement()
        assert "would pass" not in said
        assert "some records were learned without a ledger, so no cap bounds a person's total" in said


def test_a_cap_of_its_own_is_named_if_it_is_larger() -> None:
    with Ledger("eps=2") as ledger:
        ledger.set_cap("ann", "eps=9")
        one = model(ledger)
        learn(one, 9)
        assert "would pass eps=2, or eps=9 for a person with a cap of its own" in one.statement()
        assert spent(ledger) == 9


def test_a_job_names_what_another_job_of_its_database_was_allowed(place: str) -> None:
    with Store(place, "one", "1", cap="eps=2") as store:
        one = model(store.ledger)
        learn(one, 2)
        store.commit(one.state_dict(), {}, Counts(learned=4))
    set_cap(place, "eps=1000", accept=True)
    with Store(place, "two", "1", cap="eps=1000") as store:
        assert store.ledger is not None
        two = model(store.ledger)
        learn(two, 3, budget=200)
        store.commit(two.state_dict(), {}, Counts(learned=6))
        assert spent(store.ledger) == 602
    set_cap(place, "eps=2")
    with Store(place, "one", "1", cap="eps=2") as store:
        again, state = model(store.ledger), Store.snapshot(place, "one")
        again.load_state_dict(state.state)
        learn(again, 1, people=("eve",))
        assert "would pass eps=1000; this is the largest cap" in again.statement()
    without = model(None)
    without.load_state_dict(state.state)
    said = without.statement(two.ledger.cap)  # type: ignore[union-attr]
    assert "the caps are those of the commit that is read here" in said


@pytest.mark.parametrize("pending", [False, True])
def test_a_cap_that_an_operator_gives_a_person_while_a_job_runs_is_named(place: str, pending: bool) -> None:
    with Store(place, "job", "1", cap="eps=2") as store:
        one = model(store.ledger)
        learn(one, 1, people=("bob",))
        if not pending:
            store.commit(one.state_dict(), {}, Counts(learned=1))
        set_caps(place, {"ann": "eps=10"}, accept=True)
        learn(one, 10, people=("ann",))
        charged = one.n_seen - 1
        assert charged == 10 or (pending and charged == 2)  # what is read beside pending spends may be older
        committed = store.commit(one.state_dict(), {}, Counts(learned=one.n_seen))
    again = model(None)
    again.load_state_dict(committed.state)
    assert bound(again.statement(parse_cap("eps=2"))) >= charged


class Histories(RuleBasedStateMachine):
    """Ledgers of several caps, learners with and without one, loads, merges and new openings."""

    models = Bundle("models")

    @initialize()
    def begin(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.stores = [self.opened("eps=2", 0)]
        self.charged: dict[int, dict[str, float]] = {}
        self.made: list[tuple[Any, dict[str, float]]] = []

    def opened(self, cap: str, at: int) -> Store:
        return Store(Path(self.folder.name) / f"{at}.db", "job", "1", cap=cap, key=b"k" * 32)

    @property
    def ledger(self) -> Ledger:
        assert self.stores[-1].ledger is not None
        return self.stores[-1].ledger

    def made_by(self, one: Any, charged: dict[str, float]) -> int:
        self.made.append((one, charged))
        return len(self.made) - 1

    @rule(target=models, cap=st.sampled_from([None, "eps=1", "eps=3", "eps=7"]), old=st.booleans())
    def make(self, cap: str | None, old: bool) -> int:
        if cap is None:
            return self.made_by(model(None), dict.fromkeys(PEOPLE, 0.0))
        if not old:
            self.stores.append(self.opened(cap, len(self.stores)))
        return self.made_by(model(self.ledger), dict.fromkeys(PEOPLE, 0.0))

    @rule(person=st.sampled_from(PEOPLE), cap=st.sampled_from(["eps=1", "eps=5", None]))
    def set_cap(self, person: str, cap: str | None) -> None:
        self.stores[-1].commit({}, {}, Counts())  # one that lowers a cap refuses what was charged before in it
        self.ledger.set_cap(person, cap)

    @rule(at=models, person=st.sampled_from(PEOPLE), budget=st.sampled_from([0.5, 1.0, 2.0]))
    def learn(self, at: int, person: str, budget: float) -> None:
        one, charged = self.made[at]
        before = one.n_seen
        learn(one, 1, budget, (person,))
        if one.n_seen > before:
            charged[person] += budget

    @rule(at=models, to=models)
    def load(self, at: int, to: int) -> None:
        one, _ = self.made[at]
        other, _ = self.made[to]
        other.load_state_dict(one.state_dict())
        self.made[to] = other, dict(self.made[at][1])

    @rule(target=models, at=models, to=models)
    def merge(self, at: int, to: int) -> int:
        (one, a), (other, b) = self.made[at], self.made[to]
        if one is other:
            return at
        return self.made_by(one.merged(other), {person: a[person] + b[person] for person in PEOPLE})

    @rule(cap=st.sampled_from(["eps=1", "eps=4", "eps=9"]))
    def reopen(self, cap: str) -> None:
        closed = self.ledger
        self.stores[-1].commit({}, {}, Counts())
        self.stores[-1].close()
        self.stores[-1] = self.opened(cap, len(self.stores) - 1)
        for at, (one, charged) in enumerate(self.made):
            if one.ledger is closed:
                again = model(self.ledger)
                again.load_state_dict(one.state_dict())
                self.made[at] = again, charged

    def teardown(self) -> None:
        for store in getattr(self, "stores", []):
            store.close()
        if hasattr(self, "folder"):
            self.folder.cleanup()

    @invariant()
    def never_below_what_was_charged(self) -> None:
        for one, charged in getattr(self, "made", []):
            most = max(charged.values())
            if most:
                assert bound(one.statement()) >= most * (1 - 1e-9)


TestHistories = Histories.TestCase
TestHistories.settings = settings(stateful_step_count=12)


def test_late_records_of_an_open_user_or_window_are_refused() -> None:
    from streamdp import UserLevelLDPRegressor, WindowedRegressor
    from streamdp.data.subjects import Dated

    now = 1.8e9
    kinds: list[Any] = [UserLevelLDPRegressor, WindowedRegressor]
    for kind in kinds:
        ledger = Ledger("eps=9,delta=1e-3 per 1 day, late 1 hour")
        ledger.moments.clock = lambda: now
        budget = {} if kind is UserLevelLDPRegressor else {"budget": "eps=1,delta=1e-6"}
        one = kind(features={"a": (-1, 1)}, target=(-1, 1), window=5000, ledger=ledger, **budget)
        for time, learned in ((now, True), (now - 90_000, False), (now + 90_000, False), (now - 60, True)):
            before = one.n_seen
            one.learn_one({"a": 0.5}, 0.5, subject=Dated("ann", time))
            assert (one.n_seen > before) is learned
        people = [Dated("ann", now - 90_000), Dated("bob", now - 90_000), Dated("bob", now), Dated("ann", now)]
        outcome = one.learn_encoded(np.zeros((4, 1)), np.zeros(4), None, people)
        assert outcome.tolist() == [REFUSED, REFUSED, JOINED, JOINED]
        assert one.n_refused == 4


def test_an_exception_gives_nobody_a_cap_that_no_statement_names(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger("eps=3")
    one = model(ledger)
    learn(one, 1)
    with monkeypatch.context() as interrupted:
        interrupted.setattr(MemoryRows, "charge", lambda *_, **__: signal.default_int_handler(2, None))
        with pytest.raises(KeyboardInterrupt):
            ledger.set_cap("ann", "eps=50")
    learn(one, 9)
    assert ledger.spent("ann").epsilon == 3
