"""An exception at any line of streamdp: what was learned is counted, noise is complete, and nobody is in a batch twice.

Each test runs a call once for each of its lines, raises there, goes on as a user would, and looks at every sum, report
and window that the estimator made.
"""

import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

from streamdp import (
    LDPASGDRegressor,
    LDPSGDClassifier,
    Ledger,
    PanPrivateClassifier,
    ShuffleClassifier,
    UserLevelLDPClassifier,
    UserLevelLDPRegressor,
    WindowedClassifier,
)
from streamdp.aggregation.shuffled_sum import LocalRandomizer, Shuffler
from streamdp.errors import StoreUnavailableError
from streamdp.learners.user_windows import WindowWarning
from streamdp.privacy.entropy import Entropy
from streamdp.privacy.release import JOINED
from streamdp.store.snapshot_codec import encode_state
from streamdp.validation.validator import MET
from tests.support.interruptions import interrupted, lines_of
from tests.support.plain_method import Plain
from tests.support.sizes import some
from tests.support.states import (
    buffer_of,
    give_words,
    kept,
    method_of,
    noise_of,
    params_of,
    pending_of,
    people_of,
    words_of,
)

pytestmark = pytest.mark.no_cover  # a tracer replaces that of the coverage

PEOPLE, FEW, LONG = 24, 5, 10**6
X = np.column_stack([np.arange(1.0, PEOPLE + 1) * 1e-6, np.full(PEOPLE, 1e-6)])
Y = np.arange(PEOPLE) % 2.0
SUBJECTS = [f"p{i}" for i in range(PEOPLE)]
NOISE = 2**45
"""What stands for the noise of a pan-private sum: a number that its records cannot make."""


def ids(rows: np.ndarray) -> list[int]:
    return [round(x * 1e6) for x in rows[:, 0].tolist()]


class Ones(Entropy):
    """Words of ones: every fair bit is 1, so a count of bits tells how many people added noise."""

    def _fill(self, out: np.ndarray) -> None:
        out[:] = 2**64 - 1


class Watched:
    """An estimator, and what the test saw of it."""

    def __init__(self, **options: Any) -> None:
        self.ledger = Ledger("eps=1e6,delta=0.1")
        self.model: Any = self.make(ledger=self.ledger, features=["a", "b"], **options)
        self.people: Counter[int] = Counter()
        self.faults: list[str] = []
        self.watch()

    make: Any
    calls: tuple[str, ...] = ("one", "arrays", "many", "close", "load")

    def watch(self) -> None:
        """Look at what the estimator does."""

    def fault(self, wrong: bool, text: str) -> None:
        if wrong:
            self.faults.append(text)

    def prepare(self, call: str) -> Callable[[], Any]:
        """The call to interrupt."""
        model = self.model
        if call == "one":
            return lambda: [self.one(i) for i in range(8)]
        if call == "arrays":
            return lambda: model.learn_encoded(X, Y, subjects=SUBJECTS)
        if call == "many":
            model.ledger = None  # rows of a frame have no subjects
            return lambda: model.learn_many(pd.DataFrame(X + 1e-3, columns=["a", "b"]), pd.Series(Y == 1))  # others
        if call == "load":
            state = type(self)().model.state_dict()
            self.few()
            return lambda: model.load_state_dict(state)
        self.few()
        return lambda: model.close_batch()

    def few(self) -> None:
        self.model.learn_encoded(X[:FEW], Y[:FEW], subjects=SUBJECTS[:FEW])

    def one(self, i: int) -> None:
        self.model.learn_one({"a": X[i, 0], "b": X[i, 1]}, bool(Y[i]), subject=SUBJECTS[i])

    def go_on(self) -> None:
        """Go on as a user would, with the same people, and look at the counts."""
        model = self.model
        model.ledger = self.ledger
        before = model.n_seen
        self.fault(not 0 <= pending_of(model) <= before, "more records are held than were counted")
        self.fault(bool(before) and not model.guarantee.budgets, "records without a spend")
        model.__getstate__()
        for i in range(3):
            self.one(i)
        outcome = model.learn_encoded(X, Y, subjects=SUBJECTS)
        taken = PEOPLE if outcome is None else int(np.count_nonzero(outcome == JOINED))
        self.fault(model.n_seen < before + taken, "counts were lost")
        model.close_batch()
        self.fault(not model.at_boundary, "no boundary after close_batch")
        self.fault(bool(buffer_of(model).any()), "a record stays in the buffer")
        type(self)().model.load_state_dict(model.state_dict())
        self.fault(not np.isfinite(model.theta).all(), "theta is not finite")


