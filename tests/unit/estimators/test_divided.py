"""Batches whose records are in several processes: the numbers of one process, and its noise."""

import copy
import os
import signal
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from streamdp import ApproxDP, GaussianDP, Ledger, PanPrivateClassifier, PanPrivateRegressor, ShuffleRegressor
from streamdp.errors import ConfigError, NotAtBoundaryError
from streamdp.learners.batches import Batches
from streamdp.privacy.grid_sum import GridSum
from streamdp.stats import Statistics
from tests.support.audit import epsilon_lower_bound
from tests.support.sizes import some
from tests.support.states import noise_of, open_sum, params_of, pending_of

NAMES = ["a", "b", "c"]
N = 503  # so that no batch has probes, which are of one process only


def records(n: int = N) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (n, 3))
    return X, X @ [0.5, -0.2, 0.1] + rng.normal(0, 0.1, n)


def model(kind: type[Any], **parameters: Any) -> Any:
    return kind(features=NAMES, **parameters)


class Processes:
    """The parts of all processes; each gets its records in three calls."""

    def __init__(self, kind: type[Any], homes: np.ndarray, subjects: list[str] | None, **more: Any) -> None:
        self.kind, self.more = kind, {name: value for name, value in more.items() if name != "ledger"}
        X, y = records(len(homes))
        self.parts: list[list[tuple[np.ndarray, np.ndarray]]] = []
        self.refused, self.left_out, of = 0, 0, int(homes.max()) + 1
        for i in range(of):
            part = model(kind, **more)
            part.gather_part(i, of)
            for mine in np.array_split(np.flatnonzero(homes == i), 3):
                part.learn_encoded(X[mine], y[mine], None, None if subjects is None else [subjects[j] for j in mine])
            self.refused += part.n_refused
            self.left_out += part.n_left_out
            self.parts.append(part.take_records())
        longest = max(map(len, self.parts))
        self.sizes = [sum(len(part[t][1]) for part in self.parts if t < len(part)) for t in range(longest)]

    def ask(self, batch: int, state: dict[str, Any]) -> Iterator[np.ndarray]:
        for part in self.parts:
            if batch < len(part) and len(part[batch][1]):
                holder = model(self.kind, **self.more)
                holder.load_state_dict(state)
                yield holder.part(*part[batch])


def learned_in_parts(kind: type[Any], of: int, n: int = N, **parameters: Any) -> tuple[Any, Processes]:
    processes = Processes(kind, np.arange(n) % of, None, **parameters)
    driver = model(kind, **parameters)
    driver.learn_parts(processes.sizes, processes.ask)
    return driver, processes


def learned_in_one(kind: type[Any], **parameters: Any) -> Any:
    one = model(kind, **parameters)
    one.learn_encoded(*records())
    one.close_batch()
    return one


@pytest.mark.parametrize("of", some([1, 3, 7], 1))
@pytest.mark.parametrize(
    "parameters",
    some([{"mechanism": "none", "change": "ignore"}, {"seed": 1}, {"seed": 1, "batch_size": 50},
        {"seed": 1, "method": "ac-sa"}, {"seed": 1, "loss": "quantile"}], 2, 4),
    ids=str,
)  # fmt: skip
@pytest.mark.slow
def test_a_divided_batch_is_that_of_one_process(parameters: dict[str, Any], of: int) -> None:
    """All numbers of the state, with the noise of a seed: batches, sums, noises, steps and counts."""
    divided, _ = learned_in_parts(PanPrivateRegressor, of, **parameters)
    ours, theirs = divided.state_dict(), learned_in_one(PanPrivateRegressor, **parameters).state_dict()
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        np.testing.assert_array_equal(ours[name], value, err_msg=name)


def test_the_last_batch_of_a_search_for_shares_counts_the_records_that_it_has() -> None:
    """Parts count batches as full. The intercept of two classes follows from the mean share so far."""
    X, y = records(130)
    options: dict[str, Any] = {"features": dict.fromkeys(NAMES, (-1, 1)), "seed": 1, "batch_size": 60}
    one, part, driver = (PanPrivateClassifier(**options) for _ in range(3))
    one.learn_encoded(X, np.asarray(y > 0.3, dtype=float))
    one.close_batch()
    part.gather_part(0, 1)
    part.learn_encoded(X, np.asarray(y > 0.3, dtype=float))
    batches = part.take_records()

    def ask(batch: int, state: dict[str, Any]) -> Iterator[np.ndarray]:
        holder = PanPrivateClassifier(**options)
        holder.load_state_dict(state)
        yield holder.part(*batches[batch])

    driver.learn_parts([len(batch[1]) for batch in batches], ask)
    np.testing.assert_array_equal(driver.state_dict()["state"], one.state_dict()["state"])


