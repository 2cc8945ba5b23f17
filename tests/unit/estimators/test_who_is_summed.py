"""Nobody is seen by more than the ledger has charged: see `tests.support.who`."""

import itertools
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from streamdp.config import definition
from streamdp.estimators import estimator, held_out_statistics
from streamdp.estimators.held_out_statistics import HeldOutStatistics
from streamdp.learners.drawn import Drawn
from streamdp.learners.series import Series
from streamdp.learners.side_statistics import SideStatistics, divided
from streamdp.learners.sums import HeldPure, Pan
from streamdp.learners.window_buffer import Gathering
from streamdp.ledger import ledger as ledgers
from streamdp.ledger.ledger import Ledger
from streamdp.ledger.loans import Loan
from streamdp.ledger.memory_rows import MemoryRows
from streamdp.privacy.grid_sum import GridSum
from streamdp.privacy.release import Release
from streamdp.validation.plan import Plan
from streamdp.windows import newton
from tests.support.sizes import some
from tests.support.who import SLACK, case, excess, run

MOST = 60
"""A fault must be noticed within so many runs."""


@pytest.fixture(autouse=True)
def seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STREAMDP_TEST_SEEDS", "1")


def check(seeds: range) -> Counter[str]:
    """Run cases; return how many there were with each feature, and how many releases."""
    seen: Counter[str] = Counter()
    for seed in seeds:
        given = case(seed)
        outcome = run(given)
        assert excess(given, outcome) <= SLACK, f"{given}: {outcome}"
        seen.update(f"{name} {value}" for name, value in given.features().items())
        seen["released"] += outcome.releases
        seen["of the person"] += outcome.seen.mu_squared > 0 or outcome.seen.epsilon > 0
    return seen


@pytest.mark.parametrize("first", some([0, 20, 40], 0))
def test_nobody_is_seen_by_more_than_the_ledger_has_charged(first: int) -> None:
    seen = check(range(first, first + 20))
    assert seen["released"] > 100
    assert seen["of the person"] >= 10


def forgets_people(patch: pytest.MonkeyPatch) -> None:
    real = Release.join

    def join(self: Release, *given: Any) -> np.ndarray:
        found = real(self, *given)
        self.people, self.periods = {}, set()
        return found

    patch.setattr(Release, "join", join)


def takes_each_record_for_a_person(patch: pytest.MonkeyPatch) -> None:
    real = Release.join

    def join(self: Release, people: Any, *given: Any) -> np.ndarray:
        return real(self, [None if p is None else p + bytes([i % 256]) for i, p in enumerate(people)], *given)

    patch.setattr(Release, "join", join)


def charges_all_records_as_the_first(patch: pytest.MonkeyPatch) -> None:
    real = ledgers.shared_numbers
    patch.setattr(Release, "most", property(lambda self: None, lambda self, most: None), raising=False)
    patch.setattr(ledgers, "shared_numbers", lambda spend, numbers: real(spend, np.ones_like(numbers)))


def charges_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MemoryRows, "admit", lambda self, slots, terms: np.ones(slots.shape[1], dtype=bool))


def keeps_a_sum_for_the_next_batch(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Pan, "wipe", lambda self: None)


def gives_both_parts_the_whole_budget(patch: pytest.MonkeyPatch) -> None:
    def whole(budget: Any, share: float, trust: str) -> tuple[Any, Any]:
        return divided(budget, 1 - 1e-9, trust)[0], divided(budget, 1e-9, trust)[1]

    patch.setattr(definition, "divided", whole)
    patch.setattr(estimator, "divided", whole)


def charges_the_period_of_the_moment(patch: pytest.MonkeyPatch) -> None:
    real = Ledger.prepare
    patch.setattr(Ledger, "prepare", lambda self, subjects: real(self, [s and bytes(s) for s in subjects]))


def halves_the_noise_of_sums(patch: pytest.MonkeyPatch) -> None:
    real = GridSum.__init__

    def init(self: GridSum, *given: Any) -> None:
        real(self, *given)
        self.scale /= 2

    patch.setattr(GridSum, "__init__", init)


def halves_the_noise_of_windows(patch: pytest.MonkeyPatch) -> None:
    real = newton._noise
    patch.setattr(newton, "_noise", lambda task, mu, users: real(task, 2 * mu, users))


def halves_the_noise_of_exact_sums(patch: pytest.MonkeyPatch) -> None:
    real = HeldPure.__init__

    def init(self: HeldPure, *given: Any) -> None:
        real(self, *given)
        self.sum.scale /= 2

    patch.setattr(HeldPure, "__init__", init)