class Local(Watched):
    """A learner without batches."""

    make = LDPSGDClassifier
    calls = (*Watched.calls, "absorb")

    def __init__(self, **options: Any) -> None:
        super().__init__(budget="eps=0.5,delta=1e-6", **options)
        self.start = self.model.theta

    def prepare(self, call: str) -> Callable[[], Any]:
        if call == "absorb":
            report = self.model.randomizer({"a": 0.5, "b": 1.0}, 1.0)
            return lambda: self.model.absorb(report, subject="q")
        return super().prepare(call)

    def go_on(self) -> None:
        moved = not np.array_equal(self.model.theta, self.start)
        self.fault(moved and not (self.model.n_seen and self.model.guarantee.budgets), "a step without a count")
        super().go_on()


class Scaled(Local):
    """A learner that asks some records for bits."""

    @staticmethod
    def make(**options: Any) -> Any:
        raw = {"a": (0.0, 1.0), "b": (0.0, 1.0)}
        return LDPASGDRegressor(**(options | {"features": raw, "target": (0.0, 1.0)}))


class Answering(Local):
    """A learner whose records answer about the model's error beside their gradients."""

    def __init__(self, **options: Any) -> None:
        super().__init__(validation={"budget": "eps=0.5"}, **options)

    def answers(self) -> int:
        return int(self.model.quality.total.answers)

    def go_on(self) -> None:
        asked = self.answers()
        spends = Counter(self.model.guarantee.budgets)
        self.fault(asked > self.model.held_out.validator.progress[MET], "a record answers twice")
        self.fault(bool(asked) and not any(b.epsilon == 1.0 for b in spends), "an answer without its spend")
        super().go_on()
        self.fault(self.answers() > self.model.held_out.validator.progress[MET], "a record answers twice")


class Replacing(Answering):
    """A learner whose records answer or are learned."""

    def __init__(self, **options: Any) -> None:
        Watched.__init__(self, budget="eps=1", validation={"share": 0.5}, **options)
        self.start = self.model.theta

    def go_on(self) -> None:
        super().go_on()
        self.fault(self.answers() > self.model.n_seen, "an answer without a count")


class Batched(Watched):
    def seen(self, fresh: bool, rows: np.ndarray) -> None:
        """Note the people who were added to a sum."""
        if fresh:
            self.people.clear()
        self.people.update(ids(rows))
        self.fault(max(self.people.values(), default=0) > 1, f"twice in a batch: {self.people}")