@pytest.mark.parametrize("sizes", [(60, 60), (40, 60, 30), (60, 0, 20, 60, 60)])
def test_a_search_for_shares_counts_the_records_that_short_batches_have(sizes: tuple[int, ...]) -> None:
    """All that were short before the last one counted as full, so that the intercept was too near to none."""
    X, y = records(sum(sizes))
    labels = np.asarray(y > 0.3, dtype=float)
    options: dict[str, Any] = {"features": dict.fromkeys(NAMES, (-1, 1)), "batch_size": 60, "mechanism": "none"}
    one, driver = (PanPrivateClassifier(**options) for _ in range(2))
    ends = np.cumsum(sizes)

    def ask(batch: int, state: dict[str, Any]) -> Iterator[np.ndarray]:
        holder = PanPrivateClassifier(**options)
        holder.load_state_dict(state)
        rows = slice(ends[batch] - sizes[batch], ends[batch])
        yield holder.part(X[rows], labels[rows])

    driver.learn_parts(sizes, ask)
    for start, size in zip(ends - sizes, sizes, strict=True):
        one.learn_encoded(X[start : start + size], labels[start : start + size])
        one.close_batch()
    theirs = one.state_dict()
    for name, value in driver.state_dict().items():
        np.testing.assert_array_equal(value, theirs[name], err_msg=name)


def test_divided_streams_of_small_batches_go_on_as_in_one_process() -> None:
    """The sequence of batches goes on from the records that were learned, also if the parts end at other places."""
    one, divided = model(PanPrivateRegressor, seed=1), model(PanPrivateRegressor, seed=1)
    X, y = records()
    for begin in range(0, N, 100):
        rows = slice(begin, begin + 100)
        one.learn_encoded(X[rows], y[rows])
        one.close_batch()
        parts = [model(PanPrivateRegressor) for _ in range(3)]
        for i, part in enumerate(parts):
            part.load_state_dict(divided.state_dict())
            part.gather_part(i, 3)
            part.learn_encoded(X[rows][i::3], y[rows][i::3])
        held = [part.take_records() for part in parts]
        sizes = [sum(len(part[t][1]) for part in held if t < len(part)) for t in range(max(map(len, held)))]

        def ask(t: int, state: dict[str, Any], held: Any = held) -> Iterator[np.ndarray]:
            for part in held:
                if t < len(part) and len(part[t][1]):
                    holder = model(PanPrivateRegressor)
                    holder.load_state_dict(state)
                    yield holder.part(*part[t])

        divided.learn_parts(sizes, ask)
    ours, theirs = divided.state_dict(), one.state_dict()
    for name in theirs.keys() - {"private"}:
        np.testing.assert_array_equal(ours[name], theirs[name], err_msg=name)


def test_a_part_that_is_longer_than_the_others_is_learned_whole() -> None:
    homes = (np.arange(N) % 10 == 0).astype(int)
    processes = Processes(PanPrivateRegressor, homes, None, mechanism="none")
    driver = model(PanPrivateRegressor, mechanism="none")
    driver.learn_parts(processes.sizes, processes.ask)
    assert sum(processes.sizes) == driver.n_seen == N
    assert driver.state_dict()["place"] == [0, 0, N]
    np.testing.assert_allclose(driver.prediction.estimate()[:3], [0.5, -0.2, 0.1], atol=0.03)