def has_a_tenth_of_the_noise_of_probes(patch: pytest.MonkeyPatch) -> None:
    real = GridSum.scale_of_first
    patch.setattr(GridSum, "scale_of_first", lambda *given: real(*given) / 10)


def ends_a_release_that_the_next_rows_have_joined(patch: pytest.MonkeyPatch) -> None:
    real = Series.come_to

    def come_to(self: Series, y: np.ndarray) -> int:
        latest = self._latest(self._begun)
        if latest is not None and latest < self._calendar.numbers(y[:1])[0] <= self._begun:
            self.close()
        return real(self, y)

    patch.setattr(Series, "come_to", come_to)


def charges_no_answers(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Plan, "total", lambda self, budget: budget)


def learns_records_again_that_were_asked(patch: pytest.MonkeyPatch) -> None:
    real = HeldOutStatistics.learn

    def learn(self: HeldOutStatistics, learner: Any, X: np.ndarray, y: np.ndarray, budget: Any, amounts: Any) -> None:
        real(self, learner, X.copy(), y.copy(), budget, amounts)
        learner.learn(X, y, budget, amounts)

    patch.setattr(HeldOutStatistics, "learn", learn)


def draws_records_to_the_model_and_to_the_statistics(patch: pytest.MonkeyPatch) -> None:
    real = SideStatistics.draw

    def draw(self: SideStatistics, model: Any, X: np.ndarray, y: np.ndarray, amounts: Any) -> Any:
        real(self, model, X.copy(), y.copy(), amounts)
        return X, y, amounts

    patch.setattr(SideStatistics, "draw", draw)


def charges_the_usual_budget_for_each_report(patch: pytest.MonkeyPatch) -> None:
    real = ledgers.spend_numbers
    patch.setattr(ledgers, "spend_numbers", lambda budget, amounts, n: real(budget, None, n))


def takes_no_charges_back_from_lanes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Loan, "settle", lambda self, keys, rows: None)


def reports_twice(patch: pytest.MonkeyPatch) -> None:
    real = Drawn.learn

    def learn(self: Drawn, *given: Any) -> None:
        real(self, *given)
        real(self, *given)

    patch.setattr(Drawn, "learn", learn)


def gives_answers_and_what_is_learned_the_whole_budget(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(held_out_statistics, "divided", lambda budget, share, trust: (budget, budget))


def asks_people_of_a_window_who_are_learned(patch: pytest.MonkeyPatch) -> None:
    real = Gathering.close

    def close(self: Gathering, held: np.ndarray | None = None) -> Any:
        users, out = real(self, None)
        return users, out if held is None or not held.any() else tuple(array.copy() for array in users)

    patch.setattr(Gathering, "close", close)


FAULTS: list[tuple[Callable[[pytest.MonkeyPatch], None], dict[str, str]]] = [
    (charges_no_answers, {"validation": "budget"}),
    (learns_records_again_that_were_asked, {"validation": "share"}),
    (draws_records_to_the_model_and_to_the_statistics, {"what": "both"}),
    (charges_the_usual_budget_for_each_report, {"own": "True"}),
    (takes_no_charges_back_from_lanes, {"spark": "True"}),
    (reports_twice, {"trust": "nobody"}),
    (gives_answers_and_what_is_learned_the_whole_budget, {"validation": "share", "trust": "process"}),
    (asks_people_of_a_window_who_are_learned, {"validation": "share"}),
    (forgets_people, {}),
    (takes_each_record_for_a_person, {}),
    (charges_all_records_as_the_first, {}),
    (charges_nothing, {}),
    (keeps_a_sum_for_the_next_batch, {}),
    (gives_both_parts_the_whole_budget, {"what": "both"}),
    (charges_the_period_of_the_moment, {"period": "renews"}),
    (halves_the_noise_of_sums, {}),
    (halves_the_noise_of_windows, {"trust": "window"}),
    (halves_the_noise_of_exact_sums, {"trust": "window"}),
    (has_a_tenth_of_the_noise_of_probes, {"change": "follow", "trust": "process", "classes": "True", "what": "model"}),
    (ends_a_release_that_the_next_rows_have_joined, {"every": "True"}),
]
"""Each with the features of the cases in which it is looked for."""


@pytest.mark.parametrize(("fault", "where"), some(FAULTS, 3, 5, 8, 10), ids=[fault.__name__ for fault, _ in FAULTS])
def test_a_planted_fault_is_noticed(
    fault: Callable[[pytest.MonkeyPatch], None], where: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cases = (given for given in map(case, itertools.count()) if where.items() <= given.features().items())
    chosen = list(itertools.islice(cases, MOST))
    fault(monkeypatch)
    assert any(excess(given, run(given)) > SLACK for given in chosen)