class Pan(Batched):
    make = PanPrivateClassifier

    def __init__(self, **options: Any) -> None:
        super().__init__(**({"batch_size": 10} | options))

    def watch(self) -> None:
        model = self.model
        add, move, make_noise = model.learner.accumulate, model.learner.move, noise_of(model).noise
        size = len(make_noise(words_of(model)))

        def watched_add(spec: Any, point: Any, rows: Any, y: Any, cells: float, total: Any) -> None:
            self.fault(total.min() < NOISE // 2, "a record enters a sum without noise")
            self.seen(bool((total % NOISE == 0).all()), rows)
            add(spec, point, rows, y, cells, total)

        def watched_move(total: Any, *more: Any) -> None:
            self.fault((total * noise_of(model).cells).min() < 1.5 * NOISE, "a sum is released with too little noise")
            self.fault(not model.guarantee.budgets, "a release without a spend")
            move(total, *more)

        model.learner.accumulate, model.learner.move = watched_add, watched_move
        noise_of(model).noise = lambda rng: np.full(size, NOISE)


class PanPlanned(Pan):
    def __init__(self, **options: Any) -> None:
        super().__init__(method="ac-sa", horizon=60, batch_size=None, **options)


class Shuffled(Batched):
    make = ShuffleClassifier
    calls = (*Watched.calls, "absorb")

    def __init__(self, **options: Any) -> None:
        super().__init__(**({"batch_size": 10, "intercept": False, "budget": "eps=4,delta=1e-4"} | options))

    def watch(self) -> None:
        model = self.model
        add, move = model.learner._count_ones, model.learner.move
        give_words(model, Ones(64))

        def watched_add(spec: Any, point: Any, rows: Any, y: Any, *more: Any) -> int:
            fresh = not more[3].any()
            done: int = add(spec, point, rows, y, *more)
            self.seen(fresh, rows[:done])
            return done

        def watched_move(total: Any, *more: Any) -> None:
            params = params_of(model)
            ones = (2 * total / params.cell + params.users * (params.g + params.b)) / 2
            noises = ones.mean() / (params.b + params.g / 2)
            self.fault(noises < params.users - 0.5, f"the noise of {noises:.1f} people in place of {params.users}")
            self.fault(not model.guarantee.budgets, "a release without a spend")
            move(total, *more)

        model.learner._count_ones, model.learner.move = watched_add, watched_move

    def prepare(self, call: str) -> Callable[[], Any]:
        if call == "absorb":
            params = self.model.randomizer.params
            shuffler = Shuffler(params)
            shuffler.collect(LocalRandomizer(params, Ones(64)).messages(np.zeros((params.users, params.d))))
            shuffled = shuffler.forward()
            self.model.ledger = None  # shuffled bits have no subjects
            return lambda: self.model.absorb(shuffled)
        return super().prepare(call)


class ShuffledPlanned(Shuffled):
    def __init__(self, **options: Any) -> None:
        super().__init__(method="sgd", batch_size=None, horizon=40, **options)


class Users(Watched):
    """Reports: what the ledger spends for a subject covers all its reports."""

    make = UserLevelLDPClassifier
    calls = (*Watched.calls, "user", "absorb")

    def __init__(self, **options: Any) -> None:
        super().__init__(**({"items_per_user": 2, "window": 20, "batch_size": 6} | options))

    def watch(self) -> None:
        people = people_of(self.model)
        records = people.records

        def watched(users: Any) -> Any:
            X, y, sizes = records(users)
            for part in np.split(ids(X), np.cumsum(sizes)[:-1]):
                self.fault(len(set(part.tolist())) > 1, f"two people in one report: {part}")
                self.people.update(set(part.tolist()))
            self.fault(not self.model.guarantee.budgets, "a report without a spend")
            return X, y, sizes

        people.records = watched

    def prepare(self, call: str) -> Callable[[], Any]:
        if call == "user":
            self.few()
            return lambda: self.model.close_user(SUBJECTS[1])
        if call == "absorb":
            report = self.model.randomizer([({"a": 0.5, "b": 1.0}, 1.0)])
            return lambda: self.model.absorb(report, subject="q")
        return super().prepare(call)

    def go_on(self) -> None:
        people = people_of(self.model)
        if "records" not in vars(people):  # a loaded estimator collects anew
            self.watch()
        self.fault(self.model.at_boundary and people.held > 0, "a boundary while users are open")
        super().go_on()
        self.fault(people.rows.any(), "a raw record stays in memory")
        self.spends()

    def spends(self) -> None:
        for person, releases in self.people.items():
            if 0 < person <= PEOPLE:  # 0 are records that were overwritten, and larger numbers have no subject
                spent = self.ledger.spent(SUBJECTS[person - 1]).records
                self.fault(spent < releases, f"{releases} releases for {spent} spends")


class Windows(Users):
    make = WindowedClassifier
    calls = Watched.calls

    def __init__(self, **options: Any) -> None:
        super(Users, self).__init__(method=Plain(), items_per_user=2, window=20, **options)

    def watch(self) -> None:
        model = self.model

        class Watching(Plain):
            def run(method, plan: Any, users: Any, start: Any, rng: Any) -> Any:
                named = [ids(part)[0] for part in np.split(users._X, users._starts[1:-1])]
                for part in np.split(users._X, users._starts[1:-1]):
                    self.fault(len(set(ids(part)) - {0}) > 1, "two people in one user")
                    self.fault(len(part) > 2, "more records than a user gives")
                counts = Counter(person for person in named if person)
                self.fault(max(counts.values(), default=0) > 1, "one person is two users of a window")
                self.people.update(counts.keys())
                self.fault(not model.guarantee.budgets, "a release without a spend")
                return super().run(plan, users, start, rng)

        model.learner.method = Watching()

    def go_on(self) -> None:
        super(Users, self).go_on()
        self.fault(self.model.learner.gathered.rows.any(), "a raw record stays in memory")
        self.spends()


KINDS: list[type[Watched]] = [
    Local, Scaled, Answering, Replacing, Pan, PanPlanned, Shuffled, ShuffledPlanned, Users, Windows,
]  # fmt: skip
CASES = [
    pytest.param(kind, call, id=f"{kind.__name__}-{call}", marks=[pytest.mark.campaign] * (i % 3 > 0))
    for i, (kind, call) in enumerate((kind, call) for kind in KINDS for call in kind.calls)
]
"""The suite has every third; the campaign has all."""


def check(kind: type[Watched], call: str, most: int) -> int:
    """Interrupt a call at each of its lines, or at `most` of them; return how many interruptions there were."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", WindowWarning)
        kind().prepare(call)()  # imports
        lines = lines_of(kind().prepare(call))
        assert lines
        at = range(lines) if lines <= most else sorted(np.random.default_rng(lines).choice(lines, most, replace=False))
        found: Counter[str] = Counter()
        for after in at:
            watched = kind()
            run = watched.prepare(call)
            interrupted(run, int(after))
            watched.go_on()
            found.update(set(watched.faults))
    assert not found
    return len(at)


@pytest.mark.parametrize(("kind", "call"), CASES)
@pytest.mark.slow
def test_an_interruption_at_any_of_some_lines_breaks_no_promise(kind: type[Watched], call: str) -> None:
    check(kind, call, 3)


@pytest.mark.campaign
@pytest.mark.timeout(LONG)
@pytest.mark.parametrize(("kind", "call"), CASES)
def test_an_interruption_at_any_line_breaks_no_promise(kind: type[Watched], call: str) -> None:
    check(kind, call, LONG)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("ignore::streamdp.learners.user_windows.WindowWarning")
def test_nothing_is_taken_where_the_ledger_does_not_answer(
    kind: type[Watched], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a worker could not repeat the call."""

    def silent(*_: object) -> None:
        raise StoreUnavailableError("no answer")

    watched = kind()
    learn, before = watched.prepare("arrays"), kept(watched.model)
    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "prepare", silent)
        with pytest.raises(StoreUnavailableError):
            learn()
    assert (kept(watched.model), watched.model.guarantee.budgets) == (before, ())
    watched.go_on()
    assert not watched.faults