def test_no_subject_is_twice_in_a_batch_or_beyond_the_cap() -> None:
    """With a ledger: in one part as in one process; in several, by what each batch and each subject got."""
    n = 2503
    subjects = [f"s{i % 400}" for i in range(n)]
    parameters: dict[str, Any] = {"budget": "eps=1,delta=1e-6", "batch_size": 300, "seed": 1}
    one = model(PanPrivateRegressor, ledger=Ledger("eps=2,delta=2e-6"), **parameters)
    one.learn_encoded(*records(n), None, subjects)
    one.close_batch()
    whole = Processes(PanPrivateRegressor, np.zeros(n, int), subjects, ledger=Ledger("eps=2,delta=2e-6"), **parameters)
    driver = model(PanPrivateRegressor, **parameters)
    driver.learn_parts(whole.sizes, whole.ask)
    assert (driver.n_seen, whole.refused, whole.left_out) == (one.n_seen, one.n_refused, one.n_left_out)
    np.testing.assert_array_equal(driver.state_dict()["state"], one.state_dict()["state"])

    homes = np.arange(n) % 400 % 3
    several = Processes(PanPrivateRegressor, homes, subjects, ledger=Ledger("eps=2,delta=2e-6"), **parameters)
    of = {row.tobytes(): subject for row, subject in zip(records(n)[0], subjects, strict=True)}
    found: list[str] = []
    for batch in range(len(several.sizes)):
        mine = [of[row.tobytes()] for part in several.parts if batch < len(part) for row in part[batch][0]]
        assert len(set(mine)) == len(mine)
        found += mine
    assert max(found.count(subject) for subject in set(found)) == 2
    assert len(found) == 800 == n - several.refused - several.left_out


@pytest.mark.slow
@pytest.mark.parametrize("n", [600, 437])
def test_a_divided_shuffled_sum_has_the_noise_of_one_shuffler(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """1,000 sums of three parts: each mean within 6 standard errors; the mean variance within 8 % of the bits'.

    With 14 coordinates the standard deviation of the mean variance is sqrt(2 / (999 * 14)) = 1.2 %, so 8 % is more
    than six of them, and noise that is 20 % off is seen. With 437 of 600 people, the driver adds that of the absent.
    """
    parameters: dict[str, Any] = {"budget": "eps=1,delta=1e-6", "batch_size": 600}
    processes = Processes(ShuffleRegressor, np.arange(n) % 3, None, **parameters)
    assert processes.sizes == [n] or processes.sizes == [n, 0]
    driver = model(ShuffleRegressor, **parameters)
    start, totals = driver.state_dict(), []
    holder = model(ShuffleRegressor, seed=1, **parameters)
    monkeypatch.setattr(type(driver.learner), "move", lambda self, total, *_: totals.append(total))
    for _ in range(1000):
        driver.learner.step(n, (holder.part(*part[0]) for part in processes.parts))
    exact = model(PanPrivateRegressor, mechanism="none", batch_size=600)
    exact.load_state_dict(model(PanPrivateRegressor, mechanism="none", batch_size=600).state_dict())
    X, y = records(n)
    expected = exact.part(X, y) / noise_of(exact).cells
    found = np.array(totals)
    variance = params_of(driver).noise_variance / params_of(driver).d
    assert start["place"] == [0, 0, 0]
    assert np.all(np.abs(found.mean(axis=0) - expected) < 6 * np.sqrt(variance / 1000) + 1e-3)
    assert abs(found.var(axis=0, ddof=1).mean() / variance - 1) < 0.08


@pytest.mark.slow
def test_the_claim_holds_for_a_divided_shuffled_batch_and_not_with_half_its_noise() -> None:
    """An attack on what two parts add up to, with opposite records: 10,000 batches of each world, eps=1, delta=.05."""
    claimed = ApproxDP(1.0, 0.05)
    twice = GaussianDP(2 * GaussianDP.from_approx(claimed).mu).to_approx(0.05)

    def attack(budget: ApproxDP) -> float:
        holder = model(ShuffleRegressor, budget=budget, batch_size=20, method="sgd", seed=1)
        others = np.zeros((10, 3)), np.zeros(10)
        worst = np.full((1, 3), 3**-0.5)  # of all lengths, sqrt(2) with the intercept has the longest gradient
        scores = []
        for target in (1e6, -1e6):
            mine = np.concatenate([others[0][1:], worst]), np.append(others[1][1:], target)
            sums = [holder.part(*others) + holder.part(*mine) for _ in range(10_000)]
            scores.append(np.array(sums)[:, :4] @ np.append(worst, 1.0))
        return epsilon_lower_bound(*scores, claimed.delta)

    assert 0.55 < attack(claimed) <= 1.0
    assert attack(twice) > 1.0


def test_records_that_were_gathered_do_not_leave_with_a_copy_or_a_state() -> None:
    part = model(PanPrivateRegressor)
    part.gather_part(0, 2)
    X, y = records(50)
    part.learn_encoded(X, y)
    with pytest.raises(NotAtBoundaryError):
        part.state_dict()
    twin = copy.deepcopy(part)
    assert (twin.n_seen, twin.at_boundary) == (0, True)
    assert isinstance(twin.learner, Batches)
    ((found, _), *more) = part.take_records()
    np.testing.assert_array_equal(np.concatenate([found, *(X for X, _ in more)]), X)
    assert part.at_boundary
    assert part.n_seen == 50


def test_what_does_not_fit_is_refused_before_it_is_counted() -> None:
    driver = model(PanPrivateRegressor, batch_size=10)
    with pytest.raises(ConfigError, match="cannot have 11"):
        driver.learn_parts([11], lambda batch, state: [])
    assert (driver.n_seen, driver.guarantee.budgets) == (0, ())
    driver.learn_one(dict.fromkeys(NAMES, 1.0), 1.0)
    X, y = records(3)
    for call in (lambda: driver.part(X, y), lambda: driver.gather_part(0, 1), lambda: driver.learn_parts([], None)):
        with pytest.raises(NotAtBoundaryError):
            call()


@pytest.mark.parametrize("method", ["newton", "ac-sa"])
def test_without_records_nothing_happens(method: str) -> None:
    driver = model(PanPrivateRegressor, method=method)
    before = driver.state_dict()
    driver.learn_parts([0, 0], lambda batch, state: [])
    after = driver.state_dict()
    assert after.keys() == before.keys()
    for name, value in before.items():
        np.testing.assert_array_equal(after[name], value, err_msg=name)


def test_a_sum_is_spent_before_it_is_asked_for_and_is_overwritten_when_it_is_added() -> None:
    driver = model(PanPrivateRegressor, batch_size=10)
    sums: list[np.ndarray] = []

    def ask(batch: int, state: dict[str, Any]) -> Iterator[np.ndarray]:
        assert driver.n_seen == 10
        assert driver.guarantee.budgets
        assert np.all(open_sum(driver) != 0)  # the noise that opens a batch is there before the first sum
        sums.append(model(PanPrivateRegressor, batch_size=10).part(*records(10)))
        yield sums[-1]

    driver.learn_parts([10], ask)
    assert not sums[0].any()
    assert not open_sum(driver).any()


def test_a_batch_whose_opening_was_interrupted_takes_no_records_before_its_noise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver = model(PanPrivateRegressor, batch_size=10, seed=1)
    with monkeypatch.context() as interrupted:
        interrupted.setattr(GridSum, "add_noise", lambda *_: signal.default_int_handler(2, None))
        with pytest.raises(KeyboardInterrupt):
            driver.learn_parts([5], lambda batch, state: [])
    driver.learn_one(dict.fromkeys(NAMES, 0.0), 1.0)
    assert np.all(open_sum(driver) != 0)  # of such a record most numbers are 0


def test_parts_are_not_gathered_of_people_who_are_held_out_or_are_in_statistics() -> None:
    """They would wait in one sum for the end of a batch that never ends here, some of them from several batches."""
    one = model(PanPrivateRegressor, batch_size=50, validation={"share": 0.3, "bound": 1.0})
    with pytest.raises(ConfigError, match="leave validation and statistics out"):
        one.gather_part(0, 1)
    one.learn_encoded(*records(120))
    assert pending_of(one) < 50  # it learns as before


@pytest.mark.parametrize("kind", ["gathered", "sums"])
def test_a_fork_returns_nothing_of_a_part(kind: str) -> None:
    """Its people would be in a release of the process that gets the parent's part, and in one of the child's."""
    part: Any
    if kind == "sums":
        part, take = Statistics({"m": {"mean": "a"}}, {"a": (0, 1)}, trust="process"), "take_sums"
        part.part_of(1)
    else:
        part, take = PanPrivateRegressor(features={"a": (0, 1)}, target=(0, 1), batch_size=20), "take_records"
        part.gather_part(0, 1)
    for at in range(30):
        part.learn_one({"a": 0.5}, *([0.5] if kind == "gathered" else []))
        if kind == "sums" and at == 20:
            part.close_batch()

    def held() -> int:
        part.close_batch()
        found = getattr(part, take)()
        return int(sum(found["rows"])) if kind == "sums" else sum(len(y) for _, y in found)

    if (child := os.fork()) == 0:
        os._exit(held())
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert held() == 30