@pytest.mark.slow
def test_an_interrupted_change_of_units_leaves_theta_of_before_or_after() -> None:
    """At every 20th line of the report that changes the units of columns; theta and its query point agree."""
    rng = np.random.default_rng(1)
    raw = rng.normal([300.0, 500.0], [5.0, 4.0], (400, 2))
    target = raw[:, 0] - 100.0

    def learner(records: int) -> Any:
        bounds = {"features": {"a": (0.0, 1000.0), "b": (0.0, 1000.0)}, "target": (0.0, 1000.0)}
        model = UserLevelLDPRegressor(budget="eps=8", items_per_user=1, seed=3, **bounds)
        model.learn_encoded(raw[:records], target[:records])
        return model

    def points(model: Any) -> list[float]:
        return np.append(model.theta, model.randomizer.units.outward(model.randomizer.point)).tolist()

    whole = learner(0)
    units = whole.randomizer.units.columns
    for records in range(len(raw)):
        before = points(whole)
        whole.learn_encoded(raw[records : records + 1], target[records : records + 1])
        if (whole.randomizer.units.columns != units).any():
            break
    assert not np.allclose(before, points(whole), rtol=1e-6)
    last = slice(records, records + 1)

    def prepared() -> tuple[Any, Callable[[], Any]]:
        model = learner(records)
        return model, lambda: model.learn_encoded(raw[last], target[last])

    for after in range(0, lines_of(prepared()[1]), 20):
        model, call = prepared()
        interrupted(call, after)
        for found, old, new in zip(points(model), before, points(whole), strict=True):
            assert found == pytest.approx(old, rel=1e-9) or found == pytest.approx(new, rel=1e-9)


def loads(kind: type[Watched]) -> tuple[Any, Any]:
    """Two estimators at a boundary: one to load into, and one whose state is loaded."""
    mine, other = kind().model, kind().model
    mine.learn_encoded(X[:FEW], Y[:FEW], subjects=SUBJECTS[:FEW])
    other.learn_encoded(X, Y, subjects=SUBJECTS)
    for model in (mine, other):
        model.close_batch()
    return mine, other


def without_features(kind: type[Watched]) -> tuple[Any, Any]:
    mine, other = loads(kind)
    blank = mine.clone(None if kind is Scaled else {"features": None})  # Scaled declares bounds
    if kind is Windows:
        blank.learner.method = method_of(other)  # the watched one
    return blank, other


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "pair"),
    [
        *some([(kind, loads) for kind in KINDS], 0, 4, 6),
        *(pytest.param(kind, without_features, marks=pytest.mark.campaign) for kind in KINDS),
    ],
)
@pytest.mark.filterwarnings("ignore::streamdp.learners.user_windows.WindowWarning")
def test_an_interrupted_load_leaves_all_of_before_or_all_of_after(kind: type[Watched], pair: Any) -> None:
    """At any of some lines; what is compared is the whole state, with theta and the query point in memory."""

    def whole(model: Any) -> Any:
        if model.prediction is None:
            return None
        points = [model.theta.tolist(), getattr(model.learner, "middle", model.theta).tolist()]
        return encode_state(model.state_dict()), points

    def found(after: int) -> tuple[Any, Any, Any, int]:
        mine, other = pair(kind)
        before = whole(mine)
        lines = interrupted(lambda: mine.load_state_dict(other.state_dict()), after)
        return before, whole(mine), whole(other), lines

    lines = found(LONG)[3]
    same: Counter[str] = Counter()
    for after in {*np.linspace(0, lines - 1, 6, dtype=int).tolist(), *range(lines - 5, lines + 1)}:
        before, mine, other, _ = found(after)
        same["before"] += mine == before
        same["after"] += mine == other
        assert mine in (before, other)
    assert same["before"] > 3
    assert same["after"]
